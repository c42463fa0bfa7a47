"""The search for feasible nodes finds the same, whatever the batch filters have cached."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

import pytest

from dray.api.types.core_v1 import Pod
from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import EXTENSION_POINTS, Plugin
from dray.framework.snapshot import Snapshot
from dray.framework.status import SUCCESS, Status, unschedulable
from dray.scheduler.cycle import Cycle
from dray.scheduler.nominations import Nominations
from dray.scheduler.plugins.queueing import PrioritySort
from dray.scheduler.profile import Profile
from tests.unit.scheduler.builders import node_info, pod_info, state

NODE_COUNT = 180
ATTEMPTS = 12


class PlainFilter:
    """Accepts a set of nodes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.accepted: set[str] = set()
        self.cached: set[str] = set()

    def filter(self, _state: CycleState, _pod: Pod, node: NodeInfo) -> Status:
        return SUCCESS if node.name in self.accepted else unschedulable(f"rejected by {self.name}")


class CachingFilter(PlainFilter):
    """The same with cached results for some of the nodes."""

    def maybe_feasible(self, _state: CycleState, snapshot: Snapshot, first_index: int) -> Sequence[int] | None:
        if not self.cached:
            return None
        indices = (*range(first_index, len(snapshot)), *range(first_index))
        names = [node.name for node in snapshot.nodes]
        return [index for index in indices if names[index] not in self.cached or names[index] in self.accepted]

    def needs_filter(self, _state: CycleState, snapshot: Snapshot, indices: range) -> Sequence[int]:
        known = self.cached & self.accepted
        return [index for index in indices if snapshot.nodes[index].name not in known]


class ScanningFilter(PlainFilter):
    """The same, for many nodes at once."""

    def scan(self, _state: CycleState, snapshot: Snapshot, indices: Iterable[int]) -> Iterator[int]:
        return (index for index in indices if snapshot.nodes[index].name in self.accepted)


class Scorer:
    """Prefers nodes by their number."""

    name = "Scorer"

    def score(self, _state: CycleState, _pod: Pod, node: NodeInfo) -> int:
        return int(node.name.removeprefix("n")) % 7


def profile_of(*plugins: Plugin) -> Profile:
    every: tuple[Plugin, ...] = (PrioritySort(), *plugins, Scorer())
    points = {name: [plugin for plugin in every if point.has(plugin)] for name, point in EXTENSION_POINTS.items()}
    return Profile("default-scheduler", points, {}, 0)


@pytest.mark.parametrize("seed", range(100))
def test_every_candidate_source_finds_the_same(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"n{number}" for number in range(rng.choice((5, 40, NODE_COUNT)))]
    plain = [PlainFilter("A"), PlainFilter("B")]
    # With a cache, without, or one that scans.
    first = rng.choice((CachingFilter, CachingFilter, PlainFilter, ScanningFilter))
    caching = [first("A"), rng.choice((CachingFilter, CachingFilter, ScanningFilter))("B")]
    usual, fast = (Cycle(Snapshot([node_info(name) for name in names]), Nominations()) for _ in range(2))
    with_cache, without = profile_of(*caching), profile_of(*plain)
    timed = with_cache.timed(lambda: 0.0, lambda *_observed: None)
    for number in range(ATTEMPTS):
        share = rng.choice((0.0, 0.02, 0.3, 0.9, 1.0))
        for one, other in zip(plain, caching, strict=True):
            one.accepted = other.accepted = {name for name in names if rng.random() < share}
            other.cached = {name for name in names if rng.random() < rng.choice((0.0, 0.5, 1.0))}
        expected = usual.place(without, state(pod_info(f"p{number}")))
        assert fast.place(timed if rng.random() < 0.3 else with_cache, state(pod_info(f"p{number}"))) == expected
