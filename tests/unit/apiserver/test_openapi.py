"""OpenAPI documents: the parts that kubectl uses, and their consistency."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from dray.api.document import Document, GroupVersionKind
from dray.api.schema import load
from dray.apiserver.catalog import Catalog
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.openapi.descriptions import describe
from dray.apiserver.openapi.documents import Documents, OpenAPI, Served
from dray.apiserver.registry.configuration import SERVICE_ACCOUNTS
from dray.apiserver.registry.pods import PODS
from dray.apiserver.registry.strategy import SCALE, ResourceDefinition, Strategy

PRESERVE = "x-kubernetes-preserve-unknown-fields"
SCHEMA: Document = {
    "type": "object",
    "description": "A gadget.",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "size": {"type": "integer", "nullable": True, "description": "How large."},
                "nullable": {"type": "string"},
            },
            "x-kubernetes-validations": [{"rule": "self.size > 0"}],
        }
    },
}


def definition(group: str, resource: str, kind: str, *versions: str, **more: Any) -> ResourceDefinition:
    more.setdefault("namespaced", True)
    return ResourceDefinition(
        group=group,
        resource=resource,
        singular=kind.lower(),
        kind=kind,
        versions=versions,
        storage_version=versions[0],
        strategy=Strategy(),
        **more,
    )


DEFINITIONS = (
    definition("", "pods", "Pod", "v1", status_strategy=Strategy(), subresources=PODS.subresources),
    definition("", "namespaces", "Namespace", "v1", namespaced=False, status_strategy=Strategy()),
    definition("", "configmaps", "ConfigMap", "v1"),
    definition("", "serviceaccounts", "ServiceAccount", "v1", subresources=SERVICE_ACCOUNTS.subresources),
    definition("apps", "deployments", "Deployment", "v1", status_strategy=Strategy(), subresources=(SCALE,)),
    definition("resource.k8s.io", "resourceclaims", "ResourceClaim", "v1", "v1beta2", "v1beta1"),
    definition("cdi.k8s.io", "resourceclaims", "ResourceClaim", "v1alpha1", status_strategy=Strategy()),
    definition("apiextensions.k8s.io", "customresourcedefinitions", "CustomResourceDefinition", "v1", namespaced=False),
    definition(
        "authorization.k8s.io", "subjectaccessreviews", "SubjectAccessReview", "v1", namespaced=False, verbs=("create",)
    ),
)
SERVED = [
    *(Served(item, version) for item in DEFINITIONS for version in item.versions),
    Served(definition("example.com", "gadgets", "Gadget", "v1"), "v1", custom=True, schema=SCHEMA),
]
PATHS = sorted(
    {f"apis/{served.gvk.api_version}" if served.gvk.group else f"api/{served.gvk.version}" for served in SERVED}
)


@pytest.fixture(scope="module")
def openapi() -> Documents:
    return Documents(lambda: SERVED)


def read(openapi: Documents, path: str) -> Any:
    found = openapi.document(path)
    assert found is not None
    return orjson.loads(found[0])


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_the_index_points_to_every_document(openapi: Documents) -> None:
    index = orjson.loads(openapi.index())["paths"]
    assert sorted(index) == PATHS
    for path, entry in index.items():
        found = openapi.document(path)
        assert found is not None
        assert entry == {"serverRelativeURL": f"/openapi/v3/{path}?hash={found[1]}"}


def test_unknown_paths_have_no_document(openapi: Documents) -> None:
    assert openapi.document("apis/nobody.example.com/v1") is None


@pytest.mark.parametrize("path", PATHS)
def test_every_reference_resolves(openapi: Documents, path: str) -> None:
    document = read(openapi, path)
    names = {name.rpartition("/")[2] for name in references(document)}
    assert names
    assert names <= set(document["components"]["schemas"])


def test_every_reference_of_v2_resolves(openapi: Documents) -> None:
    document = orjson.loads(openapi.v2())
    assert document["swagger"] == "2.0"
    assert {name.rpartition("/")[2] for name in references(document)} <= set(document["definitions"])
    assert not list(find_keys(document["definitions"], "oneOf"))
    assert "/apis/resource.k8s.io/v1beta1/namespaces/{namespace}/resourceclaims/{name}" in document["paths"]


def find_keys(value: Any, key: str) -> Iterator[Any]:
    """Return where a keyword occurs in schemas; properties may have any name."""
    if isinstance(value, dict):
        if key in value and not isinstance(value[key], dict):
            yield value[key]
        for inner in value.values():
            yield from find_keys(inner, key)


@pytest.mark.parametrize("served", SERVED, ids=lambda served: str(served.gvk))
def test_kubectl_finds_the_schema_and_the_validation_of_each_kind(openapi: Documents, served: Served) -> None:
    gvk = served.gvk
    document = read(openapi, f"apis/{gvk.api_version}" if gvk.group else f"api/{gvk.version}")
    mark = {"group": gvk.group, "version": gvk.version, "kind": gvk.kind}
    schemas = document["components"]["schemas"].values()
    assert sum(mark in schema.get("x-kubernetes-group-version-kind", ()) for schema in schemas) == 1
    operations = [
        (method, operation)
        for item in document["paths"].values()
        for method, operation in item.items()
        if method != "parameters" and operation["x-kubernetes-group-version-kind"] == mark
    ]
    for method, operation in operations:
        parameters = {parameter["name"] for parameter in operation["parameters"]}
        if method in ("post", "put", "patch"):
            assert {"dryRun", "fieldManager", "fieldValidation"} <= parameters
        assert ("force" in parameters) == (method == "patch")
    methods = {method for method, _ in operations}
    assert methods == (
        {"post"} if served.definition.verbs == ("create",) else {"get", "post", "put", "patch", "delete"}
    )


def test_operation_ids_are_unique(openapi: Documents) -> None:
    document = orjson.loads(openapi.v2())
    ids = [
        operation["operationId"]
        for item in document["paths"].values()
        for method, operation in item.items()
        if method != "parameters"
    ]
    assert len(ids) == len(set(ids))
    assert "patchCoreV1NamespacedPod" in ids
    assert "readAppsV1NamespacedDeploymentScale" in ids
    assert "listResourceV1ResourceClaimForAllNamespaces" in ids


def test_subresources_are_served_below_their_resource(openapi: Documents) -> None:
    paths = read(openapi, "apis/apps/v1")["paths"]
    scale = paths["/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale"]
    assert scale["get"]["x-kubernetes-group-version-kind"] == {"group": "autoscaling", "version": "v1", "kind": "Scale"}
    core = read(openapi, "api/v1")["paths"]
    assert set(core["/api/v1/namespaces/{namespace}/pods/{name}/eviction"]) == {"post", "parameters"}
    assert "/api/v1/namespaces/{name}/status" in core
    assert "/api/v1/namespaces/{namespace}/pods/{name}/log" not in core


def test_merge_rules_of_lists(openapi: Documents) -> None:
    schemas = read(openapi, "api/v1")["components"]["schemas"]
    containers = schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"]
    assert containers.pop("description")
    assert containers == {
        "type": "array",
        "items": {"allOf": [{"$ref": "#/components/schemas/io.k8s.api.core.v1.Container"}], "default": {}},
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "x-kubernetes-patch-merge-key": "name",
        "x-kubernetes-patch-strategy": "merge",
    }


def test_custom_kinds_have_their_own_schema(openapi: Documents) -> None:
    document = read(openapi, "apis/example.com/v1")
    gadget = document["components"]["schemas"]["com.example.v1.Gadget"]
    assert gadget["description"] == "A gadget."
    assert gadget["properties"]["spec"] == SCHEMA["properties"]["spec"]
    assert set(gadget["properties"]) == {"apiVersion", "kind", "metadata", "spec"}
    patch = document["paths"]["/apis/example.com/v1/namespaces/{namespace}/gadgets/{name}"]["patch"]
    assert "application/strategic-merge-patch+json" not in patch["requestBody"]["content"]
    reduced = orjson.loads(openapi.v2())["definitions"]["com.example.v1.Gadget"]["properties"]["spec"]
    assert reduced == {
        "type": "object",
        "properties": {"size": {"description": "How large."}, "nullable": {"type": "string"}},
    }
    assert "x-kubernetes-validations" in SCHEMA["properties"]["spec"]


@pytest.mark.behaviour("CR-08")
def test_custom_kinds_are_described_with_what_their_extensions_say() -> None:
    embedded: Document = {"type": "object", "x-kubernetes-embedded-resource": True, "x-kubernetes-validations": []}
    spec: Document = {"type": "object", "properties": {"o": embedded, "n": {"x-kubernetes-int-or-string": True}}}
    schema = {"type": "object", "properties": {"spec": spec}}
    fields = {".spec.n": str, ".spec.size": str}
    selectable = {path.removeprefix("."): getter for path, getter in fields.items()}
    made = definition("example.com", "gadgets", "Gadget", "v1", selectable_fields=selectable, own_list_kind="Gadgets")
    openapi = Documents(lambda: [Served(made, "v1", custom=True, schema=schema)], lambda: 1)
    named = [{"fieldPath": "spec.n"}, {"fieldPath": "spec.size"}]
    for definitions in (
        read(openapi, "apis/example.com/v1")["components"]["schemas"],
        orjson.loads(openapi.v2())["definitions"],
    ):
        for kind in ("Gadget", "Gadgets"):
            assert definitions[f"com.example.v1.{kind}"]["x-kubernetes-selectable-fields"] == named
    found = read(openapi, "apis/example.com/v1")["components"]["schemas"]["com.example.v1.Gadget"]["properties"]["spec"]
    assert found["properties"]["n"]["anyOf"] == [{"type": "integer"}, {"type": "string"}]
    assert set(found["properties"]["o"]["properties"]) == {"apiVersion", "kind", "metadata"}
    assert found["properties"]["o"]["required"] == ["kind", "apiVersion"]
    # The schema of the definition is as it was.
    assert "properties" not in embedded


@pytest.mark.behaviour("CL-01")
def test_the_classic_kinds_are_described(openapi: Documents) -> None:
    schemas = read(openapi, "apis/cdi.k8s.io/v1alpha1")["components"]["schemas"]
    spec = schemas["io.k8s.api.cdi.v1alpha1.ResourceClaimSpec"]
    assert all(field.get("description") for field in spec["properties"].values())
    assert spec["required"] == ["resourceClassName"]


def test_a_change_of_what_is_served_changes_only_its_own_hash() -> None:
    served, generation = list(SERVED), 1
    openapi = Documents(lambda: served, lambda: generation)
    before = orjson.loads(openapi.index())["paths"]
    body = openapi.document("api/v1")
    served[-1] = Served(served[-1].definition, "v1", custom=True, schema={"type": "object"})
    assert orjson.loads(openapi.index())["paths"] == before
    generation = 2
    after = orjson.loads(openapi.index())["paths"]
    assert {path for path in before if before[path] != after[path]} == {"apis/example.com/v1"}
    again = openapi.document("api/v1")
    assert body is not None
    assert again is not None
    assert again[0] is body[0]


def test_descriptions_come_from_the_installed_models() -> None:
    texts = describe("io.k8s.api.core.v1.ConfigMap")
    assert texts.own.startswith("ConfigMap ")
    assert set(texts.fields) == {"apiversion", "binarydata", "data", "immutable", "kind", "metadata"}
    assert describe("io.k8s.api.core.v1.Nothing").own == ""
    assert describe("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps").fields.keys() >= {
        "dref"
    }


def upstream() -> dict[str, Any]:
    spec = importlib.util.find_spec("kubernetes_validate")
    if spec is None or spec.origin is None:
        pytest.skip("kubernetes-validate is not installed")
    path = Path(spec.origin).parent / "kubernetes-json-schema/v1.37.0-local/_definitions.json"
    found: dict[str, Any] = json.loads(path.read_text())["$defs"]
    return found


def test_v2_definitions_agree_with_upstream(openapi: Documents) -> None:
    """Every definition of ours that Kubernetes 1.37 has: same fields, same required ones, same merge rules."""
    ours, theirs = orjson.loads(openapi.v2())["definitions"], upstream()
    compared = 0
    added = {("io.k8s.api.core.v1.PodResourceClaim", "template"), ("io.k8s.api.core.v1.PodResourceClaim", "optional")}
    for name in ours.keys() & theirs.keys():
        mine, real = ours[name].get("properties", {}), theirs[name].get("properties", {})
        assert {(name, field) for field in mine.keys() ^ real.keys()} <= added, name
        assert ours[name].get("required", []) == sorted(theirs[name].get("required", [])), name
        for field in mine.keys() & real.keys():
            for rule in ("x-kubernetes-patch-strategy", "x-kubernetes-patch-merge-key", "x-kubernetes-list-map-keys"):
                if rule in real[field]:
                    assert mine[field][rule] == real[field][rule], (name, field)
                    compared += 1
            assert mine[field].get("format") == real[field].get("format"), (name, field)
    assert compared > 50
    assert GroupVersionKind("", "v1", "Pod") in {served.gvk for served in SERVED}


def endpoint(gvk: GroupVersionKind, resource: str, *, custom: bool = False) -> Endpoint:
    struct_type = load.kind_type(gvk) or load.object_meta()
    return Endpoint(definition(gvk.group, resource, gvk.kind, gvk.version), gvk.version, struct_type, custom=custom)


def test_the_documents_follow_the_catalog() -> None:
    catalog = Catalog([endpoint(GroupVersionKind("", "v1", "ConfigMap"), "configmaps")])
    gadget = GroupVersionKind("example.com", "v1", "Gadget")
    openapi = OpenAPI(catalog, lambda gvk: SCHEMA if gvk == gadget else None)
    assert list(orjson.loads(openapi.index())["paths"]) == ["api/v1"]
    catalog.set_custom("gadgets.example.com", (endpoint(gadget, "gadgets", custom=True),))
    assert list(orjson.loads(openapi.index())["paths"]) == ["api/v1", "apis/example.com/v1"]
    found = read(openapi, "apis/example.com/v1")["components"]["schemas"]["com.example.v1.Gadget"]
    assert found["description"] == "A gadget."
    catalog.set_custom("gadgets.example.com", ())
    assert openapi.document("apis/example.com/v1") is None


@pytest.mark.api_faults
@pytest.mark.parametrize(
    ("schema", "published"),
    [
        ({"type": "object", "properties": {"a": {}}, "x-kubernetes-preserve-unknown-fields": True}, {"type": "object"}),
        (None, {"type": "object"}),
    ],
)
def test_v2_has_no_fields_of_kinds_that_keep_unknown_ones(schema: Document | None, published: Document) -> None:
    gadgets = Served(definition("example.com", "gadgets", "Gadget", "v1"), "v1", custom=True, schema=schema)
    made = orjson.loads(Documents(lambda: [gadgets]).v2())["definitions"]["com.example.v1.Gadget"]
    made.pop("x-kubernetes-group-version-kind")
    assert made == published


@pytest.mark.api_faults
@pytest.mark.parametrize(
    ("field", "published"),
    [
        ({"type": "object", "properties": {"x": {}}, PRESERVE: True}, {PRESERVE: True}),
        ({"type": "array", "items": {"type": "string"}, PRESERVE: True}, {PRESERVE: True}),
        ({"type": "string", PRESERVE: True}, {"type": "string", PRESERVE: True}),
        ({"type": "array", "items": {}, "nullable": True}, {}),
        ({"type": "array"}, {}),
        (
            {"type": "object", "required": ["x", "y"], "properties": {"x": {"nullable": True}, "y": {}}},
            {"type": "object", "required": ["y"], "properties": {"x": {}, "y": {}}},
        ),
        (
            {"type": "object", "required": ["x"], "additionalProperties": {"type": "string", "nullable": True}},
            {"type": "object", "additionalProperties": {}},
        ),
    ],
)
def test_v2_has_only_what_kubectl_can_read(field: Document, published: Document) -> None:
    schema = {"type": "object", "properties": {"spec": field}}
    gadgets = Served(definition("example.com", "gadgets", "Gadget", "v1"), "v1", custom=True, schema=schema)
    made = orjson.loads(Documents(lambda: [gadgets]).v2())["definitions"]["com.example.v1.Gadget"]
    assert made["properties"]["spec"] == published
