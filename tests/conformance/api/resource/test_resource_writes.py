"""Strategies of resource.k8s.io: preparation, gates, permissions, and tables."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.features import FeatureGates
from dray.api.gate_table import GATES
from dray.apiserver.registry.resource import DEFINITIONS
from dray.apiserver.registry.strategy import ResourceDefinition, Strategy, WriteContext
from dray.apiserver.request import UserInfo
from tests.conformance.api.resource.resource_rows import changed, params, row, texts

NOW = datetime(2026, 1, 2, 3, 4, 5, 600000, tzinfo=UTC)
BY_NAME: dict[str, ResourceDefinition] = {item.resource: item for item in DEFINITIONS}
LABELLED = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
ADMIN_ACCESS = (
    "admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace"
)


def off(gate: str) -> str:
    """The setting of a gate that is off, with those that need it."""
    return ",".join(f"{name}=false" for name, row in GATES.items() if name == gate or gate in row.requires)


def on(gate: str) -> str:
    """The setting of a gate that is on, with those that it needs."""
    return ",".join(f"{name}=true" for name in (gate, *GATES[gate].requires))


def context(
    gates: str = "",
    namespace: Document | None = None,
    allowed: Any = None,
    user: UserInfo | None = None,
    verb: str = "update",
) -> WriteContext:
    return WriteContext(
        NOW,
        FeatureGates.parse(gates),
        user or UserInfo("alice"),
        namespace or {"metadata": {}},
        allowed or (lambda **_: True),
        verb,
    )


def created(resource: str, obj: Document, given: WriteContext | None = None) -> tuple[Document, list[str]]:
    obj = copy.deepcopy(obj)
    strategy, given = BY_NAME[resource].strategy, given or context()
    strategy.prepare_for_create(obj, given)
    return obj, texts(strategy.validate_create(obj, given))


def updated(
    strategy: Strategy | None, old: Document, new: Document, given: WriteContext | None = None
) -> tuple[Document, list[str]]:
    assert strategy is not None
    before, new = copy.deepcopy(old), copy.deepcopy(new)
    given = given or context()
    strategy.prepare_for_update(new, old, given)
    errors = texts(strategy.validate_update(new, old, given))
    assert old == before
    return new, errors


def main(resource: str) -> Strategy:
    return BY_NAME[resource].strategy


def status(resource: str) -> Strategy:
    strategy = BY_NAME[resource].status_strategy
    assert strategy is not None
    return strategy


def claim(*requests: Document, **fields: Any) -> Document:
    spec = {"devices": {"requests": list(requests) or [{"name": "r", "exactly": exactly()}]}}
    return {"metadata": {"name": "c", "namespace": "n", "uid": "u"}, "spec": spec, "status": {}, **fields}


def exactly(**fields: Any) -> Document:
    return {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1, **fields}


def template(request: Document) -> Document:
    return {"metadata": {"name": "t"}, "spec": {"metadata": {}, "spec": claim(request)["spec"]}}


def result(device: str = "d0", **fields: Any) -> Document:
    return {"request": "r", "driver": "d.example.com", "pool": "p", "device": device, **fields}


def allocated(*results: Document, **fields: Any) -> Document:
    return {"allocation": {"devices": {"results": list(results) or [result()]}}, **fields}


def report(device: str = "d0", **fields: Any) -> Document:
    return {"driver": "d.example.com", "pool": "p", "device": device, **fields}


def resource_slice(*devices: Document, **spec: Any) -> Document:
    base = {
        "driver": "d.example.com",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        "allNodes": True,
    }
    return {"metadata": {"name": "s"}, "spec": {**base, "devices": list(devices), **spec}}


ALTERNATIVES = {"name": "r", "firstAvailable": [{"name": "a", **exactly()}]}
ADMIN = {"name": "r", "exactly": exactly(adminAccess=True)}


@pytest.mark.behaviour("SP-01")
@pytest.mark.parametrize(
    ("resource", "kind", "namespaced", "versions", "storage", "has_status"),
    [
        ("deviceclasses", "DeviceClass", False, ("v1", "v1beta2", "v1beta1"), "v1", False),
        ("resourceslices", "ResourceSlice", False, ("v1", "v1beta2", "v1beta1"), "v1", False),
        ("resourceclaims", "ResourceClaim", True, ("v1", "v1beta2", "v1beta1"), "v1", True),
        ("resourceclaimtemplates", "ResourceClaimTemplate", True, ("v1", "v1beta2", "v1beta1"), "v1", False),
        ("devicetaintrules", "DeviceTaintRule", False, ("v1", "v1beta2", "v1alpha3"), "v1beta2", True),
    ],
)
def test_definitions(
    resource: str, kind: str, namespaced: bool, versions: tuple[str, ...], storage: str, has_status: bool
) -> None:
    item = BY_NAME[resource]
    assert (item.group, item.kind, item.namespaced, item.versions, item.storage_version) == (
        "resource.k8s.io",
        kind,
        namespaced,
        versions,
        storage,
    )
    assert (item.status_strategy is not None) is has_status


@pytest.mark.behaviour("SP-18")
def test_create_clears_the_status_of_a_claim() -> None:
    obj, errors = created("resourceclaims", claim(status=allocated()))
    assert (obj["status"], errors) == ({}, [])


@pytest.mark.behaviour("SP-18")
def test_update_keeps_the_status() -> None:
    old = claim(status=allocated())
    obj, errors = updated(main("resourceclaims"), old, changed(old, "status", {"reservedFor": []}))
    assert (obj, errors) == (old, [])


@pytest.mark.behaviour("SP-18")
def test_status_update_keeps_spec_and_metadata() -> None:
    old = changed(claim(), "metadata.labels", {"a": "b"})
    new = changed(changed(old, "spec.devices", {}), "metadata.labels", {"c": "d"})
    new = changed(changed(new, "metadata.finalizers", ["x/y"]), "status", allocated())
    obj, errors = updated(status("resourceclaims"), old, new)
    assert (obj, errors) == (changed(old, "status", allocated()), [])


@pytest.mark.behaviour("SP-16")
@pytest.mark.parametrize(
    ("resource", "old", "path", "value"),
    [
        ("deviceclasses", {"metadata": {"name": "x"}, "spec": {}}, "spec.extendedResourceName", "example.com/x"),
        ("resourceslices", resource_slice(), "spec.pool.generation", 2),
        (
            "devicetaintrules",
            {"metadata": {}, "spec": {"taint": {"key": "k", "effect": "None"}}},
            "spec.taint.key",
            "l",
        ),
    ],
)
def test_generations(resource: str, old: Document, path: str, value: Any) -> None:
    old, errors = created(resource, old)
    assert (old["metadata"]["generation"], errors) == (1, [])
    same, _ = updated(main(resource), old, changed(old, "metadata.labels", {"a": "b"}))
    assert same["metadata"]["generation"] == 1
    other, errors = updated(main(resource), old, changed(old, path, value))
    assert (other["metadata"]["generation"], errors) == (2, [])


@pytest.mark.behaviour("SP-16")
def test_immutable_specs() -> None:
    _, errors = updated(main("resourceclaims"), claim(), claim(ALTERNATIVES))
    assert errors[0].startswith("spec: Invalid value: ")
    _, errors = updated(main("resourceclaimtemplates"), template(ADMIN), template(ALTERNATIVES))
    assert errors[0].endswith(": field is immutable")


@pytest.mark.behaviour("SP-22")
@pytest.mark.parametrize("resource", ["resourceclaims", "resourceclaimtemplates"])
def test_admin_access_needs_a_labelled_namespace(resource: str) -> None:
    def obj(request: Document) -> Document:
        return claim(request) if resource == "resourceclaims" else template(request)

    assert created(resource, obj(ADMIN))[1] == [f"spec.devices.requests[0].adminAccess: Forbidden: {ADMIN_ACCESS}"]
    assert created(resource, obj(ADMIN), context(namespace=LABELLED))[1] == []
    wrong = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "yes"}}}
    assert created(resource, obj(ADMIN), context(namespace=wrong))[1] != []
    assert created(resource, obj({"name": "r", "exactly": exactly(adminAccess=False)}))[1] == []


@pytest.mark.behaviour("SP-22")
def test_admin_access_in_new_results_needs_a_labelled_namespace() -> None:
    old, new = claim(), claim(status=allocated(result(), result("d1", adminAccess=True)))
    refused = [f"status.allocation.devices.results[1].adminAccess: Forbidden: {ADMIN_ACCESS}"]
    assert updated(status("resourceclaims"), old, new)[1] == refused
    assert updated(status("resourceclaims"), old, new, context(namespace=LABELLED))[1] == []
    reserved = changed(new, "status.reservedFor", [{"resource": "pods", "name": "p", "uid": "1"}])
    assert updated(status("resourceclaims"), new, reserved)[1] == []


@pytest.mark.behaviour("SP-21")
@pytest.mark.parametrize(
    ("new", "kept"),
    [
        ({"devices": [report(), report("d1")]}, None),
        (allocated(result(), result("d1"), devices=[report(), report("d1")]), [report(), report("d1")]),
    ],
)
def test_reports_on_deallocated_devices_are_dropped(new: Document, kept: list[Document] | None) -> None:
    old = claim(status=allocated(result(), result("d1"), devices=[report(), report("d1")]))
    obj, errors = updated(status("resourceclaims"), old, claim(status=new))
    assert (obj["status"].get("devices"), errors) == (kept, [])


@pytest.mark.behaviour("SP-21")
def test_reports_on_devices_that_were_never_allocated_are_rejected() -> None:
    _, errors = updated(status("resourceclaims"), claim(), claim(status={"devices": [report()]}))
    assert errors == ["status.devices[0]: Invalid value: d.example.com/p/d0: must be an allocated device in the claim"]


DERIVED = {"name": "derived/root", "expression": "device.driver"}
CLAIM_GATES = {
    "capacity": row(
        "SP-23",
        (
            "DRAConsumableCapacity",
            claim({"name": "r", "exactly": exactly(capacity={"requests": {"a": "1"}})}),
            claim({"name": "r", "exactly": exactly()}),
        ),
    ),
    "distinctAttribute": row(
        "SP-23",
        (
            "DRAConsumableCapacity",
            changed(claim(), "spec.devices.constraints", [{"matchAttribute": "a/b", "distinctAttribute": "a/c"}]),
            changed(claim(), "spec.devices.constraints", [{"matchAttribute": "a/b"}]),
        ),
    ),
    "derivedAttributes": row(
        "SP-23 N-91",
        (
            "DRADerivedAttributes",
            claim({"name": "r", "exactly": exactly(derivedAttributes=[DERIVED])}),
            claim({"name": "r", "exactly": exactly()}),
        ),
    ),
    "derivedAttributes of alternatives": row(
        "SP-23 N-91",
        (
            "DRADerivedAttributes",
            claim({"name": "r", "firstAvailable": [{"name": "a", **exactly(derivedAttributes=[DERIVED])}]}),
            claim(ALTERNATIVES),
        ),
    ),
}


@pytest.mark.parametrize(("given", "expected"), params(CLAIM_GATES))
def test_fields_of_claims_whose_gate_is_off(given: tuple[str, Document, Document], expected: list[str]) -> None:
    gate, full, without = given
    disabled = context(off(gate), LABELLED)
    assert created("resourceclaims", full, disabled)[0] == without
    assert created("resourceclaims", full, context(on(gate), LABELLED))[0] == full
    assert updated(main("resourceclaims"), full, full, disabled)[0] == full
    assert updated(main("resourceclaims"), without, full, disabled)[0] == without


SHARE = "a3b6a1e2-0f6c-4f2c-9c1e-2f6d1b8b7c11"
STATUS_GATES = {
    "shareID": row(
        "SP-23",
        ("DRAConsumableCapacity", allocated(result(shareID=SHARE, consumedCapacity={"a": "1"})), allocated()),
    ),
    "bindingConditions": row(
        "SP-23",
        (
            "DRADeviceBindingConditions",
            allocated(result(bindingConditions=["a"], bindingFailureConditions=["b"])),
            allocated(),
        ),
    ),
    "skipNodeOperations": row(
        "N-106", ("DRAOptionalNodeOperations", allocated(result(skipNodeOperations=["*"])), allocated())
    ),
}


@pytest.mark.parametrize(("given", "expected"), params(STATUS_GATES))
def test_fields_of_claim_status_whose_gate_is_off(given: tuple[str, Document, Document], expected: list[str]) -> None:
    gate, full, without = given
    strategy, disabled = status("resourceclaims"), context(off(gate), LABELLED)
    assert updated(strategy, claim(), claim(status=full), disabled)[0]["status"] == without
    assert updated(strategy, claim(status=full), claim(status=full), disabled)[0]["status"] == full
    assert updated(strategy, claim(), claim(status=full), context(on(gate), LABELLED))[0]["status"] == full


SLICE_GATES: dict[str, tuple[str, Document]] = {
    "taints": ("DRADeviceTaints", {"taints": [{"key": "k", "effect": "None"}]}),
    "consumesCounters": ("DRAPartitionableDevices", {"consumesCounters": [{"counterSet": "a", "counters": {"b": {}}}]}),
    "nodeName": ("DRAPartitionableDevices", {"nodeName": "n"}),
    "bindingConditions": (
        "DRADeviceBindingConditions",
        {"bindingConditions": ["a"], "bindingFailureConditions": ["b"], "bindsToNode": True},
    ),
    "allowMultipleAllocations": ("DRAConsumableCapacity", {"allowMultipleAllocations": True}),
    "nodeAllocatableResources": (
        "DRANodeAllocatableResources",
        {"nodeAllocatableResources": {"cpu": {"overhead": {"perPod": "1"}}}},
    ),
}


@pytest.mark.parametrize("name", SLICE_GATES)
@pytest.mark.behaviour("SP-23")
def test_fields_of_devices_whose_gate_is_off(name: str) -> None:
    gate, fields = SLICE_GATES[name]
    full, without = resource_slice({"name": "d", **fields}), resource_slice({"name": "d"})
    disabled = context(off(gate))
    assert created("resourceslices", full, disabled)[0]["spec"] == without["spec"]
    assert created("resourceslices", full, context(on(gate)))[0]["spec"] == full["spec"]
    assert updated(main("resourceslices"), full, full, disabled)[0]["spec"] == full["spec"]
    assert updated(main("resourceslices"), without, full, disabled)[0]["spec"] == without["spec"]


@pytest.mark.behaviour("SP-23")
def test_fields_inside_devices_whose_gate_is_off() -> None:
    device = {
        "name": "d",
        "capacity": {"c": {"value": "1", "requestPolicy": {"default": "1"}}},
        "attributes": {"a": {"ints": [1]}, "b": {"int": 1}},
        "nodeAllocatableResources": {"cpu": {"mapping": {"deviceMultiplier": "1"}}},
    }
    obj, _ = created("resourceslices", resource_slice(device), context("DRAConsumableCapacity=false"))
    assert obj["spec"]["devices"] == [
        {"name": "d", "capacity": {"c": {"value": "1"}}, "attributes": {"a": {}, "b": {"int": 1}}}
    ]


PARTITION: Document = {
    "name": "d",
    "attributes": {"type": {"string": "Half"}},
    "consumesCounters": [{"counterSet": "a", "counters": {"b": {"value": "1"}}}],
}
SPEC_GATES: dict[str, tuple[str, Document]] = {
    "skipNodeOperations": ("DRAOptionalNodeOperations", {"skipNodeOperations": ["*"]}),
    "partitionTypeAttribute": ("DRAPartitionableDevicesType", {"partitionTypeAttribute": "d.example.com/type"}),
}


@pytest.mark.parametrize("name", SPEC_GATES)
@pytest.mark.behaviour("N-83", "N-106")
def test_fields_of_new_slices_whose_gate_is_off(name: str) -> None:
    gate, fields = SPEC_GATES[name]
    full, without = resource_slice(PARTITION, **fields), resource_slice(PARTITION)
    assert created("resourceslices", full)[0]["spec"] == without["spec"]
    assert created("resourceslices", full, context(on(gate)))[0]["spec"] == full["spec"]
    assert updated(main("resourceslices"), full, full)[0]["spec"] == full["spec"]
    assert updated(main("resourceslices"), without, full)[0]["spec"] == without["spec"]


@pytest.mark.behaviour("N-100")
def test_compatibility_groups_without_their_gate() -> None:
    grouped = {**PARTITION, "consumesCounters": [PARTITION["consumesCounters"][0] | {"compatibilityGroups": ["x"]}]}
    assert created("resourceslices", resource_slice(grouped))[0]["spec"]["devices"] == [PARTITION]
    enabled = context(on("DRADeviceCompatibilityGroups"))
    assert created("resourceslices", resource_slice(grouped), enabled)[0]["spec"]["devices"] == [grouped]
    kept, _ = updated(main("resourceslices"), resource_slice(grouped), resource_slice(grouped))
    assert kept["spec"]["devices"] == [grouped]


@pytest.mark.behaviour("SP-23")
def test_fields_of_slices_whose_gate_is_off() -> None:
    full = resource_slice(sharedCounters=[], perDeviceNodeSelection=True)
    obj, _ = created("resourceslices", full, context("DRAPartitionableDevices=false"))
    assert obj["spec"] == resource_slice()["spec"]


@pytest.mark.behaviour("SP-03")
@pytest.mark.parametrize(
    ("driver", "warnings"),
    [
        ("d.example.com", ()),
        (
            "D.example.com",
            ('spec.driver: driver names should be lowercase; "D.example.com" contains uppercase characters',),
        ),
    ],
)
def test_upper_case_driver_names_get_a_warning(driver: str, warnings: tuple[str, ...]) -> None:
    obj = resource_slice(driver=driver)
    assert created("resourceslices", obj)[1] == []
    assert main("resourceslices").warnings(obj, None, context()) == warnings
    assert main("resourceslices").warnings(obj, obj, context()) == warnings


def rule(**taint: Any) -> Document:
    spec = {"taint": {"key": "k", "effect": "None", "timeAdded": "2025-01-01T00:00:00Z", **taint}}
    return {"metadata": {"name": "t", "generation": 1}, "spec": spec, "status": {}}


@pytest.mark.behaviour("SP-25")
@pytest.mark.parametrize(
    ("taint", "time_added"),
    [
        ({"effect": "NoExecute"}, "2026-01-02T03:04:05Z"),
        ({"effect": "NoExecute", "timeAdded": "2025-06-01T00:00:00Z"}, "2025-06-01T00:00:00Z"),
        ({"value": "v"}, "2025-01-01T00:00:00Z"),
    ],
)
def test_time_of_a_taint_restarts_with_its_effect(taint: Document, time_added: str) -> None:
    obj, errors = updated(main("devicetaintrules"), rule(), rule(**taint))
    assert (obj["spec"]["taint"]["timeAdded"], obj["metadata"]["generation"], errors) == (time_added, 2, [])


@pytest.mark.behaviour("SP-18")
def test_status_of_a_taint_rule() -> None:
    old = rule()
    conditions = [{"type": "T", "status": "True", "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    new = changed(changed(old, "status.conditions", conditions), "spec.taint.key", "other")
    obj, errors = updated(status("devicetaintrules"), old, new)
    assert (obj, errors) == (changed(old, "status.conditions", conditions), [])
    assert created("devicetaintrules", new)[0]["status"] == {}


@pytest.mark.behaviour("SP-33")
def test_slices_are_selected_by_node_and_driver() -> None:
    fields = BY_NAME["resourceslices"].selectable_fields
    on_node = resource_slice(nodeName="n")
    assert {name: getter(on_node) for name, getter in fields.items()} == {
        "spec.nodeName": "n",
        "spec.driver": "d.example.com",
        "spec.pool.name": "p",
    }
    assert fields["spec.nodeName"](resource_slice()) == ""
    assert all(not item.selectable_fields for name, item in BY_NAME.items() if name != "resourceslices")


COLUMNS = {
    "deviceclasses": ["Name", "Age"],
    "resourceclaimtemplates": ["Name", "Age"],
    "resourceslices": ["Name", "Node", "Driver", "Pool", "Age"],
    "devicetaintrules": ["Name", "Key", "Value", "Effect", "TimeAdded", "Age"],
    "resourceclaims": ["Name", "State", "Age"],
}


@pytest.mark.parametrize("resource", COLUMNS)
def test_columns(resource: str) -> None:
    columns = BY_NAME[resource].columns
    assert [column.name for column in columns] == COLUMNS[resource]
    assert {(column.type, column.priority) for column in columns} == {("string", 0)}
    assert [column.format for column in columns] == ["name"] + [""] * (len(columns) - 1)


def cells(resource: str, obj: Document) -> list[Any]:
    return [column.cell(obj, NOW) for column in BY_NAME[resource].columns]


@pytest.mark.parametrize(
    ("deleted", "claim_status", "state"),
    [
        (False, {}, "pending"),
        (False, allocated(), "allocated"),
        (False, allocated(reservedFor=[{"uid": "1"}]), "allocated,reserved"),
        (True, {}, "deleted"),
        (True, allocated(reservedFor=[{"uid": "1"}]), "deleted,allocated,reserved"),
    ],
)
def test_state_of_a_claim(deleted: bool, claim_status: Document, state: str) -> None:
    obj = changed(claim(status=claim_status), "metadata.creationTimestamp", "2026-01-02T03:04:00Z")
    if deleted:
        obj = changed(obj, "metadata.deletionTimestamp", "2026-01-02T03:04:00Z")
    assert cells("resourceclaims", obj) == ["c", state, "5s"]


def test_cells() -> None:
    assert cells("resourceslices", resource_slice(nodeName="n")) == ["s", "n", "d.example.com", "p", "<unknown>"]
    assert cells("devicetaintrules", rule(value="v")) == ["t", "k", "v", "None", "366d", "<unknown>"]


# On by default.
GRANULAR = ""


def refusing(*subresources: str) -> Any:
    return lambda **attributes: attributes["subresource"] not in subresources


@pytest.mark.behaviour("SP-35", "N-11", "N-12")
@pytest.mark.parametrize("verb", ["update", "patch"])
def test_binding_needs_its_own_permission(verb: str) -> None:
    strategy, old, new = status("resourceclaims"), claim(), claim(status=allocated())
    given = context(GRANULAR, allowed=refusing("binding"), verb=verb)
    assert updated(strategy, old, new, given)[1] == [
        'status: Forbidden: changing status.allocation or status.reservedFor requires resource="resourceclaims/binding"'
        f', verb="{verb}" permission: resourceclaims.resource.k8s.io is forbidden: User "alice" cannot {verb} resource '
        '"resourceclaims/binding" in API group "resource.k8s.io" at the cluster scope'
    ]
    # The permission for another verb does not help.
    only_other = context(GRANULAR, allowed=lambda **attributes: attributes["verb"] != verb, verb=verb)
    assert len(updated(strategy, old, new, only_other)[1]) == 1
    assert updated(strategy, old, new, context(GRANULAR, allowed=refusing("driver")))[1] == []
    without = context("DRAResourceClaimGranularStatusAuthorization=false", allowed=refusing("binding"))
    assert updated(strategy, old, new, without)[1] == []
    assert updated(strategy, new, new, given)[1] == []


def on_node(name: str) -> Document:
    field = {"key": "metadata.name", "operator": "In", "values": [name]}
    return {"nodeSelectorTerms": [{"matchFields": [field]}]}


@pytest.mark.behaviour("SP-35", "N-11", "N-12")
@pytest.mark.parametrize("verb", ["update", "patch"])
@pytest.mark.parametrize(
    ("user", "node", "prefixes"),
    [
        ("system:serviceaccount:n:driver", "n1", ("associated-node", "arbitrary-node")),
        ("system:serviceaccount:n:driver", "n2", ("arbitrary-node",)),
        ("alice", "n1", ("arbitrary-node",)),
    ],
)
def test_device_reports_need_permission_for_the_driver(
    user: str, node: str, prefixes: tuple[str, ...], verb: str
) -> None:
    asked: list[dict[str, str]] = []

    def refuse(**attributes: str) -> bool:
        asked.append(attributes)
        return False

    extra = {"authentication.kubernetes.io/node-name": (node,)}
    given = context(GRANULAR, allowed=refuse, user=UserInfo(user, extra=extra), verb=verb)
    old = claim(status=changed(allocated(), "allocation.nodeSelector", on_node("n1")))
    new = changed(old, "status.devices", [report()])
    _, errors = updated(status("resourceclaims"), old, new, given)
    verbs = [f"{prefix}:{verb}" for prefix in prefixes]
    assert errors == [
        'status.devices: Forbidden: changing status.devices requires resource="resourceclaims/driver", '
        f'verb="[{" ".join(verbs)}]" permission: resourceclaims.resource.k8s.io "d.example.com" is forbidden: '
        f'User "{user}" cannot {verbs[0]} resource "resourceclaims/driver" in API group "resource.k8s.io" '
        'in the namespace "n"'
    ]
    assert [item["verb"] for item in asked] == verbs
    assert {(item["resource"], item["subresource"], item["name"], item["namespace"]) for item in asked} == {
        ("resourceclaims", "driver", "d.example.com", "n")
    }


@pytest.mark.behaviour("SP-35")
def test_who_deallocates_needs_no_permission_for_the_reports_of_drivers() -> None:
    """The server drops the reports of deallocated devices, whoever writes: the scheduler, or the claim controller."""
    strategy = status("resourceclaims")
    old = changed(claim(status=allocated()), "status.devices", [report()])
    given = context(GRANULAR, allowed=refusing("driver"))
    written, errors = updated(strategy, old, claim(), given)
    assert errors == []
    assert "devices" not in written["status"]
    # To remove the report of a device that stays allocated is another matter.
    _, errors = updated(strategy, old, claim(status=allocated()), given)
    assert [error.split(" requires ")[0] for error in errors] == ["status.devices: Forbidden: changing status.devices"]
    assert updated(strategy, old, claim(), context(GRANULAR, allowed=refusing("binding")))[1]


SELECTORS = {
    "device.driver == 'd.example.com'": [],
    "device.foo(": [
        'Invalid value: "device.foo(": compilation failed: ERROR: <input>:1:12: Syntax error: mismatched input '
        "'<EOF>' expecting {'[', '{', '(', ')', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, "
        "STRING, BYTES, IDENTIFIER}\n | device.foo(\n | ...........^"
    ],
    "device.driver": ['Invalid value: "device.driver": must evaluate to bool or the unknown type, not string'],
    "device.attributes.all(a, device.attributes.all(b, device.attributes.all(c, device.attributes.all(d, a == b))))": [
        "Forbidden: too complex, exceeds cost limit"
    ],
}


@pytest.mark.parametrize("expression", SELECTORS)
@pytest.mark.behaviour("SP-10")
def test_selectors_are_compiled(expression: str) -> None:
    request: Document = {"name": "r", "exactly": exactly(selectors=[{"cel": {"expression": expression}}])}
    path = "spec.devices.requests[0].exactly.selectors[0].cel.expression"
    expected = [f"{path}: {text}" for text in SELECTORS[expression]]
    assert created("resourceclaims", claim(request))[1] == expected
    device_class = {"metadata": {"name": "x"}, "spec": {"selectors": request["exactly"]["selectors"]}}
    short = [text.replace("spec.devices.requests[0].exactly.", "spec.") for text in expected]
    assert created("deviceclasses", device_class)[1] == short
