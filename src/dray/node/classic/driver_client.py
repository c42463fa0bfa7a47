"""Speaks to one instance of a classic driver's plugin, one claim at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
import grpc.aio

from dray.api.document import UID
from dray.lib.clock import Clock
from dray.node.dra.driver_client import PluginClient, ResponseError
from dray.node.dra.metrics import DriverMetrics
from dray.rpc.pb.classic_dra.v1alpha1 import api_pb2 as pb
from dray.rpc.pb.classic_dra.v1alpha1.api_pb2_grpc import NodeStub

PREPARE: Final = "NodePrepareResource"
UNPREPARE: Final = "NodeUnprepareResource"


class UnknownResourceError(ResponseError):
    """The plugin says that there is no such resource; whoever asked has to make sure of that."""


class ClassicDriverClient(PluginClient):
    """Speaks to one registered instance."""

    service_name = "Node"

    def __init__(
        self, driver: str, endpoint: str, metrics: DriverMetrics, clock: Clock, on_change: Callable[[], None]
    ) -> None:
        super().__init__(driver, endpoint, metrics, clock, on_change)
        self._messages = pb
        self._stub = NodeStub(self._channel)

    async def prepare(self, uid: UID) -> tuple[str, ...]:
        """The CDI names of the prepared claim; raises `ResponseError`."""
        answer = await self._ask(PREPARE, pb.NodePrepareResourceRequest(resource_uid=uid))
        return tuple(answer.cdi_device)

    async def unprepare(self, uid: UID, cdi_devices: Sequence[str]) -> None:
        """Have the plugin undo it; raises `ResponseError`."""
        await self._ask(UNPREPARE, pb.NodeUnprepareResourceRequest(resource_id=uid, cdi_device=cdi_devices))

    async def _ask(self, method: str, request: Any) -> Any:
        try:
            return await self._call(method, request)
        except ResponseError as error:
            cause = error.__cause__
            if isinstance(cause, grpc.aio.AioRpcError) and cause.code() is grpc.StatusCode.NOT_FOUND:
                raise UnknownResourceError(str(error)) from cause
            raise
