"""Strict decoding as in Go: reported, dropped and rejected fields."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dray.api.document import GroupVersionKind
from dray.api.schema import load
from dray.api.schema.model import StructType
from dray.api.strict import DecodeError, check_fields


def type_of(kind: str, group: str = "", version: str = "v1") -> StructType:
    found = load.kind_type(GroupVersionKind(group, version, kind))
    assert found is not None
    return found


UNKNOWN: dict[str, tuple[str, Any, list[str]]] = {
    "top level": ("ConfigMap", {"dataa": {}}, ['unknown field "dataa"']),
    "in a list": (
        "Pod",
        {"spec": {"containers": [{"name": "a"}, {"name": "b", "foo": 1}]}},
        ['unknown field "spec.containers[1].foo"'],
    ),
    "in a map": (
        "ResourceSlice",
        {"spec": {"devices": [{"name": "d", "attributes": {"a.b/c": {"strin": "x"}}}]}},
        ['unknown field "spec.devices[0].attributes.a.b/c.strin"'],
    ),
    "case matters": ("ConfigMap", {"Data": {}}, ['unknown field "Data"']),
    "in document order": (
        "Pod",
        {"spec": {"b": 1}, "a": 1},
        ['unknown field "spec.b"', 'unknown field "a"'],
    ),
    "raw parameters are free": (
        "DeviceClass",
        {"spec": {"config": [{"opaque": {"driver": "d", "parameters": {"any": ["thing"]}}}]}},
        [],
    ),
}
GROUPS = {"ResourceSlice": "resource.k8s.io", "DeviceClass": "resource.k8s.io", "ResourceClaim": "resource.k8s.io"}


@pytest.mark.parametrize(("kind", "document", "expected"), UNKNOWN.values(), ids=UNKNOWN)
def test_unknown_fields_are_reported_and_dropped(kind: str, document: Any, expected: list[str]) -> None:
    struct_type = type_of(kind, GROUPS.get(kind, ""))
    assert check_fields(document, struct_type) == expected
    assert check_fields(document, struct_type) == []


MISMATCHES: dict[str, tuple[str, Any, str]] = {
    "number for a map value": (
        "ConfigMap",
        {"data": {"a": 1}},
        "json: cannot unmarshal number into Go struct field ConfigMap.data of type string",
    ),
    "list for a map": (
        "ConfigMap",
        {"data": []},
        "json: cannot unmarshal array into Go struct field ConfigMap.data of type map[string]string",
    ),
    "innermost struct, whole path": (
        "Pod",
        {"spec": {"containers": [{"env": [{"name": "x", "value": 1}]}]}},
        "json: cannot unmarshal number into Go struct field EnvVar.spec.containers.env.value of type string",
    ),
    "text for an integer": (
        "Pod",
        {"spec": {"priority": "1"}},
        "json: cannot unmarshal string into Go struct field PodSpec.spec.priority of type int32",
    ),
    "fraction for an integer": (
        "Pod",
        {"spec": {"priority": 1.5}},
        "json: cannot unmarshal number 1.5 into Go struct field PodSpec.spec.priority of type int32",
    ),
    "too large for int32": (
        "Pod",
        {"spec": {"priority": 2147483648}},
        "json: cannot unmarshal number 2147483648 into Go struct field PodSpec.spec.priority of type int32",
    ),
    "bool is not a number": (
        "Pod",
        {"spec": {"priority": True}},
        "json: cannot unmarshal bool into Go struct field PodSpec.spec.priority of type int32",
    ),
    "object for a list": (
        "Pod",
        {"spec": {"containers": {}}},
        "json: cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container",
    ),
    "list for a struct": (
        "Pod",
        {"spec": []},
        "json: cannot unmarshal array into Go struct field Pod.spec of type v1.PodSpec",
    ),
    "not an object at all": ("Pod", [], "json: cannot unmarshal array into Go value of type v1.Pod"),
    "no quantity": (
        "ResourceQuota",
        {"spec": {"hard": {"pods": "x"}}},
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
    ),
    "no time": (
        "Pod",
        {"metadata": {"deletionTimestamp": "soon"}},
        'parsing time "soon" as "2006-01-02T15:04:05Z07:00": cannot parse "soon" as "2006"',
    ),
    "no time at all": (
        "Pod",
        {"metadata": {"deletionTimestamp": ""}},
        'parsing time "" as "2006-01-02T15:04:05Z07:00": cannot parse "" as "2006"',
    ),
    "number for a flag": (
        "Pod",
        {"spec": {"hostNetwork": 1}},
        "json: cannot unmarshal number into Go struct field PodSpec.spec.hostNetwork of type bool",
    ),
    "no base64": ("Secret", {"data": {"a": "?"}}, "illegal base64 data at input byte 0"),
}


@pytest.mark.parametrize(("kind", "document", "message"), MISMATCHES.values(), ids=MISMATCHES)
def test_wrong_types_are_rejected_with_gos_message(kind: str, document: Any, message: str) -> None:
    with pytest.raises(DecodeError) as caught:
        check_fields(document, type_of(kind))
    assert str(caught.value) == message


NORMAL: dict[str, tuple[str, Any, Any]] = {
    "null is absent": ("ConfigMap", {"data": None, "metadata": {"creationTimestamp": None}}, {"metadata": {}}),
    "empty maps and lists vanish": (
        "ConfigMap",
        {"data": {}, "metadata": {"labels": {}, "finalizers": []}},
        {"metadata": {}},
    ),
    "zero values vanish, zero pointers stay": (
        "Pod",
        {"spec": {"hostNetwork": False, "nodeName": "", "hostUsers": False, "priority": 0, "containers": []}},
        {"spec": {"hostUsers": False, "priority": 0, "containers": []}, "status": {}},
    ),
    "flags stay": (
        "Pod",
        {"spec": {"hostNetwork": True, "hostUsers": True, "containers": []}},
        {"spec": {"hostNetwork": True, "hostUsers": True, "containers": []}, "status": {}},
    ),
    "structs that are always there": (
        "Pod",
        {"spec": {"containers": [{"name": "a"}]}},
        {"spec": {"containers": [{"name": "a", "resources": {}}]}, "status": {}},
    ),
    "nested ones too": (
        "ResourceClaim",
        {},
        {"status": {}},
    ),
    "null elements are zero values": (
        "Pod",
        {"spec": {"containers": [{"name": "a", "args": [None], "env": [None]}]}},
        {"spec": {"containers": [{"name": "a", "args": [""], "env": [{}], "resources": {}}]}, "status": {}},
    ),
    "quantities are canonical": (
        "ResourceQuota",
        {"spec": {"hard": {"cpu": "1000m", "pods": 3, "memory": "1024Mi"}}},
        {"spec": {"hard": {"cpu": "1", "pods": "3", "memory": "1Gi"}}, "status": {}},
    ),
    "times are in UTC": (
        "ConfigMap",
        {"metadata": {"deletionTimestamp": "2026-01-02T03:04:05.6+01:00"}},
        {"metadata": {"deletionTimestamp": "2026-01-02T02:04:05Z"}},
    ),
    "int or string": (
        "Pod",
        {"spec": {"containers": [{"name": "a", "livenessProbe": {"httpGet": {"port": "http"}}}]}},
        {
            "spec": {"containers": [{"name": "a", "livenessProbe": {"httpGet": {"port": "http"}}, "resources": {}}]},
            "status": {},
        },
    ),
}


@pytest.mark.parametrize(("kind", "document", "expected"), NORMAL.values(), ids=NORMAL)
def test_a_document_becomes_what_go_would_write(kind: str, document: Any, expected: Any) -> None:
    struct_type = type_of(kind, GROUPS.get(kind, ""))
    assert check_fields(document, struct_type) == []
    assert document == expected
    again = copy.deepcopy(document)
    assert check_fields(again, struct_type) == []
    assert again == document


@pytest.mark.behaviour("CL-14")
def test_container_claims_may_be_plain_strings() -> None:
    document = {"spec": {"containers": [{"name": "a", "resources": {"claims": ["gpu", {"name": "nic"}]}}]}}
    assert check_fields(document, type_of("Pod")) == []
    assert document["spec"]["containers"][0]["resources"] == {"claims": [{"name": "gpu"}, {"name": "nic"}]}


@pytest.mark.behaviour("CL-14")
def test_a_pod_may_carry_a_claim_template() -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"resourceClassName": "gpu", "parameters": {"x": [1]}}}
    document = {"spec": {"resourceClaims": [{"name": "gpu", "template": copy.deepcopy(template)}], "containers": []}}
    assert check_fields(document, type_of("Pod")) == []
    assert document["spec"]["resourceClaims"] == [{"name": "gpu", "template": template}]


@pytest.mark.behaviour("CL-57")
def test_a_claim_template_may_leave_out_its_spec() -> None:
    short = {"metadata": {"labels": {"a": "b"}}, "resourceClassName": "gpu", "parameters": {"memory": "2Gi"}}
    document = {"spec": {"resourceClaims": [{"name": "gpu", "template": short}], "containers": []}}
    assert check_fields(document, type_of("Pod")) == []
    assert document["spec"]["resourceClaims"][0]["template"] == {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"resourceClassName": "gpu", "parameters": {"memory": "2Gi"}},
    }


@pytest.mark.behaviour("CL-57")
def test_a_claim_template_has_its_fields_in_one_place() -> None:
    mixed = {"resourceClassName": "gpu", "spec": {"resourceClassName": "other"}}
    document = {"spec": {"resourceClaims": [{"name": "gpu", "template": mixed}], "containers": []}}
    assert check_fields(document, type_of("Pod")) == [
        'unknown field "spec.resourceClaims[0].template.resourceClassName"'
    ]
