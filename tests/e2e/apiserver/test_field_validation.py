"""`fieldValidation`: what is reported of unknown and repeated fields, in which order, and in which words.

The expectations are those of Kubernetes' TestFieldValidation, for every verb, body and kind of resource.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.apiserver.calls import Answer, Caller, calling
from tests.servers import Server

pytestmark = pytest.mark.api_faults

NUMBERS = itertools.count(1)
MODES = ("Strict", "Warn", "Ignore", "")
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
JSON, YAML = "application/json", "application/yaml"
MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
STRATEGIC, APPLY = "application/strategic-merge-patch+json", "application/apply-patch+yaml"

# --- Bodies. Names are filled in; "\n" and the columns of YAML matter, since errors name lines.

DEPLOYMENT: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "", "labels": {"app": "x"}},
    "spec": {
        "selector": {"matchLabels": {"app": "x"}},
        "template": {
            "metadata": {"labels": {"app": "x"}},
            "spec": {"containers": [{"name": "x", "image": "x:1", "imagePullPolicy": "Always"}]},
        },
        "replicas": 0,
    },
}
INVALID_JSON = """{"apiVersion": "apps/v1", "kind": "Deployment",
"metadata": {"name": "dupename", "name": "NAME", "unknownMeta": "m", "labels": {"app": "x"}},
"spec": {"unknown1": "v", "unknownDupe": {"a": 1, "a": 2}, "unknownDupe": "v2", "replicas": 0,
  "paused": true, "paused": false,
  "selector": {"matchLabels": {"app": "x"}},
  "template": {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "x", "image": "x:1",
    "unknownNested": "v", "imagePullPolicy": "Always", "imagePullPolicy": "Never"}]}}}}"""
INVALID_YAML = """apiVersion: apps/v1
kind: Deployment
metadata:
  name: dupename
  name: NAME
  unknownMeta: m
  labels: {app: x}
spec:
  unknown1: v
  unknownDupe: v1
  unknownDupe: v2
  paused: true
  paused: false
  replicas: 0
  selector: {matchLabels: {app: x}}
  template:
    metadata: {labels: {app: x}}
    spec:
      containers:
      - name: x
        image: x:1
        unknownNested: v
        imagePullPolicy: Always
        imagePullPolicy: Never
"""
CONTAINER = "spec.template.spec.containers[0]"
OF_JSON = [
    'duplicate field "metadata.name"',
    'unknown field "metadata.unknownMeta"',
    'unknown field "spec.unknown1"',
    'unknown field "spec.unknownDupe"',
    'duplicate field "spec.paused"',
    f'unknown field "{CONTAINER}.unknownNested"',
    f'duplicate field "{CONTAINER}.imagePullPolicy"',
]
OF_YAML = [
    'line 5: key "name" already set in map',
    'line 11: key "unknownDupe" already set in map',
    'line 13: key "paused" already set in map',
    'line 24: key "imagePullPolicy" already set in map',
    'unknown field "metadata.unknownMeta"',
    f'unknown field "{CONTAINER}.unknownNested"',
    'unknown field "spec.unknown1"',
    'unknown field "spec.unknownDupe"',
]
PATCH = """{"spec": {"unknown1": "v", "unknownDupe": "v1", "unknownDupe": "v2", "paused": true, "paused": false,
"template": {"spec": {"containers": [{"name": "x", "image": "x:1", "unknownNested": "v",
"imagePullPolicy": "Always", "imagePullPolicy": "Never"}]}}}}"""
OF_PATCH = [
    'duplicate field "spec.unknownDupe"',
    'duplicate field "spec.paused"',
    f'duplicate field "{CONTAINER}.imagePullPolicy"',
    f'unknown field "{CONTAINER}.unknownNested"',
    'unknown field "spec.unknown1"',
    'unknown field "spec.unknownDupe"',
]
# Repeats fields, and fits the object.
FITTING_PATCH = """{"spec": {"paused": true, "paused": false, "template": {"spec": {"containers": [
{"name": "x", "image": "x:1", "imagePullPolicy": "Always", "imagePullPolicy": "Never"}]}}}}"""
OF_FITTING_PATCH = ['duplicate field "spec.paused"', f'duplicate field "{CONTAINER}.imagePullPolicy"']
OPERATIONS = """[{"op": "add", "path": "/spec/unknown1", "value": "v", "foo": "bar"},
{"op": "add", "path": "/spec/unknown2", "path": "/spec/unknown3", "value": "v"},
{"op": "add", "path": "/spec/unknownDupe", "value": "v1"}, {"op": "add", "path": "/spec/unknownDupe", "value": "v2"},
{"op": "add", "path": "/spec/paused", "value": true}, {"op": "add", "path": "/spec/paused", "value": false},
{"op": "add", "path": "/spec/template/spec/containers/0/unknownNested", "value": "v"}]"""
OF_OPERATIONS = [
    'json patch unknown field "[0].foo"',
    'json patch duplicate field "[1].path"',
    f'unknown field "{CONTAINER}.unknownNested"',
    'unknown field "spec.unknown1"',
    'unknown field "spec.unknown3"',
    'unknown field "spec.unknownDupe"',
]
APPLIED = """{"apiVersion": "apps/v1", "kind": "Deployment",
  "metadata": {"name": "NAME", "labels": {"app": "x"}},
  "spec": {
    "paused": false,
    "paused": true, "replicas": 0,
    "selector": {"matchLabels": {"app": "x"}},
    "template": {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{
      "name": "x", "image": "x:1",
      "imagePullPolicy": "Never",
      "imagePullPolicy": "Always"}]}}}}"""
OF_APPLIED = ['line 5: key "paused" already set in map', 'line 10: key "imagePullPolicy" already set in map']

# --- Custom resources: with a schema, and with one that keeps unknown fields of the spec.

CUSTOM: dict[str, Any] = {
    "apiVersion": "GROUP/v1beta1",
    "kind": "WishIHadChosenNoxu",
    "metadata": {"name": ""},
    "spec": {"knownField1": "v", "ports": [{"name": "p", "containerPort": 80, "protocol": "TCP", "hostPort": 81}]},
}
CUSTOM_JSON = """{"apiVersion": "GROUP/v1beta1", "kind": "WishIHadChosenNoxu",
"metadata": {"name": "dupename", "name": "NAME", "unknownMeta": "m", "resourceVersion": "VERSION"},
"spec": {"unknown1": "v", "unknownDupe": "v1", "unknownDupe": "v2", "knownField1": "v1", "knownField1": "v2",
  "ports": [{"name": "p", "containerPort": 80, "protocol": "TCP", "hostPort": 81, "hostPort": 82,
    "unknownNested": "v"}],
  "embeddedObj": {"apiVersion": "v1", "kind": "ConfigMap",
    "metadata": {"name": "c", "namespace": "n", "unknownEmbeddedMeta": "v"}}}}"""
CUSTOM_YAML = """apiVersion: GROUP/v1beta1
kind: WishIHadChosenNoxu
metadata:
  name: dupename
  name: NAME
  resourceVersion: "VERSION"
  unknownMeta: m
spec:
  unknown1: v
  unknownDupe: v1
  unknownDupe: v2
  knownField1: v1
  knownField1: v2
  ports:
  - name: p
    containerPort: 80
    protocol: TCP
    hostPort: 81
    hostPort: 82
    unknownNested: v
  embeddedObj:
    apiVersion: v1
    kind: ConfigMap
    metadata: {name: c, namespace: ns, unknownEmbeddedMeta: v}
"""
CUSTOM_PATCH = """{"spec": {"unknown1": "v", "unknownDupe": "v1", "unknownDupe": "v2", "knownField1": "v1",
"knownField1": "v2", "ports": [{"name": "p", "containerPort": 80, "protocol": "TCP", "hostPort": 81, "hostPort": 82,
"unknownNested": "v"}]}}"""
CUSTOM_OPERATIONS = """[{"op": "add", "path": "/spec/unknown1", "value": "v", "foo": "bar"},
{"op": "add", "path": "/spec/unknown2", "path": "/spec/unknown3", "value": "v"},
{"op": "add", "path": "/spec/unknownDupe", "value": "v1"}, {"op": "add", "path": "/spec/unknownDupe", "value": "v2"},
{"op": "add", "path": "/spec/ports/0/hostPort", "value": 82},
{"op": "add", "path": "/spec/ports/0/unknownNested", "value": "v"}]"""
CUSTOM_APPLIED = """{"apiVersion": "GROUP/v1beta1", "kind": "WishIHadChosenNoxu",
  "metadata": {"name": "NAME"},
  "spec": {
    "knownField1": "v1",
    "knownField1": "v2",
    "ports": [{"name": "p", "containerPort": 80, "protocol": "TCP",
      "hostPort": 81,
      "hostPort": 82}]}}"""
NESTED, EMBEDDED = "spec.ports[0].unknownNested", "spec.embeddedObj.metadata.unknownEmbeddedMeta"
CUSTOM_REPEATED = ["metadata.name", "spec.unknownDupe", "spec.knownField1", "spec.ports[0].hostPort"]
CUSTOM_LINES = [
    'line 5: key "name" already set in map',
    'line 11: key "unknownDupe" already set in map',
    'line 13: key "knownField1" already set in map',
    'line 19: key "hostPort" already set in map',
]
OF_CUSTOM_APPLIED = ['line 5: key "knownField1" already set in map', 'line 8: key "hostPort" already set in map']


def unknown(*paths: str) -> list[str]:
    return [f'unknown field "{path}"' for path in paths]


def of_custom(group: str, body: str) -> list[str]:
    in_spec = ["spec.unknown1", "spec.unknownDupe"] if group == "schema.example.com" else []
    repeated = [f'duplicate field "{path}"' for path in CUSTOM_REPEATED]
    whole = unknown("metadata.unknownMeta", NESTED, *in_spec, EMBEDDED)
    if body == CUSTOM_JSON:
        return repeated + whole
    if body == CUSTOM_YAML:
        return CUSTOM_LINES + whole
    if body == CUSTOM_PATCH:
        return repeated[1:] + unknown(NESTED, *in_spec)
    if in_spec:
        in_spec.insert(1, "spec.unknown3")
    return [*OF_OPERATIONS[:2], *unknown(NESTED, *in_spec)]


EMBEDDED_FIELDS = {"kind": {"type": "string"}, "metadata": {"type": "object"}}
PORT = {
    "type": "object",
    "required": ["containerPort", "protocol"],
    "properties": {
        "containerPort": {"type": "integer", "format": "int32"},
        "hostPort": {"type": "integer", "format": "int32"},
        "name": {"type": "string"},
        "protocol": {"type": "string"},
    },
}


def definition(group: str, **of_spec: Any) -> dict[str, Any]:
    properties = {
        "knownField1": {"type": "string"},
        "embeddedObj": {"type": "object", "x-kubernetes-embedded-resource": True, "properties": EMBEDDED_FIELDS},
        "ports": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["containerPort", "protocol"],
            "items": PORT,
        },
    }
    spec = {"type": "object", "properties": properties, **of_spec}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"noxus.{group}"},
        "spec": {
            "group": group,
            "scope": "Cluster",
            "names": {
                "plural": "noxus",
                "singular": "nonoxu",
                "kind": "WishIHadChosenNoxu",
                "listKind": "NoxuItemList",
            },
            "versions": [{"name": "v1beta1", "served": True, "storage": True, "schema": schema}],
        },
    }


GROUPS = ("schema.example.com", "schemaless.example.com")


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Caller]:
    """An administrator of a server with both definitions."""
    with calling(server) as caller:
        keep = {"x-kubernetes-preserve-unknown-fields": True}
        for group, of_spec in zip(GROUPS, ({}, keep), strict=True):
            path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            assert caller.call("POST", path, definition(group, **of_spec)).status == 201
        yield caller


def warnings(answer: Answer) -> list[str]:
    return [json.loads(text.removeprefix("299 - ")) for text in answer.headers.get_all("Warning") or ()]


def check(answer: Answer, mode: str, errors: list[str], *, applied: bool = False) -> None:
    lines = [text for text in errors if text.startswith("line ")]
    if mode == "Strict":
        texts = [text for text in errors if text not in lines]
        if lines:
            texts.insert(0, "\n  ".join(["yaml: unmarshal errors:", *lines]))
        head = "error strict decoding YAML: error converting YAML to JSON: " if applied else "strict decoding error: "
        assert answer.message.endswith(head + ", ".join(texts))
        assert answer.status in (400, 422)
    assert mode == "Strict" or answer.status in (200, 201), answer.body
    assert warnings(answer) == (errors if mode in ("Warn", "") else [])


def filled(text: str, name: str, group: str = "", version: str = "") -> bytes:
    return text.replace("NAME", name).replace("GROUP", group).replace("VERSION", version).encode()


def named(document: dict[str, Any], name: str, group: str = "") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(document).replace("GROUP", group))
    found["metadata"]["name"] = name
    return found


@pytest.fixture
def name() -> str:
    """A name for the object of one test."""
    return f"test-{next(NUMBERS)}"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize("sent", [(JSON, INVALID_JSON, OF_JSON), (YAML, INVALID_YAML, OF_YAML)], ids=["json", "yaml"])
def test_whole_objects(client: Caller, name: str, mode: str, method: str, sent: tuple[str, str, list[str]]) -> None:
    path, (media, body, errors) = DEPLOYMENTS, sent
    if method == "PUT":
        assert client.call("POST", path, named(DEPLOYMENT, name)).status == 201
        path += f"/{name}"
    answer = client.call(method, f"{path}?fieldValidation={mode}", filled(body, name), content_type=media)
    check(answer, mode, errors)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("media", "body", "errors"),
    [
        (MERGE, PATCH, OF_PATCH),
        (MERGE, FITTING_PATCH, OF_FITTING_PATCH),
        (JSON_PATCH, OPERATIONS, OF_OPERATIONS),
        (STRATEGIC, PATCH, OF_PATCH),
        (STRATEGIC, FITTING_PATCH, OF_FITTING_PATCH),
    ],
    ids=["merge", "fitting merge", "json", "strategic", "fitting strategic"],
)
def test_patches(client: Caller, name: str, mode: str, media: str, body: str, errors: list[str]) -> None:
    assert client.call("POST", DEPLOYMENTS, named(DEPLOYMENT, name)).status == 201
    path = f"{DEPLOYMENTS}/{name}?fieldValidation={mode}"
    check(client.call("PATCH", path, body.encode(), content_type=media), mode, errors)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("exists", [False, True])
def test_applies(client: Caller, name: str, mode: str, exists: bool) -> None:
    path = f"{DEPLOYMENTS}/{name}?fieldManager=mgr&fieldValidation={mode}"
    if exists:
        assert client.call("PATCH", path, named(DEPLOYMENT, name), content_type=APPLY).status == 201
    answer = client.call("PATCH", path, filled(APPLIED, name), content_type=APPLY)
    check(answer, mode, OF_APPLIED, applied=True)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize("media", [JSON, YAML])
def test_whole_custom_resources(client: Caller, name: str, mode: str, group: str, method: str, media: str) -> None:
    path, version, body = f"/apis/{group}/v1beta1/noxus", "", CUSTOM_JSON if media == JSON else CUSTOM_YAML
    if method == "PUT":
        version = client.call("POST", path, named(CUSTOM, name, group)).json()["metadata"]["resourceVersion"]
        path += f"/{name}"
    sent = filled(body, name, group, version)
    answer = client.call(method, f"{path}?fieldValidation={mode}", sent, content_type=media)
    check(answer, mode, of_custom(group, body))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(
    ("media", "body"), [(MERGE, CUSTOM_PATCH), (JSON_PATCH, CUSTOM_OPERATIONS)], ids=["merge", "json"]
)
def test_patches_of_custom_resources(client: Caller, name: str, mode: str, group: str, media: str, body: str) -> None:
    path = f"/apis/{group}/v1beta1/noxus"
    assert client.call("POST", path, named(CUSTOM, name, group)).status == 201
    answer = client.call("PATCH", f"{path}/{name}?fieldValidation={mode}", body.encode(), content_type=media)
    check(answer, mode, of_custom(group, body))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("exists", [False, True])
def test_applies_of_custom_resources(client: Caller, name: str, mode: str, group: str, exists: bool) -> None:
    path = f"/apis/{group}/v1beta1/noxus/{name}?fieldManager=mgr&fieldValidation={mode}"
    if exists:
        assert client.call("PATCH", path, named(CUSTOM, name, group), content_type=APPLY).status == 201
    answer = client.call("PATCH", path, filled(CUSTOM_APPLIED, name, group), content_type=APPLY)
    check(answer, mode, OF_CUSTOM_APPLIED, applied=True)


@pytest.mark.parametrize(
    ("first", "then", "warned"),
    [
        ("plain", None, ("plain",)),
        ("kubernetes.io/valid", None, ()),
        ("plain", "other", ("plain", "other")),
        ("kubernetes.io/valid", "kubernetes.io/other", ()),
        ("plain", "kubernetes.io/other", ("plain",)),
        ("plain", "plain", ("plain",)),
    ],
)
def test_finalizers_without_a_domain(
    client: Caller, name: str, first: str, then: str | None, warned: tuple[str, ...]
) -> None:
    path = f"/apis/{GROUPS[1]}/v1beta1/noxus/{name}?fieldManager=mgr"
    found = []
    for finalizer in (first, then):
        if finalizer is not None:
            body = named(CUSTOM, name, GROUPS[1])
            body["metadata"]["finalizers"] = [finalizer]
            found += warnings(client.call("PATCH", path, body, content_type=APPLY))
    assert found == [
        f'metadata.finalizers: "{each}": prefer a domain-qualified finalizer name including a path (/) to avoid '
        "accidental conflicts with other finalizer writers"
        for each in warned
    ]


def test_more_errors_than_anyone_reads(client: Caller, name: str) -> None:
    body = json.dumps({**named(DEPLOYMENT, name), **{f"u{i:03}": 1 for i in range(150)}}).encode()
    answer = client.call("POST", f"{DEPLOYMENTS}?fieldValidation=Strict", body)
    assert answer.message.count("unknown field") == 100
