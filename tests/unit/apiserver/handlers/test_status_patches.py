"""A patch of a Pod's status, which copies only what it can change, does the same as one that copies everything."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dray.api.defaults import OF_SPEC_ALONE
from dray.api.defaults.core_v1 import DEFAULTERS
from dray.api.document import Document, copy_document
from dray.apiserver.local_transport import LocalTransport
from dray.client.interface import LocalRequest
from dray.runtime.system import SystemClock
from tests.in_process_server import in_process_server

CONDITION = {"type": "Ready", "status": "True", "lastProbeTime": None, "lastTransitionTime": "2026-01-01T00:00:00Z"}
STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"

PATCHES: dict[str, tuple[str, Any]] = {
    "a condition": (STRATEGIC, {"status": {"conditions": [CONDITION], "phase": "Running"}}),
    "a list": (MERGE, {"status": {"conditions": [CONDITION], "podIPs": [{"ip": "10.0.0.1"}]}}),
    "nothing": (MERGE, {}),
    "an empty status": (MERGE, {"status": None}),
    "an operation": (JSON, [{"op": "add", "path": "/status/message", "value": "text"}]),
    "a replaced spec": (JSON, [{"op": "add", "path": "/spec/nodeName", "value": "node"}]),
    "a spec, which is ignored": (STRATEGIC, {"spec": {"containers": [{"name": "c", "image": "other"}]}}),
    "an incomplete spec, which is ignored": (MERGE, {"spec": {"containers": [{"name": "c"}], "dnsPolicy": None}}),
    "labels and annotations": (MERGE, {"metadata": {"labels": {"a": "c"}, "annotations": {"x": "y", "kept": None}}}),
    "owners, which are ignored": (MERGE, {"metadata": {"ownerReferences": []}}),
    "an apply": (
        APPLY,
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "status": {"message": "applied"}},
    ),
}


def pod() -> Document:
    return {
        "metadata": {"name": "pod", "labels": {"a": "b"}, "annotations": {"kept": "z"}},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "1000m"}}}]},
    }


def request(verb: str, subresource: str = "", **more: Any) -> LocalRequest:
    name = "" if verb == "create" else "pod"
    return LocalRequest(
        "admin", ("system:masters",), verb, "", "v1", "pods", "default", name, subresource, user_agent="test", **more
    )


async def patched(server: LocalTransport, kind: str, body: Any) -> Document:
    await server.handle(request("create", body=pod()))
    query = {"fieldManager": "test"}
    answer = await server.handle(request("patch", "status", body=body, content_type=kind, query=query))
    again = await server.handle(request("get"))
    assert answer == again
    return again


@pytest.mark.parametrize("patch", PATCHES)
async def test_a_patch_of_the_status_stores_the_same_whatever_is_copied(
    patch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, body = PATCHES[patch]
    found = []
    for short in (True, False):
        # Fails at its end if the patch changed a document that others share.
        async with in_process_server(SystemClock(), random.Random(1), "default") as server:
            endpoint = server._server.catalog.get("", "v1", "pods")
            assert endpoint is not None
            assert endpoint.defaults_spec_alone or not short
            monkeypatch.setattr(endpoint, "defaults_spec_alone", short)
            document = await patched(server, kind, copy_document({"": body})[""])
        for entry in document["metadata"]["managedFields"]:
            del entry["time"]
        del document["metadata"]["creationTimestamp"]
        found.append(document)
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", OF_SPEC_ALONE)
def test_defaults_of_the_spec_alone_touch_nothing_else(kind: Any) -> None:
    document = pod() | {"status": {"phase": "", "conditions": []}}
    before = copy_document(document)
    DEFAULTERS[kind](document, SystemClock().now())
    assert document.keys() == before.keys()
    assert document["spec"] != before["spec"]
    assert document | {"spec": None} == before | {"spec": None}
    again = copy_document(document)
    DEFAULTERS[kind](again, SystemClock().now())
    assert again == document
