"""A device plugin by its messages alone."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from dray.rpc.pb.deviceplugin.v1beta1 import api_pb2 as pb
from dray.rpc.pb.deviceplugin.v1beta1.api_pb2_grpc import DevicePluginServicer


class Raw(DevicePluginServicer):
    """Lists some devices; `ends` ends the stream."""

    def __init__(self, *ids: str, options: pb.DevicePluginOptions | None = None) -> None:
        self.ids = ids
        self.options = options or pb.DevicePluginOptions()
        self.ends = asyncio.Event()
        self.refuse_options = False

    async def GetDevicePluginOptions(self, _request: Any, context: Any) -> Any:
        if self.refuse_options:
            await context.abort(grpc.StatusCode.INTERNAL, "not now")
        return self.options

    async def ListAndWatch(self, _request: Any, _context: Any) -> Any:
        yield pb.ListAndWatchResponse(devices=[pb.Device(id=name, health="Healthy") for name in self.ids])
        await self.ends.wait()

    async def Allocate(self, _request: Any, _context: Any) -> Any:
        return pb.AllocateResponse()


class Speaking(Raw):
    """Lists what it is told, and answers Allocate and PreStartContainer with its name."""

    def __init__(self, name: str, *ids: str, **options: Any) -> None:
        super().__init__(*ids, options=pb.DevicePluginOptions(**options))
        self.name = name
        self.lists: asyncio.Queue[list[pb.Device]] = asyncio.Queue()
        self.allocated: list[list[str]] = []
        self.started: list[list[str]] = []
        self.asked: list[list[str]] = []
        self.dies: asyncio.Event | None = None

    def list(self, *ids: str, unhealthy: str = "") -> None:
        found = [pb.Device(id=name, health="Healthy") for name in ids]
        self.lists.put_nowait([*found, *(pb.Device(id=name, health="Unhealthy") for name in unhealthy)])

    async def ListAndWatch(self, _request: Any, _context: Any) -> Any:
        yield pb.ListAndWatchResponse(devices=[pb.Device(id=name, health="Healthy") for name in self.ids])
        while True:
            yield pb.ListAndWatchResponse(devices=await self.lists.get())

    async def GetPreferredAllocation(self, request: Any, _context: Any) -> Any:
        (one,) = request.container_requests
        self.asked.append(sorted(one.available_device_ids))
        return pb.PreferredAllocationResponse(container_responses=[pb.ContainerPreferredAllocationResponse()])

    async def Allocate(self, request: Any, _context: Any) -> Any:
        (one,) = request.container_requests
        self.allocated.append(sorted(one.devices_ids))
        if self.dies is not None:
            self.dies.set()
            await asyncio.Event().wait()
        answer = pb.ContainerAllocateResponse(envs={"SHARED": self.name, self.name: ",".join(sorted(one.devices_ids))})
        return pb.AllocateResponse(container_responses=[answer])

    async def PreStartContainer(self, request: Any, _context: Any) -> Any:
        self.started.append(sorted(request.devices_ids))
        return pb.PreStartContainerResponse()
