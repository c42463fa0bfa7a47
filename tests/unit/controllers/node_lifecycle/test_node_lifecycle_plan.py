"""What a Node's conditions ask for, row by row."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from dray.api.types.core_v1 import Node, Pod
from dray.controllers.node_lifecycle import plan
from dray.controllers.node_lifecycle.plan import NoExecute

NOW = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
STAMP = "2026-01-01T00:01:00Z"
EARLIER = "2026-01-01T00:00:00Z"
NOT_READY, UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"


def node(*conditions: str, taints: tuple[str, ...] = (), labels: Any = None, unschedulable: bool = False) -> Node:
    """Conditions as `Type=Status`, taints as `key:Effect`."""
    return msgspec.convert(
        {
            "metadata": {"name": "n", "uid": "u", "resourceVersion": "7", "labels": labels or {}},
            "spec": {
                "taints": [dict(zip(("key", "effect"), text.rsplit(":", 1), strict=True)) for text in taints],
                "unschedulable": unschedulable,
            },
            "status": {
                "conditions": [
                    {"type": kind, "status": status, "lastHeartbeatTime": EARLIER}
                    for kind, status in (text.split("=") for text in conditions)
                ]
            },
        },
        Node,
        strict=False,
    )


def texts(taints: Any) -> list[str] | None:
    return None if taints is None else [f"{taint.key}:{taint.effect}" for taint in taints]


PREFIX = "node.kubernetes.io/"
TAINTS = {
    "well and clean": (node("Ready=True"), NoExecute.REMOVE, None),
    "a new node's taint goes when it is ready": (
        node("Ready=True", taints=(f"{NOT_READY}:NoSchedule",)),
        NoExecute.REMOVE,
        [],
    ),
    "a node that never spoke has no condition to be tainted for": (
        node(taints=(f"{NOT_READY}:NoSchedule",)),
        NoExecute.KEEP,
        [],
    ),
    "not ready": (node("Ready=False"), NoExecute.QUEUE, [f"{NOT_READY}:NoSchedule"]),
    "unknown": (node("Ready=Unknown"), NoExecute.QUEUE, [f"{UNREACHABLE}:NoSchedule"]),
    "its turn": (
        node("Ready=Unknown"),
        NoExecute.SET,
        [f"{UNREACHABLE}:NoExecute", f"{UNREACHABLE}:NoSchedule"],
    ),
    "from unknown to not ready": (
        node("Ready=False", taints=(f"{UNREACHABLE}:NoExecute", f"{UNREACHABLE}:NoSchedule")),
        NoExecute.SET,
        [f"{NOT_READY}:NoExecute", f"{NOT_READY}:NoSchedule"],
    ),
    "well again": (
        node("Ready=True", taints=("mine:NoExecute", f"{NOT_READY}:NoExecute", f"{UNREACHABLE}:NoSchedule")),
        NoExecute.REMOVE,
        ["mine:NoExecute"],
    ),
    "all pressures at once": (
        node("Ready=True", "MemoryPressure=True", "DiskPressure=True", "PIDPressure=True", "NetworkUnavailable=True"),
        NoExecute.REMOVE,
        [
            f"{PREFIX}disk-pressure:NoSchedule",
            f"{PREFIX}memory-pressure:NoSchedule",
            f"{PREFIX}network-unavailable:NoSchedule",
            f"{PREFIX}pid-pressure:NoSchedule",
        ],
    ),
    "unknown pressure is no pressure": (
        node("Ready=True", "MemoryPressure=Unknown", taints=(f"{PREFIX}memory-pressure:NoSchedule",)),
        NoExecute.REMOVE,
        [],
    ),
    "cordoned": (node("Ready=True", unschedulable=True), NoExecute.REMOVE, [f"{PREFIX}unschedulable:NoSchedule"]),
    "uncordoned": (
        node("Ready=True", taints=(f"{PREFIX}unschedulable:NoSchedule",)),
        NoExecute.REMOVE,
        [],
    ),
    "others' taints stay, also of these keys with another effect": (
        node("Ready=True", taints=("a:NoSchedule", f"{PREFIX}memory-pressure:NoExecute")),
        NoExecute.REMOVE,
        None,
    ),
    "waiting for its turn keeps what is there": (
        node("Ready=False", taints=(f"{NOT_READY}:NoSchedule", f"{UNREACHABLE}:NoExecute")),
        NoExecute.KEEP,
        None,
    ),
}


@pytest.mark.parametrize("row", TAINTS.values(), ids=TAINTS.keys())
def test_taints(row: tuple[Node, NoExecute, list[str] | None]) -> None:
    given, no_execute, expected = row
    before = msgspec.json.encode(given)
    assert texts(plan.plan_node(given, no_execute, NOW).taints) == expected
    assert msgspec.json.encode(given) == before


def test_an_added_taint_says_when() -> None:
    wanted = plan.plan_node(node("Ready=False"), NoExecute.QUEUE, NOW)
    patch = plan.node_patch(node("Ready=False"), wanted)
    assert patch["spec"]["taints"] == [{"key": NOT_READY, "effect": "NoSchedule", "timeAdded": STAMP}]
    assert patch["metadata"] == {"uid": "u", "resourceVersion": "7"}


EMPTYING = {
    "never spoke": (node(), {}, NoExecute.KEEP),
    "well": (node("Ready=True"), {}, NoExecute.REMOVE),
    "waits": (node("Ready=False"), {}, NoExecute.QUEUE),
    "has its turn": (node("Ready=False"), {"permitted": True}, NoExecute.SET),
    "tainted already": (node("Ready=Unknown", taints=(f"{NOT_READY}:NoExecute",)), {}, NoExecute.SET),
    "somebody took the taint away": (node("Ready=Unknown"), {"done": True}, NoExecute.KEEP),
    "all zones unhealthy": (
        node("Ready=Unknown", taints=(f"{UNREACHABLE}:NoExecute",)),
        {"stopped": True, "permitted": True},
        NoExecute.REMOVE,
    ),
}


@pytest.mark.parametrize("row", EMPTYING.values(), ids=EMPTYING.keys())
def test_no_execute(row: tuple[Node, dict[str, bool], NoExecute]) -> None:
    given, known, expected = row
    assert plan.plan_no_execute(given, **{"stopped": False, "permitted": False, "done": False, **known}) is expected


def test_a_silent_node_becomes_unknown() -> None:
    found = plan.unknown_conditions(node("Ready=True", "MemoryPressure=False", "NetworkUnavailable=False"), NOW)
    words = [(item["type"], item["status"], item["reason"], item["message"]) for item in found]
    stopped = ("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
    never = ("Unknown", "NodeStatusNeverUpdated", "Kubelet never posted node status.")
    assert words == [
        ("Ready", *stopped),
        ("MemoryPressure", *stopped),
        ("DiskPressure", *never),
        ("PIDPressure", *never),
    ]
    assert found[0]["lastHeartbeatTime"] == EARLIER
    assert {item["lastTransitionTime"] for item in found} == {STAMP}


def test_what_is_unknown_is_not_written_again() -> None:
    unknown = ("Ready=Unknown", "MemoryPressure=Unknown", "DiskPressure=Unknown", "PIDPressure=Unknown")
    assert plan.unknown_conditions(node(*unknown), NOW) == []


def test_labels_have_their_older_names_too() -> None:
    labels = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "arm64", "beta.kubernetes.io/arch": "amd64"}
    wanted = plan.plan_node(node("Ready=True", labels=labels), NoExecute.REMOVE, NOW)
    assert wanted.labels == {"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "arm64"}
    assert wanted.taints is None


@pytest.mark.parametrize(
    ("labels", "zone"),
    [
        ({}, ""),
        ({"topology.kubernetes.io/region": "r", "topology.kubernetes.io/zone": "z"}, "r:\x00:z"),
        ({"failure-domain.beta.kubernetes.io/zone": "z"}, ":\x00:z"),
    ],
)
def test_zone(labels: dict[str, str], zone: str) -> None:
    assert plan.zone_of(node(labels=labels)) == zone


def test_a_pod_on_it_is_not_ready() -> None:
    ready = {"type": "Ready", "status": "True"}
    pod = msgspec.convert({"metadata": {"uid": "p"}, "status": {"conditions": [ready]}}, Pod)
    changed = {"type": "Ready", "status": "False", "lastTransitionTime": STAMP}
    assert plan.not_ready_patch(pod, NOW) == {"metadata": {"uid": "p"}, "status": {"conditions": [changed]}}
    pod = msgspec.convert({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, Pod)
    assert plan.not_ready_patch(pod, NOW) is None
    assert plan.not_ready_patch(Pod(), NOW) is None
