"""The lifecycle of custom resources and definitions, on an in-process server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dray.api.document import Document, GroupVersion, copy_document
from dray.api.errors import (
    APIError,
    BadRequestError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    PathNotFoundError,
)
from dray.cmd import apiserver
from dray.cmd.settings import APIServerSettings
from tests.local_server import Local, until

DEFINITIONS = "apiextensions.k8s.io/v1/customresourcedefinitions"
GADGETS = "example.com/v1/gadgets"
NAME = "gadgets.example.com"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"


def version(name: str = "v1", **fields: Any) -> Document:
    spec = {
        "type": "object",
        "properties": {
            "color": {"type": "string"},
            "n": {"type": "integer", "default": 3, "maximum": 10},
            "fixed": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "fixed"}]},
        },
        "x-kubernetes-validations": [{"rule": "self.n != 7", "message": "no sevens"}],
    }
    status = {"type": "object", "properties": {"n": {"type": "integer"}}}
    schema = {"type": "object", "properties": {"spec": spec, "status": status}}
    return {
        "name": name,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {
            "status": {},
            "scale": {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n"},
        },
        "additionalPrinterColumns": [{"name": "N", "type": "integer", "jsonPath": ".spec.n"}],
        "selectableFields": [{"jsonPath": ".spec.color"}],
        **fields,
    }


def definition(*versions: Document, **names: Any) -> Document:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "gadgets", "kind": "Gadget", "shortNames": ["gd"], "categories": ["all"], **names},
            "versions": list(versions or (version(),)),
        },
    }


def gadget(name: str, api_version: str = "example.com/v1", **spec: Any) -> Document:
    return {"apiVersion": api_version, "kind": "Gadget", "metadata": {"name": name}, "spec": spec}


async def create(api: Local, document: Document, path: str = GADGETS) -> Document:
    return await api.request("create", f"{path}@default", document)


async def get(api: Local, name: str, path: str = GADGETS) -> Document:
    return await api.request("get", f"{path}/{name}@default")


async def merge(api: Local, name: str, patch: Document, path: str = GADGETS) -> Document:
    return await api.request("patch", f"{path}/{name}@default", patch, content_type=MERGE)


async def eventually(look: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(5):
        while not await look():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)


@pytest.fixture
async def gadgets(api: Local) -> Local:
    await api.request("create", DEFINITIONS, definition())
    return api


def conditions(document: Document) -> dict[str, str]:
    return {item["type"]: f"{item['status']} {item['reason']}" for item in document["status"]["conditions"]}


async def test_a_definition_is_established_when_its_creation_returns(api: Local) -> None:
    created = await api.request("create", DEFINITIONS, definition())
    assert created["status"] == {
        "conditions": None,
        "acceptedNames": {"plural": "", "kind": ""},
        "storedVersions": ["v1"],
    }
    found = await api.request("get", f"{DEFINITIONS}/{NAME}")
    assert conditions(found) == {"NamesAccepted": "True NoConflicts", "Established": "True InitialNamesAccepted"}
    assert found["status"]["acceptedNames"] == found["spec"]["names"]
    assert found["metadata"]["generation"] == 1
    assert {item["manager"] for item in found["metadata"]["managedFields"]} == {"kube-apiserver", "test"}


async def test_objects_can_follow_their_definition_at_once(gadgets: Local) -> None:
    made = await create(gadgets, gadget("one", color="red"))
    assert made["spec"] == {"color": "red", "n": 3}
    assert made["metadata"]["generation"] == 1
    listing = await gadgets.request("list", f"{GADGETS}@default")
    assert (listing["kind"], [item["kind"] for item in listing["items"]]) == ("GadgetList", ["Gadget"])


REFUSED: dict[str, tuple[Document, str]] = {
    "type": (
        {"n": "x"},
        'Gadget.example.com "g" is invalid: [spec.n: Invalid value: "string": spec.n in body must be of type integer: '
        '"string", .spec.n: Invalid value: 0: .spec.n accessor error: x is of the type string, expected int64, <nil>: '
        "Invalid value: null: some validation rules were not checked because the object was invalid; correct the "
        "existing errors to complete validation]",
    ),
    "maximum": (
        {"n": 11},
        'Gadget.example.com "g" is invalid: spec.n: Invalid value: 11: spec.n in body should be less than or equal '
        "to 10",
    ),
    "rule": ({"n": 7}, 'Gadget.example.com "g" is invalid: spec: Invalid value: no sevens'),
    "scale": (
        {"n": -1},
        'Gadget.example.com "g" is invalid: .spec.n: Invalid value: -1: should be a non-negative integer',
    ),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_rejected_objects(gadgets: Local, name: str) -> None:
    spec, message = REFUSED[name]
    with pytest.raises(InvalidError) as caught:
        await create(gadgets, gadget("g", **spec))
    assert caught.value.message == message


async def test_unknown_fields_go_or_are_rejected(gadgets: Local) -> None:
    assert (await create(gadgets, gadget("one", zzz=1)))["spec"] == {"n": 3}
    with pytest.raises(BadRequestError) as caught:
        await gadgets.request("create", f"{GADGETS}@default", gadget("two", zzz=1), query={"fieldValidation": "Strict"})
    assert caught.value.message == (
        'Gadget in version "v1" cannot be handled as a Gadget: strict decoding error: unknown field "spec.zzz"'
    )


async def test_rules_about_changes(gadgets: Local) -> None:
    await create(gadgets, gadget("one", fixed="a"))
    assert (await merge(gadgets, "one", {"spec": {"n": 4}}))["spec"]["n"] == 4
    with pytest.raises(InvalidError, match=r'spec.fixed: Invalid value: "b": fixed'):
        await merge(gadgets, "one", {"spec": {"fixed": "b"}})


async def test_status_and_spec_have_their_own_endpoints(gadgets: Local) -> None:
    made = await create(gadgets, gadget("one") | {"status": {"n": 9}})
    assert "status" not in made
    changed = await merge(gadgets, "one", {"status": {"n": 5}, "metadata": {"labels": {"a": "b"}}})
    assert "status" not in changed
    assert changed["metadata"]["generation"] == 1
    body = changed | {"status": {"n": 2}, "spec": {"n": 9}, "metadata": changed["metadata"] | {"labels": {}}}
    written = await gadgets.request("update", f"{GADGETS}/one/status@default", body)
    assert (written["status"], written["spec"]) == ({"n": 2}, {"n": 3})
    assert written["metadata"]["labels"] == {"a": "b"}
    assert written["metadata"]["generation"] == 1
    managers = {(item["manager"], item.get("subresource", "")) for item in written["metadata"]["managedFields"]}
    assert ("test", "status") in managers


async def test_an_update_names_the_version_it_changes(gadgets: Local) -> None:
    made = await create(gadgets, gadget("one"))
    with pytest.raises(InvalidError, match=r"metadata.resourceVersion: Invalid value: 0: must be specified"):
        await gadgets.request("update", f"{GADGETS}/one@default", gadget("one", n=4))
    changed = await gadgets.request("update", f"{GADGETS}/one@default", made | {"spec": {"n": 4}})
    assert changed["metadata"]["generation"] == 2
    with pytest.raises(ConflictError):
        await gadgets.request("update", f"{GADGETS}/one@default", made | {"spec": {"n": 5}})


async def test_without_a_status_endpoint_the_status_is_a_field(api: Local) -> None:
    await api.request("create", DEFINITIONS, definition(version(subresources={})))
    made = await create(api, gadget("one") | {"status": {"n": 1}})
    assert made["status"] == {"n": 1}
    changed = await merge(api, "one", {"status": {"n": 2}})
    assert (changed["status"], changed["metadata"]["generation"]) == ({"n": 2}, 2)
    with pytest.raises(PathNotFoundError):
        await merge(api, "one/status", {"status": {"n": 3}})


async def test_scale(gadgets: Local) -> None:
    await create(gadgets, gadget("one"))
    scale = await gadgets.request("get", f"{GADGETS}/one/scale@default")
    assert (scale["kind"], scale["spec"], scale["status"]) == ("Scale", {"replicas": 3}, {"replicas": 0})
    patch = {"spec": {"replicas": 5}}
    await gadgets.request("patch", f"{GADGETS}/one/scale@default", patch, content_type=MERGE)
    assert (await get(gadgets, "one"))["spec"]["n"] == 5


async def test_server_side_apply_and_field_selectors(gadgets: Local) -> None:
    applied = await gadgets.request(
        "patch",
        f"{GADGETS}/one@default",
        gadget("one", color="red"),
        content_type=APPLY,
        query={"fieldManager": "x"},
    )
    assert applied["metadata"]["managedFields"][0]["fieldsV1"] == {"f:spec": {"f:color": {}}}
    await create(gadgets, gadget("two", color="blue"))
    found = await gadgets.request("list", f"{GADGETS}@default", query={"fieldSelector": "spec.color=blue"})
    assert [item["metadata"]["name"] for item in found["items"]] == ["two"]


async def test_a_new_schema_counts_for_stored_objects_too(gadgets: Local) -> None:
    await create(gadgets, gadget("one", color="red"))
    stored = await gadgets.request("get", f"{DEFINITIONS}/{NAME}")
    changed = copy_document(stored)
    fields = changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    del fields["color"]
    fields["size"] = {"type": "string", "default": "big"}
    del changed["spec"]["versions"][0]["selectableFields"]
    written = await gadgets.request("update", f"{DEFINITIONS}/{NAME}", changed)
    assert written["metadata"]["generation"] == 2
    assert (await create(gadgets, gadget("two", color="red")))["spec"] == {"n": 3, "size": "big"}
    assert (await get(gadgets, "one"))["spec"] == {"n": 3, "size": "big"}
    listing = await gadgets.request("list", f"{GADGETS}@default")
    assert [item["spec"] for item in listing["items"]] == [{"n": 3, "size": "big"}] * 2


async def test_versions_differ_in_name_only(api: Local) -> None:
    old = version("v1beta1", storage=False, deprecated=True)
    await api.request("create", DEFINITIONS, definition(version(), old))
    beta = "example.com/v1beta1/gadgets"
    made = await create(api, gadget("one", "example.com/v1beta1", color="red"), beta)
    assert made["apiVersion"] == "example.com/v1beta1"
    assert (await get(api, "one"))["apiVersion"] == "example.com/v1"
    changed = await merge(api, "one", {"spec": {"n": 4}}, beta)
    assert (changed["apiVersion"], changed["spec"]["n"]) == ("example.com/v1beta1", 4)
    endpoint = api.running.server.catalog.get("example.com", "v1beta1", "gadgets")
    assert endpoint is not None
    assert endpoint.deprecation == "example.com/v1beta1 Gadget is deprecated; use example.com/v1 Gadget"


async def test_a_new_storage_version_is_recorded(gadgets: Local) -> None:
    await create(gadgets, gadget("one", color="red"))
    found = await gadgets.request("get", f"{DEFINITIONS}/{NAME}")
    spec = definition(version("v2"), version("v1", storage=False))["spec"]
    written = await gadgets.request("update", f"{DEFINITIONS}/{NAME}", found | {"spec": spec})
    assert written["status"]["storedVersions"] == ["v1", "v2"]
    assert (await get(gadgets, "one", "example.com/v2/gadgets"))["apiVersion"] == "example.com/v2"
    assert (await merge(gadgets, "one", {"spec": {"n": 4}}))["apiVersion"] == "example.com/v1"


async def test_taken_names_are_rejected_until_they_are_free(gadgets: Local) -> None:
    other = definition(plural="others", kind="Other") | {"metadata": {"name": "others.example.com"}}
    await gadgets.request("create", DEFINITIONS, other)
    found = await gadgets.request("get", f"{DEFINITIONS}/others.example.com")
    assert conditions(found) == {"NamesAccepted": "False ShortNamesConflict", "Established": "False NotAccepted"}
    assert found["status"]["conditions"][0]["message"] == '"gd" is already in use'
    with pytest.raises(PathNotFoundError):
        await gadgets.request("list", "example.com/v1/others@default")
    await gadgets.request("delete", f"{DEFINITIONS}/{NAME}")
    await eventually(lambda: _is_served(gadgets, "others"))
    found = await gadgets.request("get", f"{DEFINITIONS}/others.example.com")
    assert conditions(found)["NamesAccepted"] == "True NoConflicts"


async def _is_served(api: Local, plural: str) -> bool:
    return api.running.server.catalog.get("example.com", "v1", plural) is not None


async def _is_gone(api: Local, path: str) -> bool:
    try:
        await api.request("get", path)
    except NotFoundError:
        return True
    return False


async def test_objects_are_deleted_before_their_definition(gadgets: Local) -> None:
    held = gadget("held")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await create(gadgets, held)
    await create(gadgets, gadget("free"))
    deleted = await gadgets.request("delete", f"{DEFINITIONS}/{NAME}")
    assert deleted["metadata"]["finalizers"] == ["customresourcecleanup.apiextensions.k8s.io"]
    assert deleted["metadata"]["generation"] == 1
    assert conditions(deleted)["Terminating"] == "True InstanceDeletionPending"
    await eventually(lambda: _is_gone(gadgets, f"{GADGETS}/free@default"))
    with pytest.raises(ForbiddenError) as caught:
        await create(gadgets, gadget("late"))
    assert caught.value.message == (
        'gadgets.example.com "late" is forbidden: create not allowed while custom resource definition is terminating'
    )
    assert "create" not in _verbs(gadgets)
    await merge(gadgets, "held", {"metadata": {"finalizers": None}})
    await eventually(lambda: _is_gone(gadgets, f"{DEFINITIONS}/{NAME}"))
    await until(lambda: not gadgets.running.server.catalog.has_group_version("example.com", "v1"))


def _verbs(api: Local) -> tuple[str, ...]:
    endpoint = api.running.server.catalog.get("example.com", "v1", "gadgets")
    assert endpoint is not None
    return endpoint.definition.verbs


async def test_built_in_kinds_cannot_be_replaced(api: Local) -> None:
    group = "resource.k8s.io"
    taken = definition(version(), plural="resourceclaims", kind="ResourceClaim")
    taken["metadata"] = {
        "name": f"resourceclaims.{group}",
        "annotations": {"api-approved.kubernetes.io": "unapproved, a test"},
    }
    taken["spec"]["group"] = group
    before = api.running.server.catalog.get(group, "v1", "resourceclaims")
    await api.request("create", DEFINITIONS, taken)
    assert api.running.server.catalog.get(group, "v1", "resourceclaims") is before
    assert before is not None
    assert before.group_version == GroupVersion(group, "v1")


async def test_a_schema_inside_a_schema_is_decoded(api: Local) -> None:
    broken = version(selectableFields=[])
    broken["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["l"] = {
        "type": "array",
        "items": {"type": "string", "maxLength": "long"},
    }
    with pytest.raises(BadRequestError, match="cannot unmarshal string into Go struct field"):
        await api.request("create", DEFINITIONS, definition(broken))


async def test_stored_definitions_are_served_from_the_start(tmp_path: Path) -> None:
    settings = APIServerSettings(data_dir=str(tmp_path), port=0)
    async with apiserver.running(settings) as running:
        await Local(running).request("create", DEFINITIONS, definition())
        await create(Local(running), gadget("one"))
    async with apiserver.running(settings) as running:
        assert (await get(Local(running), "one"))["spec"] == {"n": 3}


async def test_bad_definitions_are_rejected_whole(api: Local) -> None:
    broken = version()
    broken["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"] = [{"rule": "self.gone"}]
    with pytest.raises(APIError, match=r"compilation failed: ERROR: <input>:1:5: undefined field 'gone'"):
        await api.request("create", DEFINITIONS, definition(broken))
    assert await _is_gone(api, f"{DEFINITIONS}/{NAME}")


async def test_objects_of_versions_that_are_not_served_are_deleted_too(gadgets: Local) -> None:
    held = gadget("held")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await create(gadgets, held)
    found = await gadgets.request("get", f"{DEFINITIONS}/{NAME}")
    spec = definition(version("v2", storage=False), version(served=False))["spec"]
    await gadgets.request("update", f"{DEFINITIONS}/{NAME}", found | {"spec": spec})
    await gadgets.request("delete", f"{DEFINITIONS}/{NAME}")
    v2 = "example.com/v2/gadgets"
    await eventually(lambda: _is_marked(gadgets, v2))
    await merge(gadgets, "held", {"metadata": {"finalizers": None}}, v2)
    await eventually(lambda: _is_gone(gadgets, f"{DEFINITIONS}/{NAME}"))


async def _is_marked(api: Local, path: str) -> bool:
    return "deletionTimestamp" in (await get(api, "held", path))["metadata"]


def nested(properties: Document, **more: Any) -> Document:
    """A version whose spec has these properties."""
    spec = {"type": "object", "properties": properties} | more
    status = {"type": "object", "properties": {"n": {"type": "integer"}}}
    schema = {"type": "object", "properties": {"spec": spec, "status": status}}
    return {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}, "subresources": {}}


async def apply(api: Local, name: str, document: Document, **query: str) -> Document:
    query = {"fieldManager": "applier", "force": "true"} | query
    return await api.request("patch", f"{GADGETS}/{name}@default", document, content_type=APPLY, query=query)


@pytest.mark.behaviour("CR-01")
async def test_an_apply_of_null(api: Local) -> None:
    properties = {
        "plain": {"type": "string"},
        "nullable": {"type": "string", "nullable": True},
        "default": {"type": "string", "default": "x"},
    }
    await api.request("create", DEFINITIONS, definition(nested(properties)))
    made = await apply(api, "one", gadget("one", nullable=None, default=None))
    assert made["spec"] == {"nullable": None, "default": "x"}
    with pytest.raises(InvalidError, match=r'spec\.plain in body must be of type string: "null"'):
        await apply(api, "one", gadget("one", plain=None))
    with pytest.raises(InvalidError, match='spec in body must be of type object: "null"'):
        await apply(api, "one", gadget("one") | {"spec": None})
    # An apply of the same again changes nothing.
    assert await apply(api, "one", gadget("one", nullable=None, default=None)) == made


@pytest.mark.behaviour("CR-01")
async def test_an_apply_of_nothing_leaves_defaults(api: Local) -> None:
    properties = {"a": {"type": "array", "items": {"type": "string"}, "default": ["x"]}}
    await api.request("create", DEFINITIONS, definition(nested(properties)))
    made = await apply(api, "one", gadget("one"))
    assert made["spec"] == {"a": ["x"]}
    assert await apply(api, "one", gadget("one")) == made


@pytest.mark.behaviour("CR-01")
async def test_an_apply_that_removes_everything_leaves_null(api: Local) -> None:
    inner = {"type": "object", "properties": {"a": {"type": "string"}}}
    properties = {"refused": inner, "taken": inner | {"nullable": True}}
    await api.request("create", DEFINITIONS, definition(nested(properties)))
    await apply(api, "one", gadget("one", refused={"a": "x"}, taken={"a": "x"}))
    assert (await apply(api, "one", gadget("one", refused={"a": "x"}, taken={})))["spec"] == {
        "refused": {"a": "x"},
        "taken": None,
    }
    with pytest.raises(InvalidError, match=r'spec\.refused in body must be of type object: "null"'):
        await apply(api, "one", gadget("one", refused={}, taken={}))


EMBEDDED: dict[str, tuple[Document, str]] = {
    "missing": ({}, "[spec.o.apiVersion: Required value, spec.o.kind: Required value]"),
    "version": (
        {"apiVersion": "a/b/c", "kind": "Pod"},
        'spec.o.apiVersion: Invalid value: "a/b/c": unexpected GroupVersion string: a/b/c',
    ),
    "empty kind": ({"apiVersion": "v1", "kind": ""}, 'spec.o.kind: Invalid value: "": must not be empty'),
    "name": (
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a/b"}},
        "spec.o.metadata.name: Invalid value: \"a/b\": may not contain '/'",
    ),
    "labels": (
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": "no value!"}}},
        'spec.o.metadata.labels: Invalid value: "no value!": a valid label must be an empty string',
    ),
}


@pytest.mark.behaviour("CR-03")
@pytest.mark.parametrize("name", EMBEDDED)
async def test_embedded_objects_are_validated(api: Local, name: str) -> None:
    given, problem = EMBEDDED[name]
    embedded = {
        "type": "object",
        "x-kubernetes-embedded-resource": True,
        "x-kubernetes-preserve-unknown-fields": True,
    }
    await api.request("create", DEFINITIONS, definition(nested({"o": embedded})))
    with pytest.raises(InvalidError) as caught:
        await create(api, gadget("one", o=given))
    assert caught.value.message.startswith(f'Gadget.example.com "one" is invalid: {problem}')


@pytest.mark.behaviour("CR-04")
async def test_other_versions_have_the_defaults_of_the_storage_version(api: Local) -> None:
    text = {"type": "string"}
    stored = nested({"both": text | {"default": "v1"}, "only1": text | {"default": "v1"}})
    other = nested({"both": text | {"default": "v2"}, "only2": text | {"default": "v2"}})
    await api.request("create", DEFINITIONS, definition(stored, other | {"name": "v2", "storage": False}))
    await create(api, gadget("one"))
    assert (await get(api, "one", "example.com/v2/gadgets"))["spec"] == {"both": "v1"}
    made = await create(api, gadget("two", "example.com/v2"), "example.com/v2/gadgets")
    assert made["spec"] == {"both": "v2"}
    assert (await get(api, "two"))["spec"] == {"both": "v2", "only1": "v1"}
    changed = await merge(api, "one", {"spec": {"only2": "kept nowhere"}}, "example.com/v2/gadgets")
    assert changed["spec"] == {"both": "v1"}


@pytest.mark.behaviour("CR-05")
async def test_duplicates_that_were_there_block_no_update(api: Local) -> None:
    plain = nested({"l": {"type": "array", "items": {"type": "string"}}, "n": {"type": "integer"}})
    await api.request("create", DEFINITIONS, definition(plain))
    await create(api, gadget("old", l=["a", "a"]))
    await create(api, gadget("good", l=["a"]))
    kind = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/l/x-kubernetes-list-type"
    patch = [{"op": "add", "path": kind, "value": "set"}]
    await api.request("patch", f"{DEFINITIONS}/{NAME}", patch, content_type="application/json-patch+json")
    with pytest.raises(InvalidError, match=r'spec.l\[1\]: Duplicate value: "a"'):
        await create(api, gadget("new", l=["a", "a"]))
    with pytest.raises(InvalidError, match=r'spec.l\[1\]: Duplicate value: "b"'):
        await merge(api, "good", {"spec": {"l": ["b", "b"]}})
    assert (await merge(api, "old", {"spec": {"n": 1}}))["spec"] == {"l": ["a", "a"], "n": 1}
    assert (await merge(api, "old", {"spec": {"l": ["b", "b"]}}))["spec"]["l"] == ["b", "b"]


@pytest.mark.behaviour("CR-06")
async def test_a_write_of_the_status_does_not_validate_the_spec(api: Local) -> None:
    loose = nested({"n": {"type": "integer"}}) | {"subresources": {"status": {}}}
    await api.request("create", DEFINITIONS, definition(loose))
    await create(api, gadget("one", n=5))
    least = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/required"
    patch = [{"op": "add", "path": least, "value": ["missing"]}]
    await api.request("patch", f"{DEFINITIONS}/{NAME}", patch, content_type="application/json-patch+json")
    changed = await merge(api, "one/status", {"status": {"n": 1}})
    assert changed["status"] == {"n": 1}
    with pytest.raises(InvalidError) as caught:
        await merge(api, "one/status", {"status": {"n": "x"}})
    assert caught.value.message.endswith(
        'status.n: Invalid value: "string": n in body must be of type integer: "string"'
    )


@pytest.mark.behaviour("CR-07")
async def test_watches_end_when_the_definition_changes(gadgets: Local) -> None:
    await gadgets.request("create", DEFINITIONS, other_definition())
    watch = await gadgets.watch(GADGETS, resourceVersion="0")
    other = await gadgets.watch("example.com/v1/others")
    await create(gadgets, gadget("one"))
    assert await anext(watch) == ("ADDED", await get(gadgets, "one"))
    # A change of the definition's metadata is none of the schema.
    label = {"metadata": {"labels": {"a": "b"}}}
    await gadgets.request("patch", f"{DEFINITIONS}/{NAME}", label, content_type=MERGE)
    made = await create(gadgets, gadget("two"))
    assert await anext(watch) == ("ADDED", made)
    size = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/size"
    patch = [{"op": "add", "path": size, "value": {"type": "string", "default": "large"}}]
    await gadgets.request("patch", f"{DEFINITIONS}/{NAME}", patch, content_type="application/json-patch+json")
    async with asyncio.timeout(5):
        assert [event async for event in watch] == []
    again = await gadgets.watch(GADGETS)
    assert (await anext(again))[1]["spec"]["size"] == "large"
    document = {"apiVersion": "example.com/v1", "kind": "Other", "metadata": {"name": "x"}}
    await gadgets.request("create", "example.com/v1/others@default", document)
    assert (await anext(other))[0] == "ADDED"


def other_definition() -> Document:
    made = definition(nested({}), plural="others", kind="Other", shortNames=[])
    return made | {"metadata": {"name": "others.example.com"}}


@pytest.mark.behaviour("CR-07")
async def test_the_deletion_of_a_definition_is_watched_to_its_end(gadgets: Local) -> None:
    for name in ("one", "two"):
        await create(gadgets, gadget(name))
    watch = await gadgets.watch(GADGETS)
    assert [(await anext(watch))[0] for _ in range(2)] == ["ADDED", "ADDED"]
    await gadgets.request("delete", f"{DEFINITIONS}/{NAME}")
    async with asyncio.timeout(5):
        assert [kind async for kind, _ in watch] == ["DELETED", "DELETED"]
