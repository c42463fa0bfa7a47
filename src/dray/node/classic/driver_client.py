"""The gRPC client of one instance of a classic driver's plugin, one claim per call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import grpc
import grpc.aio

from dray.api.document import UID
from dray.node.dra.driver_client import ClientOptions, PluginClient, ResponseError
from dray.node.plugins.handler import Plugin
from dray.rpc.pb.classic_dra.v1alpha1 import api_pb2 as pb
from dray.rpc.pb.classic_dra.v1alpha1.api_pb2_grpc import NodeStub

PREPARE: Final = "NodePrepareResource"
UNPREPARE: Final = "NodeUnprepareResource"


class UnknownResourceError(ResponseError):
    """The plugin does not know the resource; the caller has to check whether the claim exists."""


class ClassicDriverClient(PluginClient):
    """The client of one registered instance of a classic driver."""

    service_name = "Node"

    def __init__(self, plugin: Plugin, options: ClientOptions) -> None:
        super().__init__(plugin, pb, NodeStub, options)

    async def prepare(self, uid: UID) -> tuple[str, ...]:
        """Return the CDI names of the prepared claim; raises `ResponseError`."""
        answer = await self._classic_call(PREPARE, pb.NodePrepareResourceRequest(resource_uid=uid))
        return tuple(answer.cdi_device)

    async def unprepare(self, uid: UID, cdi_devices: Sequence[str]) -> None:
        """Unprepare the claim; raises `ResponseError`."""
        await self._classic_call(UNPREPARE, pb.NodeUnprepareResourceRequest(resource_id=uid, cdi_device=cdi_devices))

    async def _classic_call(self, method: str, request: Any) -> Any:
        try:
            return await self._call(method, request)
        except ResponseError as error:
            cause = error.__cause__
            if isinstance(cause, grpc.aio.AioRpcError) and cause.code() is grpc.StatusCode.NOT_FOUND:
                raise UnknownResourceError(str(error)) from cause
            raise
