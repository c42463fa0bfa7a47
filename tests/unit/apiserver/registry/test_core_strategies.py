"""Preparation of core objects on create and update, and their selectable fields."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import pytest

from dray.api.conversion.events import from_hub, to_hub
from dray.api.features import FeatureGates
from dray.api.names import NAME_RULES
from dray.api.validation.batch_v1 import CONTROLLER_UID
from dray.apiserver.registry import (
    configuration,
    daemon_sets,
    deployments,
    events,
    jobs,
    leases,
    namespaces,
    nodes,
    pods,
    priority_classes,
    rbac,
    replica_sets,
    resource_quotas,
)
from dray.apiserver.registry.pod_status import quality_of_service
from dray.apiserver.registry.strategy import ResourceDefinition, WriteContext
from dray.apiserver.request import UserInfo

Document = dict[str, Any]
MODULES = (
    configuration,
    daemon_sets,
    deployments,
    events,
    jobs,
    leases,
    namespaces,
    nodes,
    pods,
    priority_classes,
    rbac,
    replica_sets,
    resource_quotas,
)
DEFINITIONS: list[ResourceDefinition] = [definition for module in MODULES for definition in module.DEFINITIONS]
BY_NAME = {f"{definition.resource}.{definition.group}".rstrip("."): definition for definition in DEFINITIONS}


def context(**gates: bool) -> WriteContext:
    return WriteContext(now=datetime(2026, 11, 15, tzinfo=UTC), gates=FeatureGates(gates), user=UserInfo("alice"))


def created(name: str, obj: Document, **gates: bool) -> Document:
    made = copy.deepcopy(obj)
    BY_NAME[name].strategy.prepare_for_create(made, context(**gates))
    return made


def updated(name: str, new: Document, old: Document, *, status: bool = False, **gates: bool) -> Document:
    made, before = copy.deepcopy(new), copy.deepcopy(old)
    strategy = BY_NAME[name].status_strategy if status else BY_NAME[name].strategy
    assert strategy is not None
    strategy.prepare_for_update(made, old, context(**gates))
    assert old == before
    return made


def test_definitions_are_complete() -> None:
    assert len(BY_NAME) == len(DEFINITIONS) == 19
    for definition in DEFINITIONS:
        assert definition.strategy.name_rule in NAME_RULES
        assert definition.storage_version in definition.versions
    in_all = {name for name, definition in BY_NAME.items() if "all" in definition.categories}
    assert in_all == {"pods", "deployments.apps", "replicasets.apps", "daemonsets.apps", "jobs.batch"}


@pytest.mark.parametrize(
    ("name", "create_on_update", "unconditional"),
    [
        ("leases.coordination.k8s.io", True, False),
        ("events", True, True),
        ("clusterroles.rbac.authorization.k8s.io", True, True),
        ("pods", False, True),
        ("nodes", False, True),
        ("configmaps", False, True),
    ],
)
def test_updates_without_object_or_version(name: str, create_on_update: bool, unconditional: bool) -> None:
    strategy = BY_NAME[name].strategy
    assert strategy.allow_create_on_update is create_on_update
    assert strategy.allow_unconditional_update is unconditional


def test_new_pod() -> None:
    made = created("pods", {"metadata": {"generation": 7}, "spec": {"containers": []}, "status": {"phase": "Running"}})
    assert made["metadata"]["generation"] == 1
    assert made["status"] == {"phase": "Pending", "qosClass": "BestEffort"}


def test_new_gated_pod_has_a_condition() -> None:
    (condition,) = created("pods", {"spec": {"schedulingGates": [{"name": "a"}]}})["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "SchedulingGated")


def test_pod_update_counts_generations_and_keeps_status() -> None:
    old = {"metadata": {"generation": 1}, "spec": {"containers": [{"image": "a"}]}, "status": {"phase": "Pending"}}
    new = {"metadata": {}, "spec": {"containers": [{"image": "b"}]}, "status": {"phase": "Running"}}
    made = updated("pods", new, old)
    assert made["metadata"]["generation"] == 2
    assert made["status"] == {"phase": "Pending"}
    assert updated("pods", {"metadata": {}, "spec": old["spec"]}, old)["metadata"]["generation"] == 1


def test_pod_status_update_keeps_spec_and_owners() -> None:
    old = {
        "metadata": {"generation": 3, "ownerReferences": [{"name": "o"}]},
        "spec": {"nodeName": "n"},
        "status": {"qosClass": "BestEffort"},
    }
    new = {"metadata": {"labels": {"a": "b"}}, "spec": {}, "status": {"phase": "Running"}}
    made = updated("pods", new, old, status=True)
    assert made["spec"] == {"nodeName": "n"}
    assert made["metadata"] == {"labels": {"a": "b"}, "generation": 3, "ownerReferences": [{"name": "o"}]}
    assert made["status"] == {"phase": "Running", "qosClass": "BestEffort"}


CLAIM_STATUSES = {
    "resourceClaimStatuses": [{"name": "a", "resourceClaimName": "c"}],
    "extendedResourceClaimStatus": {"resourceClaimName": "c"},
    "nodeAllocatableResourceClaimStatuses": [{"resourceClaimName": "c"}],
}


@pytest.mark.behaviour("N-66")
@pytest.mark.parametrize("name", CLAIM_STATUSES)
def test_a_status_that_leaves_out_claims_keeps_them(name: str) -> None:
    old = {"status": {name: CLAIM_STATUSES[name]}}
    made = updated("pods", {"status": {"phase": "Running"}}, old, status=True)
    assert made["status"] == {"phase": "Running", name: CLAIM_STATUSES[name]}
    # Nothing appears that was not there.
    assert updated("pods", {"status": {"phase": "Running"}}, {"status": {}}, status=True)["status"] == {
        "phase": "Running"
    }


@pytest.mark.behaviour("N-66")
@pytest.mark.parametrize("name", ["resourceClaimStatuses", "nodeAllocatableResourceClaimStatuses"])
def test_an_explicit_empty_list_removes_the_claims_of_a_status(name: str) -> None:
    assert updated("pods", {"status": {name: []}}, {"status": {name: CLAIM_STATUSES[name]}}, status=True) == {
        "metadata": {},
        "status": {},
    }


@pytest.mark.behaviour("N-46")
def test_amounts_of_claims_are_dropped_with_the_gate_off() -> None:
    name = "nodeAllocatableResourceClaimStatuses"
    new, old = {"status": {name: CLAIM_STATUSES[name]}}, {"status": {name: [{"resourceClaimName": "d"}]}}
    assert updated("pods", new, {"status": {}}, status=True)["status"] == {}
    assert updated("pods", new, old, status=True)["status"] == new["status"]
    assert updated("pods", new, {"status": {}}, status=True, DRANodeAllocatableResources=True) == {
        "metadata": {},
        **new,
    }


@pytest.mark.behaviour("N-01")
def test_messages_about_health_are_dropped_with_the_gate_off() -> None:
    def reported(**device: str) -> dict[str, Any]:
        resources = [{"resourceID": "d", **device}]
        return {"containerStatuses": [{"name": "c", "allocatedResourcesStatus": [{"resources": resources}]}]}

    new, off = {"status": reported(message="hot")}, {"ResourceHealthStatusMessage": False}
    assert updated("pods", copy.deepcopy(new), {"status": {}}, status=True, **off)["status"] == reported()
    assert updated("pods", copy.deepcopy(new), {"status": {}}, status=True)["status"] == new["status"]
    assert updated("pods", copy.deepcopy(new), new, status=True, **off)["status"] == new["status"]


def resources(requests: Document | None = None, limits: Document | None = None) -> Document:
    return {"resources": {"requests": requests or {}, "limits": limits or {}}}


FULL = {"cpu": "1", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ([{}], "BestEffort"),
        ([resources({"example.com/gpu": "1"}, {"example.com/gpu": "1"})], "BestEffort"),
        ([resources(FULL, FULL)], "Guaranteed"),
        ([resources({"cpu": "1000m", "memory": "1024Mi"}, FULL)], "Guaranteed"),
        ([resources(FULL, FULL), {}], "Burstable"),
        ([resources({"cpu": "1"})], "Burstable"),
        ([resources({"cpu": "1"}, {"cpu": "1"})], "Burstable"),
        ([resources({"cpu": "0"})], "BestEffort"),
    ],
)
def test_quality_of_service(containers: list[Document], expected: str) -> None:
    assert quality_of_service({"containers": containers}) == expected


def test_namespace() -> None:
    made = created("namespaces", {"metadata": {"name": "n"}, "status": {"phase": "Terminating"}})
    assert made["spec"] == {"finalizers": ["kubernetes"]}
    assert made["status"] == {"phase": "Active"}
    assert made["metadata"]["labels"] == {"kubernetes.io/metadata.name": "n"}
    changed = updated("namespaces", {"metadata": {"name": "n"}, "spec": {}}, made)
    assert (changed["spec"], changed["status"]) == (made["spec"], made["status"])
    assert changed["metadata"]["labels"] == {"kubernetes.io/metadata.name": "n"}


def test_job_finds_its_pods_by_uid() -> None:
    made = created("jobs.batch", {"metadata": {"name": "j", "uid": "u"}, "spec": {"template": {"spec": {}}}})
    assert made["spec"]["selector"] == {"matchLabels": {CONTROLLER_UID: "u"}}
    assert made["spec"]["template"]["metadata"]["labels"] == {
        "job-name": "j",
        "batch.kubernetes.io/job-name": "j",
        "controller-uid": "u",
        "batch.kubernetes.io/controller-uid": "u",
    }
    manual = {"metadata": {"name": "j"}, "spec": {"manualSelector": True, "selector": {"matchLabels": {"a": "b"}}}}
    assert created("jobs.batch", manual)["spec"] == manual["spec"]


@pytest.mark.parametrize("name", ["deployments.apps", "replicasets.apps", "daemonsets.apps", "jobs.batch"])
def test_workload_generations(name: str) -> None:
    made = created(name, {"metadata": {"name": "w", "uid": "u"}, "spec": {"manualSelector": True}, "status": {"x": 1}})
    assert made["metadata"]["generation"] == 1
    assert "x" not in made["status"]
    changed = updated(name, {**made, "spec": {"paused": True}}, made)
    assert changed["metadata"]["generation"] == 2
    reported = updated(name, {**made, "spec": {}, "status": {"replicas": 1}}, made, status=True)
    assert (reported["spec"], reported["status"]) == (made["spec"], {"replicas": 1})
    assert reported["metadata"]["generation"] == 1


def test_annotations_of_a_deployment_count() -> None:
    old = {"metadata": {"generation": 1}, "spec": {}}
    new = {"metadata": {"generation": 1, "annotations": {"a": "b"}}, "spec": {}}
    assert updated("deployments.apps", new, old)["metadata"]["generation"] == 2
    assert updated("replicasets.apps", new, old)["metadata"]["generation"] == 1


def test_quota_status_is_not_for_users() -> None:
    assert created("resourcequotas", {"spec": {}, "status": {"used": {"pods": "0"}}})["status"] == {}
    assert updated("resourcequotas", {"spec": {}}, {"status": {"used": {}}})["status"] == {"used": {}}


FIELDS: list[tuple[str, Document, str, str]] = [
    ("pods", {"spec": {"nodeName": "n"}}, "spec.nodeName", "n"),
    ("pods", {"spec": {}}, "spec.hostNetwork", "false"),
    ("pods", {"spec": {}, "status": {"phase": "Running"}}, "status.phase", "Running"),
    ("pods", {"spec": {}, "status": {"podIPs": [{"ip": "1.1.1.1"}]}}, "status.podIP", "1.1.1.1"),
    ("nodes", {}, "spec.unschedulable", "false"),
    ("secrets", {"type": "Opaque"}, "type", "Opaque"),
    ("namespaces", {"status": {"phase": "Active"}}, "status.phase", "Active"),
    ("namespaces", {"metadata": {"name": "n"}}, "name", "n"),
    ("jobs.batch", {"status": {"succeeded": 2}}, "status.successful", "2"),
    ("replicasets.apps", {}, "status.replicas", "0"),
    ("events", {"involvedObject": {"uid": "u"}}, "involvedObject.uid", "u"),
    ("events", {"source": {"component": "c"}}, "source", "c"),
    ("events", {"reportingComponent": "r"}, "source", "r"),
    ("events", {"type": "Normal"}, "type", "Normal"),
    ("events.events.k8s.io", {"regarding": {"kind": "Pod"}}, "regarding.kind", "Pod"),
]


@pytest.mark.parametrize(("name", "document", "field", "expected"), FIELDS)
def test_selectable_fields(name: str, document: Document, field: str, expected: str) -> None:
    assert BY_NAME[name].selectable_fields[field](document) == expected


def test_new_events_are_validated_in_their_own_form() -> None:
    event = {
        "apiVersion": "events.k8s.io/v1",
        "metadata": {"namespace": "ns"},
        "regarding": {"namespace": "ns"},
        "type": "Normal",
        "reportingController": "example.com/c",
        "reportingInstance": "i",
        "action": "a",
        "reason": "r",
        "note": "text",
    }
    kept = to_hub("v1", "Event", event)
    assert kept["involvedObject"] == {"namespace": "ns"}
    assert (kept["apiVersion"], kept["message"], kept["reportingComponent"]) == ("v1", "text", "example.com/c")
    assert from_hub("v1", "Event", kept) == event
    assert to_hub("v1", "Event", kept) == kept
    strategy = BY_NAME["events.events.k8s.io"].strategy
    for form in (event, kept):
        assert list(map(str, strategy.validate_create(form, context()))) == ["eventTime: Required value"]
        assert strategy.validate_update(form, kept, context()) == []


def test_validation_is_wired() -> None:
    pod = {"metadata": {"name": "p"}, "spec": {"containers": []}}
    errors = BY_NAME["pods"].strategy.validate_create(pod, context())
    assert "spec.containers: Required value" in map(str, errors)
    role = BY_NAME["rolebindings.rbac.authorization.k8s.io"].strategy
    old = {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "a"}}
    new = {"roleRef": {**old["roleRef"], "name": "b"}}
    assert [error.detail for error in role.validate_update(new, old, context())] == ["cannot change roleRef"]


@pytest.mark.behaviour("IA-06", "TS-04")
def test_label_keys_of_a_pod_are_merged_at_creation_only() -> None:
    constraint = {"topologyKey": "z", "labelSelector": {"matchLabels": {"a": "b"}}, "matchLabelKeys": ["hash"]}
    spec = {"containers": [], "topologySpreadConstraints": [constraint]}
    made = created("pods", {"metadata": {"name": "p", "labels": {"hash": "1"}}, "spec": spec})
    merged = made["spec"]["topologySpreadConstraints"][0]["labelSelector"]
    assert merged["matchExpressions"] == [{"key": "hash", "operator": "In", "values": ["1"]}]
    relabelled = copy.deepcopy(made)
    relabelled["metadata"]["labels"] = {"hash": "2"}
    changed = updated("pods", relabelled, made)
    assert changed["spec"]["topologySpreadConstraints"][0]["labelSelector"] == merged


@pytest.mark.behaviour("N-51")
def test_claims_do_not_change_the_quality_of_service() -> None:
    using, amounts = {"claims": [{"name": "gpu"}]}, {"cpu": "1", "memory": "1Gi"}
    for resources, expected in (({}, "BestEffort"), ({"limits": amounts, "requests": amounts}, "Guaranteed")):
        spec = {"containers": [{"name": "a", "resources": resources | using}]}
        assert quality_of_service(spec) == expected
