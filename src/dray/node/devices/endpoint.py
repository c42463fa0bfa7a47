"""Speaks to one device plugin; once its stream of devices has ended it is stopped for good."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import grpc
import grpc.aio

from dray.node.devices.device_selection import PreferenceRequest
from dray.node.devices.inventory import Device
from dray.node.devices.responses import device_from_wire
from dray.rpc.pb.deviceplugin.v1beta1 import api_pb2 as pb
from dray.rpc.pb.deviceplugin.v1beta1.api_pb2_grpc import DevicePluginStub
from dray.rpc.sockets import ChannelClosedError, answer_of, connect, error_text

# Kubelet's.
PRE_START_TIMEOUT_SECONDS: Final = 30.0
# Kubelet has no bound for these, and one plugin that hangs then holds up every Pod of the node. Some plugins reset or
# program hardware in Allocate, which takes minutes.
ALLOCATE_TIMEOUT_SECONDS: Final = 600.0
ANSWER_TIMEOUT_SECONDS: Final = 60.0
# As Go prints an answer without containers.
_EMPTY_ANSWER: Final = "&AllocateResponse{ContainerResponses:[]*ContainerAllocateResponse{},}"


class EndpointError(Exception):
    """The plugin did not do what it was asked."""


_FAILURES: Final = (grpc.aio.AioRpcError, ChannelClosedError)


def _why(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return error_text(error)
    return "rpc error: code = Unavailable desc = the device plugin has gone"


class Endpoint:
    """One plugin at one socket."""

    def __init__(self, resource: str, path: str) -> None:
        self.resource = resource
        self.path = path
        self.options = pb.DevicePluginOptions()
        self._channel = connect(path)
        self._stub: Any = DevicePluginStub(self._channel)
        self._stopped = False

    async def dial(self, timeout_seconds: float) -> bool:
        """Wait until the plugin listens; whether it does."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._channel.channel_ready()
        except TimeoutError:
            return False
        return True

    async def fetch_options(self) -> None:
        """Ask the plugin for its options."""
        try:
            self.options = await answer_of(
                self._stub.GetDevicePluginOptions(pb.Empty(), timeout=ANSWER_TIMEOUT_SECONDS)
            )
        except _FAILURES as error:
            raise EndpointError(f"failed to get device plugin options: {_why(error)}") from error

    async def watch(self) -> AsyncIterator[tuple[Device, ...]]:
        """All devices each time the plugin sends them; ends with the stream, for whatever reason."""
        stream = self._stub.ListAndWatch(pb.Empty())
        try:
            async for update in stream:
                yield tuple(device_from_wire(item) for item in update.devices)
        except grpc.aio.AioRpcError as error:
            raise EndpointError(f"listAndWatch ended unexpectedly for device plugin: {error_text(error)}") from error
        finally:
            stream.cancel()

    async def preferred(self, question: PreferenceRequest) -> tuple[str, ...]:
        """Which devices the plugin would choose; may be fewer, or others."""
        self._check()
        request = pb.PreferredAllocationRequest(
            container_requests=[
                pb.ContainerPreferredAllocationRequest(
                    available_device_ids=question.available,
                    must_include_device_ids=question.must_include,
                    allocation_size=question.size,
                )
            ]
        )
        try:
            answer = await answer_of(self._stub.GetPreferredAllocation(request, timeout=ANSWER_TIMEOUT_SECONDS))
        except _FAILURES as error:
            text = f"device plugin GetPreferredAllocation rpc failed with err: {_why(error)}"
            raise EndpointError(text) from error
        return tuple(answer.container_responses[0].device_ids) if answer.container_responses else ()

    async def allocate(self, ids: Sequence[str]) -> bytes:
        """Have the plugin make the devices ready for one container; its answer as it came."""
        self._check()
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        try:
            answer = await answer_of(self._stub.Allocate(request, timeout=ALLOCATE_TIMEOUT_SECONDS))
        except _FAILURES as error:
            raise EndpointError(_why(error)) from error
        if not answer.container_responses:
            raise EndpointError(f"no containers return in allocation response {_EMPTY_ANSWER}")
        response: bytes = answer.container_responses[0].SerializeToString(deterministic=True)
        return response

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Tell the plugin that a container with these devices is about to start."""
        try:
            self._check()
            request = pb.PreStartContainerRequest(devices_ids=ids)
            await answer_of(self._stub.PreStartContainer(request, timeout=PRE_START_TIMEOUT_SECONDS))
        except _FAILURES as error:
            text = f"device plugin PreStartContainer rpc failed with err: {_why(error)}"
            raise EndpointError(text) from error

    async def stop(self) -> None:
        """Give the plugin up; calls under way end."""
        self._stopped = True
        await self._channel.close(None)

    def _check(self) -> None:
        if self._stopped:
            raise EndpointError(f"endpoint {self.path} has been stopped")
