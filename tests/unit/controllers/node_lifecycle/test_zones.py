"""How well the zones are, and who is emptied when."""

from __future__ import annotations

import pytest

from dray.controllers.node_lifecycle.eviction_limiter import EvictionLimiter
from dray.controllers.node_lifecycle.zones import Change, Rates, Zones, ZoneState

RATES = Rates(large_cluster_size=10)


def zones(**sizes: tuple[int, int]) -> Zones:
    """Zones by name, each with so many nodes that are well and so many that are not."""
    made = Zones(RATES)
    for zone, (well, unwell) in sizes.items():
        for number in range(well + unwell):
            made.put(f"{zone}-{number}", zone, healthy=number < well)
    made.evaluate()
    return made


STATES = {
    "all well": ((3, 0), ZoneState.NORMAL, 0.1),
    "two silent are no trouble of the zone": ((1, 2), ZoneState.NORMAL, 0.1),
    "below the threshold": ((3, 3), ZoneState.NORMAL, 0.1),
    "a small zone stops": ((2, 3), ZoneState.PARTIAL_DISRUPTION, 0.0),
    "a large zone slows down": ((4, 8), ZoneState.PARTIAL_DISRUPTION, 0.01),
    "exactly the threshold": ((9, 11), ZoneState.PARTIAL_DISRUPTION, 0.01),
    "a zone of which nothing is left, while others are well": ((0, 4), ZoneState.FULL_DISRUPTION, 0.1),
}


@pytest.mark.parametrize("row", STATES.values(), ids=STATES.keys())
def test_states(row: tuple[tuple[int, int], ZoneState, float]) -> None:
    counts, state, rate = row
    made = zones(judged=counts, other=(1, 0))
    assert dict(made.items())["judged"].state is state
    assert made.rate("judged") == rate


def test_nothing_well_anywhere_stops_everything() -> None:
    made = zones(a=(1, 1), b=(0, 1))
    assert not made.stopped
    made.put("a-0", "a", healthy=False)
    assert made.evaluate() is Change.STOPPED
    assert made.stopped
    assert (made.rate("a"), made.rate("b")) == (0.0, 0.0)
    assert made.evaluate() is Change.NOTHING
    made.put("b-0", "b", healthy=True)
    assert made.evaluate() is Change.RESUMED
    assert made.rate("a") == 0.1


def test_nodes_that_do_not_count_and_empty_zones() -> None:
    made = zones(a=(0, 1))
    assert made.stopped
    made.put("a-0", "a", healthy=None)
    assert made.evaluate() is Change.RESUMED
    assert made.items() == ()
    made.put("a-0", "b", healthy=True)
    made.evaluate()
    assert [name for name, _ in made.items()] == ["b"]
    made.remove("a-0")
    made.evaluate()
    assert made.items() == ()


def granted(limiter: EvictionLimiter, zone: str, rate: float, *times: float) -> list[str | None]:
    return [limiter.next(zone, rate, time)[0] for time in times]


def test_first_come_first_served_at_the_rate() -> None:
    limiter = EvictionLimiter()
    for name in ("a", "b", "c"):
        limiter.enqueue(name, "z")
    assert limiter.next("z", 0.1, 100.0) == ("a", pytest.approx(10.0))
    assert granted(limiter, "z", 0.1, 105.0, 110.0, 119.0, 120.0) == [None, "b", None, "c"]
    assert limiter.next("z", 0.1, 200.0) == (None, None)
    assert limiter.is_permitted("c")


def test_a_quiet_time_saves_up_one_turn() -> None:
    limiter = EvictionLimiter()
    limiter.enqueue("a", "z")
    assert granted(limiter, "z", 0.1, 0.0, 10_000.0) == ["a", None]
    for name in ("b", "c"):
        limiter.enqueue(name, "z")
    assert granted(limiter, "z", 0.1, 10_000.0, 10_000.0, 10_010.0) == ["b", None, "c"]


def test_zones_do_not_wait_for_each_other() -> None:
    limiter = EvictionLimiter()
    limiter.enqueue("a", "y")
    limiter.enqueue("b", "z")
    assert limiter.waiting_zones == ("y", "z")
    assert granted(limiter, "y", 0.1, 0.0) + granted(limiter, "z", 0.1, 0.0) == ["a", "b"]


def test_no_rate_no_turn() -> None:
    limiter = EvictionLimiter()
    limiter.enqueue("a", "z")
    assert limiter.next("z", 0.0, 0.0) == (None, None)
    assert limiter.next("z", 0.1, 1.0) == ("a", None)


def test_who_is_well_again_gives_up_its_place() -> None:
    limiter = EvictionLimiter()
    limiter.enqueue("a", "z")
    limiter.enqueue("b", "z")
    limiter.remove("a")
    assert granted(limiter, "z", 1.0, 0.0) == ["b"]
    limiter.done("b")
    assert limiter.is_done("b")
    limiter.enqueue("b", "z")
    assert limiter.waiting_zones == ()
    limiter.remove("b")
    limiter.enqueue("b", "z")
    assert limiter.waiting_zones == ("z",)


def test_a_node_that_moves_waits_in_its_new_zone() -> None:
    limiter = EvictionLimiter()
    limiter.enqueue("a", "y")
    limiter.enqueue("a", "z")
    assert limiter.waiting_zones == ("z",)
