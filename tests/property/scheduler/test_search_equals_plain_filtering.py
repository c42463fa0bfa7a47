"""The search for feasible nodes finds the same, whatever is kept of earlier ones."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Sequence

import pytest

from dray.api.types.core_v1 import Pod
from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import EXTENSION_POINTS, Plugin
from dray.framework.pod_info import PodInfo
from dray.framework.snapshot import Snapshot
from dray.framework.status import SUCCESS, Code, Status, error, unschedulable
from dray.scheduler.cycle import Cycle, Placement
from dray.scheduler.filter_runner import AttemptError
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

    def filter(self, _state: CycleState, _pod: Pod, node: NodeInfo) -> Status:
        return SUCCESS if node.name in self.accepted else unschedulable(f"rejected by {self.name}")


class BulkFilter(PlainFilter):
    """The same for many nodes at once, with a success of its own."""

    def filter_all(self, state: CycleState, pod: Pod, nodes: Sequence[NodeInfo]) -> Sequence[Status]:
        return [Status(Code.SUCCESS) if node.name in self.accepted else self.filter(state, pod, node) for node in nodes]


class KeptFilter(PlainFilter):
    """One that says what it depends on, so that its results are kept."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.version = 0

    def dry_run_signature(self, _state: CycleState) -> Hashable:
        return self.name

    def parts_of(self, _node: NodeInfo) -> Iterable[str]:
        return ()

    def parts_version(self) -> Hashable:
        return self.version

    def parts_changed_since(self, version: Hashable) -> Iterable[str] | None:
        return () if version == self.version else None

    def dry_run_dependencies(self, _state: CycleState, _removed: Sequence[PodInfo]) -> None:
        return None


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
def test_every_search_finds_the_same(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"n{number}" for number in range(rng.choice((5, 40, NODE_COUNT)))]
    plain = [PlainFilter("A"), PlainFilter("B")]
    kinds = (PlainFilter, BulkFilter, KeptFilter)
    others = [rng.choice(kinds)("A"), rng.choice(kinds)("B")]
    usual, fast = (Cycle(Snapshot([node_info(name) for name in names]), Nominations()) for _ in range(2))
    chosen, without = profile_of(*others), profile_of(*plain)
    timed = chosen.timed(lambda: 0.0, lambda *_observed: None)
    for number in range(ATTEMPTS):
        share = rng.choice((0.0, 0.02, 0.3, 0.9, 1.0))
        for one, other in zip(plain, others, strict=True):
            if isinstance(other, KeptFilter):
                if rng.random() < 0.6:
                    continue
                other.version += 1
            one.accepted = other.accepted = {name for name in names if rng.random() < share}
        expected = usual.place(without, state(pod_info(f"p{number}")))
        found = fast.place(timed if rng.random() < 0.3 else chosen, state(pod_info(f"p{number}")))
        assert found == expected


class FailingFilter(KeptFilter):
    """Fails on nodes that are not accepted."""

    def filter(self, _state: CycleState, _pod: Pod, node: NodeInfo) -> Status:
        return SUCCESS if node.name in self.accepted else error("broken")


@pytest.mark.behaviour("SC-23")
def test_a_failure_counts_only_where_no_plugin_before_rejects_the_node() -> None:
    before, failing = PlainFilter("A"), FailingFilter("B")
    cycle = Cycle(Snapshot([node_info("n0"), node_info("n1")]), Nominations())
    before.accepted = failing.accepted = {"n1"}
    found = cycle.place(profile_of(before, failing), state(pod_info("p")))
    assert isinstance(found, Placement)
    assert found.node_name == "n1"
    before.accepted = {"n0", "n1"}
    with pytest.raises(AttemptError, match='running "B" filter plugin: broken'):
        cycle.place(profile_of(before, failing), state(pod_info("q")))
