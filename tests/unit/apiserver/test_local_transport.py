"""The server for callers of its own process: whose its answers are."""

from __future__ import annotations

import random
from contextlib import aclosing
from typing import Any, cast

import msgspec
import pytest

from dray.api.codec import from_document
from dray.api.document import Document
from dray.api.types.resource_v1 import ResourceClaim
from dray.client.in_process import in_process_client
from dray.client.interface import LocalRequest
from dray.client.resources import RESOURCE_CLAIMS
from dray.runtime.system import SystemClock
from tests.in_process_server import in_process_server


def claim() -> Document:
    """A new one."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "claim"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}},
    }


def request(verb: str, version: str = "v1", name: str = "", **more: Any) -> LocalRequest:
    """A question about claims."""
    who, groups = "admin", ("system:masters",)
    return LocalRequest(who, groups, verb, "resource.k8s.io", version, "resourceclaims", "default", name, **more)


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_the_answer_to_a_deletion_is_the_caller_s(version: str) -> None:
    async with in_process_server(SystemClock(), random.Random(1), "default") as server:
        created = await server.handle(request("create", body=claim()))
        query = {"resourceVersion": created["metadata"]["resourceVersion"]}
        watch = await server.watch(request("watch", query=query))
        answer = await server.handle(request("delete", version, "claim"))
        assert answer["apiVersion"] == f"resource.k8s.io/{version}"
        answer["spec"]["devices"]["requests"].clear()
        async with aclosing(cast(Any, watch)) as batches:
            [(kind, received)] = await anext(batches)
        assert kind == "DELETED"
        assert received["metadata"] == answer["metadata"]
        assert received["spec"]["devices"]["requests"][0]["name"] == "gpu"


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_a_list_that_is_decoded_has_the_same_objects_as_one_of_documents(version: str) -> None:
    async with in_process_server(SystemClock(), random.Random(1), "default") as server:
        await server.handle(request("create", body=claim()))
        listed = await server.handle(request("list", version))
        for_decoding = await server.handle(request("list", version, read_only=True))
        client = in_process_client(server, user="admin", groups=("system:masters",))
        page = await client.list(msgspec.structs.replace(RESOURCE_CLAIMS, version=version), "default")
    [document], [item] = listed["items"], for_decoding["items"]
    # Only the storage version is at hand as JSON.
    assert isinstance(item, bytes) == (version == "v1")
    header = {"apiVersion": f"resource.k8s.io/{version}", "kind": "ResourceClaim"}
    assert page.items == [from_document(ResourceClaim, header | document)]
    assert page.resource_version == listed["metadata"]["resourceVersion"]
