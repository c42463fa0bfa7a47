"""A client of a server that serves resource.k8s.io in an older version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dray.api.document import Document, GroupResource
from dray.api.errors import APIError, ConflictError, NotFoundError, PathNotFoundError
from dray.client.interface import Patch, PatchType, WatchBatch, WriteOptions
from dray.client.older_versions import OlderVersions
from dray.client.resources import DEVICE_CLASSES, DEVICE_TAINT_RULES, NODES
from dray.client.rest import Call, RestClient

OLD, NEW = ("/apis/resource.k8s.io/" + version for version in ("v1beta2", "v1"))


class Server:
    """A transport that answers for the served versions, and notes what it is asked for."""

    def __init__(self, *served: str) -> None:
        self.served = set(served)
        self.calls: list[tuple[str, str, Any]] = []
        self.refusal: APIError | None = None

    async def send(self, call: Call) -> Document:
        assert call.resource is not None
        path = call.resource.path(name=call.name, subresource=call.subresource)
        self.calls.append((call.verb, path, call.body))
        if call.resource.group_version.api_version not in self.served:
            raise PathNotFoundError
        if self.refusal is not None:
            raise self.refusal
        return {"apiVersion": call.resource.group_version.api_version, "metadata": {"name": "x"}, "items": []}

    async def stream(self, call: Call) -> AsyncIterator[WatchBatch]:
        assert call.resource is not None
        self.calls.append((call.verb, call.resource.path(), None))
        batches: list[WatchBatch] = []
        for batch in batches:
            yield batch

    async def close(self) -> None:
        self.calls.append(("close", "", None))


def client_of(server: Server) -> RestClient:
    return RestClient(OlderVersions(server))


@pytest.mark.behaviour("N-03", "N-06", "EV-11")
async def test_requests_go_to_the_served_version() -> None:
    server = Server("resource.k8s.io/v1beta2", "v1")
    client = client_of(server)
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "status": {}}
    await client.list(DEVICE_TAINT_RULES)
    async for _event in client.watch(DEVICE_TAINT_RULES):
        pass
    patch = Patch(PatchType.APPLY, body)
    await client.patch(DEVICE_TAINT_RULES, "x", "", patch, WriteOptions(subresource="status"))
    await client.list(NODES)
    await client.close()
    rules = f"{OLD}/devicetaintrules"
    assert server.calls == [
        ("list", f"{NEW}/devicetaintrules", None),
        ("list", rules, None),
        ("watch", rules, None),
        ("patch", f"{rules}/x/status", {**body, "apiVersion": "resource.k8s.io/v1beta2"}),
        ("list", "/api/v1/nodes", None),
        ("close", "", None),
    ]
    # The patch itself is left alone.
    assert body["apiVersion"] == "resource.k8s.io/v1"


@pytest.mark.behaviour("EV-11")
async def test_an_upgrade_of_the_server_is_followed() -> None:
    server = Server("resource.k8s.io/v1beta2")
    client = client_of(server)
    await client.list(DEVICE_CLASSES)
    server.served = {"resource.k8s.io/v1"}
    await client.list(DEVICE_CLASSES)
    server.calls.clear()
    await client.list(DEVICE_CLASSES)
    assert [path for _, path, _ in server.calls] == [f"{NEW}/deviceclasses"]


@pytest.mark.behaviour("EV-11")
async def test_what_is_served_in_no_version_is_an_error_each_time() -> None:
    server = Server()
    client = client_of(server)
    for _ in range(2):
        with pytest.raises(PathNotFoundError):
            await client.list(DEVICE_CLASSES)
    assert [path for _, path, _ in server.calls] == [f"{NEW}/deviceclasses", f"{OLD}/deviceclasses"] * 2


@pytest.mark.behaviour("EV-11")
@pytest.mark.parametrize(
    "refusal",
    [
        NotFoundError(GroupResource("resource.k8s.io", "deviceclasses"), "x"),
        ConflictError(GroupResource("resource.k8s.io", "deviceclasses"), "x", "changed"),
    ],
)
async def test_an_answer_about_an_object_is_an_answer(refusal: APIError) -> None:
    server = Server("resource.k8s.io/v1", "resource.k8s.io/v1beta2")
    server.refusal = refusal
    with pytest.raises(APIError) as raised:
        await client_of(server).get(DEVICE_CLASSES, "x")
    assert raised.value is refusal
    assert len(server.calls) == 1
