"""The nodes found with kept results are those that filtering one by one finds, and only changed nodes are filtered."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any

import pytest

from dray.framework.cycle_state import CycleState
from dray.framework.snapshot import Snapshot
from dray.framework.status import SUCCESS, Status, unschedulable
from dray.scheduler.filter_result_cache import FilterResults, PartIndex
from dray.scheduler.nominations import Nominations
from tests.unit.scheduler.builders import node_info, pod_info

NODES = 40
STEPS = 60


class Pools:
    """A plugin whose decisions depend on pools: two nodes share one."""

    name = "Pools"

    def __init__(self) -> None:
        self.changes: list[str] = []

    def filter(self, *_given: object) -> Status:
        raise NotImplementedError

    def dry_run_signature(self, _state: CycleState) -> Hashable | None:
        raise NotImplementedError

    def parts_of(self, node: Any) -> Iterable[str]:
        return (pool_of(node.name),)

    def parts_version(self) -> Hashable:
        return len(self.changes)

    def parts_changed_since(self, version: int) -> Iterable[str] | None:
        return self.changes[version:]

    def dry_run_dependencies(self, *_given: object) -> Sequence[object] | None:
        raise NotImplementedError


def pool_of(name: str) -> str:
    return f"pool{int(name.removeprefix('n')) // 2}"


# Nodes share these objects, as they share those of the plugins.
REASONS = [unschedulable(f"reason {number}") for number in range(5)]


def rejection_of(at: int) -> Status:
    return REASONS[at % len(REASONS)]


def decide(accepting: set[str], filtered: list[str], indices: Sequence[int]) -> list[Status]:
    filtered += [f"n{at}" for at in indices]
    return [SUCCESS if f"n{at}" in accepting else rejection_of(at) for at in indices]


def accepted(
    results: FilterResults, start: int, wanted: int, decide: Callable[[Sequence[int]], Sequence[Status]]
) -> list[int]:
    found: list[int] = []

    def add(indices: Sequence[int]) -> int:
        found.extend(indices)
        return wanted - len(found)

    results.find_accepted(start, wanted, decide, add)
    return found


@pytest.mark.behaviour("SC-11")
@pytest.mark.parametrize("seed", range(30))
def test_filter_result_cache_find_what_filtering_finds(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"n{number}" for number in range(NODES)]
    snapshot = Snapshot([node_info(name) for name in names])
    nominations, pools, results = Nominations(), Pools(), FilterResults()
    index = PartIndex(snapshot, pools)
    accepting = {name for name in names if rng.random() < rng.choice((0.02, 0.5))}
    for step in range(STEPS):
        for _ in range(rng.randrange(4)):
            name = rng.choice(names)
            change = rng.randrange(3)
            concerned = {name}
            if change == 0:
                snapshot.replace(node_info(name))
            elif change == 1:
                nominations.set(pod_info(f"p{step}"), name)
            else:
                pools.changes.append(pool_of(name))
                concerned = {other for other in names if pool_of(other) == pool_of(name)}
            accepting = {
                other for other in names if (other in accepting) != (other in concerned and rng.random() < 0.5)
            }
        index.refresh()
        results.refresh(snapshot, nominations, [(pools, index)])
        start, wanted = rng.randrange(NODES), rng.choice((1, 7, NODES))
        filtered: list[str] = []
        found = accepted(results, start, wanted, partial(decide, accepting, filtered))
        order = [*range(start, NODES), *range(start)]
        expected = [at for at in order if names[at] in accepting][:wanted]
        assert found == expected
        assert len(filtered) == len(set(filtered))
        evaluated = NODES if len(found) < wanted else order.index(found[-1]) + 1
        # No node is filtered that a search one by one would not reach, and each in that order.
        assert set(filtered) <= {names[at] for at in order[:evaluated]}
        assert filtered == [names[at] for at in order if names[at] in filtered]
        rejected = {names[at]: rejection_of(at) for at in order[:evaluated] if names[at] not in accepting}
        if evaluated == NODES:
            assert list(results.rejections(start).items()) == list(rejected.items())
        counted = results.counted_rejections(snapshot, start, evaluated)
        assert {id(status): count for status, count, _ in counted} == Counter(map(id, rejected.values()))
        assert all(rejected[name] is status for status, _, name in counted)
        if rng.random() < 0.3:
            # What is kept is explained, or does not apply to others.
            results.explain(snapshot, {names[at]: rejection_of(at) for at in rng.sample(range(NODES), 5)})
            results.invalidate(rng.sample(range(NODES), 2))


def test_only_changed_nodes_are_filtered_again() -> None:
    snapshot = Snapshot([node_info(f"n{number}") for number in range(NODES)])
    nominations, pools, results = Nominations(), Pools(), FilterResults()
    index = PartIndex(snapshot, pools)

    def filtered() -> list[int]:
        index.refresh()
        results.refresh(snapshot, nominations, [(pools, index)])
        found: list[int] = []

        def decide(indices: Sequence[int]) -> list[Status]:
            found.extend(indices)
            return [SUCCESS] * len(indices)

        assert len(accepted(results, 0, NODES, decide)) == NODES
        return found

    assert len(filtered()) == NODES
    assert filtered() == []
    snapshot.replace(node_info("n5"))
    pools.changes.append("pool4")
    nominations.set(pod_info("p"), "n20")
    assert filtered() == [5, 8, 9, 20]
    snapshot.replace_all([node_info("n0")])
    index.refresh()
    results.refresh(snapshot, nominations, [(pools, index)])
    assert accepted(results, 0, 5, lambda indices: [SUCCESS] * len(indices)) == [0]


def test_explanations_are_kept_with_the_rejections() -> None:
    snapshot = Snapshot([node_info("n0"), node_info("n1")])
    nominations, results = Nominations(), FilterResults()
    results.refresh(snapshot, nominations, [])
    assert accepted(results, 0, 2, lambda indices: [unschedulable("no") for _ in indices]) == []
    results.explain(snapshot, {"n0": unschedulable("no, because")})
    results.refresh(snapshot, nominations, [])
    assert results.rejections(1) == {"n0": unschedulable("no, because"), "n1": unschedulable("no")}


def test_nodes_are_filtered_together_until_enough_are_accepted() -> None:
    snapshot = Snapshot([node_info(f"n{number}") for number in range(NODES)])
    results = FilterResults()
    results.refresh(snapshot, Nominations(), [])
    calls: list[list[int]] = []

    def decide(indices: Sequence[int]) -> list[Status]:
        calls.append(list(indices))
        return [SUCCESS if at % 3 else rejection_of(at) for at in indices]

    assert accepted(results, 0, 8, decide) == [1, 2, 4, 5, 7, 8, 10, 11]
    # First as many as are wanted, then as many as were rejected.
    assert calls == [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10], [11]]
    calls.clear()
    results.invalidate([3, 4])
    assert accepted(results, 0, 8, decide) == [1, 2, 4, 5, 7, 8, 10, 11]
    assert calls == [[3, 4]]
