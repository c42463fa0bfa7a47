"""Which Pods would have to go: on one node, within budgets, and the choice among nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dray.api.selectors import LabelSelector
from dray.api.timestamps import format_time
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.framework.status import Code, Status, unresolvable, unschedulable
from dray.scheduler.cycle import run_pre_filter
from dray.scheduler.filter_runner import AttemptError, runner_of
from dray.scheduler.nominations import Nominations
from dray.scheduler.plugins.default_preemption import read_arguments
from dray.scheduler.plugins.node_ports import NodePorts
from dray.scheduler.plugins.node_resources_fit import NodeResourcesFit
from dray.scheduler.plugins.node_unschedulable import NodeUnschedulable
from dray.scheduler.preemption.budgets import Budget, split_by_violation
from dray.scheduler.preemption.candidates import SearchLimits, choose, find_candidates, rejection_message
from dray.scheduler.preemption.dry_run import NO_VICTIMS, Candidate, DryRun
from dray.scheduler.preemption.units import unit_of
from tests.unit.scheduler.builders import container, handle, node_info, pod_info, state
from tests.unit.scheduler.test_cycle import profile

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def running(name: str, cpu: str = "1", *, minutes: int | None = None, **words: Any) -> PodInfo:
    """A Pod that was started so many minutes ago."""
    status = {} if minutes is None else {"startTime": format_time(NOW - timedelta(minutes=minutes))}
    return pod_info(name, requests={"cpu": cpu}, status=status, **words)


def dry_run(
    preemptor: PodInfo,
    nodes: Sequence[NodeInfo],
    budgets: Sequence[Budget] = (),
    nominated: Mapping[str, PodInfo] | None = None,
) -> DryRun:
    framework = handle(*nodes)
    used = profile(NodeUnschedulable(framework), NodePorts(), NodeResourcesFit({}, framework))
    nominations = Nominations()
    for name, item in (nominated or {}).items():
        nominations.set(item, name)
    attempt = state(preemptor)
    run_pre_filter(used, attempt, len(nodes))
    return DryRun(runner_of(used, attempt, nominations), attempt, budgets)


def victims(found: Candidate | Status) -> list[str]:
    assert isinstance(found, Candidate), found
    return [pod.key.name for pod in found.victims]


def on_one_node(preemptor: PodInfo, *pods: PodInfo, **words: Any) -> Candidate | Status:
    node = node_info("n", pods=pods)
    before = (dict(node.pods), node.requested)
    found = dry_run(preemptor, [node], **words).on(node)
    assert (dict(node.pods), node.requested) == before
    return found


@pytest.mark.behaviour("PE-18", "PE-19", "PE-20")
@pytest.mark.parametrize(
    ("preemptor", "pods", "expected"),
    [
        pytest.param(
            running("p", "2", priority=10),
            [running("a", "2", priority=1), running("b", "2", priority=2)],
            ["a"],
            id="the less important one goes",
        ),
        pytest.param(
            running("p", "2", priority=10),
            [running("old", "2", minutes=9), running("new", "2", minutes=1)],
            ["new"],
            id="of equal priority the one that was started later goes",
        ),
        pytest.param(
            running("p", "2", priority=10),
            [running("started", "2", minutes=1), running("waiting", "2")],
            ["waiting"],
            id="a Pod that has not started counts as started last",
        ),
        pytest.param(
            running("p", "2", priority=10),
            [running("waiting", "2"), running("ahead", "2", minutes=-1)],
            ["waiting"],
            id="also after one whose start is yet to come, by the clock of its node",
        ),
        pytest.param(
            running("p", "4", priority=10),
            [running("a", "1", priority=3), running("b", "1", priority=5), running("c", "2", priority=4)],
            ["b", "c", "a"],
            id="all go, the most important first",
        ),
        pytest.param(
            running("p", "2", priority=10),
            [running("small", "1", priority=1), running("large", "3", priority=2)],
            ["large"],
            id="a less important Pod is reprieved where it helps nothing",
        ),
        pytest.param(
            running("p", "2", priority=10),
            [running("equal", "2", priority=10), running("low", "2", priority=9)],
            ["low"],
            id="equal priority is never preempted",
        ),
        pytest.param(
            pod_info("p", priority=1, containers=[container(ports=[{"hostPort": 80, "containerPort": 80}])]),
            [
                pod_info("web", containers=[container(ports=[{"hostPort": 80, "containerPort": 80}])]),
                pod_info("other", containers=[container(ports=[{"hostPort": 81, "containerPort": 80}])]),
            ],
            ["web"],
            id="a host port",
        ),
    ],
)
def test_victims_on_a_node(preemptor: PodInfo, pods: list[PodInfo], expected: list[str]) -> None:
    assert victims(on_one_node(preemptor, *pods)) == expected


@pytest.mark.behaviour("PE-08", "PE-18")
@pytest.mark.parametrize(
    ("preemptor", "pods", "expected"),
    [
        pytest.param(running("p", "1"), [], unresolvable(NO_VICTIMS), id="no Pods"),
        pytest.param(
            running("p", "4", priority=5),
            [running("equal", "1", priority=5), running("higher", "1", priority=6)],
            unresolvable(NO_VICTIMS),
            id="none of lower priority",
        ),
        pytest.param(
            running("p", "4", priority=5),
            [running("equal", "1", priority=5), running("low", "3")],
            unschedulable("Insufficient cpu").with_plugin("NodeResourcesFit"),
            id="not enough, even without all of them",
        ),
    ],
)
def test_no_candidate(preemptor: PodInfo, pods: list[PodInfo], expected: Status) -> None:
    assert on_one_node(preemptor, *pods) == expected


@pytest.mark.behaviour("PE-23")
def test_a_candidate_without_victims_is_an_error() -> None:
    found = on_one_node(running("p", "1", priority=5), running("low", "1"))
    assert isinstance(found, Status)
    assert (found.code, found.message) == (Code.ERROR, 'expected at least one victim pod on node "n"')


@pytest.mark.behaviour("PE-18", "PE-38")
def test_room_of_nominated_pods_is_not_taken() -> None:
    pods = [running("a", "2", priority=1), running("b", "2", priority=1, minutes=5)]
    preemptor = running("p", "2", priority=10)
    nominated = {"n": running("expected", "2", priority=10)}
    assert victims(on_one_node(preemptor, *pods, nominated=nominated)) == ["b", "a"]
    nominated = {"n": running("expected", "2", priority=9)}
    assert victims(on_one_node(preemptor, *pods, nominated=nominated)) == ["a"]


def budget(allowed: int, *, app: str = "web", namespace: str = "default", disrupted: Sequence[str] = ()) -> Budget:
    return Budget(namespace, LabelSelector.from_labels({"app": app}), allowed, frozenset(disrupted))


WEB = {"app": "web"}


@pytest.mark.behaviour("PE-21")
@pytest.mark.parametrize(
    ("pods", "budgets", "expected"),
    [
        pytest.param([running("a", labels=WEB)], [budget(0)], ["a"], id="nothing allowed"),
        pytest.param([running("a", labels=WEB), running("b", labels=WEB)], [budget(1)], ["b"], id="one allowed"),
        pytest.param([running("a", labels={"app": "x"})], [budget(0)], [], id="not matched"),
        pytest.param([running("a")], [budget(0)], [], id="without labels"),
        pytest.param([running("a", labels=WEB, namespace="other")], [budget(0)], [], id="another namespace"),
        pytest.param([running("a", labels=WEB)], [budget(0, disrupted=["a"])], [], id="counted already"),
        pytest.param([running("a", labels=WEB)], [Budget("default", None, 0)], [], id="no selector"),
        pytest.param([running("a", labels=WEB)], [Budget("default", LabelSelector(), 0)], [], id="empty selector"),
        pytest.param(
            [running("a", labels={"app": "web", "tier": "x"}), running("b", labels={"tier": "x"})],
            [budget(0), Budget("default", LabelSelector.from_labels({"tier": "x"}), 1)],
            ["a"],
            id="budgets after an overdrawn one are not charged",
        ),
        pytest.param(
            [running("a", labels={"app": "web", "tier": "x"}), running("b", labels={"tier": "x"})],
            [budget(1), Budget("default", LabelSelector.from_labels({"tier": "x"}), 1)],
            ["b"],
            id="every matching budget is charged",
        ),
    ],
)
def test_violated_budgets(pods: list[PodInfo], budgets: list[Budget], expected: list[str]) -> None:
    violating, others = split_by_violation([unit_of(pod) for pod in pods], budgets)
    units = [unit for unit, _ in violating]
    assert [unit.pods[0].key.name for unit in units] == expected
    assert {unit.pods[0].key.name for unit in (*units, *others)} == {pod.key.name for pod in pods}


@pytest.mark.behaviour("PE-19", "PE-22")
def test_a_pod_with_a_budget_is_reprieved_before_a_more_important_one() -> None:
    pods = [running("guarded", "2", priority=1, labels=WEB), running("important", "2", priority=5)]
    found = on_one_node(running("p", "2", priority=10), *pods, budgets=[budget(0)])
    assert victims(found) == ["important"]
    both = on_one_node(running("p", "4", priority=10), *pods, budgets=[budget(0)])
    assert isinstance(both, Candidate)
    assert (victims(both), both.violations) == (["important", "guarded"], 1)


@pytest.mark.behaviour("PE-16")
@pytest.mark.parametrize(
    ("limits", "nodes", "wanted"),
    [
        (SearchLimits(), 50, 50),
        (SearchLimits(), 500, 100),
        (SearchLimits(), 5000, 500),
        (SearchLimits(1, 2), 199, 2),
        (SearchLimits(10, 0), 99, 9),
        (SearchLimits(0, 3), 2, 2),
    ],
)
def test_number_of_candidates(limits: SearchLimits, nodes: int, wanted: int) -> None:
    assert limits.wanted(nodes) == wanted


@pytest.mark.behaviour("PE-16")
@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"minCandidateNodesPercentage": -1}, r"not in valid range \[0, 100\]"),
        ({"minCandidateNodesPercentage": 101}, r"not in valid range \[0, 100\]"),
        ({"minCandidateNodesAbsolute": -1}, r"not in valid range \[0, inf\)"),
        (
            {"minCandidateNodesPercentage": 0, "minCandidateNodesAbsolute": 0},
            "cannot be zero at the same time as minCandidateNodesAbsolute",
        ),
        ({"minCandidateNodesPercentage": "ten"}, "must be an integer"),
        ({"minNodes": 1}, "minNodes: not supported"),
    ],
)
def test_invalid_arguments(given: dict[str, Any], problem: str) -> None:
    with pytest.raises((ValueError, TypeError), match=problem):
        read_arguments(given)


def test_arguments() -> None:
    assert read_arguments({}) == SearchLimits(10, 100)
    assert read_arguments({"minCandidateNodesPercentage": 0, "minCandidateNodesAbsolute": 5}) == SearchLimits(0, 5)


def candidate(node: str, *pods: PodInfo, violations: int = 0) -> Candidate:
    return Candidate(node, pods, violations)


@pytest.mark.behaviour("PE-17")
def test_the_search_starts_anywhere_and_ends_when_there_are_enough() -> None:
    nodes = [node_info(f"n{number}") for number in range(6)]
    violations = {"n4": 1, "n5": 1, "n0": 0, "n1": 0, "n2": 0}

    def found(node: NodeInfo) -> Candidate | Status:
        if node.name == "n3":
            return unschedulable("no")
        return candidate(node.name, running("v"), violations=violations[node.name])

    search = find_candidates(nodes, 3, 2, found)
    # Two candidates that violate budgets are not enough without one that does not.
    assert [item.node_name for item in search.candidates] == ["n0", "n4", "n5"]
    assert (search.tried, set(search.statuses)) == (4, {"n3"})
    assert find_candidates(nodes, 0, 2, found).tried == 2


@pytest.mark.behaviour("PE-17", "PE-23")
def test_a_failure_on_one_node_does_not_end_the_search() -> None:
    def found(node: NodeInfo) -> Candidate | Status:
        if node.name == "a":
            raise AttemptError("broken")
        return candidate(node.name, running("v"))

    search = find_candidates([node_info("a"), node_info("b")], 0, 2, found)
    assert [item.node_name for item in search.candidates] == ["b"]
    assert search.statuses["a"].code is Code.ERROR


V = running
CHOICES = {
    "fewest violations": (
        [candidate("a", V("x", priority=1), violations=1), candidate("b", V("y", priority=9))],
        "b",
    ),
    "lowest highest priority": (
        [candidate("a", V("x", priority=5)), candidate("b", V("y", priority=4), V("z", priority=4))],
        "b",
    ),
    "lowest sum of priorities": (
        [
            candidate("a", V("x", priority=5), V("y", priority=3)),
            candidate("b", V("x", priority=5), V("y", priority=2)),
        ],
        "b",
    ),
    "negative priorities do not favour more victims": (
        [candidate("a", V("x", priority=-1), V("y", priority=-5)), candidate("b", V("z", priority=-1))],
        "b",
    ),
    "latest start of the most important": (
        [
            candidate("a", V("x", minutes=9, priority=5), V("y", minutes=1, priority=4)),
            candidate("b", V("x", minutes=5, priority=5), V("y", minutes=9, priority=4)),
        ],
        "b",
    ),
    "the earliest of several counts": (
        [
            candidate("a", V("x", minutes=9), V("y", minutes=1)),
            candidate("b", V("x", minutes=5), V("y", minutes=5)),
        ],
        "b",
    ),
    "a Pod that has not started counts as started last": (
        [candidate("a", V("x", minutes=-5)), candidate("b", V("y")), candidate("c", V("z", minutes=5))],
        "b",
    ),
    "the first that was found": ([candidate("c", V("x")), candidate("b", V("y"))], "c"),
}


@pytest.mark.behaviour("PE-25")
@pytest.mark.parametrize(("candidates", "expected"), CHOICES.values(), ids=CHOICES.keys())
def test_choice(candidates: list[Candidate], expected: str) -> None:
    assert choose(candidates).node_name == expected


@pytest.mark.behaviour("PE-24")
def test_message_without_candidates() -> None:
    statuses = {"a": unresolvable(NO_VICTIMS), "b": unresolvable(NO_VICTIMS), "c": unschedulable("Insufficient cpu")}
    assert rejection_message(5, statuses) == (
        "0/5 nodes are available: 1 Insufficient cpu, 2 No preemption victims found for incoming pod, "
        "2 Preemption is not helpful for scheduling."
    )
    # Nodes that were left out because none of their Pods has a lower priority count like those that were tried.
    assert rejection_message(5, {"c": statuses["c"]}, 2) == rejection_message(5, statuses)
