"""The Node object and its Lease."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dray.api.document import Document
from dray.api.features import FeatureGates
from dray.node.agent.node_object import (
    MachineInfo,
    NodeSpec,
    declared_features,
    lease_document,
    node_document,
    node_status,
    parse_labels,
    parse_taints,
    stale_resources,
    without_heartbeats,
)
from dray.node.resource_manager import NodeResources
from tests.unit.node.agent.builders import START, at

MACHINE = MachineInfo("host", ("10.0.0.1",), "x86_64", 4, 8 * 1024**3, 100 * 1024**3, "6.1", "Debian")
SPEC = NodeSpec(
    "n1", MACHINE, "runc://1.1", port=10250, labels={"zone": "a"}, taints=({"key": "k", "effect": "NoSchedule"},)
)


def test_the_node_says_what_the_machine_has_and_what_managers_add() -> None:
    added = [NodeResources({"example.com/gpu": "2"}, {"example.com/gpu": "1"})]
    status = node_status(SPEC, added, {}, START)
    assert status["capacity"] == {
        "cpu": "4",
        "memory": "8388608Ki",
        "ephemeral-storage": "104857600Ki",
        "pods": "110",
        "example.com/gpu": "2",
    }
    assert status["allocatable"]["example.com/gpu"] == "1"
    assert status["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 10250}}
    assert {item["type"]: item["status"] for item in status["conditions"]} == {
        "MemoryPressure": "False",
        "DiskPressure": "False",
        "PIDPressure": "False",
        "Ready": "True",
    }
    assert status["nodeInfo"]["architecture"] == "amd64"


@pytest.mark.behaviour("DP-20")
def test_stale_resources_are_none_until_a_plugin_has_them() -> None:
    known = {"capacity": {"cpu": "4", "vendor.com/a": "3", "vendor.com/b": "1", "hugepages-2Mi": "0", "pods": "110"}}
    assert stale_resources(known) == ("vendor.com/a", "vendor.com/b")
    spec = replace(SPEC, stale=stale_resources(known))
    added = [NodeResources({"vendor.com/b": "2"}, {"vendor.com/b": "1"})]
    status = node_status(spec, added, {}, START)
    assert [status[name]["vendor.com/a"] for name in ("capacity", "allocatable")] == ["0", "0"]
    assert [status[name]["vendor.com/b"] for name in ("capacity", "allocatable")] == ["2", "1"]


def test_heartbeats_are_no_change_and_transitions_keep_their_time() -> None:
    first = node_status(SPEC, (), {}, START)
    second = node_status(SPEC, (), first, at(10))
    assert second != first
    assert without_heartbeats(second) == without_heartbeats(first)


def test_labels_and_taints_of_a_new_node() -> None:
    document = node_document(SPEC)
    assert document["metadata"]["labels"]["kubernetes.io/arch"] == "amd64"
    assert document["metadata"]["labels"]["zone"] == "a"
    assert document["spec"]["taints"] == [{"key": "k", "effect": "NoSchedule"}]
    assert parse_taints(["a=b:NoExecute", "c:NoSchedule"]) == (
        {"key": "a", "value": "b", "effect": "NoExecute"},
        {"key": "c", "effect": "NoSchedule"},
    )
    assert parse_labels(["a=b", "c="]) == {"a": "b", "c": ""}
    with pytest.raises(ValueError, match="must be name=value"):
        parse_labels(["x"])
    with pytest.raises(ValueError, match="must be key"):
        parse_taints(["a=b:Never"])


def test_a_lease_belongs_to_its_node() -> None:
    document = lease_document("n1", "uid", START)
    assert document["metadata"]["ownerReferences"][0]["uid"] == "uid"
    assert document["spec"]["leaseDurationSeconds"] == 40
    assert document["spec"]["renewTime"] == "2026-01-01T00:00:00.000000Z"


@pytest.mark.behaviour("N-52", "N-109", "N-110")
def test_enabled_features_are_declared_and_those_of_an_earlier_agent_removed() -> None:
    def declared(gates: str, known: Document) -> object:
        spec = replace(SPEC, declared_features=declared_features(FeatureGates.parse(gates)))
        return node_status(spec, (), known, START).get("declaredFeatures", "absent")

    enabled = "DRAOptionalNodeOperations=true,DRANodeAllocatableResources=true"
    streams = "ExtendWebSocketsToKubelet"
    assert declared(enabled, {}) == ["DRANodeAllocatableResources", "DRAOptionalNodeOperations", streams]
    assert declared("", {}) == [streams]
    assert declared("", {"declaredFeatures": ["Old"]}) == [streams]
