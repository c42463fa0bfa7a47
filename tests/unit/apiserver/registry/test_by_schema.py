"""Every served kind with every field: JSON, YAML and protobuf carry the same object; and the kinds without a module."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
import yaml

from dray.api.features import FeatureGates
from dray.api.parse import parse_json, parse_yaml
from dray.api.protobuf import decode_object, encode_object
from dray.api.schema.model import Field, ListOf, MapOf, Scalar, StructType, Type
from dray.api.strict import check_fields
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.registry import builtin, by_schema
from dray.apiserver.registry.actors import ACTED_ON_BY
from dray.apiserver.registry.strategy import WriteContext
from dray.apiserver.request import UserInfo

Document = dict[str, Any]
NOW = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)
CONTEXT = WriteContext(now=NOW, gates=FeatureGates({}), user=UserInfo("alice"))
STORED = [item for item in builtin.endpoints() if "get" in item.definition.verbs]
# Classic claims have no protobuf form, and the schemas of custom resources are recursive.
WITH_PROTOBUF = [item for item in STORED if item.definition.group not in ("cdi.k8s.io", "apiextensions.k8s.io")]
BY_KIND = {item.kind: item for item in by_schema.DEFINITIONS}
DEPTH_MAX = 8
SCALARS: dict[Scalar, Any] = {
    Scalar.STRING: "text: yes",
    Scalar.INT32: 7,
    Scalar.INT64: 2**40,
    Scalar.DOUBLE: 1.5,
    Scalar.BOOL: True,
    Scalar.BYTES: "AAEC",
    Scalar.TIME: "2026-01-02T03:04:05Z",
    Scalar.MICRO_TIME: "2026-01-02T03:04:05.000006Z",
    Scalar.DURATION: "5m0s",
    Scalar.QUANTITY: "500m",
    Scalar.INT_OR_STRING: "80%",
    Scalar.ANY: {"any": ["thing", 1]},
}


def full(struct: StructType, depth: int = 0) -> Document:
    """An object with every field that protobuf has, down to a depth; recursive types end there."""
    return {
        name: value(field.type, depth) for name, field in struct.fields.items() if field.number and wanted(field, depth)
    }


def wanted(field: Field, depth: int) -> bool:
    return depth < DEPTH_MAX or isinstance(field.type, Scalar)


def value(kind: Type, depth: int) -> Any:
    if isinstance(kind, Scalar):
        return SCALARS[kind]
    if isinstance(kind, StructType):
        return full(kind, depth + 1)
    if isinstance(kind, ListOf):
        return [value(kind.element, depth)]
    assert isinstance(kind, MapOf)
    return {"key": value(kind.element, depth)}


@pytest.mark.parametrize("endpoint", WITH_PROTOBUF, ids=lambda item: f"{item.api_version}/{item.definition.kind}")
def test_every_kind_survives_every_format(endpoint: Endpoint) -> None:
    kind = {"apiVersion": endpoint.api_version, "kind": endpoint.definition.kind}
    document: Document = kind | full(endpoint.struct)
    document["metadata"].pop("managedFields")
    checked = copy.deepcopy(document)
    assert check_fields(checked, endpoint.struct) == []
    # Nothing is dropped; structs that are always present may be added below the depth.
    for name, field in document.items():
        assert checked[name].keys() >= field.keys() if isinstance(field, dict) else checked[name] == field
    assert parse_json(orjson.dumps(document))[0] == document
    assert parse_yaml(yaml.safe_dump(document).encode())[0] == document
    assert decode_object(encode_object(document)) == (endpoint.gvk, document)


@pytest.mark.parametrize("endpoint", STORED, ids=lambda item: f"{item.api_version}/{item.definition.kind}")
def test_a_kind_with_a_status_has_the_subresource(endpoint: Endpoint) -> None:
    assert ("status" in endpoint.struct.fields) == (endpoint.definition.status_strategy is not None)


@pytest.mark.parametrize("definition", by_schema.DEFINITIONS, ids=lambda item: item.kind)
def test_kinds_by_schema_prepare_and_print(definition: Any) -> None:
    strategy, has_status = definition.strategy, definition.status_strategy is not None
    document: Document = {"metadata": {"name": "a"}, "spec": {}, "status": {"claimed": True}}
    strategy.prepare_for_create(document, CONTEXT)
    assert ("claimed" in document["status"]) != has_status
    changed = copy.deepcopy(document) | {"spec": {"a": 1}, "status": {"claimed": True}}
    strategy.prepare_for_update(changed, document, CONTEXT)
    assert changed["metadata"].get("generation") == (2 if document["metadata"].get("generation") else None)
    # The cells of an object without fields, and of one with all.
    for item in ({"metadata": {"name": "a"}}, full(builtin.endpoint(definition, definition.versions[0]).struct)):
        cells = [column.cell(item, NOW) for column in definition.columns]
        assert len(cells) == len(definition.columns)


# Kind -> an object with less than the schema needs, and the errors.
INCOMPLETE: dict[str, tuple[Document, list[str]]] = {
    "Ingress": (
        {"spec": {"rules": [{"http": {"paths": [{"path": "/", "backend": {}}]}}]}},
        ["spec.rules[0].http.paths[0].pathType: Required value"],
    ),
    "HorizontalPodAutoscaler": (
        {"spec": {"maxReplicas": 0, "scaleTargetRef": {"kind": "Deployment"}}},
        ["spec.scaleTargetRef.name: Required value"],
    ),
    "VolumeAttachment": (
        {"spec": {"nodeName": "a", "source": {}}},
        ["spec.attacher: Required value"],
    ),
    "CSINode": ({"spec": {"drivers": []}}, []),
    "IPAddress": ({"spec": {}}, ["spec.parentRef: Required value"]),
    "VolumeAttributesClass": ({}, ["driverName: Required value"]),
}


@pytest.mark.parametrize("kind", INCOMPLETE)
def test_required_fields(kind: str) -> None:
    document, expected = INCOMPLETE[kind]
    assert [str(error) for error in BY_KIND[kind].strategy.validate_create(document, CONTEXT)] == expected


CELLS: dict[str, tuple[Document, list[Any]]] = {
    "CSINode": ({"spec": {"drivers": [{}, {}]}}, ["a", 2, "<unknown>"]),
    "Ingress": (
        {"spec": {"rules": [{"host": "x.org"}, {"host": "y.org"}]}},
        ["a", "<none>", "x.org,y.org", "", "80", "<unknown>"],
    ),
    "NetworkPolicy": ({"spec": {"podSelector": {"matchLabels": {"b": "2", "a": "1"}}}}, ["a", "a=1,b=2", "<unknown>"]),
    "VolumeAttachment": (
        {"spec": {"attacher": "csi", "nodeName": "n", "source": {}}, "status": {"attached": True}},
        ["a", "csi", "", "n", True, "<unknown>"],
    ),
}


@pytest.mark.parametrize("kind", CELLS)
def test_cells(kind: str) -> None:
    document, expected = CELLS[kind]
    document = {"metadata": {"name": "a"}, **document}
    assert [column.cell(document, NOW) for column in BY_KIND[kind].columns] == expected


def test_plural() -> None:
    names = ("Ingress", "NetworkPolicy", "IPAddress", "CSINode")
    expected = ["ingresses", "networkpolicies", "ipaddresses", "csinodes"]
    assert [by_schema.plural(name) for name in names] == expected


def test_actors_are_of_served_kinds() -> None:
    served = {(item.group, item.resource) for item in builtin.definitions()}
    assert ACTED_ON_BY.keys() <= served


def test_creating_what_nobody_acts_on_is_answered_with_a_warning() -> None:
    warnings = {item.gvk.kind: item.creation_warning for item in builtin.endpoints() if item.api_version != "v1beta1"}
    assert warnings["Pod"] == warnings["SubjectAccessReview"] == ""
    assert warnings["Ingress"] == (
        "networking.k8s.io/v1 Ingress: Dray stores objects of this kind, but none of its components acts on them"
    )


@pytest.mark.behaviour("SV-54")
def test_a_new_network_policy_warns_that_it_is_not_enforced() -> None:
    strategy = BY_KIND["NetworkPolicy"].strategy
    policy = {"metadata": {"name": "a"}, "spec": {"podSelector": {}}}
    assert strategy.warnings(policy, None, CONTEXT) == ("NetworkPolicy is stored but not enforced",)
    assert strategy.warnings(policy, policy, CONTEXT) == ()
    assert BY_KIND["Ingress"].strategy.warnings(policy, None, CONTEXT) == ()
