"""The Registration service that device plugins call, with its checks and metrics."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection
from typing import Final

import grpc
import grpc.aio

from dray.api.extended_resources import is_extended_resource_name
from dray.api.field_errors import quote
from dray.rpc.pb.deviceplugin.v1beta1 import api_pb2 as pb
from dray.rpc.pb.deviceplugin.v1beta1.api_pb2_grpc import RegistrationServicer, add_RegistrationServicer_to_server
from dray.runtime.metrics import Metrics

# Resource name, socket path and options; raises `RegistrationError`.
Connect = Callable[[str, str, pb.DevicePluginOptions], Awaitable[None]]


class Registration(RegistrationServicer):  # type: ignore[misc]
    """The gRPC service."""

    def __init__(self, folder: str, connect: Connect, metrics: DeviceMetrics) -> None:
        self._folder = folder
        self._connect = connect
        self._metrics = metrics

    def add_to(self, server: grpc.aio.Server) -> None:
        """Add the service to a server."""
        add_RegistrationServicer_to_server(self, server)

    async def Register(
        self, request: pb.RegisterRequest, context: grpc.aio.ServicerContext[pb.RegisterRequest, pb.Empty]
    ) -> pb.Empty:
        """Register the plugin, or fail with UNKNOWN and the reason, as kubelet does."""
        self._metrics.registered(request.resource_name)
        try:
            check_request(request.version, request.resource_name)
            path = endpoint_path(self._folder, request.endpoint)
            await self._connect(request.resource_name, path, request.options)
        except RegistrationError as error:
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return pb.Empty()


# Prometheus' default buckets, which kubelet uses here.
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class DeviceMetrics:
    """Metrics of registration and allocation, under Kubernetes' names."""

    def __init__(self, metrics: Metrics) -> None:
        labels = ["resource_name"]
        self._registrations = metrics.counter(
            "kubelet_device_plugin_registration_total", "Device plugin registrations, including rejected ones", labels
        )
        self._allocations = metrics.histogram(
            "kubelet_device_plugin_alloc_duration_seconds",
            "Duration of Allocate calls to device plugins",
            labels,
            BUCKETS,
        )

    def registered(self, resource: str) -> None:
        """Count a call of Register."""
        self._registrations.labels(resource).inc()

    def allocated(self, resource: str, seconds: float) -> None:
        """Observe a call of Allocate."""
        self._allocations.labels(resource).observe(seconds)


VERSION: Final = "v1beta1"


class RegistrationError(Exception):
    """A plugin that cannot be registered; the message is sent to it."""


def endpoint_path(folder: str, endpoint: str) -> str:
    """Return the path of a plugin's socket; raises `RegistrationError` if it is not below the folder."""
    path = os.path.join(folder, endpoint)
    inside = "\0" not in endpoint and os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep)
    if not inside:
        raise RegistrationError(f"the endpoint {quote(endpoint)} is not a socket in {folder}")
    return path


def check_request(version: str, resource: str) -> None:
    """Check a call of Register."""
    if version != VERSION:
        raise RegistrationError(
            f"requested API version {quote(version)} is not supported by kubelet. "
            f"Supported version is [{quote(VERSION)}]"
        )
    if not is_extended_resource_name(resource):
        raise RegistrationError(f"the ResourceName {quote(resource)} is invalid")


def check_plugin(name: str, versions: Collection[str]) -> None:
    """Validate the registration info of a socket."""
    if VERSION not in versions:
        raise RegistrationError(
            f"manager version, {VERSION}, is not among plugin supported versions [{' '.join(versions)}]"
        )
    if not is_extended_resource_name(name):
        raise RegistrationError(f"invalid name of device plugin socket: the ResourceName {quote(name)} is invalid")
