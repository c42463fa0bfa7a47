"""The gRPC client of one device plugin; it is closed when its ListAndWatch stream has ended."""

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
# Kubelet has no timeout for these, so that a plugin that hangs blocks every Pod of the node. Some plugins reset or
# program hardware in Allocate, which takes minutes.
ALLOCATE_TIMEOUT_SECONDS: Final = 600.0
ANSWER_TIMEOUT_SECONDS: Final = 60.0
# As Go prints a response without containers.
_EMPTY_ANSWER: Final = "&AllocateResponse{ContainerResponses:[]*ContainerAllocateResponse{},}"


class EndpointError(Exception):
    """A call of the plugin failed."""


_FAILURES: Final = (grpc.aio.AioRpcError, ChannelClosedError)


def _why(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return error_text(error)
    return "rpc error: code = Unavailable desc = the device plugin has gone"


class Endpoint:
    """One device plugin at one socket."""

    def __init__(self, resource: str, path: str) -> None:
        self.resource = resource
        self.path = path
        self.options = pb.DevicePluginOptions()
        self._channel = connect(path)
        self._stub: Any = DevicePluginStub(self._channel)
        self._stopped = False

    async def dial(self, timeout_seconds: float) -> bool:
        """Wait until the plugin listens; return whether it does."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._channel.channel_ready()
        except TimeoutError:
            return False
        return True

    async def fetch_options(self) -> None:
        """Call GetDevicePluginOptions; raises `EndpointError`."""
        try:
            self.options = await answer_of(
                self._stub.GetDevicePluginOptions(pb.Empty(), timeout=ANSWER_TIMEOUT_SECONDS)
            )
        except _FAILURES as error:
            raise EndpointError(f"failed to get device plugin options: {_why(error)}") from error

    async def watch(self) -> AsyncIterator[tuple[Device, ...]]:
        """Yield all devices each time the plugin sends them; ends or raises `EndpointError` with the stream."""
        stream = self._stub.ListAndWatch(pb.Empty())
        try:
            async for update in stream:
                yield tuple(device_from_wire(item) for item in update.devices)
        except grpc.aio.AioRpcError as error:
            raise EndpointError(f"listAndWatch ended unexpectedly for device plugin: {error_text(error)}") from error
        finally:
            stream.cancel()

    async def preferred(self, question: PreferenceRequest) -> tuple[str, ...]:
        """Return the devices that the plugin prefers, which may be too few or not available."""
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
        """Call Allocate for one container; return the encoded response."""
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
        """Call PreStartContainer; raises `EndpointError`."""
        try:
            self._check()
            request = pb.PreStartContainerRequest(devices_ids=ids)
            await answer_of(self._stub.PreStartContainer(request, timeout=PRE_START_TIMEOUT_SECONDS))
        except _FAILURES as error:
            text = f"device plugin PreStartContainer rpc failed with err: {_why(error)}"
            raise EndpointError(text) from error

    async def stop(self) -> None:
        """Close the connection; pending calls fail."""
        self._stopped = True
        await self._channel.close(None)

    def _check(self) -> None:
        if self._stopped:
            raise EndpointError(f"endpoint {self.path} has been stopped")
