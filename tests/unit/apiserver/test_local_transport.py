"""The server for callers of its own process: whose its answers are."""

from __future__ import annotations

import random
from contextlib import aclosing
from typing import Any, cast

import pytest

from dray.api.document import Document
from dray.client.interface import LocalRequest
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
