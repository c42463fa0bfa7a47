"""A small classic driver that meets all requirements except for a given one: a controller and a node plugin."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec

from dray.api import classic_claims as classic
from dray.api.classic_claims import State
from dray.api.document import NamespacedName
from dray.api.errors import APIError, ConflictError, NotFoundError
from dray.api.types.cdi_v1alpha1 import (
    DriverSchedulingStatus,
    ResourceClaim,
    ResourceClaimStatus,
    SchedulingStatus,
)
from dray.api.types.core_v1 import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from dray.client.interface import Client, WriteOptions
from dray.client.objects import key_of
from dray.client.resources import CLASSIC_CLAIMS, CLASSIC_CLASSES
from dray.client.shared_informers import SharedInformerFactory
from dray.rpc.pb.classic_dra.v1alpha1 import api_pb2 as pb
from dray.rpc.pb.classic_dra.v1alpha1 import api_pb2_grpc as pb_grpc
from dray.rpc.pb.plugin_registration.v1 import api_pb2 as registration
from dray.rpc.pb.plugin_registration.v1 import api_pb2_grpc as registration_grpc
from dray.rpc.sockets import listen
from tests.e2e.driver.cluster import CLOCK

NAME = "test.example.com"
FINALIZER = f"{NAME}/deletion-protection"
STATUS = WriteOptions(subresource="status")
replace = msgspec.structs.replace


class BreakableController:
    """Also implements `Restarter`."""

    def __init__(self, client: Client, fault: str = "") -> None:
        self.client, self.fault = client, fault
        self.changed: asyncio.Queue[NamespacedName] = asyncio.Queue()
        # Claims that a controller which forgets everything in a restart does not look at again.
        self.forgotten: set[str] = set()
        self.task: asyncio.Task[None] | None = None

    def breaks(self, fault: str) -> bool:
        return self.fault == fault

    async def start(self) -> None:
        self.task = asyncio.create_task(self.run())

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    async def restart(self) -> None:
        await self.stop()
        if self.breaks("classic-controller-restarted"):
            self.forgotten = {item.metadata.uid or "" for item in (await self.client.list(CLASSIC_CLAIMS)).items}
        await self.start()

    async def run(self) -> None:
        informers = SharedInformerFactory(self.client, CLOCK, random.Random(1))
        informers.informer(CLASSIC_CLAIMS).add_handler(self.on_claim)
        async with asyncio.TaskGroup() as group:
            group.create_task(informers.run())
            group.create_task(self.work())

    def on_claim(self, _old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        if new is not None:
            self.changed.put_nowait(key_of(new))

    async def work(self) -> None:
        while True:
            key = await self.changed.get()
            try:
                claim = await self.client.get(CLASSIC_CLAIMS, key.name, key.namespace)
                if claim.metadata.uid not in self.forgotten and await self.is_managed(claim):
                    await self.handle(claim)
            except NotFoundError:
                continue
            except ConflictError:
                self.changed.put_nowait(key)

    async def is_managed(self, claim: ResourceClaim) -> bool:
        try:
            found = await self.client.get(CLASSIC_CLASSES, claim.spec.resource_class_name)
        except NotFoundError:
            return False
        return found.driver_name == NAME or self.breaks("classic-other-driver")

    async def handle(self, claim: ResourceClaim) -> None:
        match classic.state_of(claim):
            case State.ALLOCATING if not (self.breaks("classic-immediate") and classic.is_immediate(claim)):
                await self.allocate(claim)
            case State.PENDING if self.breaks("classic-delayed"):
                await self.allocate(claim)
            case State.PENDING if classic.scheduler_status(claim).potential_nodes:
                await self.report(claim)
            case State.REALLOCATE:
                await self.deallocate(claim)
            case State.DELETING:
                await self.release(claim)

    async def allocate(self, claim: ResourceClaim) -> None:
        if FINALIZER not in claim.metadata.finalizers:
            metadata = replace(claim.metadata, finalizers=(*claim.metadata.finalizers, FINALIZER))
            claim = await self.client.update(CLASSIC_CLAIMS, replace(claim, metadata=metadata))
        nodes = _only("elsewhere") if self.breaks("classic-selected") else None
        status = ResourceClaimStatus(
            phase="Allocated",
            driver_name="other.example.com" if self.breaks("classic-allocated") else NAME,
            attributes={"unit": "1"},
            user_limit=1,
            scheduling=SchedulingStatus(driver=DriverSchedulingStatus(available_on_nodes=nodes)),
        )
        await self.client.update(CLASSIC_CLAIMS, replace(claim, status=status), options=STATUS)

    async def report(self, claim: ResourceClaim) -> None:
        if classic.has_driver_status(claim):
            return
        unsuitable = ("elsewhere",) if self.breaks("classic-unsuitable") else ()
        status = classic.status_of(claim)
        scheduling = replace(
            status.scheduling or SchedulingStatus(), driver=DriverSchedulingStatus(unsuitable_nodes=unsuitable)
        )
        changed = replace(claim, status=replace(status, scheduling=scheduling))
        await self.client.update(CLASSIC_CLAIMS, changed, options=STATUS)

    async def deallocate(self, claim: ResourceClaim) -> None:
        status = ResourceClaimStatus(phase="Pending")
        if self.breaks("classic-reallocate"):
            status = replace(classic.status_of(claim), phase="Pending")
        await self.client.update(CLASSIC_CLAIMS, replace(claim, status=status), options=STATUS)

    async def release(self, claim: ResourceClaim) -> None:
        if classic.status_of(claim).reserved_for and not self.breaks("classic-in-use"):
            return
        if FINALIZER in claim.metadata.finalizers and not self.breaks("classic-deleted"):
            others = tuple(name for name in claim.metadata.finalizers if name != FINALIZER)
            await self.client.update(
                CLASSIC_CLAIMS, replace(claim, metadata=replace(claim.metadata, finalizers=others))
            )


def _only(node: str) -> NodeSelector:
    named = NodeSelectorRequirement(key="metadata.name", operator="In", values=(node,))
    return NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=(named,)),))


class BreakablePlugin(pb_grpc.NodeServicer, registration_grpc.RegistrationServicer):
    """Also implements `Restarter`; `prepared` survives a restart."""

    def __init__(self, root: Path, cdi: Path, client: Client, fault: str = "") -> None:
        self.root, self.cdi, self.client, self.fault = root, cdi, client, fault
        self.prepared: dict[str, str] = {}
        self.finished: set[str] = set()
        self.answers = 0
        self.servers: list[grpc.aio.Server] = []

    def breaks(self, fault: str) -> bool:
        return self.fault == fault

    async def start(self) -> None:
        for folder in (self.root / "plugins", self.root / "plugins_registry", self.cdi):
            folder.mkdir(parents=True, exist_ok=True)
        service, registrar = grpc.aio.server(), grpc.aio.server()
        pb_grpc.add_NodeServicer_to_server(self, service)
        registration_grpc.add_RegistrationServicer_to_server(self, registrar)
        await listen(service, self.endpoint)
        await listen(registrar, str(self.root / "plugins_registry" / "test-reg.sock"))
        self.servers = [service, registrar]

    async def stop(self) -> None:
        servers, self.servers = self.servers, []
        for server in servers:
            await server.stop(None)

    async def restart(self) -> None:
        await self.stop()
        if self.breaks("classic-plugin-restarted"):
            self.prepared.clear()
        await self.start()

    @property
    def endpoint(self) -> str:
        return str(self.root / "plugins" / "test.sock")

    async def GetInfo(self, request: Any, context: Any) -> registration.PluginInfo:
        return registration.PluginInfo(
            type="DRAPlugin" if self.breaks("classic-socket") else "ResourcePlugin",
            name=NAME,
            endpoint=self.endpoint,
            supported_versions=["v1alpha1"],
        )

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> registration.RegistrationStatusResponse:
        return registration.RegistrationStatusResponse()

    async def NodePrepareResource(self, request: Any, context: Any) -> pb.NodePrepareResourceResponse:
        uid = request.resource_uid
        if uid not in self.prepared or self.breaks("classic-prepare-repeated"):
            claim = await self.find(uid)
            if claim is None and not self.breaks("classic-prepare-unknown"):
                await context.abort(grpc.StatusCode.NOT_FOUND, "no such claim")
            unallocated = claim is not None and not classic.is_allocated(claim)
            if unallocated and not self.breaks("classic-prepare-unallocated"):
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not allocated")
            self.answers += 1
            self.prepared[uid] = self.device(f"{uid}-{self.answers}")
        return pb.NodePrepareResourceResponse(cdi_device=[self.prepared[uid]])

    def device(self, name: str) -> str:
        if self.breaks("classic-prepare"):
            return name
        devices = [{"name": name, "containerEdits": {"env": ["UNIT=1"]}}]
        spec = {"cdiVersion": "0.6.0", "kind": f"{NAME}/unit", "devices": devices}
        (self.cdi / f"{name}.json").write_text(json.dumps(spec))
        return f"{NAME}/unit={name}"

    async def NodeUnprepareResource(self, request: Any, context: Any) -> pb.NodeUnprepareResourceResponse:
        uid = request.resource_id
        known = uid in self.prepared
        if self.breaks("classic-unprepare") and uid in self.finished and not known:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unprepared already")
        if self.breaks("classic-unprepare-unknown") and not known and uid not in self.finished:
            await context.abort(grpc.StatusCode.NOT_FOUND, "never prepared")
        if self.breaks("classic-unprepare-deleted") and known and await self.find(uid) is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such claim")
        self.prepared.pop(uid, None)
        self.finished.add(uid)
        for path in self.cdi.glob(f"*{uid}*"):
            path.unlink()
        return pb.NodeUnprepareResourceResponse()

    async def find(self, uid: str) -> ResourceClaim | None:
        try:
            claims = (await self.client.list(CLASSIC_CLAIMS)).items
        except APIError:
            return None
        return next((claim for claim in claims if claim.metadata.uid == uid), None)
