"""PodGroups and Workloads: validation, preparation, columns, protobuf, and the group of a Pod."""

from __future__ import annotations

import asyncio
import copy
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from dray.api.document import GroupResource, GroupVersionKind
from dray.api.errors import ForbiddenError
from dray.api.features import FeatureGateError, FeatureGates
from dray.api.protobuf import decode_object, encode_object
from dray.api.schema.load import kind_type
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.api.validation.core_v1_pod import validate_pod_create, validate_pod_update
from dray.api.validation.scheduling_v1beta1 import (
    validate_pod_group,
    validate_pod_group_status,
    validate_pod_group_update,
    validate_workload,
    validate_workload_update,
)
from dray.apiserver.admission.plugin import AdmissionAttributes, Operation
from dray.apiserver.admission.pod_groups import PodGroupProtection
from dray.apiserver.admission.priority import Priority
from dray.apiserver.options import WriteOptions
from dray.apiserver.registry import builtin
from dray.apiserver.registry.pod_groups import POD_GROUPS, WORKLOADS
from dray.apiserver.registry.pods import PodStrategy
from dray.apiserver.registry.served_versions import RuntimeConfig, is_served
from dray.apiserver.registry.strategy import WriteContext
from dray.apiserver.request import UserInfo
from dray.client.resources import POD_GROUPS as CLIENT_RESOURCE

Document = dict[str, Any]
NOW = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)
OFF = WriteContext(now=NOW, gates=FeatureGates({}), user=UserInfo("alice"))
ON = WriteContext(
    now=NOW,
    gates=FeatureGates({"GenericWorkload": True, "DRAWorkloadResourceClaims": True}),
    user=UserInfo("alice"),
)
GANG: Document = {"gang": {"minCount": 3}}
BASIC: Document = {"basic": {}}
CLAIM: Document = {"name": "gpu", "resourceClaimTemplateName": "gpu"}


def group(**spec: Any) -> Document:
    return {"metadata": {"name": "team", "namespace": "default"}, "spec": {"schedulingPolicy": GANG, **spec}}


def workload(*templates: Document, **spec: Any) -> Document:
    listed = {"podGroupTemplates": list(templates)} if templates else {}
    return {"metadata": {"name": "w", "namespace": "default"}, "spec": {**listed, **spec}}


def template(name: str = "workers", **spec: Any) -> Document:
    return {"name": name, "schedulingPolicy": GANG, **spec}


_LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
GROUPS: dict[str, tuple[Document, list[str]]] = {
    "gang": ({}, []),
    "basic": ({"schedulingPolicy": BASIC}, []),
    "everything": (
        {
            "workloadRef": {"workloadName": "w", "templateName": "t"},
            "schedulingConstraints": {"topology": [{"key": "example.com/rack"}]},
            "resourceClaims": [CLAIM, {"name": "net", "resourceClaimName": "net"}],
            "disruptionMode": {"all": {}},
            "priorityClassName": "high",
            "priority": 1_000_000_000,
        },
        [],
    ),
    "no policy": (
        {"schedulingPolicy": {}},
        ['spec.schedulingPolicy: Invalid value: "": must specify one of: `basic`, `gang`'],
    ),
    "two policies": (
        {"schedulingPolicy": {**BASIC, **GANG}},
        ['spec.schedulingPolicy: Invalid value: "{basic, gang}": must specify exactly one of: `basic`, `gang`'],
    ),
    "no count": ({"schedulingPolicy": {"gang": {}}}, ["spec.schedulingPolicy.gang.minCount: Required value"]),
    "negative count": (
        {"schedulingPolicy": {"gang": {"minCount": -1}}},
        ["spec.schedulingPolicy.gang.minCount: Invalid value: -1: must be greater than or equal to 1"],
    ),
    "incomplete reference": (
        {"workloadRef": {"workloadName": "w"}},
        ["spec.workloadRef.templateName: Required value"],
    ),
    "bad template name": (
        {"workloadRef": {"workloadName": "w", "templateName": "A_b"}},
        [f'spec.workloadRef.templateName: Invalid value: "A_b": {_LABEL}'],
    ),
    "two constraints": (
        {"schedulingConstraints": {"topology": [{"key": "a"}, {"key": "b"}]}},
        ["spec.schedulingConstraints.topology: Too many: 2: must have at most 1 item"],
    ),
    "no topology key": (
        {"schedulingConstraints": {"topology": [{"key": ""}]}},
        ["spec.schedulingConstraints.topology[0].key: Required value"],
    ),
    "five claims": (
        {"resourceClaims": [{**CLAIM, "name": f"c{number}"} for number in range(5)]},
        ["spec.resourceClaims: Too many: 5: must have at most 4 items"],
    ),
    "a claim twice": (
        {"resourceClaims": [CLAIM, CLAIM]},
        ['spec.resourceClaims[1]: Duplicate value: {"name":"gpu","resourceClaimTemplateName":"gpu"}'],
    ),
    "a claim from nowhere": (
        {"resourceClaims": [{"name": "gpu"}]},
        [
            'spec.resourceClaims[0]: Invalid value: "": must specify one of: '
            "`resourceClaimName`, `resourceClaimTemplateName`"
        ],
    ),
    "two modes": (
        {"disruptionMode": {"single": {}, "all": {}}},
        ['spec.disruptionMode: Invalid value: "{single, all}": must specify exactly one of: `single`, `all`'],
    ),
    "system priority": (
        {"priority": 2_000_000_000},
        ["spec.priority: Invalid value: 2000000000: must be less than or equal to 1000000000"],
    ),
}


@pytest.mark.behaviour("GW-11", "GW-12", "GW-13", "N-126")
@pytest.mark.parametrize(("spec", "errors"), GROUPS.values(), ids=GROUPS)
def test_group_validation(spec: Document, errors: list[str]) -> None:
    assert [str(error) for error in validate_pod_group(group(**spec))] == errors


UPDATES: dict[str, tuple[Document, Document, list[str]]] = {
    "count": ({}, {"schedulingPolicy": {"gang": {"minCount": 2}}}, []),
    "bad count": (
        {},
        {"schedulingPolicy": {"gang": {"minCount": -2}}},
        ["spec.schedulingPolicy.gang.minCount: Invalid value: -2: must be greater than or equal to 1"],
    ),
    "gang to basic": (
        {},
        {"schedulingPolicy": BASIC},
        [
            "spec.schedulingPolicy.basic: Invalid value: {}: field is immutable",
            "spec.schedulingPolicy.gang: Invalid value: null: field cannot be cleared once set",
        ],
    ),
    "basic to gang": (
        {"schedulingPolicy": BASIC},
        {"schedulingPolicy": GANG},
        [
            "spec.schedulingPolicy.basic: Invalid value: null: field is immutable",
            "spec.schedulingPolicy.gang: Invalid value: null: field cannot be set once created",
        ],
    ),
    "claims": (
        {},
        {"resourceClaims": [CLAIM]},
        ['spec.resourceClaims: Invalid value: [{"name":"gpu","resourceClaimTemplateName":"gpu"}]: field is immutable'],
    ),
    "priority": ({"priority": 1}, {"priority": 2}, ["spec.priority: Invalid value: 2: field is immutable"]),
}


@pytest.mark.behaviour("GW-14")
@pytest.mark.parametrize(("old", "new", "errors"), UPDATES.values(), ids=UPDATES)
def test_only_the_count_may_change(old: Document, new: Document, errors: list[str]) -> None:
    found = validate_pod_group_update(group(**new), group(**old))
    assert [str(error) for error in found] == errors


@pytest.mark.behaviour("GW-16", "N-126")
def test_a_status_names_claims_of_the_spec() -> None:
    stored = group(resourceClaims=[CLAIM])
    good = stored | {"status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "team-gpu-x"}]}}
    assert not validate_pod_group_status(good, stored)
    bad = stored | {"status": {"resourceClaimStatuses": [{"name": "net"}]}}
    text = "must match the name of an entry in `spec.resourceClaims`"
    expected = [f'status.resourceClaimStatuses[0].name: Invalid value: "net": {text}']
    assert [str(error) for error in validate_pod_group_status(bad, stored)] == expected


@pytest.mark.behaviour("GW-16", "GW-17", "N-126")
def test_preparing() -> None:
    given = group(resourceClaims=[CLAIM], parentCompositePodGroupName="p", preemptionPolicy="Never")
    given |= {"status": {"conditions": [1]}}
    created = copy.deepcopy(given)
    POD_GROUPS.strategy.prepare_for_create(created, OFF)
    assert created["status"] == {}
    assert "generation" not in created["metadata"]
    assert created["spec"] == {"schedulingPolicy": GANG}
    enabled = copy.deepcopy(given)
    POD_GROUPS.strategy.prepare_for_create(enabled, ON)
    assert enabled["spec"] == {"schedulingPolicy": GANG, "resourceClaims": [CLAIM]}
    # A stored field stays when the gate is off.
    update = copy.deepcopy(given)
    POD_GROUPS.strategy.prepare_for_update(update, enabled, OFF)
    assert update["spec"]["resourceClaims"] == [CLAIM]
    assert update["status"] == {}
    assert POD_GROUPS.status_strategy is not None
    status = group() | {"status": {"resourceClaimStatuses": [{"name": "gpu"}]}}
    status["metadata"] = {"name": "team", "labels": {"a": "b"}}
    POD_GROUPS.status_strategy.prepare_for_update(status, enabled, ON)
    assert status["spec"] == enabled["spec"]
    assert "labels" not in status["metadata"]


def condition(kind: str, status: str, reason: str = "R") -> Document:
    return {"type": kind, "status": status, "reason": reason}


@pytest.mark.behaviour("GW-10")
@pytest.mark.parametrize(
    ("given", "cells"),
    [
        (group(), ["Gang", "<none>", "Pending"]),
        (
            group(schedulingPolicy=BASIC, workloadRef={"workloadName": "w"})
            | {"status": {"conditions": [condition("PodGroupInitiallyScheduled", "True")]}},
            ["Basic", "w", "Scheduled"],
        ),
        (
            group() | {"status": {"conditions": [condition("PodGroupInitiallyScheduled", "False")]}},
            ["Gang", "<none>", "Unschedulable"],
        ),
        (
            group() | {"status": {"conditions": [condition("DisruptionTarget", "True", "PreemptionByScheduler")]}},
            ["Gang", "<none>", "PreemptionByScheduler"],
        ),
    ],
)
def test_columns(given: Document, cells: list[str]) -> None:
    columns = {column.name: column.cell(given, NOW) for column in POD_GROUPS.columns}
    assert list(columns) == ["Name", "Policy", "Workload", "Status", "Age"]
    assert [columns["Policy"], columns["Workload"], columns["Status"]] == cells
    assert [column.name for column in WORKLOADS.columns] == ["Name", "Age"]


@pytest.mark.behaviour("GW-01", "GW-02", "GW-03", "GW-04", "GW-05", "GW-07", "N-125")
def test_served_with_protobuf_and_defaults() -> None:
    kind = GroupVersionKind("scheduling.k8s.io", "v1beta1", "PodGroup")
    struct = kind_type(kind)
    assert struct is not None
    spec = cast(Any, struct.fields["spec"].type)
    numbers = {name: field.number for name, field in spec.fields.items()}
    assert numbers == {
        "parentCompositePodGroupName": 1,
        "workloadRef": 2,
        "schedulingPolicy": 3,
        "schedulingConstraints": 4,
        "resourceClaims": 5,
        "disruptionMode": 6,
        "priorityClassName": 7,
        "priority": 8,
        "preemptionPolicy": 9,
    }
    given = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", **group(disruptionMode={"single": {}})}
    # A union of empty structs survives: presence is its value.
    assert decode_object(encode_object(given))[1]["spec"] == given["spec"]
    endpoint = builtin.endpoint(POD_GROUPS, "v1beta1")
    assert endpoint.default is not None
    fresh = group()
    endpoint.default(fresh, NOW)
    assert fresh["spec"]["disruptionMode"] == {"single": {}}
    assert CLIENT_RESOURCE.type is PodGroup
    on, off = FeatureGates({"GenericWorkload": True}), FeatureGates({})
    assert is_served(endpoint, on, RuntimeConfig())
    assert not is_served(endpoint, off, RuntimeConfig())


@pytest.mark.behaviour("GW-48", "N-129")
def test_gates_name_what_is_missing() -> None:
    text = r"DRAWorkloadResourceClaims is enabled, but depends on features that are disabled: \[GenericWorkload\]"
    with pytest.raises(FeatureGateError, match=text):
        FeatureGates.parse("DRAWorkloadResourceClaims=true")
    assert FeatureGates.parse("DRAWorkloadResourceClaims=true,GenericWorkload=true").enabled("GenericWorkload")
    assert not FeatureGates.parse("").enabled("GenericWorkload")


# --- Workloads. ---

COMPOSITE: Document = {"name": "all", "schedulingPolicy": {"gang": {"minGroupCount": 2}}}
WORKLOAD_ERRORS: dict[str, tuple[Document, list[str]]] = {
    "one": (workload(template()), []),
    "nothing": (
        workload(),
        ['spec: Invalid value: "": must specify one of: `podGroupTemplates`, `compositePodGroupTemplates`'],
    ),
    "both": (
        workload(template(), compositePodGroupTemplates=[COMPOSITE | {"podGroupTemplates": [template("b")]}]),
        [
            'spec: Invalid value: "{podGroupTemplates, compositePodGroupTemplates}": must specify exactly one of: '
            "`podGroupTemplates`, `compositePodGroupTemplates`"
        ],
    ),
    "nine": (
        workload(*(template(f"t{number}") for number in range(9))),
        ["spec.podGroupTemplates: Too many: 9: must have at most 8 items"],
    ),
    "same name": (
        workload(template(), template()),
        ['spec.podGroupTemplates[1]: Duplicate value: {"name":"workers","schedulingPolicy":{"gang":{"minCount":3}}}'],
    ),
    "priorities": (
        workload(template("a", priorityClassName="high"), template("b")),
        ["spec: Forbidden: detected multiple priority configurations"],
    ),
    "no policy": (
        workload({"name": "workers"}),
        ['spec.podGroupTemplates[0].schedulingPolicy: Invalid value: "": must specify one of: `basic`, `gang`'],
    ),
    "no kind": (
        workload(template(), controllerRef={"name": "job"}),
        ["spec.controllerRef.kind: Required value"],
    ),
}


def nested(depth: int) -> Document:
    inner: Document = {"podGroupTemplates": [template("leaf")]}
    for number in range(depth):
        inner = {"compositePodGroupTemplates": [COMPOSITE | {"name": f"c{number}"} | inner]}
    return workload(**inner)


@pytest.mark.behaviour("GW-15", "GW-11")
@pytest.mark.parametrize(("given", "errors"), WORKLOAD_ERRORS.values(), ids=WORKLOAD_ERRORS)
def test_workload_validation(given: Document, errors: list[str]) -> None:
    assert [str(error) for error in validate_workload(given)] == errors


@pytest.mark.behaviour("GW-15")
def test_templates_are_four_levels_deep_at_most() -> None:
    assert not validate_workload(nested(3))
    texts = [str(error) for error in validate_workload(nested(4))]
    assert any("Forbidden: maximum template hierarchy depth is 4" in text for text in texts)


@pytest.mark.behaviour("GW-15", "GW-14")
@pytest.mark.parametrize(
    ("new", "errors"),
    [
        (workload(template(schedulingPolicy={"gang": {"minCount": 9}})), []),
        (
            workload(template(), template("more")),
            ["spec.podGroupTemplates[1]: Forbidden: item may not be added"],
        ),
        (
            workload(template("other")),
            [
                "spec.podGroupTemplates[0]: Forbidden: item may not be added",
                "spec.podGroupTemplates: Forbidden: item may not be removed",
            ],
        ),
        (
            workload(template(), controllerRef={"kind": "Job", "name": "j"}),
            ['spec.controllerRef: Invalid value: {"kind":"Job","name":"j"}: field is immutable'],
        ),
    ],
)
def test_workload_updates(new: Document, errors: list[str]) -> None:
    assert [str(error) for error in validate_workload_update(new, workload(template()))] == errors


# --- Pods. ---


def pod(**spec: Any) -> Document:
    container = {"name": "c", "image": "i", "terminationMessagePolicy": "File", "imagePullPolicy": "Always"}
    defaults = {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "terminationGracePeriodSeconds": 30}
    return {"metadata": {"name": "p", "namespace": "default"}, "spec": {"containers": [container], **defaults, **spec}}


@pytest.mark.behaviour("GW-06", "N-127")
def test_the_group_of_a_pod() -> None:
    assert not validate_pod_create(pod(schedulingGroup={"podGroupName": "team"}))
    found = [str(error) for error in validate_pod_create(pod(schedulingGroup={}))]
    assert found == ['spec.schedulingGroup: Invalid value: "": must specify one of: `podGroupName`']
    found = [str(error) for error in validate_pod_create(pod(schedulingGroup={"podGroupName": "A"}))]
    assert len(found) == 1
    assert found[0].startswith('spec.schedulingGroup.podGroupName: Invalid value: "A": a lowercase RFC 1123 subdomain')
    changed = validate_pod_update(
        pod(schedulingGroup={"podGroupName": "b"}), pod(schedulingGroup={"podGroupName": "a"})
    )
    assert changed[0].path == "spec"
    assert "pod updates may not change fields other than" in changed[0].detail


@pytest.mark.behaviour("GW-06", "GW-17", "N-127", "SC-14")
def test_without_the_gate_the_group_is_dropped_with_a_warning() -> None:
    context = WriteContext(now=NOW, gates=FeatureGates({}), user=UserInfo("alice"))
    dropped = pod(schedulingGroup={"podGroupName": "team"})
    PodStrategy().prepare_for_create(dropped, context)
    assert "schedulingGroup" not in dropped["spec"]
    assert context.warnings == ["spec.schedulingGroup: dropped, because the feature gate GenericWorkload is disabled"]
    kept = pod(schedulingGroup={"podGroupName": "team"})
    PodStrategy().prepare_for_create(kept, ON)
    assert kept["spec"]["schedulingGroup"] == {"podGroupName": "team"}
    assert not ON.warnings


# --- Admission. ---


class Classes:
    """Priority classes by name; `low` is the default."""

    def __init__(self) -> None:
        self.priority_classes = {
            name: {"metadata": {"name": name}, "value": value, "globalDefault": name == "low"}
            for name, value in (("low", 1), ("high", 9))
        }

    async def priority_class(self, name: str) -> Document | None:
        return self.priority_classes.get(name)


def admit(given: Document) -> Document:
    resource = GroupResource("scheduling.k8s.io", "podgroups")
    attributes = AdmissionAttributes(
        Operation.CREATE, UserInfo("a"), "create", resource, "v1beta1", "", "d", "team", given, None, WriteOptions(), []
    )
    classes = cast(Any, Classes())

    async def run() -> None:
        for plugin in (Priority(classes, classes), PodGroupProtection()):
            assert plugin.handles(resource, "", Operation.CREATE)
            assert not plugin.handles(resource, "status", Operation.UPDATE)
            await plugin.admit(attributes)

    asyncio.run(run())
    return given


@pytest.mark.behaviour("GW-08", "GW-09")
def test_admission() -> None:
    admitted = admit(group(priorityClassName="high"))
    assert admitted["spec"]["priority"] == 9
    assert admitted["metadata"]["finalizers"] == ["scheduling.k8s.io/podgroup-protection"]
    assert admit(group())["spec"]["priorityClassName"] == "low"
    assert admit(group(priorityClassName="high", priority=9))["spec"]["priority"] == 9
    text = (
        r"priority set in the pod group \(5\) must match the priority computed \(9\) "
        "based on the priority class set in the spec"
    )
    with pytest.raises(ForbiddenError, match=text):
        admit(group(priorityClassName="high", priority=5))
    with pytest.raises(ForbiddenError, match="no PriorityClass with name none was found"):
        admit(group(priorityClassName="none"))
