"""Filtering with nominated Pods, and the copies of the cycle state that dry runs change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from dray.api.types.core_v1 import Pod
from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import PreFilterResult
from dray.framework.pod_info import PodInfo
from dray.framework.status import SKIP, SUCCESS, Status, error, unschedulable
from dray.scheduler.cycle import run_pre_filter
from dray.scheduler.filter_runner import AttemptError, FilterRunner, runner_of
from dray.scheduler.nominations import Nominations
from tests.unit.scheduler.builders import node_info, pod_info, state
from tests.unit.scheduler.test_cycle import profile


@dataclass
class Seen:
    """Names of Pods, as a plugin's PreFilter counted them."""

    names: set[str] = field(default_factory=set)

    def clone(self) -> Seen:
        return Seen(set(self.names))


class Alone:
    """Rejects nodes while its state has a Pod."""

    name = "Alone"

    def __init__(self, status: Status = SUCCESS, *, broken: bool = False) -> None:
        self._status = status
        self._broken = broken
        self.filtered: list[list[str]] = []

    def pre_filter(self, state: CycleState, _pod: Pod) -> tuple[PreFilterResult | None, Status]:
        state[self.name] = Seen()
        return None, self._status

    def add_pod(self, state: CycleState, _pod: Pod, other: PodInfo, node: NodeInfo) -> Status:
        assert other.uid in node.pods
        state[self.name].names.add(other.key.name)
        return error("broken") if self._broken else SUCCESS

    def remove_pod(self, state: CycleState, _pod: Pod, other: PodInfo, node: NodeInfo) -> Status:
        assert other.uid not in node.pods
        state[self.name].names.discard(other.key.name)
        return SUCCESS

    def filter(self, state: CycleState, _pod: Pod, _node: NodeInfo) -> Status:
        self.filtered.append(sorted(state[self.name].names))
        return unschedulable("not alone") if state[self.name].names else SUCCESS


def prepare(plugin: Alone, *nominated: PodInfo, priority: int = 0, node: str = "n") -> tuple[CycleState, FilterRunner]:
    nominations = Nominations()
    for item in nominated:
        nominations.set(item, node)
    used = profile(plugin)
    attempt = state(pod_info(priority=priority))
    run_pre_filter(used, attempt, 1)
    return attempt, runner_of(used, attempt, nominations)


@pytest.mark.behaviour("PE-47")
def test_a_copy_of_the_state_is_changed_apart() -> None:
    original = state(pod_info())
    original["own"] = Seen({"a"})
    shared = original["shared"] = {"b"}
    original.skip_filter.add("X")
    copy = original.clone()
    copy["own"].names.add("c")
    copy.skip_filter.add("Y")
    assert original["own"].names == {"a"}
    assert copy["own"].names == {"a", "c"}
    assert copy["shared"] is shared
    assert original.skip_filter == {"X"}
    assert copy.pod_info is original.pod_info


@pytest.mark.behaviour("PE-38")
def test_nominated_pods_reach_what_pre_filter_computed() -> None:
    plugin = Alone()
    attempt, runner = prepare(plugin, pod_info("expected"))
    assert runner.run(attempt, node_info("n")) == unschedulable("not alone").with_plugin("Alone")
    assert plugin.filtered == [["expected"]]
    assert attempt["Alone"].names == set()


@pytest.mark.behaviour("PE-38")
@pytest.mark.parametrize(
    ("nominated", "priority", "node"),
    [
        pytest.param(pod_info("less", priority=4), 5, "n", id="of lower priority"),
        pytest.param(pod_info("p"), 0, "n", id="the Pod itself"),
        pytest.param(pod_info("other"), 0, "elsewhere", id="to another node"),
    ],
)
def test_nominations_that_do_not_count(nominated: PodInfo, priority: int, node: str) -> None:
    plugin = Alone()
    attempt, runner = prepare(plugin, nominated, priority=priority, node=node)
    assert runner.run(attempt, node_info("n")) is SUCCESS
    assert plugin.filtered == [[]]


@pytest.mark.behaviour("PE-38")
def test_both_passes_must_succeed() -> None:
    class NeedsCompany(Alone):
        def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
            return SUCCESS if not super().filter(state, pod, node).is_success else unschedulable("alone")

    plugin = NeedsCompany()
    attempt, runner = prepare(plugin, pod_info("expected"))
    assert runner.run(attempt, node_info("n")).reasons == ("alone",)
    assert plugin.filtered == [["expected"], []]


@pytest.mark.behaviour("PE-47")
def test_a_plugin_that_skipped_is_not_asked() -> None:
    plugin = Alone(SKIP)
    attempt, runner = prepare(plugin, pod_info("expected"))
    assert runner.run(attempt, node_info("n")) is SUCCESS
    assert plugin.filtered == []
    assert attempt["Alone"].names == set()


@pytest.mark.behaviour("PE-47")
def test_removed_and_added_pods() -> None:
    running = pod_info("running", requests={"cpu": "1"})
    node = node_info("n", pods=[running, pod_info("other")])
    plugin = Alone()
    attempt, runner = prepare(plugin)
    attempt["Alone"].names.update(("running", "other"))
    copy = attempt.clone()
    without = runner.remove_pods(copy, [running], node)
    assert list(without.pods) == ["uid-other"]
    assert copy["Alone"].names == {"other"}
    again = runner.add_pod(copy, running, without)
    assert again.requested == node.requested
    assert copy["Alone"].names == attempt["Alone"].names == {"running", "other"}
    assert list(node.pods) == ["uid-running", "uid-other"]


def test_a_plugin_that_cannot_add_a_pod_fails_the_attempt() -> None:
    attempt, runner = prepare(Alone(broken=True), pod_info("expected"))
    with pytest.raises(AttemptError, match=r'running AddPod on PreFilter plugin "Alone": broken'):
        runner.run(attempt, node_info("n"))


class AloneInBulk(Alone):
    """Updates its state for several Pods at once, and counts the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    def add_pods(self, state: CycleState, _pod: Pod, others: Sequence[PodInfo], _node: NodeInfo) -> Status:
        self.calls.append(("add", len(others)))
        state[self.name].names.update(other.key.name for other in others)
        return SUCCESS

    def remove_pods(self, state: CycleState, _pod: Pod, others: Sequence[PodInfo], _node: NodeInfo) -> Status:
        self.calls.append(("remove", len(others)))
        state[self.name].names.difference_update(other.key.name for other in others)
        return SUCCESS


def test_a_plugin_may_update_its_state_for_several_pods_in_one_call() -> None:
    """In a timed attempt each Pod is observed by itself."""
    plugin, observed = AloneInBulk(), list[str]()
    plain = profile(plugin)
    timed = plain.timed(lambda: 0.0, lambda _name, point, _status, _seconds: observed.append(point))
    pods = [pod_info(f"p{number}") for number in range(3)]
    for used in (plain, timed):
        attempt = state(pod_info("preemptor"))
        run_pre_filter(used, attempt, 1)
        runner = runner_of(used, attempt, Nominations())
        with_pods = runner.add_pods(attempt, pods, node_info())
        assert attempt["Alone"].names == {"p0", "p1", "p2"}
        assert list(runner.remove_pods(attempt, pods[:2], with_pods).pods) == ["uid-p2"]
        assert attempt["Alone"].names == {"p2"}
    assert plugin.calls == [("add", 3), ("remove", 2)]
    assert observed.count("PreFilterExtensionAddPod") == 3
    assert observed.count("PreFilterExtensionRemovePod") == 2
