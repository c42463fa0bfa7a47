"""Which devices a container gets."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from dray.node.devices.device_selection import Candidates, PreferenceRequest, TooFewError, choose, split_by_affinity
from dray.node.devices.inventory import Device, in_order


def free(*names: str, **places: tuple[int, ...]) -> tuple[Device, ...]:
    """In the order of names, as the inventory gives them."""
    found = {**dict.fromkeys(names, ()), **places}
    return tuple(Device(name, True, found[name]) for name in in_order(found))


@dataclass(frozen=True)
class Case:
    given: Candidates
    expected: tuple[str, ...] | PreferenceRequest
    preference: tuple[str, ...] | None = None


NUMA = free("n1", a1=(0,), a2=(0,), b1=(1,), b2=(1,))

CASES = {
    "reusable ones alone": Case(Candidates(1, free("x"), ("r1", "r2")), ("r1",)),
    "reusable ones first": Case(Candidates(3, free("x", "y"), ("r1",)), ("r1", "x", "y"), ()),
    "asks with what is taken": Case(
        Candidates(3, free("x", "y"), ("r1",)), PreferenceRequest(("r1", "x", "y"), ("r1",), 3), None
    ),
    "prefers": Case(Candidates(2, free("a", "b", "c")), ("c", "b"), ("c", "b")),
    "bogus preference": Case(Candidates(2, free("a", "b")), ("b", "a"), ("bogus", "b")),
    "short preference": Case(Candidates(3, free("a", "b", "c")), ("c", "a", "b"), ("c",)),
    "long preference": Case(Candidates(1, free("a", "b", "c")), ("c",), ("c", "b", "a")),
    "aligned": Case(Candidates(1, NUMA, affinity=0b10), ("b1",), ()),
    "asks about the aligned": Case(Candidates(1, NUMA, affinity=0b10), PreferenceRequest(("b1", "b2"), (), 1)),
    "prefers among the aligned": Case(Candidates(1, NUMA, affinity=0b10), ("b2",), ("a1", "b2")),
    "all aligned, no question": Case(Candidates(2, NUMA, affinity=0b10), ("b1", "b2"), None),
    "aligned, then preferred": Case(Candidates(3, NUMA, affinity=0b10), ("b1", "b2", "n1"), ("n1",)),
    "asks beyond the aligned": Case(
        Candidates(3, NUMA, affinity=0b10), PreferenceRequest(("a1", "a2", "b1", "b2", "n1"), ("b1", "b2"), 3)
    ),
    "aligned, unaligned, without place": Case(Candidates(5, NUMA, affinity=0b10), ("b1", "b2", "a1", "a2", "n1"), ()),
    "close to both": Case(Candidates(1, free(x=(1,), y=(0, 1)), affinity=0b1), ("y",), ()),
}


@pytest.mark.behaviour("DP-27", "DP-28")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_choice(case: Case) -> None:
    assert choose(case.given, case.preference) == case.expected


def test_too_few() -> None:
    with pytest.raises(TooFewError) as caught:
        choose(Candidates(4, free("a", "b"), ("r",)), ())
    assert (caught.value.needed, caught.value.available) == (3, 2)


@pytest.mark.behaviour("DP-27")
@pytest.mark.parametrize(
    ("affinity", "expected"),
    [
        (None, ((), (), ("a1", "a2", "b1", "b2", "n1"))),
        (0b01, (("a1", "a2"), ("b1", "b2"), ("n1",))),
        (0b11, (("a1", "a2", "b1", "b2"), (), ("n1",))),
        (0b100, ((), ("a1", "a2", "b1", "b2"), ("n1",))),
    ],
)
def test_split_by_affinity(affinity: int | None, expected: tuple[tuple[str, ...], ...]) -> None:
    assert split_by_affinity(NUMA, affinity) == expected


def test_order() -> None:
    assert in_order(["gpu10", "gpu2", "a", "10", "9"]) == ("9", "10", "a", "gpu2", "gpu10")
