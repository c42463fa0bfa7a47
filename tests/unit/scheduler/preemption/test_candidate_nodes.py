"""Which nodes are candidates for preemption: those whose rejection the eviction of Pods can lift."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.framework.status import Code, Status
from dray.scheduler.cycle import Cycle
from dray.scheduler.diagnosis import Diagnosis
from dray.scheduler.nominations import Nominations
from tests.unit.scheduler.builders import PLAIN, container, handle, node_info, pod_info, state
from tests.unit.scheduler.preemption.device_cluster import DeviceCluster
from tests.unit.scheduler.test_cycle import profile

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
WEB = {"app": "web"}
TERM = {"topologyKey": "zone", "labelSelector": {"matchLabels": WEB}}
NODE_TERM = {"matchExpressions": [{"key": "absent", "operator": "Exists"}]}
SPREAD = {
    "maxSkew": 1,
    "topologyKey": "zone",
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": WEB},
}
PORT = container(ports=[{"containerPort": 80, "hostPort": 80}])
ZONE: dict[str, Any] = {"labels": {"zone": "a"}}


# Name -> the Pod, the node, and whether evicting Pods can help.
CASES: dict[str, tuple[PodInfo, NodeInfo, bool]] = {
    "wrong node name": (pod_info(node="elsewhere"), node_info(), False),
    "cordoned": (pod_info(), node_info(unschedulable=True), False),
    "untolerated taint": (pod_info(), node_info(taints=[{"key": "k", "effect": "NoSchedule"}]), False),
    "node selector": (pod_info(nodeSelector={"absent": "x"}), node_info(), False),
    "node affinity": (
        pod_info(affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [NODE_TERM]}}}),
        node_info(),
        False,
    ),
    "required Pod affinity": (pod_info(affinity={"podAffinity": {REQUIRED: [TERM]}}), node_info(**ZONE), False),
    "missing spread label": (pod_info(labels=WEB, topologySpreadConstraints=[SPREAD]), node_info(), False),
    "more than the node has": (pod_info(requests={"cpu": "5"}), node_info(), False),
    "a resource that the node does not have": (pod_info(requests={"example.com/gpu": "1"}), node_info(), False),
    "more of a device plugin than the node has": (
        pod_info(requests={"example.com/gpu": "3"}),
        node_info(allocatable={"cpu": "4", "memory": "8Gi", "pods": "10", "example.com/gpu": "2"}),
        False,
    ),
    "host port": (pod_info(containers=[PORT]), node_info(pods=[pod_info("low", containers=[PORT])]), True),
    "insufficient processors": (
        pod_info(requests={"cpu": "4"}),
        node_info(pods=[pod_info("low", requests={"cpu": "1"})]),
        True,
    ),
    "insufficient devices of a plugin": (
        pod_info(requests={"example.com/gpu": "2"}),
        node_info(
            allocatable={"cpu": "4", "memory": "8Gi", "pods": "10", "example.com/gpu": "2"},
            pods=[pod_info("low", requests={"example.com/gpu": "1"})],
        ),
        True,
    ),
    "too many Pods": (
        pod_info(),
        node_info(allocatable={"cpu": "4", "memory": "8Gi", "pods": "1"}, pods=[pod_info("low")]),
        True,
    ),
    "own anti-affinity": (
        pod_info(affinity={"podAntiAffinity": {REQUIRED: [TERM]}}),
        node_info(**ZONE, pods=[pod_info("low", labels=WEB)]),
        True,
    ),
    "others' anti-affinity": (
        pod_info(labels=WEB),
        node_info(**ZONE, pods=[pod_info("low", affinity={"podAntiAffinity": {REQUIRED: [TERM]}})]),
        True,
    ),
}


def rejected(pod: PodInfo, *nodes: NodeInfo) -> dict[str, Status]:
    """The rejections of nodes by the plugins that need nothing but a snapshot."""
    framework = handle(*nodes)
    plugins = [make({}, framework) for name, make in PLAIN.items() if name != "PrioritySort"]
    found = Cycle(framework.snapshot, Nominations()).place(profile(*plugins), state(pod))
    assert isinstance(found, Diagnosis)
    return dict(found.statuses) or {node.name: found.absent for node in nodes if found.absent is not None}


@pytest.mark.behaviour("PE-15", "PE-61")
@pytest.mark.parametrize("case", CASES)
def test_what_evictions_can_lift(case: str) -> None:
    pod, node, resolvable = CASES[case]
    (status,) = rejected(pod, node).values()
    assert status.code is (Code.UNSCHEDULABLE if resolvable else Code.UNSCHEDULABLE_AND_UNRESOLVABLE), status


@pytest.mark.behaviour("PE-15")
def test_a_skew_that_is_too_large_can_be_lifted() -> None:
    crowded = node_info("a", labels={"zone": "a"}, pods=[pod_info("low", labels=WEB)])
    # Nothing fits in the other zone.
    empty = node_info("b", labels={"zone": "b"}, unschedulable=True)
    found = rejected(pod_info(labels=WEB, topologySpreadConstraints=[SPREAD]), crowded, empty)
    assert {name: status.code for name, status in found.items()} == {
        "a": Code.UNSCHEDULABLE,
        "b": Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
    }


@pytest.mark.behaviour("PE-14")
@pytest.mark.parametrize("code", [code for code in Code if code is not Code.SUCCESS])
def test_only_unschedulable_makes_a_candidate(code: Code) -> None:
    """Whatever other code a node has, nobody is evicted there; the same holds for one that was not filtered."""
    cluster = DeviceCluster()
    for name in ("n", "m"):
        cluster.add_node(name)
        cluster.run(f"low-{name}", name, requests={"cpu": "8"})
    urgent = cluster.pending("urgent", requests={"cpu": "8"}, priority=100)
    cycle_state, found = cluster.place(urgent)
    assert {status.code for status in found.statuses.values()} == {Code.UNSCHEDULABLE}
    (rejection,) = {status.reasons for status in found.statuses.values()}
    only = replace(found, statuses={"n": Status(code, rejection, "NodeResourcesFit")})
    cluster.post_filter(cycle_state, urgent, only.statuses)
    assert [item.node_name for item in cluster.started] == (["n"] if code is Code.UNSCHEDULABLE else [])


@pytest.mark.behaviour("PE-24")
def test_nodes_without_a_pod_of_lower_priority_are_counted() -> None:
    cluster = DeviceCluster()
    for name, priority in (("n", 100), ("m", 100), ("low", 50)):
        cluster.add_node(name)
        cluster.run(f"on-{name}", name, requests={"cpu": "8"}, priority=priority)
    for priority, count in ((100, 2), (50, 3)):
        pending = cluster.pending("pending", requests={"cpu": "8"}, priority=priority)
        _, status = cluster.preempt(pending)
        text = f"{count} No preemption victims found for incoming pod"
        assert (text in status.message, status.is_success) == ((True, False) if count == 3 else (False, True))
    assert [item.node_name for item in cluster.started] == ["low"]
    # What was low is gone, and the node is tried in vain.
    cluster.delete("on-low")
    cluster.run("again", "low", requests={"cpu": "8"}, priority=100)
    _, status = cluster.preempt(cluster.pending("next", requests={"cpu": "8"}, priority=100))
    assert "3 No preemption victims found for incoming pod" in status.message
