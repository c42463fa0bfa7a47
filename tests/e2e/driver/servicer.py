"""A driver with scripted responses, on real sockets; it knows nothing of the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from dray.rpc.dra_services import HEALTH_SERVICES
from dray.rpc.pb.dra.v1 import api_pb2 as v1
from dray.rpc.pb.dra.v1 import api_pb2_grpc as v1_grpc
from dray.rpc.pb.dra.v1beta1 import api_pb2 as v1beta1
from dray.rpc.pb.dra.v1beta1 import api_pb2_grpc as v1beta1_grpc
from dray.rpc.pb.plugin_registration.v1 import api_pb2 as registration
from dray.rpc.pb.plugin_registration.v1 import api_pb2_grpc as registration_grpc
from dray.rpc.sockets import listen, remove_socket

BOTH = ("v1.DRAPlugin", "v1beta1.DRAPlugin")


class _Versioned:
    """One version of the service; calls are noted and answered by the fake."""

    def __init__(self, fake: FakeDriver, messages: Any, version: str) -> None:
        self.fake, self.messages, self.version = fake, messages, version

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:
        self.fake.calls.append((self.version, "prepare", tuple(claim.name for claim in request.claims)))
        self.fake.peers.add(context.peer())
        answer = self.messages.NodePrepareResourcesResponse()
        await self.fake.on_prepare(request, answer, context)
        return answer

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:
        self.fake.calls.append((self.version, "unprepare", tuple(claim.name for claim in request.claims)))
        answer = self.messages.NodeUnprepareResourcesResponse()
        await self.fake.on_unprepare(request, answer, context)
        return answer


class _Health:
    """One version of the health service."""

    def __init__(self, fake: FakeDriver, messages: Any, name: str) -> None:
        self.fake, self.messages, self.name = fake, messages, name

    async def NodeWatchResources(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.fake.streams.append(self.name)
        if self.fake.health_error is not None:
            await context.abort(self.fake.health_error, "no health")
        while True:
            devices = [
                self.messages.DeviceHealth(
                    device=self.messages.DeviceIdentifier(pool_name="pool", device_name="x"), **fields
                )
                for fields in await self.fake.healths.get()
            ]
            yield self.messages.NodeWatchResourcesResponse(devices=devices)


class FakeDriver(registration_grpc.RegistrationServicer):
    """`calls` is what it was asked; replace the `on_…` attributes to answer otherwise.

    It serves the health services that it lists, and reports the health of device x of the pool.
    """

    def __init__(self, name: str = "test.example.com", versions: Sequence[str] = BOTH, kind: str = "DRAPlugin") -> None:
        self.name, self.versions, self.kind = name, versions, kind
        # The health services that were called, and what to fail with.
        self.streams: list[str] = []
        self.health_error: grpc.StatusCode | None = None
        self.endpoint = ""
        self.calls: list[tuple[str, str, tuple[str, ...]]] = []
        self.peers: set[str] = set()
        self.statuses: asyncio.Queue[tuple[bool, str]] = asyncio.Queue()
        self.notify_failures = 0
        self.healths: asyncio.Queue[Sequence[dict[str, Any]]] = asyncio.Queue()
        self.on_prepare: Callable[[Any, Any, Any], Any] = self._prepare
        self.on_unprepare: Callable[[Any, Any, Any], Any] = self._unprepare

    async def _prepare(self, request: Any, answer: Any, context: Any) -> None:
        for claim in request.claims:
            device = answer.claims[claim.uid].devices.add(pool_name="pool", device_name="x")
            device.cdi_device_ids.append(f"test.example.com/claim={claim.name}")

    async def _unprepare(self, request: Any, answer: Any, context: Any) -> None:
        for claim in request.claims:
            answer.claims[claim.uid].error = ""

    async def GetInfo(self, request: Any, context: Any) -> registration.PluginInfo:
        return registration.PluginInfo(
            type=self.kind, name=self.name, endpoint=self.endpoint, supported_versions=self.versions
        )

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> registration.RegistrationStatusResponse:
        if self.notify_failures:
            self.notify_failures -= 1
            await context.abort(grpc.StatusCode.INTERNAL, "not now")
        self.statuses.put_nowait((request.plugin_registered, request.error))
        return registration.RegistrationStatusResponse()

    def names(self, method: str) -> list[tuple[str, ...]]:
        """The claims of each call of a method."""
        return [claims for _, called, claims in self.calls if called == method]

    @asynccontextmanager
    async def service(self, path: Path) -> AsyncIterator[None]:
        """Serve DRA and health at the path."""
        server = grpc.aio.server()
        v1_grpc.add_DRAPluginServicer_to_server(_Versioned(self, v1, "v1"), server)
        v1beta1_grpc.add_DRAPluginServicer_to_server(_Versioned(self, v1beta1, "v1beta1"), server)
        for name, service in HEALTH_SERVICES.items():
            if name in self.versions:
                service.add_servicer(_Health(self, service.messages, name), server)
        path.parent.mkdir(parents=True, exist_ok=True)
        await listen(server, str(path))
        self.endpoint = str(path)
        try:
            yield
        finally:
            await server.stop(None)

    @asynccontextmanager
    async def registered_at(self, path: Path) -> AsyncIterator[None]:
        """Serve the registration at the path."""
        server = grpc.aio.server()
        registration_grpc.add_RegistrationServicer_to_server(self, server)
        path.parent.mkdir(parents=True, exist_ok=True)
        await listen(server, str(path))
        try:
            yield
        finally:
            remove_socket(str(path))
            await server.stop(None)

    @asynccontextmanager
    async def running(self, root: Path, instance: str = "") -> AsyncIterator[FakeDriver]:
        """Both sockets, below a kubelet's root."""
        mark = f"-{instance}" if instance else ""
        async with (
            self.service(root / "plugins" / self.name / f"dra{mark}.sock"),
            self.registered_at(root / "plugins_registry" / f"{self.name}{mark}-reg.sock"),
        ):
            yield self

    async def status(self) -> tuple[bool, str]:
        """The next word on the registration."""
        async with asyncio.timeout(20):
            return await self.statuses.get()
