"""PodTopologySpread: which nodes pass, how they score, and which changes requeue a Pod (kube-scheduler 1.36)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from dray.api.codec import from_document
from dray.api.types.apps_v1 import ReplicaSet
from dray.api.types.core_v1 import Node, Pod
from dray.framework.cycle_state import CycleState
from dray.framework.events import ASSIGNED_POD, NODE, UNSCHEDULED_POD, Action, ClusterEvent, Hint
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.framework.status import SUCCESS, Code
from dray.scheduler.plugins.pod_topology_spread.plugin import PodTopologySpread
from tests.unit.scheduler.builders import handle, node, node_info, pod, pod_info, state

SKEW = "node(s) didn't match pod topology spread constraints"
MISSING = "node(s) didn't match pod topology spread constraints (missing required label)"
HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
WEB = {"app": "web"}
TAINT = {"key": "k", "effect": "NoSchedule"}


def spread(key: str = "zone", *, skew: int = 1, labels: dict[str, str] | None = WEB, **more: Any) -> dict[str, Any]:
    """A constraint; labels None means no selector."""
    selector = {} if labels is None else {"labelSelector": {"matchLabels": labels}}
    return {"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", **selector, **more}


def soft(key: str = "zone", **more: Any) -> dict[str, Any]:
    return spread(key, **more) | {"whenUnsatisfiable": "ScheduleAnyway"}


def webs(count: int, **words: Any) -> list[PodInfo]:
    return [pod_info(f"w{number}", labels=WEB, **words) for number in range(count)]


def make(name: str, zone: str, count: int = 0, labels: dict[str, str] | None = None, **spec: Any) -> NodeInfo:
    """A node of a zone with so many web Pods."""
    own = {"zone": zone, ZONE: zone, HOSTNAME: name, **(labels or {})}
    pods = [pod_info(f"{name}-{number}", labels=WEB) for number in range(count)]
    return node_info(name, labels=own, pods=pods, **spec)


def wants(*constraints: dict[str, Any], **words: Any) -> PodInfo:
    words.setdefault("labels", WEB)
    return pod_info("new", topologySpreadConstraints=list(constraints), **words)


@dataclass(frozen=True)
class Case:
    """A Pod, nodes, and the reason of each node that is rejected."""

    pod: PodInfo
    nodes: Sequence[NodeInfo]
    rejected: Mapping[str, str] = field(default_factory=dict)


TWO_ZONES = [make("a", "a", 2), make("b", "b", 1)]
CASES = {
    "the fuller zone": Case(wants(spread()), TWO_ZONES, {"a": SKEW}),
    "a skew of two": Case(wants(spread(skew=2)), TWO_ZONES),
    "the Pod does not match itself": Case(wants(spread(), labels={}), TWO_ZONES),
    "a missing label": Case(wants(spread()), [*TWO_ZONES, node_info("bare")], {"a": SKEW, "bare": MISSING}),
    "an empty zone": Case(wants(spread()), [*TWO_ZONES, make("c", "c")], {"a": SKEW, "b": SKEW}),
    "other namespaces do not count": Case(wants(spread(), namespace="other"), TWO_ZONES),
    "Pods that are being deleted do not count": Case(
        wants(spread()), [node_info("a", labels={"zone": "a"}, pods=webs(2, deleted=True)), make("b", "b")]
    ),
    "an empty selector counts no Pod": Case(wants(spread(labels={})), [make("a", "a", 5), make("b", "b")]),
    "an empty selector matches the Pod itself": Case(
        wants(spread(labels={}, skew=1, minDomains=5)), [make("a", "a", 5), make("b", "b")]
    ),
    "no selector matches nothing": Case(wants(spread(labels=None)), [make("a", "a", 5), make("b", "b")]),
    "label keys that were not merged": Case(
        wants(spread(matchLabelKeys=["hash"]), labels=WEB | {"hash": "1"}),
        [
            node_info("a", labels={"zone": "a"}, pods=[pod_info("x", labels=WEB | {"hash": "1"})]),
            node_info("b", labels={"zone": "b"}, pods=[pod_info("y", labels=WEB | {"hash": "2"})]),
        ],
        {"a": SKEW},
    ),
    "label keys that the Pod lacks": Case(wants(spread(matchLabelKeys=["hash"])), TWO_ZONES, {"a": SKEW}),
    "fewer domains than required": Case(wants(spread(minDomains=3)), TWO_ZONES, {"a": SKEW, "b": SKEW}),
    "as many domains as required": Case(wants(spread(minDomains=2)), TWO_ZONES, {"a": SKEW}),
    "two constraints": Case(
        wants(spread(), spread(HOSTNAME)),
        [make("a1", "a", 1), make("a2", "a", 0), make("b1", "b", 2), make("b2", "b", 0)],
        {"a1": SKEW, "b1": SKEW, "b2": SKEW},
    ),
    "nodes without all keys are not counted": Case(
        wants(spread(), spread("rack")),
        [make("a", "a", 0, {"rack": "1"}), make("b", "b", 0), make("c", "c", 1, {"rack": "2"})],
        {"b": MISSING, "c": SKEW},
    ),
    "node selectors are honored": Case(
        wants(spread(), nodeSelector={"pool": "x"}),
        [make("a", "a", 1, {"pool": "x"}), make("b", "b", 0)],
    ),
    "node affinity is honored": Case(
        wants(
            spread(),
            affinity={
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "Exists"}]}]
                    }
                }
            },
        ),
        [make("a", "a", 1, {"pool": "x"}), make("b", "b", 0)],
    ),
    "node selectors are ignored": Case(
        wants(spread(nodeAffinityPolicy="Ignore"), nodeSelector={"pool": "x"}),
        [make("a", "a", 1, {"pool": "x"}), make("b", "b", 0)],
        {"a": SKEW},
    ),
    "taints are ignored": Case(wants(spread()), [make("a", "a", 1), make("b", "b", 0, taints=[TAINT])], {"a": SKEW}),
    "taints are honored": Case(
        wants(spread(nodeTaintsPolicy="Honor")), [make("a", "a", 1), make("b", "b", 0, taints=[TAINT])]
    ),
    "tolerated taints are honored": Case(
        wants(spread(nodeTaintsPolicy="Honor"), tolerations=[{"operator": "Exists"}]),
        [make("a", "a", 1), make("b", "b", 0, taints=[TAINT])],
        {"a": SKEW},
    ),
    "a node that is not counted has no Pods": Case(
        wants(spread(nodeTaintsPolicy="Honor")), [make("a", "a", 1), make("b", "b", 9, taints=[TAINT])]
    ),
    "no domain at all": Case(wants(spread(), nodeSelector={"pool": "x"}), [make("a", "a", 5)]),
    "the first constraint that fails": Case(
        wants(spread(), spread("rack")), [make("a", "a", 1), make("b", "b", 0, {"rack": "1"})], {"a": MISSING}
    ),
}


def plugin_of(nodes: Sequence[NodeInfo], args: Mapping[str, Any] | None = None, **objects: Any) -> PodTopologySpread:
    return PodTopologySpread(args or {}, handle(*nodes, **objects))


def rejections(plugin: PodTopologySpread, attempt: CycleState, nodes: Sequence[NodeInfo]) -> dict[str, Any]:
    statuses = {item.name: plugin.filter(attempt, attempt.pod_info.pod, item) for item in nodes}
    return {name: status for name, status in statuses.items() if status is not SUCCESS}


@pytest.mark.behaviour(
    "TS-02", "TS-04", "TS-05", "TS-06", "TS-07", "TS-08", "TS-09", "TS-10", "TS-11", "TS-12", "TS-13", "TS-16"
)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_filter(case: Case) -> None:
    plugin, attempt = plugin_of(case.nodes), state(case.pod)
    assert plugin.pre_filter(attempt, case.pod.pod)[1] is SUCCESS
    found = rejections(plugin, attempt, case.nodes)
    assert {name: answer.message for name, answer in found.items()} == case.rejected
    for answer in found.values():
        unresolvable = answer.message == MISSING
        assert answer.code is (Code.UNSCHEDULABLE_AND_UNRESOLVABLE if unresolvable else Code.UNSCHEDULABLE)


@pytest.mark.behaviour("TS-07")
def test_skips_pods_without_hard_constraints() -> None:
    for info in (pod_info(), wants(soft())):
        assert plugin_of(TWO_ZONES).pre_filter(state(info), info.pod)[1].code is Code.SKIP


@pytest.mark.behaviour("TS-05")
def test_a_selector_that_cannot_be_parsed() -> None:
    bad = spread() | {"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}}
    _, status = plugin_of(TWO_ZONES).pre_filter(state(wants(bad)), wants(bad).pod)
    assert status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE
    assert '"Like" is not a valid label selector operator' in status.message


@pytest.mark.behaviour("TS-14", "TS-15")
@pytest.mark.parametrize("constraints", [[spread()], [spread(minDomains=3)], [spread(), spread(HOSTNAME, skew=2)]])
def test_added_and_removed_pods_count_in_a_copy_only(constraints: list[dict[str, Any]]) -> None:
    nodes = [make("a", "a", 2), make("b", "b", 1), make("c", "c", 3), node_info("bare", pods=webs(1))]
    info = wants(*constraints)
    plugin, attempt = plugin_of(nodes), state(info)
    plugin.pre_filter(attempt, info.pod)
    before = rejections(plugin, attempt, nodes)
    copy = attempt.clone()
    current = {item.name: item for item in nodes}
    ignored = [pod_info("other", labels={}), pod_info("gone", labels=WEB, deleted=True)]
    for name, other in [("b", webs(1)[0]), ("b", pod_info("w9", labels=WEB)), *(("a", item) for item in ignored)]:
        current[name] = current[name].with_pod(other)
        plugin.add_pod(copy, info.pod, other, current[name])
    for name, uid in [("c", "uid-c-0"), ("c", "uid-c-1"), ("a", "uid-gone"), ("bare", "uid-w0")]:
        other = current[name].pods[uid]
        current[name] = current[name].without_pod(uid)
        plugin.remove_pod(copy, info.pod, other, current[name])
    changed = list(current.values())
    fresh, expected = plugin_of(changed), state(info)
    fresh.pre_filter(expected, info.pod)
    assert rejections(plugin, copy, changed) == rejections(fresh, expected, changed)
    assert rejections(plugin, attempt, nodes) == before


# --- Scores. ---


def scores(info: PodInfo, nodes: Sequence[NodeInfo], args: Any = None, **objects: Any) -> list[int] | None:
    plugin, attempt = plugin_of(nodes, args, **objects), state(info)
    if plugin.pre_score(attempt, info.pod, nodes).code is Code.SKIP:
        return None
    found = plugin.score_all(attempt, info.pod, nodes)
    assert found == [plugin.score(attempt, info.pod, item) for item in nodes]
    plugin.normalize_scores(attempt, info.pod, found)
    return found


def rounded(value: float) -> int:
    return math.floor(value + 0.5)


SCORES: dict[str, tuple[PodInfo, list[NodeInfo], list[int] | None]] = {
    "no constraint": (pod_info(labels=WEB), TWO_ZONES, None),
    "hard constraints only": (wants(spread()), TWO_ZONES, None),
    "no Pods": (wants(soft()), [make("a", "a"), make("b", "b")], [100, 100]),
    # ln(2 + 2) each: 2.77 and 1.39, rounded to 3 and 1.
    "two zones": (wants(soft()), TWO_ZONES, [100 * 1 // 3, 100]),
    "an empty zone": (wants(soft()), [*TWO_ZONES, make("c", "c")], [0, 33, 100]),
    "hosts by their own Pods": (
        wants(soft(HOSTNAME)),
        [make("a", "a", 4), make("b", "a", 2), make("c", "b", 1), make("d", "b", 3)],
        [
            100
            * (rounded(4 * math.log(6)) + rounded(math.log(6)) - rounded(count * math.log(6)))
            // rounded(4 * math.log(6))
            for count in (4, 2, 1, 3)
        ],
    ),
    "a greater skew adds the same to all": (wants(soft(skew=5)), TWO_ZONES, [100 * 5 // 7, 100]),
    "a node without the key is ignored": (wants(soft()), [*TWO_ZONES, node_info("bare")], [33, 100, 0]),
    "two keys": (
        wants(soft(), soft(HOSTNAME)),
        [make("a1", "a", 1), make("a2", "a", 1), make("b1", "b", 0)],
        [0, 0, 100],
    ),
}


@pytest.mark.behaviour("TS-21", "TS-22", "TS-23", "TS-24", "TS-25", "TS-26")
@pytest.mark.parametrize(("info", "nodes", "expected"), SCORES.values(), ids=SCORES)
def test_score(info: PodInfo, nodes: list[NodeInfo], expected: list[int] | None) -> None:
    assert scores(info, nodes) == expected


@pytest.mark.behaviour("TS-23")
def test_pods_on_infeasible_nodes_of_the_same_zones_count() -> None:
    nodes = [make("a1", "a", 0), make("a2", "a", 4), make("b1", "b", 1), make("c1", "c", 9)]
    plugin, info = plugin_of(nodes), wants(soft())
    attempt, feasible = state(info), [nodes[0], nodes[2]]
    plugin.pre_score(attempt, info.pod, feasible)
    # Two zones are feasible, so that the weight is ln(4).
    assert plugin.score_all(attempt, info.pod, feasible) == [rounded(4 * math.log(4)), rounded(math.log(4))]


# --- Default constraints. ---

OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "u", "controller": True}
REPLICA_SET = from_document(
    ReplicaSet, {"metadata": {"name": "rs", "namespace": "default"}, "spec": {"selector": {"matchLabels": WEB}}}
)
SERVICE = {"metadata": {"name": "s", "namespace": "default"}, "spec": {"selector": WEB}}
SETS = {"replicasets": [REPLICA_SET]}


def workload(kind: str) -> dict[str, Any]:
    document = {"metadata": {"name": "w", "namespace": "default"}, "spec": {"selector": {"matchLabels": WEB}}}
    return document if kind == "StatefulSet" else document | {"spec": {"selector": WEB}}


@pytest.mark.behaviour("TS-17", "TS-18")
@pytest.mark.parametrize(
    ("info", "objects", "spreads"),
    [
        (pod_info(labels=WEB, owners=[OWNER]), SETS, True),
        (pod_info(labels=WEB), SETS, False),
        (pod_info(labels=WEB, owners=[OWNER]), {}, False),
        (pod_info(labels=WEB), {"services": [SERVICE]}, True),
        (pod_info(labels={"app": "db"}), {"services": [SERVICE]}, False),
        (pod_info(labels=WEB, namespace="other"), {"services": [SERVICE]}, False),
        (pod_info(labels=WEB), {"services": [{**SERVICE, "spec": {}}]}, False),
        (
            pod_info(labels=WEB, owners=[OWNER | {"kind": "StatefulSet", "name": "w"}]),
            {"statefulsets": [workload("StatefulSet")]},
            True,
        ),
        (
            pod_info(labels=WEB, owners=[OWNER | {"apiVersion": "v1", "kind": "ReplicationController", "name": "w"}]),
            {"replicationcontrollers": [workload("ReplicationController")]},
            True,
        ),
        (pod_info(labels=WEB, owners=[OWNER | {"apiVersion": "batch/v1", "kind": "Job"}]), SETS, False),
    ],
)
def test_system_defaults_need_a_workload(info: PodInfo, objects: Any, spreads: bool) -> None:
    # 2 and 1 Pods, counted by host and by zone with ln(2 + 2), and maxSkew - 1 of both: 11.5 and 8.8.
    assert scores(info, TWO_ZONES, **objects) == ([100 * 9 // 12, 100] if spreads else None)


@pytest.mark.behaviour("TS-21")
def test_system_defaults_spread_nodes_without_a_zone_by_host() -> None:
    nodes = [node_info(name, labels={HOSTNAME: name}, pods=webs(count)) for name, count in (("a", 2), ("b", 0))]
    found = scores(pod_info(labels=WEB, owners=[OWNER]), nodes, **SETS)
    assert found is not None
    assert found[0] < found[1] == 100


@pytest.mark.behaviour("TS-17", "TS-20")
def test_listed_defaults() -> None:
    constraints = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]
    args = {"defaultingType": "List", "defaultConstraints": constraints}
    info = pod_info(labels=WEB, owners=[OWNER])
    plugin, attempt = plugin_of(TWO_ZONES, args, **SETS), state(info)
    assert plugin.pre_filter(attempt, info.pod)[1] is SUCCESS
    assert set(rejections(plugin, attempt, TWO_ZONES)) == {"a"}
    # A Pod with any constraint of its own has no others.
    own = wants(soft(), owners=[OWNER])
    assert plugin.pre_filter(state(own), own.pod)[1].code is Code.SKIP
    nothing = plugin_of(TWO_ZONES, {"defaultingType": "List"}, **SETS)
    assert nothing.pre_score(state(info), info.pod, TWO_ZONES).code is Code.SKIP


@pytest.mark.behaviour("TS-18")
def test_selectors_of_services_and_owner_are_joined() -> None:
    service = {**SERVICE, "spec": {"selector": {"tier": "x"}}}
    info = pod_info(labels=WEB | {"tier": "x"}, owners=[OWNER])
    # The existing Pods do not have the tier of the Service.
    assert scores(info, TWO_ZONES, **SETS, services=[service]) == [100, 100]


LISTED = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}


@pytest.mark.behaviour("TS-19")
@pytest.mark.parametrize(
    ("args", "text"),
    [
        (
            {"defaultConstraints": [LISTED]},
            'defaultingType: Invalid value: "System": when .defaultConstraints are not empty',
        ),
        (
            {"defaultingType": "Other"},
            'defaultingType: Unsupported value: "Other": supported values: "System", "List"',
        ),
        (
            {"defaultingType": "List", "defaultConstraints": [LISTED | {"maxSkew": 0}]},
            "defaultConstraints[0].maxSkew: Invalid value: 0: not in valid range (0, inf)",
        ),
        (
            {"defaultingType": "List", "defaultConstraints": [LISTED | {"topologyKey": ""}]},
            "defaultConstraints[0].topologyKey: Required value: can not be empty",
        ),
        (
            {"defaultingType": "List", "defaultConstraints": [LISTED | {"labelSelector": {}}]},
            "defaultConstraints[0].labelSelector: Forbidden: "
            "constraint must not define a selector, as they deduced for each pod",
        ),
        (
            {"defaultingType": "List", "defaultConstraints": [LISTED, LISTED | {"maxSkew": 2}]},
            'defaultConstraints[1]: Duplicate value: "{zone, ScheduleAnyway}"',
        ),
        (
            {"defaultingType": "List", "defaultConstraints": [LISTED | {"whenUnsatisfiable": "Never"}]},
            'defaultConstraints[0].whenUnsatisfiable: Unsupported value: "Never": '
            'supported values: "DoNotSchedule", "ScheduleAnyway"',
        ),
        ({"defaultConstraints": {}}, "defaultConstraints: must be a list of maps"),
        ({"other": 1}, "other: not supported"),
    ],
)
def test_bad_arguments(args: dict[str, Any], text: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        plugin_of([], args)
    assert str(caught.value) == text


# --- Queueing hints. ---

WAITING = pod(labels=WEB, topologySpreadConstraints=[spread()])
TWO_KEYS = pod(labels=WEB, topologySpreadConstraints=[spread(), spread("rack")])
HONORS = pod(labels=WEB, topologySpreadConstraints=[spread(nodeTaintsPolicy="Honor")])
ON = {"node": "n"}
A, B = {"zone": "a"}, {"zone": "b"}
TOLERATING = pod(
    labels=WEB, topologySpreadConstraints=[spread(nodeTaintsPolicy="Honor")], tolerations=[{"operator": "Exists"}]
)


@pytest.mark.behaviour("TS-27", "TS-28", "TS-29", "TS-30")
@pytest.mark.parametrize(
    ("waiting", "resource", "action", "old", "new", "wakes"),
    [
        (WAITING, ASSIGNED_POD, Action.ADD, None, pod("o", labels=WEB, **ON), True),
        (WAITING, ASSIGNED_POD, Action.ADD, None, pod("o", **ON), False),
        (WAITING, ASSIGNED_POD, Action.ADD, None, pod("o", labels=WEB, namespace="x", **ON), False),
        (WAITING, ASSIGNED_POD, Action.DELETE, pod("o", labels=WEB, **ON), None, True),
        (WAITING, ASSIGNED_POD, Action.DELETE, pod("o", **ON), None, False),
        (WAITING, ASSIGNED_POD, Action.UPDATE_POD_LABEL, pod("o", **ON), pod("o", labels=WEB, **ON), True),
        (WAITING, ASSIGNED_POD, Action.UPDATE_POD_LABEL, pod("o", labels=WEB, **ON), pod("o", **ON), True),
        (WAITING, ASSIGNED_POD, Action.UPDATE_POD_LABEL, pod("o", labels={"x": "y"}, **ON), pod("o", **ON), False),
        (WAITING, UNSCHEDULED_POD, Action.UPDATE_POD_LABEL, pod(topologySpreadConstraints=[spread()]), WAITING, True),
        (WAITING, UNSCHEDULED_POD, Action.UPDATE_POD_LABEL, WAITING, WAITING, False),
        (HONORS, UNSCHEDULED_POD, Action.UPDATE_POD_TOLERATION, HONORS, TOLERATING, True),
        (
            WAITING,
            UNSCHEDULED_POD,
            Action.UPDATE_POD_TOLERATION,
            WAITING,
            pod(labels=WEB, topologySpreadConstraints=[spread()], tolerations=[{"operator": "Exists"}]),
            False,
        ),
        (WAITING, NODE, Action.ADD, None, node(labels=A), True),
        (WAITING, NODE, Action.ADD, None, node(), False),
        (TWO_KEYS, NODE, Action.ADD, None, node(labels=A), False),
        (WAITING, NODE, Action.DELETE, node(labels=A), None, True),
        (WAITING, NODE, Action.DELETE, node(), None, False),
        (WAITING, NODE, Action.UPDATE_NODE_LABEL, node(labels=A), node(labels=B), True),
        (WAITING, NODE, Action.UPDATE_NODE_LABEL, node(), node(labels=B), True),
        (WAITING, NODE, Action.UPDATE_NODE_LABEL, node(labels=A), node(), True),
        (WAITING, NODE, Action.UPDATE_NODE_LABEL, node(labels=A), node(labels=A | {"x": "y"}), False),
        (WAITING, NODE, Action.UPDATE_NODE_TAINT, node(labels=A), node(labels=A, taints=[TAINT]), True),
        (WAITING, NODE, Action.UPDATE_NODE_TAINT, node(), node(taints=[TAINT]), False),
    ],
)
def test_hint(
    *, waiting: Pod, resource: str, action: Action, old: Pod | Node | None, new: Pod | Node | None, wakes: bool
) -> None:
    registered = [
        item for item in plugin_of([]).events_to_register() if item.event.covers(ClusterEvent(resource, action))
    ]
    assert registered
    found = [item.hint is None or item.hint(waiting, old, new) is Hint.QUEUE for item in registered]
    assert any(found) is wakes


@pytest.mark.behaviour("TS-28")
def test_changes_of_pods_concern_pods_of_the_same_namespace() -> None:
    event = ClusterEvent(ASSIGNED_POD, Action.ADD)
    (registration,) = [item for item in plugin_of([]).events_to_register() if item.event.covers(event)]
    assert registration.keys is not None
    assert set(registration.keys.of_pod(WAITING)) == {"default"}
    assert registration.keys.of_change(None, pod("o", namespace="x", **ON)) == ("x",)
    assert registration.keys.of_change(pod("o", namespace="y", **ON), None) == ("y",)
