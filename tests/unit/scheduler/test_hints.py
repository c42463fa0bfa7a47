"""Which changes wake a Pod that a plugin rejected, and how changes are named."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.types.core_v1 import Node, Pod
from dray.framework.events import ASSIGNED_POD, NODE, UNSCHEDULED_POD, Action, ClusterEvent, Hint
from dray.scheduler.cluster_events import node_actions, pod_actions, pod_event
from dray.scheduler.config import ProfileConfig
from dray.scheduler.registry import make_profile
from tests.unit.scheduler.builders import PLAIN, container, handle, node, pod

WAKES, SLEEPS = True, False
TAINT = {"key": "k", "effect": "NoSchedule"}
PORT = [container(ports=[{"containerPort": 1, "hostPort": 80}])]


@pytest.mark.parametrize(
    ("plugin", "waiting", "resource", "action", "old", "new", "expected"),
    [
        ("NodeName", pod(node="n"), NODE, Action.ADD, None, node("n"), WAKES),
        ("NodeName", pod(node="n"), NODE, Action.ADD, None, node("m"), SLEEPS),
        ("NodeUnschedulable", pod(), NODE, Action.ADD, None, node(), WAKES),
        ("NodeUnschedulable", pod(), NODE, Action.ADD, None, node(unschedulable=True), SLEEPS),
        ("NodeUnschedulable", pod(), NODE, Action.UPDATE_NODE_TAINT, node(unschedulable=True), node(), WAKES),
        ("TaintToleration", pod(), NODE, Action.UPDATE_NODE_TAINT, node(taints=[TAINT]), node(), WAKES),
        ("TaintToleration", pod(), NODE, Action.UPDATE_NODE_TAINT, node(), node(taints=[TAINT]), SLEEPS),
        ("TaintToleration", pod(), UNSCHEDULED_POD, Action.UPDATE_POD_TOLERATION, pod(), pod(), WAKES),
        ("NodeAffinity", pod(nodeSelector={"a": "b"}), NODE, Action.ADD, None, node(labels={"a": "b"}), WAKES),
        ("NodeAffinity", pod(nodeSelector={"a": "b"}), NODE, Action.ADD, None, node(), SLEEPS),
        (
            "NodeAffinity",
            pod(nodeSelector={"a": "b"}),
            NODE,
            Action.UPDATE_NODE_LABEL,
            node(labels={"a": "b"}),
            node(labels={"a": "b", "c": "d"}),
            SLEEPS,
        ),
        ("NodePorts", pod(containers=PORT), ASSIGNED_POD, Action.DELETE, pod(containers=PORT), None, WAKES),
        ("NodePorts", pod(containers=PORT), ASSIGNED_POD, Action.DELETE, pod(), None, SLEEPS),
        ("NodeResourcesFit", pod(requests={"cpu": "1"}), ASSIGNED_POD, Action.DELETE, pod(), None, WAKES),
        ("NodeResourcesFit", pod(requests={"cpu": "1"}), NODE, Action.ADD, None, node(), WAKES),
        ("NodeResourcesFit", pod(requests={"cpu": "9"}), NODE, Action.ADD, None, node(), SLEEPS),
        ("NodeResourcesFit", pod(requests={"a/gpu": "1"}), NODE, Action.ADD, None, node(), SLEEPS),
        (
            "NodeResourcesFit",
            pod(requests={"cpu": "2"}),
            NODE,
            Action.UPDATE_NODE_ALLOCATABLE,
            node(allocatable={"cpu": "1", "pods": "1"}),
            node(allocatable={"cpu": "2", "pods": "1"}),
            WAKES,
        ),
        (
            "NodeResourcesFit",
            pod(requests={"cpu": "2"}),
            NODE,
            Action.UPDATE_NODE_ALLOCATABLE,
            node(allocatable={"cpu": "3", "pods": "1"}),
            node(allocatable={"cpu": "2", "pods": "1"}),
            SLEEPS,
        ),
        ("NodeResourcesFit", pod(), NODE, Action.UPDATE_NODE_LABEL, node(), node(labels={"a": "b"}), SLEEPS),
        ("NodeResourcesFit", pod(), ASSIGNED_POD, Action.ADD, None, pod(), SLEEPS),
        (
            "SchedulingGates",
            pod(),
            UNSCHEDULED_POD,
            Action.UPDATE_POD_SCHEDULING_GATES_ELIMINATED,
            pod(),
            pod(),
            WAKES,
        ),
    ],
)
def test_hint(*, plugin: str, waiting: Pod, resource: str, action: Action, old: Any, new: Any, expected: bool) -> None:
    profile = make_profile(ProfileConfig(), PLAIN, handle())
    event = ClusterEvent(resource, action)
    wakes = any(
        item.event.covers(event) and (item.hint is None or item.hint(waiting, old, new) is Hint.QUEUE)
        for item in profile.registrations()[plugin]
    )
    assert wakes is expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (pod(), pod(labels={"a": "b"}), Action.UPDATE_POD_LABEL),
        (pod(), pod(tolerations=[{"operator": "Exists"}]), Action.UPDATE_POD_TOLERATION),
        (pod(schedulingGates=[{"name": "g"}]), pod(), Action.UPDATE_POD_SCHEDULING_GATES_ELIMINATED),
        (
            pod(schedulingGates=[{"name": "g"}, {"name": "h"}]),
            pod(schedulingGates=[{"name": "g"}]),
            Action.UPDATE_OTHER,
        ),
        (pod(requests={"cpu": "2"}), pod(requests={"cpu": "1"}), Action.UPDATE_POD_SCALE_DOWN),
        (pod(requests={"cpu": "1"}), pod(requests={"cpu": "2"}), Action.UPDATE_OTHER),
        (
            pod(),
            pod(status={"resourceClaimStatuses": [{"name": "a", "resourceClaimName": "b"}]}),
            Action.UPDATE_POD_GENERATED_RESOURCE_CLAIM,
        ),
        (pod(), pod(status={"phase": "Pending"}), Action.UPDATE_OTHER),
    ],
)
def test_pod_actions(old: Pod, new: Pod, expected: Action) -> None:
    assert pod_actions(old, new) == expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (node(), node(labels={"a": "b"}), Action.UPDATE_NODE_LABEL),
        (node(), node(taints=[TAINT]), Action.UPDATE_NODE_TAINT),
        (node(unschedulable=True), node(unschedulable=False), Action.UPDATE_NODE_TAINT),
        (node(), node(allocatable={"cpu": "8"}), Action.UPDATE_NODE_ALLOCATABLE),
        (node(), node(), Action.UPDATE_OTHER),
        (node(), node(labels={"a": "b"}, taints=[TAINT]), Action.UPDATE_NODE_LABEL | Action.UPDATE_NODE_TAINT),
    ],
)
def test_node_actions(old: Node, new: Node, expected: Action) -> None:
    assert node_actions(old, new) == expected


def test_a_pod_with_a_node_is_another_kind_of_event() -> None:
    assert pod_event(pod(), pod(node="n")).resource == ASSIGNED_POD
    assert pod_event(pod(), pod()).resource == UNSCHEDULED_POD
