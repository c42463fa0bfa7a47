"""Which nodes get daemons, which daemons go, and what is reported, decided without a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from dray.api.types.apps_v1 import ControllerRevision, DaemonSet, DaemonSetSpec, DaemonSetStatus
from dray.api.types.core_v1 import Node, NodeSpec, Pod, PodSpec, PodTemplateSpec, Taint, Toleration
from dray.api.types.meta_v1 import LabelSelector, ObjectMeta
from dray.controllers.daemon_set import plan
from dray.controllers.daemon_set.backoff import FailureBackoff
from dray.controllers.daemon_set.placement import (
    HASH_LABEL,
    Placement,
    hash_of,
    make_daemon_pod,
    node_of,
    owner_of,
    pinned_to,
    revised_of,
    with_tolerations,
)
from dray.controllers.pod_control.revisions import History, plan_history, surplus_history, template_patch
from tests.unit.controllers.pod_control.pods import NOW, pod

NAMES = ("n1", "n2", "n3", "n4")
NEW, OLD = {HASH_LABEL: "new"}, {HASH_LABEL: "old"}


def daemon_set(pod_spec: dict[str, Any] | None = None, **spec: Any) -> DaemonSet:
    strategy = spec.pop("strategy", {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}})
    return DaemonSet(
        metadata=ObjectMeta(name="agent", namespace="team", uid="u1", generation=3, annotations={"a": "b"}),
        spec=DaemonSetSpec(
            selector=LabelSelector(match_labels={"app": "agent"}),
            template=PodTemplateSpec(
                metadata=ObjectMeta(labels={"app": "agent"}), spec=msgspec.convert(pod_spec or {}, PodSpec)
            ),
            update_strategy=msgspec.convert(strategy, type(DaemonSetSpec().update_strategy)),
            **spec,
        ),
    )


def surge(count: int | str) -> dict[str, Any]:
    return {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": count}}


def node(name: str = "n1", *taints: Taint, **labels: str) -> Node:
    return Node(metadata=ObjectMeta(name=name, labels=labels), spec=NodeSpec(taints=taints))


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    }


IN_ZONE = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
BY_NAME = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}
SOFT = Taint(key="k", value="v", effect="PreferNoSchedule")
CLOSED = Taint(key="k", value="v", effect="NoSchedule")
EVICTING = Taint(key="k", value="v", effect="NoExecute")


@pytest.mark.parametrize(
    ("spec", "where", "expected"),
    [
        pytest.param({}, node(), (True, True), id="anywhere"),
        pytest.param({"nodeName": "n1"}, node(), (True, True), id="named"),
        pytest.param({"nodeName": "n2"}, node(), (False, False), id="another is named"),
        pytest.param({"nodeSelector": {"gpu": "yes"}}, node(gpu="yes"), (True, True), id="selected"),
        pytest.param({"nodeSelector": {"gpu": "yes"}}, node(gpu="no"), (False, False), id="not selected"),
        pytest.param(required(IN_ZONE), node(zone="a"), (True, True), id="affinity"),
        pytest.param(required(IN_ZONE), node(zone="b"), (False, False), id="other zone"),
        pytest.param(required(IN_ZONE, BY_NAME), node("n2"), (True, True), id="any term"),
        pytest.param({}, node("n1", SOFT), (True, True), id="only discouraged"),
        pytest.param({}, node("n1", CLOSED), (False, True), id="closed: those there stay"),
        pytest.param({}, node("n1", CLOSED, EVICTING), (False, False), id="evicting"),
        pytest.param(
            {"tolerations": [{"key": "k", "operator": "Exists"}]}, node("n1", EVICTING), (True, True), id="tolerated"
        ),
        *(
            pytest.param({}, node("n1", Taint(key=f"node.kubernetes.io/{name}", effect=effect)), (True, True), id=name)
            for name, effect in (
                ("not-ready", "NoExecute"),
                ("unreachable", "NoExecute"),
                ("unschedulable", "NoSchedule"),
                ("memory-pressure", "NoSchedule"),
            )
        ),
        pytest.param(
            {},
            node("n1", Taint(key="node.kubernetes.io/network-unavailable", effect="NoSchedule")),
            (False, True),
            id="needs a network",
        ),
        pytest.param(
            {"hostNetwork": True},
            node("n1", Taint(key="node.kubernetes.io/network-unavailable", effect="NoSchedule")),
            (True, True),
            id="uses the node's",
        ),
    ],
)
def test_placement(spec: dict[str, Any], where: Node, expected: tuple[bool, bool]) -> None:
    fit = Placement(daemon_set(spec)).evaluate(where)
    assert (fit.should_run, fit.should_continue) == expected


def test_a_toleration_of_the_same_taint_is_replaced() -> None:
    own = Toleration(key="node.kubernetes.io/not-ready", operator="Exists", effect="NoExecute", toleration_seconds=5)
    other = Toleration(key="k", operator="Exists")
    found = with_tolerations(PodSpec(tolerations=(own, other))).tolerations
    assert found[0] == other
    assert len(found) == 7
    assert all(item.toleration_seconds is None for item in found)


def test_a_daemon_is_bound_by_affinity() -> None:
    item = daemon_set(required(IN_ZONE))
    made = make_daemon_pod(owner_of(item), item, "n2", "h")
    assert made.metadata.labels == {"app": "agent", HASH_LABEL: "h"}
    assert node_of(made) == "n2"
    assert not made.spec.node_name
    both = pinned_to(msgspec.convert(required(IN_ZONE), PodSpec), "n2")
    expected = required({**IN_ZONE, **BY_NAME})
    assert both == msgspec.convert(expected, PodSpec)
    assert node_of(pod(node="")) == ""


def daemon(name: str, where: str, *, labels: dict[str, str] = NEW, ready: float | None = 50.0, **more: Any) -> Pod:
    return pod(name, node=where, labels=labels, ready_for=ready, **more)


def state(item: DaemonSet, pods: Sequence[Pod], nodes: Sequence[Node] | None = None) -> plan.DaemonSetState:
    found = [node(name) for name in NAMES] if nodes is None else nodes
    return plan.make_state(item, found, pods, "new", NOW)


def decide(item: DaemonSet, pods: Sequence[Pod], nodes: Sequence[Node] | None = None) -> tuple[list[str], list[str]]:
    result = plan.plan_pods(state(item, pods, nodes), lambda _: 0.0)
    return list(result.create), sorted(found.metadata.name or "" for found in result.delete)


FULL = [daemon(f"p{number}", name) for number, name in enumerate(NAMES, start=1)]
ALL_OLD = [daemon(f"p{number}", name, labels=OLD) for number, name in enumerate(NAMES, start=1)]


@pytest.mark.parametrize(
    ("pods", "create", "delete"),
    [
        pytest.param([], list(NAMES), [], id="nothing yet"),
        pytest.param(FULL, [], [], id="all there"),
        pytest.param(FULL[1:], ["n1"], [], id="one missing"),
        pytest.param([*FULL[1:], daemon("p1", "n1", deleting=True)], [], [], id="not before the old one is gone"),
        pytest.param([*FULL, daemon("p9", "n2", age=1.0)], [], ["p9"], id="the younger of two"),
        pytest.param([*FULL[1:], daemon("p1", "n1", phase="Failed")], [], ["p1"], id="failed"),
        pytest.param([*FULL[1:], daemon("p1", "n1", phase="Succeeded")], [], ["p1"], id="succeeded"),
    ],
)
def test_settling(pods: list[Pod], create: list[str], delete: list[str]) -> None:
    assert decide(daemon_set(), pods) == (create, delete)


def test_nodes_that_are_not_meant() -> None:
    nodes = [node("n1", EVICTING), node("n2", CLOSED), node("n3"), node("n4")]
    assert decide(daemon_set(), FULL, nodes) == ([], ["p1"])


def test_a_waiting_pod_of_a_node_that_is_gone() -> None:
    item = daemon_set()
    waiting = make_daemon_pod(owner_of(item), item, "gone", "new")
    waiting = msgspec.structs.replace(waiting, metadata=msgspec.structs.replace(waiting.metadata, name="w"))
    assert decide(item, [*FULL, waiting, daemon("bound", "also-gone")]) == ([], ["w"])


def test_a_failed_daemon_waits_for_its_turn() -> None:
    pods = [*FULL[1:], daemon("p1", "n1", phase="Failed")]
    result = plan.plan_pods(state(daemon_set(), pods), lambda name: 7.0 if name == "n1" else 0.0)
    assert (result.delete, result.requeue_seconds) == ((), 7.0)


@pytest.mark.parametrize(
    ("pods", "create", "delete"),
    [
        pytest.param(ALL_OLD, [], ["p1"], id="one at a time"),
        pytest.param([FULL[0], *ALL_OLD[1:]], [], ["p2"], id="the next"),
        pytest.param([daemon("p1", "n1", ready=None), *ALL_OLD[1:]], [], [], id="not before the new one is available"),
        pytest.param([daemon("p1", "n1", deleting=True), *ALL_OLD[1:]], [], [], id="not while one is ending"),
        pytest.param(
            [*ALL_OLD[:3], daemon("p4", "n4", labels=OLD, ready=None)], [], ["p4"], id="one of no use first, and alone"
        ),
    ],
)
def test_updating_by_replacing(pods: list[Pod], create: list[str], delete: list[str]) -> None:
    assert decide(daemon_set(), pods) == (create, delete)


@pytest.mark.parametrize(
    ("pods", "create", "delete"),
    [
        pytest.param(ALL_OLD, ["n1"], [], id="one beside its old one"),
        pytest.param([*ALL_OLD, daemon("q1", "n1", ready=None)], [], [], id="not before it is available"),
        pytest.param([*ALL_OLD, daemon("q1", "n1")], [], ["p1"], id="the old one goes"),
        pytest.param([FULL[0], *ALL_OLD[1:]], ["n2"], [], id="the next"),
        pytest.param(
            [*ALL_OLD[:3], daemon("p4", "n4", labels=OLD, ready=None), daemon("q4", "n4", ready=None)],
            [],
            ["p4"],
            id="an old one of no use goes at once",
        ),
    ],
)
def test_updating_by_surge(pods: list[Pod], create: list[str], delete: list[str]) -> None:
    assert decide(daemon_set(strategy=surge(1)), pods) == (create, delete)


def test_on_delete_changes_nothing() -> None:
    assert decide(daemon_set(strategy={"type": "OnDelete"}), ALL_OLD) == ([], [])


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "30%", "maxSurge": 0}}, (0, 2)),
        (surge("30%"), (2, 0)),
        ({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "0%", "maxSurge": 0}}, (0, 1)),
        ({"type": "OnDelete"}, (0, 0)),
    ],
)
def test_bounds(strategy: dict[str, Any], expected: tuple[int, int]) -> None:
    assert plan.bounds(daemon_set(strategy=strategy), 4) == expected


def test_status() -> None:
    nodes = [*(node(name) for name in NAMES), node("n5", CLOSED)]
    pods = [
        daemon("p1", "n1"),
        daemon("p2", "n2", labels=OLD),
        daemon("p3", "n3", ready=None),
        daemon("p5", "n5"),
        daemon("x", "n3", phase="Failed", deleting=True),
    ]
    assert plan.status_of(state(daemon_set(min_ready_seconds=10), pods, nodes)) == DaemonSetStatus(
        desired_number_scheduled=4,
        current_number_scheduled=3,
        number_misscheduled=1,
        number_ready=2,
        updated_number_scheduled=2,
        number_available=2,
        number_unavailable=2,
        observed_generation=3,
    )


def test_backoff_doubles_and_forgets() -> None:
    backoff = FailureBackoff()
    now, waits = 0.0, []
    for _ in range(4):
        backoff.next("k", now)
        waits.append(backoff.remaining("k", now))
        now += waits[-1]
    assert waits == [1.0, 2.0, 4.0, 8.0]
    assert backoff.remaining("k", now) == 0.0
    assert backoff.remaining("other", now) == 0.0
    backoff.next("k", now + 3600.0)
    assert backoff.remaining("k", now + 3600.0) == 1.0


def revision(number: int, item: DaemonSet, revision_hash: str = "h") -> ControllerRevision:
    return ControllerRevision(
        metadata=ObjectMeta(name=f"r{number}", labels={HASH_LABEL: revision_hash}),
        data=template_patch(item.spec.template),
        revision=number,
    )


def test_history() -> None:
    first, second = daemon_set(), daemon_set({"nodeName": "n1"})
    made = plan_history(revised_of(first), [])
    assert (made.create, made.update, made.current.revision) == (True, False, 1)
    assert made.current.metadata.name == f"agent-{hash_of(made)}"
    assert made.current.metadata.annotations == {"a": "b"}
    assert made.current.metadata.labels == {"app": "agent", HASH_LABEL: hash_of(made)}
    known = [revision(1, first), revision(2, second)]
    same = plan_history(revised_of(second), known)
    assert (same.create, same.update, same.current) == (False, False, known[1])
    back = plan_history(revised_of(first), known)
    assert (back.create, back.update, back.current.revision, back.old) == (False, True, 3, (known[1],))


def test_history_keeps_what_runs() -> None:
    item = daemon_set(revision_history_limit=1)
    old = tuple(revision(number, item, f"h{number}") for number in (3, 1, 2))
    history = History(revision(4, item), old)
    assert [found.revision for found in surplus_history(revised_of(item), history, {"h1"})] == [2, 3]
    assert surplus_history(revised_of(daemon_set(revision_history_limit=3)), history, set()) == ()
