"""A device plugin that meets all requirements except for a given one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from dray.rpc.pb.deviceplugin.v1beta1 import api_pb2 as pb
from dray.rpc.pb.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from dray.rpc.sockets import connect, listen

DEVICES = ("a", "b", "c")
SOCKET = "test.sock"


class BreakablePlugin(pb_grpc.DevicePluginServicer):
    def __init__(self, folder: Path, fault: str = "") -> None:
        self.folder, self.fault = folder, fault
        self.streams = self.registrations = 0
        self.given: set[str] = set()
        self.server: grpc.aio.Server | None = None
        self.task: asyncio.Task[None] | None = None

    def breaks(self, *faults: str) -> bool:
        return self.fault in faults

    async def start(self) -> None:
        self.task = asyncio.create_task(self.run())

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        if self.server is not None:
            await self.server.stop(None)

    async def run(self) -> None:
        """Register whenever kubelet's socket is recreated."""
        known = None
        while True:
            await asyncio.sleep(0.02)
            kubelet = _identity(self.folder / "kubelet.sock")
            if kubelet is None or kubelet == known or (known and self.breaks("plugin-registers-again")):
                continue
            fetch_info = known is not None
            if not self.breaks("plugin-endpoint") and not (fetch_info and self.breaks("plugin-socket-again")):
                await self.serve()
            if await self.register():
                known = kubelet

    async def serve(self) -> None:
        if self.server is not None:
            await self.server.stop(None)
        self.server = grpc.aio.server()
        pb_grpc.add_DevicePluginServicer_to_server(self, self.server)
        await listen(self.server, str(self.folder / SOCKET))

    async def register(self) -> bool:
        request = pb.RegisterRequest(
            version="v1alpha" if self.breaks("plugin-register") else "v1beta1",
            endpoint=SOCKET,
            resource_name="gpu" if self.breaks("plugin-resource") else "example.com/gpu",
            options=self.options(),
        )
        if self.breaks("plugin-options"):
            request.options.pre_start_required = False
        async with connect(str(self.folder / "kubelet.sock")) as channel:
            try:
                await pb_grpc.RegistrationStub(channel).Register(request, timeout=30)
            except grpc.aio.AioRpcError as error:
                # A version that is not known will not become known.
                return error.code() is grpc.StatusCode.UNKNOWN
        return True

    def options(self) -> pb.DevicePluginOptions:
        return pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> pb.DevicePluginOptions:
        return self.options()

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[pb.ListAndWatchResponse]:
        self.streams += 1
        if self.breaks("plugin-list-again") and self.streams > 1:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "one watcher only")
        names = (*DEVICES, "a") if self.breaks("plugin-devices") else DEVICES
        yield pb.ListAndWatchResponse(devices=[pb.Device(id=name, health="Healthy") for name in names])
        if not self.breaks("plugin-list"):
            await asyncio.Event().wait()

    async def Allocate(self, request: Any, context: Any) -> pb.AllocateResponse:
        answer = pb.AllocateResponse()
        for item in request.container_requests:
            if self.breaks("plugin-allocate-repeated") and self.given & set(item.devices_ids):
                await context.abort(grpc.StatusCode.ALREADY_EXISTS, "device is in use")
            self.given |= set(item.devices_ids)
            path = "dev/null" if self.breaks("plugin-allocate-contents") else "/dev/null"
            device = pb.DeviceSpec(container_path="/dev/gpu", host_path=path, permissions="rw")
            answer.container_responses.append(pb.ContainerAllocateResponse(devices=[device]))
        if self.breaks("plugin-allocate"):
            del answer.container_responses[1:]
        return answer

    async def GetPreferredAllocation(self, request: Any, context: Any) -> pb.PreferredAllocationResponse:
        answer = pb.PreferredAllocationResponse()
        for item in request.container_requests:
            must = [] if self.breaks("plugin-preferred") else list(item.must_include_device_ids)
            ids = list(dict.fromkeys([*must, *item.available_device_ids]))
            answer.container_responses.add(device_ids=ids[: item.allocation_size])
        return answer

    async def PreStartContainer(self, request: Any, context: Any) -> pb.PreStartContainerResponse:
        if self.breaks("plugin-pre-start"):
            await context.abort(grpc.StatusCode.INTERNAL, "cannot reset")
        return pb.PreStartContainerResponse()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns
