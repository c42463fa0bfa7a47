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
