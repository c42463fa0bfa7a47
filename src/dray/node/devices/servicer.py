"""The socket at which device plugins register."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

import grpc
import grpc.aio

from dray.node.devices.metrics import DeviceMetrics
from dray.node.devices.registration import RegistrationError, check_request
from dray.rpc.pb.deviceplugin.v1beta1 import api_pb2 as pb
from dray.rpc.pb.deviceplugin.v1beta1.api_pb2_grpc import RegistrationServicer, add_RegistrationServicer_to_server

# Resource name and socket path; raises `RegistrationError`.
Connect = Callable[[str, str], Awaitable[None]]


class Registration(RegistrationServicer):  # type: ignore[misc]
    """Translates Register."""

    def __init__(self, folder: str, connect: Connect, metrics: DeviceMetrics) -> None:
        self._folder = folder
        self._connect = connect
        self._metrics = metrics

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve it."""
        add_RegistrationServicer_to_server(self, server)

    async def Register(
        self, request: pb.RegisterRequest, context: grpc.aio.ServicerContext[pb.RegisterRequest, pb.Empty]
    ) -> pb.Empty:
        """Take the plugin in, or answer UNKNOWN with the reason as kubelet does."""
        self._metrics.registered(request.resource_name)
        try:
            check_request(request.version, request.resource_name)
            await self._connect(request.resource_name, os.path.join(self._folder, request.endpoint))
        except RegistrationError as error:
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return pb.Empty()
