"""Components of the process write objects that refer to others which are not committed yet."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dray.api.document import Document
from dray.api.errors import DeviceInUseError, ForbiddenError, ServiceUnavailableError
from dray.apiserver.composition import running_server
from dray.apiserver.device_ledger import Conflict, uses_of
from dray.apiserver.in_process import in_process_config
from dray.apiserver.local_transport import LocalTransport
from dray.apiserver.server import APIServer
from dray.client.interface import LocalRequest, WatchBatch
from dray.runtime.system import SystemClock
from dray.store import pending_writes
from dray.store.interface import AsynchronousCommit
from dray.store.sqlite import SQLiteStore
from tests.disk_faults import full_disk, slow_disk
from tests.local_server import local_request

CLAIMS = "resource.k8s.io/v1/resourceclaims"
SLICES = "resource.k8s.io/v1/resourceslices"
SLICE_KEY = "/registry/resource.k8s.io/resourceslices/slice"
DEVICES = "gpu.deviceclass.resource.k8s.io/devices"


@dataclass(slots=True)
class Server:
    """An API server on SQLite, as users and as components of its process use it."""

    store: SQLiteStore
    running: APIServer

    async def as_user(self, verb: str, path: str, body: Any = None) -> Document:
        return await LocalTransport(self.running).handle(_request(verb, path, body))

    async def as_component(self, verb: str, path: str, body: Any = None) -> Document:
        return await LocalTransport(self.running.components).handle(_request(verb, path, body))

    async def watch_as_component(self, path: str) -> AsyncIterator[WatchBatch]:
        """A watch from now on."""
        request = local_request("component", ("system:masters",), "watch", path, query={"watch": "true"})
        revision = str(await self.view.revision())
        return await LocalTransport(self.running.components).watch(
            msgspec.structs.replace(request, query={"watch": "true", "resourceVersion": revision})
        )

    @property
    def view(self) -> AsynchronousCommit:
        return self.store.with_asynchronous_commit()


def _request(verb: str, path: str, body: Any) -> LocalRequest:
    return local_request("admin", ("system:masters",), verb, path, body)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    store = await SQLiteStore.open(tmp_path / "store.db")
    async with running_server(in_process_config(store, SystemClock(), random.Random(1))) as running:
        made = Server(store, running)
        await made.as_user("create", "core/v1/namespaces", {"metadata": {"name": "team"}})
        await made.as_user("create", "core/v1/serviceaccounts@team", {"metadata": {"name": "default"}})
        yield made
    await store.close()


# --- Slices, and the check of allocations. ---


def resource_slice(memory: str) -> Document:
    """A slice with one device that claims can share."""
    gpu = {"name": "gpu-0", "allowMultipleAllocations": True, "capacity": {"memory": {"value": memory}}}
    pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.example.com", "pool": pool, "nodeName": "node-1", "devices": [gpu]}
    return {"metadata": {"name": "slice"}, "spec": spec}


async def create_claims(server: Server, *names: str) -> list[Document]:
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}
    claims = [{"metadata": {"name": name}, "spec": spec} for name in names]
    return [await server.as_user("create", f"{CLAIMS}@team", claim) for claim in claims]


def share_of(claim: Document, memory: str) -> Document:
    """The claim with a share of the device."""
    result = {
        "request": "gpu",
        "driver": "gpu.example.com",
        "pool": "node-1",
        "device": "gpu-0",
        "shareID": claim["metadata"]["uid"],
        "consumedCapacity": {"memory": memory},
    }
    return {**claim, "status": {"allocation": {"devices": {"results": [result]}}}}


async def allocate(server: Server, claim: Document, memory: str) -> None:
    """Write a share of the device, as the scheduler does."""
    path = f"{CLAIMS}/{claim['metadata']['name']}/status@team"
    await server.as_component("update", path, share_of(claim, memory))


async def test_shares_of_a_device_are_allocated_before_its_slice_is_committed(server: Server) -> None:
    claims = await create_claims(server, "a", "b", "c")
    slices = await server.watch_as_component(SLICES)
    with slow_disk(server.store):
        publishing = asyncio.ensure_future(server.as_user("create", SLICES, resource_slice("4")))
        await anext(slices)
        await allocate(server, claims[0], "2")
        await allocate(server, claims[1], "2")
        with pytest.raises(DeviceInUseError, match="not enough capacity memory"):
            await allocate(server, claims[2], "1")
        assert server.view.committed(SLICE_KEY) is None
    await publishing


async def test_a_device_that_has_grown_is_allocated_before_that_is_committed(server: Server) -> None:
    claims = await create_claims(server, "a", "b")
    stored = await server.as_user("create", SLICES, resource_slice("2"))
    await allocate(server, claims[0], "2")
    slices = await server.watch_as_component(SLICES)
    with slow_disk(server.store):
        grown = {**resource_slice("4"), "metadata": stored["metadata"]}
        publishing = asyncio.ensure_future(server.as_user("update", f"{SLICES}/slice", grown))
        await anext(slices)
        await allocate(server, claims[1], "2")
    await publishing


@pytest.mark.parametrize("verb", ["update", "delete"])
async def test_after_a_rollback_allocations_are_checked_against_the_stored_slice(server: Server, verb: str) -> None:
    """At once, not when its event arrives."""
    claim = (await create_claims(server, "a"))[0]
    stored = await server.as_user("create", SLICES, resource_slice("2"))
    await allocate(server, claim, "1")
    await server.view.list_page(SLICE_KEY)
    use = uses_of(share_of(claim, "3"))
    conflicts: list[Conflict | None] = []
    server.view.on_roll_back(lambda _: conflicts.append(server.running.cache.devices.check("team/b", (), use)))
    seen = asyncio.ensure_future(anext(await server.watch_as_component(SLICES)))
    body = {**resource_slice("8"), "metadata": stored["metadata"]} if verb == "update" else None
    with full_disk(), pytest.raises(ServiceUnavailableError):
        await server.as_user(verb, f"{SLICES}/slice", body)
    assert [event for event, _ in await seen] == [{"update": "MODIFIED", "delete": "DELETED"}[verb]]
    assert [conflict and conflict.message for conflict in conflicts] == [
        "device gpu.example.com/node-1/gpu-0 has not enough capacity memory, of which claim team/a holds a part"
    ]


# --- Pods, and the quota of their claims. ---


async def test_the_claim_of_a_pod_that_is_not_committed_is_charged_to_the_pod(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Writes of components are submitted when somebody waits for them.
    monkeypatch.setattr(pending_writes, "QUIET_ITERATIONS", 1_000_000)
    monkeypatch.setattr(pending_writes, "DELAY_SECONDS_MAX", 3600.0)
    device_class = {"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}}
    await server.as_user("create", "resource.k8s.io/v1/deviceclasses", device_class)
    quota = {"metadata": {"name": "quota"}, "spec": {"hard": {DEVICES: "1"}}}
    quota = await server.as_user("create", "core/v1/resourcequotas@team", quota)
    quota["status"] = {"hard": {DEVICES: "1"}, "used": {DEVICES: "0"}}
    await server.as_user("update", "core/v1/resourcequotas/quota/status@team", quota)
    amounts = {"example.com/gpu": "1"}
    container = {"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}
    pod = {"metadata": {"name": "pod"}, "spec": {"containers": [container]}}
    created = await server.as_component("create", "core/v1/pods@team", pod)
    assert server.view.committed("/registry/core/pods/team/pod") is None
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "pod", "uid": created["metadata"]["uid"], "controller": True}
    annotations = {"resource.kubernetes.io/extended-resource-claim": "true"}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}
    metadata: Document = {"name": "a", "annotations": annotations, "ownerReferences": [owner]}
    await server.as_component("create", f"{CLAIMS}@team", {"metadata": metadata, "spec": spec})
    with pytest.raises(ForbiddenError, match="exceeded quota"):
        await server.as_component("create", f"{CLAIMS}@team", {"metadata": {**metadata, "name": "b"}, "spec": spec})
