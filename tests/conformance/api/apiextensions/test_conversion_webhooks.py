"""Conversion of custom resources by webhooks, on an in-process server and a webhook on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, cast

import orjson
import pytest

from dray.api.document import Document, copy_document
from dray.api.errors import APIError, InvalidError, NotFoundError
from dray.apiserver.local_transport import own_request
from tests import webhook_server
from tests.conformance.api.apiextensions.test_custom_resources import DEFINITIONS, NAME, definition, eventually
from tests.local_server import Local

V1, V2 = "example.com/v1/gadgets", "example.com/v2/gadgets"
MERGE = "application/merge-patch+json"


def version(name: str, spec: Document, *, storage: bool) -> Document:
    schema = {
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": spec},
            "status": {"type": "object", "properties": {"n": {"type": "integer"}}},
        },
    }
    return {
        "name": name,
        "served": True,
        "storage": storage,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
    }


OLD = {"color": {"type": "string", "maxLength": 5}}
NEW = {"colors": {"type": "array", "items": {"type": "string"}}}


def versions(*, stored: str = "v2") -> list[Document]:
    return [version("v1", OLD, storage=stored == "v1"), version("v2", NEW, storage=stored == "v2")]


def gadget(name: str, number: int, **spec: Any) -> Document:
    return {"apiVersion": f"example.com/v{number}", "kind": "Gadget", "metadata": {"name": name}, "spec": spec}


def converted(document: Document, api_version: str) -> Document:
    """One color of v1 is a list of colors of v2."""
    made = copy_document(document) | {"apiVersion": api_version}
    spec = made.get("spec") or {}
    if api_version.endswith("v2") and "color" in spec:
        made["spec"] = {"colors": [spec["color"]]}
    elif api_version.endswith("v1") and "colors" in spec:
        made["spec"] = {"color": "+".join(spec["colors"])}
    return made


@dataclass
class Hook:
    """What the webhook answers, and what it was asked."""

    answer: Callable[[Document], Document | bytes] | None = None
    requests: list[Document] = field(default_factory=list)

    def __call__(self, request: Document) -> Document | bytes:
        self.requests.append(request)
        if self.answer is not None:
            return self.answer(request)
        wanted = request["desiredAPIVersion"]
        objects = [converted(item, wanted) for item in request["objects"]]
        return {"result": {"status": "Success"}, "convertedObjects": objects}


@dataclass
class Converted:
    """A server with gadgets whose versions a webhook converts."""

    api: Local
    hook: Hook
    webhook: webhook_server.Webhook

    def definition(self, *, stored: str = "v2") -> Document:
        body = definition(*versions(stored=stored))
        client = {"conversionReviewVersions": ["v1"], "clientConfig": self.webhook.client_config}
        body["spec"]["conversion"] = {"strategy": "Webhook", "webhook": client}
        return body

    async def store(self, stored: str) -> None:
        """Change the stored version."""
        found = await self.api.request("get", f"{DEFINITIONS}/{NAME}")
        await self.api.request(
            "update", f"{DEFINITIONS}/{NAME}", found | {"spec": self.definition(stored=stored)["spec"]}
        )

    async def create(self, document: Document, path: str) -> Document:
        return await self.api.request("create", f"{path}@default", document)

    async def get(self, name: str, path: str) -> Document:
        return await self.api.request("get", f"{path}/{name}@default")

    async def stored(self, name: str) -> Document:
        """The object as it is stored."""
        entry = await self.api.running.store.get(f"/registry/example.com/gadgets/default/{name}")
        assert entry is not None
        return cast("Document", orjson.loads(entry.value))


@pytest.fixture
async def gadgets(api: Local) -> AsyncIterator[Converted]:
    hook = Hook()
    async with webhook_server.serving(hook) as webhook:
        made = Converted(api, hook, webhook)
        await api.request("create", DEFINITIONS, made.definition())
        yield made


@pytest.mark.behaviour("CV-03")
async def test_each_version_is_served_as_the_webhook_converts_it(gadgets: Converted) -> None:
    made = await gadgets.create(gadget("one", 1, color="red"), V1)
    assert (made["apiVersion"], made["spec"]) == ("example.com/v1", {"color": "red"})
    stored = await gadgets.stored("one")
    assert (stored["apiVersion"], stored["spec"]) == ("example.com/v2", {"colors": ["red"]})
    assert (await gadgets.get("one", V2))["spec"] == {"colors": ["red"]}
    found = await gadgets.api.request("list", f"{V1}@default")
    assert [(item["apiVersion"], item["spec"]) for item in found["items"]] == [("example.com/v1", {"color": "red"})]
    body = await gadgets.get("one", V1)
    changed = await gadgets.api.request("update", f"{V1}/one@default", body | {"spec": {"color": "blue"}})
    assert (changed["spec"], changed["metadata"]["generation"]) == ({"color": "blue"}, 2)
    patch = {"spec": {"colors": ["blue", "red"]}}
    await gadgets.api.request("patch", f"{V2}/one@default", patch, content_type=MERGE)
    assert (await gadgets.get("one", V1))["spec"] == {"color": "blue+red"}
    status = await gadgets.api.request("patch", f"{V1}/one/status@default", {"status": {"n": 3}}, content_type=MERGE)
    assert status["status"] == {"n": 3}
    assert (await gadgets.stored("one"))["status"] == {"n": 3}


@pytest.mark.behaviour("CV-04")
async def test_objects_are_validated_in_the_version_of_the_request(gadgets: Converted) -> None:
    with pytest.raises(InvalidError, match=r"spec.color: Too long"):
        await gadgets.create(gadget("one", 1, color="purple"), V1)
    await gadgets.create(gadget("one", 2, colors=["purple"]), V2)
    assert (await gadgets.get("one", V1))["spec"] == {"color": "purple"}


@pytest.mark.behaviour("CV-05")
async def test_the_review_is_that_of_kubernetes(gadgets: Converted) -> None:
    await gadgets.create(gadget("one", 2, colors=["red"]), V2)
    assert gadgets.hook.requests == []
    await gadgets.get("one", V1)
    (review,) = gadgets.webhook.requests
    assert (review["kind"], review["apiVersion"]) == ("ConversionReview", "apiextensions.k8s.io/v1")
    assert set(review["request"]) == {"uid", "desiredAPIVersion", "objects"}
    assert review["request"]["desiredAPIVersion"] == "example.com/v1"
    (sent,) = review["request"]["objects"]
    assert (sent["apiVersion"], sent["metadata"]["name"]) == ("example.com/v2", "one")
    assert gadgets.webhook.targets == ["POST /review?timeout=30s HTTP/1.1"]


@pytest.mark.behaviour("CV-06")
async def test_a_revision_is_converted_once(gadgets: Converted) -> None:
    for number in range(3):
        await gadgets.create(gadget(f"g{number}", 2, colors=["red"]), V2)
    await gadgets.api.request("list", f"{V1}@default")
    assert [len(request["objects"]) for request in gadgets.hook.requests] == [3]
    await gadgets.api.request("list", f"{V1}@default")
    await gadgets.get("g1", V1)
    assert len(gadgets.hook.requests) == 1
    patch = {"spec": {"colors": ["blue"]}}
    await gadgets.api.request("patch", f"{V2}/g1@default", patch, content_type=MERGE)
    assert (await gadgets.get("g1", V1))["spec"] == {"color": "blue"}
    assert [len(request["objects"]) for request in gadgets.hook.requests] == [3, 1]


@pytest.mark.behaviour("CV-06")
async def test_concurrent_requests_share_a_conversion(gadgets: Converted) -> None:
    await gadgets.create(gadget("one", 2, colors=["red"]), V2)
    found = await asyncio.gather(*(gadgets.get("one", V1) for _ in range(10)))
    assert [item["spec"] for item in found] == [{"color": "red"}] * 10
    assert len(gadgets.hook.requests) == 1


@pytest.mark.behaviour("CV-07")
async def test_watches_show_the_version_of_the_request(gadgets: Converted) -> None:
    await gadgets.create(gadget("one", 2, colors=["red"]), V2)
    listing = await gadgets.api.request("list", f"{V1}@default")
    revision = listing["metadata"]["resourceVersion"]
    events = await gadgets.api.watch(f"{V1}@default", resourceVersion=revision)
    async with aclosing(cast("Any", events)):
        await gadgets.create(gadget("two", 2, colors=["blue"]), V2)
        await gadgets.api.request("delete", f"{V2}/one@default")
        added, deleted = await anext(events), await anext(events)
        assert (added[0], added[1]["apiVersion"], added[1]["spec"]) == ("ADDED", "example.com/v1", {"color": "blue"})
        assert (deleted[0], deleted[1]["spec"]) == ("DELETED", {"color": "red"})
        gadgets.hook.answer = lambda _request: {"result": {"status": "Failed", "message": "no"}}
        await gadgets.create(gadget("three", 2, colors=["red"]), V2)
        kind, status = await anext(events)
        text = "Internal error occurred: conversion webhook for example.com/v2, Kind=Gadget failed: no"
        assert (kind, status["code"], status["message"]) == ("ERROR", 500, text)
        with pytest.raises(StopAsyncIteration):
            await anext(events)


@pytest.mark.behaviour("CV-08")
async def test_what_was_stored_in_an_older_version_is_converted(gadgets: Converted) -> None:
    await gadgets.store("v1")
    await gadgets.create(gadget("one", 1, color="red"), V1)
    await gadgets.store("v2")
    found = await gadgets.api.request("get", f"{DEFINITIONS}/{NAME}")
    assert found["status"]["storedVersions"] == ["v2", "v1"]
    assert (await gadgets.stored("one"))["apiVersion"] == "example.com/v1"
    assert (await gadgets.get("one", V2))["spec"] == {"colors": ["red"]}
    # Migration: any write stores the object in the new version.
    patch = {"metadata": {"labels": {"migrated": "yes"}}}
    await gadgets.api.request("patch", f"{V2}/one@default", patch, content_type=MERGE)
    stored = await gadgets.stored("one")
    assert (stored["apiVersion"], stored["spec"]) == ("example.com/v2", {"colors": ["red"]})
    migrated = {"status": found["status"] | {"storedVersions": ["v2"]}}
    done = await gadgets.api.request("patch", f"{DEFINITIONS}/{NAME}/status", migrated, content_type=MERGE)
    assert done["status"]["storedVersions"] == ["v2"]


async def test_discovery_has_one_storage_version(gadgets: Converted) -> None:
    hashes = set()
    for name in ("v1", "v2"):
        found = await gadgets.api.running.local.handle(own_request("get", path=f"/apis/example.com/{name}"))
        hashes.add(next(item["storageVersionHash"] for item in found["resources"] if item["name"] == "gadgets"))
    assert len(hashes) == 1


FAILURES: dict[str, tuple[Document | bytes, str]] = {
    "refused": ({"result": {"status": "Failed", "message": "no way"}}, " failed: no way"),
    "no message": ({"result": {"status": "Failed"}}, " failed: response.result.status was 'Failed', not 'Success'"),
    "too few": ({"result": {"status": "Success"}, "convertedObjects": []}, " returned 0 objects, expected 1"),
    "another uid": ({"uid": "x", "result": {"status": "Success"}}, ' failed: expected response.uid="'),
    "server error": (
        b"HTTP/1.1 500 Oops\r\nContent-Length: 3\r\n\r\nbad",
        ' failed: an error on the server ("bad") has prevented the request from succeeding',
    ),
}


@pytest.mark.behaviour("CV-09")
@pytest.mark.parametrize("name", FAILURES)
async def test_failures_have_the_texts_of_kubernetes(gadgets: Converted, name: str) -> None:
    await gadgets.create(gadget("one", 2, colors=["red"]), V2)
    answer, text = FAILURES[name]
    gadgets.hook.answer = lambda _request: answer
    for verb, place in (("get", f"{V1}/one@default"), ("list", f"{V1}@default")):
        with pytest.raises(APIError) as caught:
            await gadgets.api.request(verb, place)
        assert (caught.value.code, caught.value.reason) == (500, "")
        assert str(caught.value).startswith(f"conversion webhook for example.com/v2, Kind=Gadget{text}")
    with pytest.raises(APIError, match=r"conversion webhook for example\.com/v1, Kind=Gadget"):
        await gadgets.create(gadget("two", 1, color="red"), V1)
    with pytest.raises(NotFoundError):
        await gadgets.get("two", V2)
    # It is asked again, and the stored version needs no webhook at all.
    gadgets.hook.answer = None
    assert (await gadgets.get("one", V1))["spec"] == {"color": "red"}


@pytest.mark.behaviour("CV-10")
async def test_a_definition_is_deleted_without_its_webhook(gadgets: Converted) -> None:
    await gadgets.store("v1")
    await gadgets.create(gadget("one", 1, color="red"), V1)
    await gadgets.store("v2")
    await gadgets.create(gadget("two", 2, colors=["red"]), V2)
    gadgets.hook.answer = lambda _request: {"result": {"status": "Failed"}}
    gadgets.hook.requests.clear()
    await gadgets.api.request("delete", f"{DEFINITIONS}/{NAME}")
    await eventually(lambda: _is_gone(gadgets.api))
    assert gadgets.hook.requests == []
    page = await gadgets.api.running.store.list_page("/registry/example.com/")
    assert page.entries == ()


async def _is_gone(api: Local) -> bool:
    try:
        await api.request("get", f"{DEFINITIONS}/{NAME}")
    except NotFoundError:
        return True
    return False


@pytest.mark.behaviour("CV-11")
async def test_admission_webhooks_get_the_version_that_they_ask_for(gadgets: Converted) -> None:
    seen: list[Document] = []

    def admit(request: Document) -> Document:
        seen.append(request)
        operation = {"op": "add", "path": "/spec/colors/-", "value": "x"}
        return cast("Document", webhook_server.patching(operation)(request))

    async with webhook_server.serving(admit) as webhook:
        hook = {
            "name": "colors.example.com",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "clientConfig": webhook.client_config,
            "rules": [
                {
                    "operations": ["CREATE"],
                    "apiGroups": ["example.com"],
                    "apiVersions": ["v2"],
                    "resources": ["gadgets"],
                }
            ],
        }
        body = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "colors"},
            "webhooks": [hook],
        }
        await gadgets.api.request("create", "admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", body)
        made = await gadgets.create(gadget("one", 1, color="red"), V1)
    assert (seen[0]["object"]["apiVersion"], seen[0]["object"]["spec"]) == ("example.com/v2", {"colors": ["red"]})
    assert seen[0]["requestKind"]["version"] == "v1"
    assert made["spec"] == {"color": "red+x"}


@pytest.mark.behaviour("CR-04")
async def test_what_is_converted_has_the_defaults_of_its_own_version(gadgets: Converted) -> None:
    await gadgets.create(gadget("one", 2), V2)
    body = copy_document(gadgets.definition())
    schemas = [item["schema"]["openAPIV3Schema"] for item in body["spec"]["versions"]]
    old, new = (schema["properties"]["spec"]["properties"] for schema in schemas)
    old["color"]["default"], new["colors"]["default"] = "old", ["a", "b"]
    found = await gadgets.api.request("get", f"{DEFINITIONS}/{NAME}")
    await gadgets.api.request("update", f"{DEFINITIONS}/{NAME}", found | {"spec": body["spec"]})
    assert (await gadgets.get("one", V2))["spec"] == {"colors": ["a", "b"]}
    assert (await gadgets.get("one", V1))["spec"] == {"color": "a+b"}
    assert (await gadgets.create(gadget("two", 1), V1))["spec"] == {"color": "old"}
    assert (await gadgets.stored("two"))["spec"] == {"colors": ["old"]}
