"""A classic plugin with scripted responses; it knows nothing of the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from dray.rpc.pb.classic_dra.v1alpha1 import api_pb2 as pb
from dray.rpc.pb.classic_dra.v1alpha1 import api_pb2_grpc as pb_grpc
from dray.rpc.pb.plugin_registration.v1 import api_pb2 as registration
from dray.rpc.pb.plugin_registration.v1 import api_pb2_grpc as registration_grpc

DRIVER = "gpu.example.com"


class FakePlugin(registration_grpc.RegistrationServicer, pb_grpc.NodeServicer):
    """`calls` is what it was asked; replace the `on_…` attributes to answer otherwise."""

    def __init__(
        self, name: str = DRIVER, versions: Sequence[str] = ("v1alpha1",), kind: str = "ResourcePlugin"
    ) -> None:
        self.name, self.versions, self.kind = name, versions, kind
        self.endpoint = ""
        self.calls: list[tuple[str, ...]] = []
        self.statuses: asyncio.Queue[tuple[bool, str]] = asyncio.Queue()
        self.on_prepare: Callable[[str, Any], Any] = self._prepare
        self.on_unprepare: Callable[[str, Any], Any] = self._unprepare

    async def _prepare(self, uid: str, context: Any) -> list[str]:
        return [f"example.com/gpu={uid}"]

    async def _unprepare(self, uid: str, context: Any) -> None:
        return None

    async def GetInfo(self, request: Any, context: Any) -> Any:
        return registration.PluginInfo(
            type=self.kind, name=self.name, endpoint=self.endpoint, supported_versions=self.versions
        )

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:
        await self.statuses.put((request.plugin_registered, request.error))
        return registration.RegistrationStatusResponse()

    async def NodePrepareResource(self, request: Any, context: Any) -> Any:
        self.calls.append(("prepare", request.resource_uid))
        return pb.NodePrepareResourceResponse(cdi_device=await self.on_prepare(request.resource_uid, context))

    async def NodeUnprepareResource(self, request: Any, context: Any) -> Any:
        self.calls.append(("unprepare", request.resource_id, *request.cdi_device))
        await self.on_unprepare(request.resource_id, context)
        return pb.NodeUnprepareResourceResponse()
