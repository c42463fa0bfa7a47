"""A small DRA driver that meets all requirements except for a given one."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from dray.api.document import Document
from dray.api.errors import APIError, NotFoundError
from dray.cli.conformance.cluster_objects import CLAIMS, SLICES
from dray.client.interface import Client
from dray.rpc.pb.dra.v1 import api_pb2 as v1
from dray.rpc.pb.dra.v1 import api_pb2_grpc as v1_grpc
from dray.rpc.pb.dra.v1beta1 import api_pb2 as v1beta1
from dray.rpc.pb.dra.v1beta1 import api_pb2_grpc as v1beta1_grpc
from dray.rpc.pb.dra_health.v1 import api_pb2 as health
from dray.rpc.pb.dra_health.v1 import api_pb2_grpc as health_grpc
from dray.rpc.pb.plugin_registration.v1 import api_pb2 as registration
from dray.rpc.pb.plugin_registration.v1 import api_pb2_grpc as registration_grpc
from dray.rpc.sockets import listen

NODE = "node-1"
POOL = "node-1"
DEVICES = ("a", "b", "c")
WORK_SECONDS = 0.02
# Long enough to be interrupted for certain.
LONG_WORK_SECONDS = 1.0


class _Service:
    """One version of the service."""

    def __init__(self, driver: BreakableDriver, messages: Any, version: str) -> None:
        self.driver, self.messages, self.version = driver, messages, version

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:
        answer = self.messages.NodePrepareResourcesResponse()
        await self.driver.check_request(request, context)
        for claim in request.claims:
            if self.driver.breaks("prepare-duplicate") and claim.uid in answer.claims:
                answer.claims[claim.uid].error = "claim is there twice"
                continue
            try:
                devices = await self.driver.prepare(claim, self.version)
            except RuntimeError as error:
                if self.driver.breaks("prepare-missing") and "not found" in str(error):
                    answer.claims[claim.uid].error = ""
                    continue
                if self.driver.breaks("go-helper"):
                    await context.abort(grpc.StatusCode.UNKNOWN, f"get resource claims: {error}")
                answer.claims[claim.uid].error = str(error)
                if self.driver.breaks("prepare-mixed"):
                    break
                continue
            answer.claims[claim.uid].error = ""
            if self.driver.breaks("prepare-answered"):
                del answer.claims[claim.uid]
                continue
            for name, cdi in devices:
                answer.claims[claim.uid].devices.add(pool_name=POOL, device_name=name, cdi_device_ids=[cdi])
        return answer

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:
        answer = self.messages.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            try:
                await self.driver.unprepare(claim)
                answer.claims[claim.uid].error = ""
            except RuntimeError as error:
                answer.claims[claim.uid].error = str(error)
        return answer


class BreakableDriver(registration_grpc.RegistrationServicer, health_grpc.DRAResourceHealthServicer):
    """Also implements `Restarter`; `disk` survives a restart."""

    def __init__(self, root: Path, cdi: Path, client: Client, fault: str = "") -> None:
        self.root, self.cdi, self.client, self.fault = root, cdi, client, fault
        self.name = "Bad_Name" if fault == "registration-name" else "test.example.com"
        self.disk: dict[str, list[tuple[str, str]]] = {}
        self.locked: set[str] = set()
        self.finished: set[str] = set()
        self.running: set[str] = set()
        self.infos = self.accepted = self.starts = self.streams = 0
        self.servers: list[grpc.aio.Server] = []
        self.repairing: asyncio.Task[None] | None = None
        self.generation = 3

    def breaks(self, *faults: str) -> bool:
        return self.fault in faults

    # --- Life. ---

    async def start(self) -> None:
        self.starts += 1
        for folder in (self.root / "plugins", self.root / "plugins_registry", self.cdi):
            folder.mkdir(parents=True, exist_ok=True)
        if self.starts == 1:
            await self.publish()
        self.repairing = asyncio.create_task(self.repair())
        service, registrar = grpc.aio.server(), grpc.aio.server()
        v1_grpc.add_DRAPluginServicer_to_server(_Service(self, v1, "v1"), service)
        if not self.breaks("services-served"):
            v1beta1_grpc.add_DRAPluginServicer_to_server(_Service(self, v1beta1, "v1beta1"), service)
        health_grpc.add_DRAResourceHealthServicer_to_server(self, service)
        registration_grpc.add_RegistrationServicer_to_server(self, registrar)
        await listen(service, self.endpoint)
        hidden = "." if self.breaks("registration-socket") else ""
        await listen(registrar, str(self.root / "plugins_registry" / f"{hidden}test-reg.sock"))
        self.servers = [service, registrar]

    async def stop(self) -> None:
        servers, self.servers = self.servers, []
        for server in servers:
            await server.stop(None)
        if self.repairing is not None:
            self.repairing.cancel()
            await asyncio.gather(self.repairing, return_exceptions=True)

    def vanish(self) -> None:
        (self.root / "plugins_registry" / "test-reg.sock").unlink(missing_ok=True)

    async def restart(self) -> None:
        await self.stop()
        self.running.clear()
        if self.breaks("restart-prepared"):
            self.disk.clear()
        if not self.breaks("kill-prepare", "kill-unprepare"):
            self.locked.clear()
        await self.start()

    @property
    def endpoint(self) -> str:
        return str(self.root / "plugins" / "test.sock")

    # --- Registration. ---

    async def GetInfo(self, request: Any, context: Any) -> registration.PluginInfo:
        self.infos += 1
        versions = ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth"]
        if self.breaks("registration-versions"):
            versions = ["v1"]
        if (self.breaks("registration-repeated") and self.infos % 2) or (
            self.breaks("restart-registered") and self.starts > 1
        ):
            versions.reverse()
        return registration.PluginInfo(
            type="CSIPlugin" if self.breaks("registration-info") else "DRAPlugin",
            name=self.name,
            endpoint="test.sock" if self.breaks("registration-endpoint") else self.endpoint,
            supported_versions=versions,
        )

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> registration.RegistrationStatusResponse:
        if request.plugin_registered and self.breaks("registration-accepted"):
            await context.abort(grpc.StatusCode.INTERNAL, "not now")
        if not request.plugin_registered and self.breaks("registration-refused"):
            self.vanish()
        if not request.plugin_registered and self.breaks("go-helper"):
            await context.abort(grpc.StatusCode.UNKNOWN, f"failed registration process: {request.error}")
        self.accepted += request.plugin_registered
        if self.breaks("kubelet-restarted"):
            self.disk.clear()
        return registration.RegistrationStatusResponse()

    # --- Slices. ---

    def slice(self, name: str, devices: tuple[str, ...], generation: int, count: int = 1) -> Document:
        spec = {
            "driver": self.name,
            "nodeName": "elsewhere" if self.breaks("slices-node") else NODE,
            "pool": {"name": POOL, "generation": generation, "resourceSliceCount": count},
            "devices": [{"name": device} for device in devices],
        }
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name},
            "spec": spec,
        }

    async def publish(self) -> None:
        if self.breaks("slices-published", "registration-name"):
            return
        count = 2 if self.breaks("slices-complete", "slices-unique") else 1
        await self.client.create(SLICES, self.slice("first", DEVICES, self.generation, count))
        if self.breaks("slices-unique"):
            await self.client.create(SLICES, self.slice("second", DEVICES[:1], self.generation, count))
        if self.breaks("slices-current"):
            await self.client.create(SLICES, self.slice("old", DEVICES, self.generation - 1))

    async def repair(self) -> None:
        while not self.breaks("slices-repaired", "slices-published", "registration-name"):
            await asyncio.sleep(0.02)
            try:
                await self.client.get(SLICES, "first")
            except NotFoundError:
                self.generation += -2 if self.breaks("slices-monotonic") else 1
                await self.client.create(SLICES, self.slice("first", DEVICES, self.generation))

    # --- Claims. ---

    async def check_request(self, request: Any, context: Any) -> None:
        if self.breaks("prepare-empty") and not request.claims:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no claims")
        if self.breaks("calls-in-time"):
            await asyncio.sleep(60)

    async def prepare(self, claim: Any, version: str) -> list[tuple[str, str]]:
        key = f"{version}/{claim.uid}" if self.breaks("versions-agree") else claim.uid
        self.check_locked(claim.uid)
        if self.breaks("prepare-again") and claim.uid in self.finished:
            raise RuntimeError("claim has been used")
        if key in self.disk and not self.breaks("prepare-repeated"):
            return self.disk[key]
        if self.breaks("prepare-concurrent") and claim.uid in self.running:
            raise RuntimeError("claim is being prepared")
        self.running.add(claim.uid)
        try:
            names = await self.allocated(claim)
            await self.work(claim.uid, "kill-prepare")
        finally:
            self.running.discard(claim.uid)
        self.disk[key] = [(name, self.cdi_device(claim.uid, name, key)) for name in names]
        return self.disk[key]

    async def work(self, uid: str, killed: str) -> None:
        if not self.breaks(killed, "call-cancelled"):
            await asyncio.sleep(WORK_SECONDS)
            return
        self.locked.add(uid)
        await asyncio.sleep(LONG_WORK_SECONDS)
        self.locked.discard(uid)

    def check_locked(self, uid: str) -> None:
        if uid in self.locked:
            raise RuntimeError("claim is locked")

    async def allocated(self, claim: Any) -> list[str]:
        try:
            found = await self.client.get(CLAIMS, claim.name, claim.namespace)
        except APIError as error:
            raise RuntimeError(str(error)) from error
        if found["metadata"]["uid"] != claim.uid and not self.breaks("prepare-replaced"):
            raise RuntimeError("claim got replaced")
        allocation = (found.get("status") or {}).get("allocation")
        if allocation is None:
            if self.breaks("prepare-unallocated"):
                return []
            raise RuntimeError("claim is not allocated")
        names = [item["device"] for item in allocation["devices"]["results"]]
        return ["z" for _ in names] if self.breaks("prepare-devices") else names

    async def unprepare(self, claim: Any) -> None:
        known = claim.uid in self.disk
        if self.breaks("unprepare-answered"):
            raise RuntimeError("never")
        if self.breaks("unprepare-repeated") and claim.uid in self.finished:
            raise RuntimeError("claim is unprepared already")
        if self.breaks("unprepare-unknown") and not known and claim.uid not in self.finished:
            raise RuntimeError("claim is unknown")
        restarted = self.breaks("restart-deleted") and self.starts > 1
        if known and (restarted or self.breaks("unprepare-deleted")):
            await self.allocated(claim)
        self.check_locked(claim.uid)
        await self.work(claim.uid, "kill-unprepare")
        self.disk.pop(claim.uid, None)
        self.finished.add(claim.uid)
        for path in self.cdi.glob(f"*{claim.uid}*"):
            path.unlink()

    def cdi_device(self, uid: str, name: str, key: str) -> str:
        nonce = ""
        if self.breaks("prepare-repeated", "kubelet-restarted", "restart-prepared"):
            nonce = f"-{time.monotonic_ns()}"
        if self.breaks("versions-agree"):
            nonce = f"-{key.partition('/')[0]}"
        device = f"{uid}-{name}{nonce}"
        if self.breaks("cdi-qualified"):
            return device
        spec = {
            "cdiVersion": "0.6.0",
            "kind": "test.example.com/device",
            "devices": [{"name": device, "containerEdits": {"env": [f"DEVICE={name}"]}}],
        }
        if not self.breaks("cdi-present"):
            (self.cdi / f"{uid}.json").write_text(json.dumps(spec))
        if self.breaks("cdi-valid"):
            (self.cdi / f"{uid}-more.json").write_text('{"cdiVersion": "0.6.0"}')
        if self.breaks("cdi-unique"):
            (self.cdi / f"{uid}-more.json").write_text(json.dumps(spec))
        return f"test.example.com/device={device}"

    # --- Health. ---

    async def NodeWatchResources(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.streams += 1
        if self.breaks("health-again") and self.streams > 1:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "one watcher only")
        names = ("z",) if self.breaks("health-devices") else DEVICES
        devices = [
            health.DeviceHealth(
                device=health.DeviceIdentifier(pool_name=POOL, device_name=name),
                health="HEALTHY",
                last_updated_time=int(time.time()),
            )
            for name in names
        ]
        if not self.breaks("health-first"):
            yield health.NodeWatchResourcesResponse(devices=devices)
        await asyncio.Event().wait()
