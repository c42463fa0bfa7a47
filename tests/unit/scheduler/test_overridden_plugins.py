"""A plugin that inherits from a built-in one and overrides `filter` or `score` alone: its own method decides."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dray.api.types.core_v1 import Pod
from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import is_superseded
from dray.framework.pod_info import PodInfo
from dray.framework.status import SUCCESS, Status, unschedulable
from dray.scheduler.cycle import Cycle
from dray.scheduler.diagnosis import Diagnosis
from dray.scheduler.nominations import Nominations
from dray.scheduler.plugins.dynamic_resources.plugin import DynamicResources
from dray.scheduler.plugins.inter_pod_affinity.plugin import InterPodAffinity
from dray.scheduler.plugins.node_resources_fit import NodeResourcesFit
from dray.scheduler.profile import PodChanges
from tests.unit.scheduler.builders import handle, node_info, pod_info, state
from tests.unit.scheduler.test_cycle import profile

NODES = [node_info(f"n{number}") for number in range(200)]
CLOSED = unschedulable("node(s) were closed")


class ClosedNodes(NodeResourcesFit):
    """Closes nodes on top of what it inherits."""

    closed: frozenset[str] = frozenset(node.name for node in NODES)

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        return CLOSED if node.name in self.closed else super().filter(state, pod, node)

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        return int(node.name.removeprefix("n"))


class ClosedAtOnce(ClosedNodes):
    """Overrides the method for many nodes, too."""

    def filter_all(self, state: CycleState, pod: Pod, nodes: Sequence[NodeInfo]) -> list[Status]:
        return [self.filter(state, pod, node) for node in nodes]


class OtherDevices(DynamicResources):
    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        return SUCCESS


class HeldDevices(DynamicResources):
    """Of Pods that are removed, the devices stay in use."""

    def remove_pod(self, state: CycleState, _pod: Pod, other: PodInfo, node: NodeInfo) -> Status:
        return SUCCESS


class NormalizedFit(NodeResourcesFit):
    def normalize_scores(self, _state: CycleState, _pod: Pod, scores: list[int]) -> None:
        highest = max(scores)
        scores[:] = [100 * (score == highest) for score in scores]


class OtherAffinity(InterPodAffinity):
    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        return SUCCESS


# With the name of the class that it is derived from.
SAME_NAME = type("NodeResourcesFit", (ClosedNodes,), {})


@pytest.mark.parametrize("implementation", [ClosedNodes, SAME_NAME])
def test_the_filter_of_the_subclass_decides_for_every_pod(implementation: type[ClosedNodes]) -> None:
    framework_handle = handle(*NODES)
    plugin = implementation({}, framework_handle)
    cycle, own = Cycle(framework_handle.snapshot, Nominations()), profile(plugin)
    for number in range(3):
        found = cycle.place(own, state(pod_info(f"p{number}")))
        assert isinstance(found, Diagnosis)
        assert found.message() == "0/200 nodes are available: 200 node(s) were closed."
    # Nothing is kept for equal Pods: what the subclass depends on is not known.
    plugin.closed = frozenset(node.name for node in NODES[:-1])
    placement = cycle.place(own, state(pod_info("last")))
    assert not isinstance(placement, Diagnosis)
    assert placement.node_name == "n199"


def test_inherited_shortcuts_of_an_overridden_method_are_not_used() -> None:
    framework_handle = handle(*NODES)
    for each in (profile(ClosedNodes({}, framework_handle)), profile(NodeResourcesFit({}, framework_handle))):
        overridden = isinstance(each.plugins["NodeResourcesFit"], ClosedNodes)
        for used in (each, each.timed(lambda: 0.0, lambda *_: None)):
            filters = used.active_filters(state(pod_info()))
            assert (filters.unknown == {"NodeResourcesFit"}) is overridden
            [(_, filter_all)] = filters.bulk
            [scorer] = used.scorers
            assert (scorer.cache_key is None) is overridden
            attempt = state(pod_info())
            ClosedNodes({}, framework_handle).pre_filter(attempt, attempt.pod_info.pod)
            closed = filter_all(attempt, attempt.pod_info.pod, NODES[:1]) == [CLOSED]
            assert closed is overridden
            scores = scorer.score_all(attempt, attempt.pod_info.pod, NODES[:3])
            assert (scores == [0, 1, 2]) is overridden


def test_scores_that_a_subclass_normalizes_are_not_cached() -> None:
    framework_handle = handle(*NODES)
    [scorer] = profile(NormalizedFit({}, framework_handle)).scorers
    assert scorer.cache_key is None


def test_the_inherited_removal_of_several_pods_is_not_used_instead_of_an_overridden_one() -> None:
    # Only the classes matter.
    inherited, held = DynamicResources.__new__(DynamicResources), HeldDevices.__new__(HeldDevices)
    assert PodChanges(inherited, bulk=True).remove_pods == inherited.remove_pods
    changes = PodChanges(held, bulk=True)
    assert changes.add_pods == held.add_pods
    attempt = state(pod_info())
    assert changes.remove_pods(attempt, attempt.pod_info.pod, [pod_info("a"), pod_info("b")], NODES[0]) is SUCCESS


def test_which_methods_are_superseded() -> None:
    shortcuts = ("filter_all", "dry_run_signature")
    # Only the classes matter.
    assert [is_superseded(DynamicResources.__new__(DynamicResources), name) for name in shortcuts] == [False] * 2
    assert [is_superseded(OtherDevices.__new__(OtherDevices), name) for name in shortcuts] == [True] * 2
    held = HeldDevices.__new__(HeldDevices)
    # The filter is the same, but its results in dry runs are not.
    assert [is_superseded(held, name) for name in shortcuts] == [False, True]
    assert not is_superseded(InterPodAffinity.__new__(InterPodAffinity), "filter_all")
    assert is_superseded(OtherAffinity.__new__(OtherAffinity), "filter_all")
    fit = ClosedAtOnce({}, handle())
    assert not is_superseded(fit, "filter_all")
    assert is_superseded(fit, "name")
    assert not is_superseded(fit, "reserve"), "no shortcut"
