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
# Kubelet has no timeout for these. Some plugins reset or program hardware in Allocate, which takes minutes.
ALLOCATE_TIMEOUT_SECONDS: Final = 600.0
ANSWER_TIMEOUT_SECONDS: Final = 60.0
# As Go prints a response without containers.
_EMPTY_ANSWER: Final = "&AllocateResponse{ContainerResponses:[]*ContainerAllocateResponse{},}"


class EndpointError(Exception):
    """A call of the plugin failed."""


_FAILURES: Final = (grpc.aio.AioRpcError, ChannelClosedError)


class Endpoint:
    """One device plugin at one socket."""

    def __init__(self, resource: str, path: str, options: pb.DevicePluginOptions | None = None) -> None:
        """`options` are those of the call of Register, if there was one."""
        self.resource = resource
        self.path = path
        self.options = pb.DevicePluginOptions()
        if options is not None:
            self.options.CopyFrom(options)
        self._channel = connect(path)
        self._stub: Any = DevicePluginStub(self._channel)
        self._stopped = False
        # The plugin's process does not answer at all; see `stall`.
        self._stalled = False
        self._calls: set[Any] = set()
        # Kubelet allocates for one container at a time, which plugins may rely on.
        self._allocating = asyncio.Lock()

    async def dial(self, timeout_seconds: float) -> bool:
        """Wait until the plugin listens; return whether it does."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._channel.channel_ready()
        except TimeoutError:
            return False
        return True

    async def fetch_options(self) -> None:
        """Call GetDevicePluginOptions, and add the options to those of Register; raises `EndpointError`."""
        try:
            call = self._stub.GetDevicePluginOptions(pb.Empty(), timeout=ANSWER_TIMEOUT_SECONDS)
            # An option that is not set has no value in the message: whoever sets it counts.
            self.options.MergeFrom(await self._answer(call))
        except _FAILURES as error:
            raise EndpointError(f"failed to get device plugin options: {self._why(error)}") from error

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
            async with self._allocating:
                self._check()
                call = self._stub.GetPreferredAllocation(request, timeout=ANSWER_TIMEOUT_SECONDS)
                answer = await self._answer(call)
        except _FAILURES as error:
            text = f"device plugin GetPreferredAllocation rpc failed with err: {self._why(error)}"
            raise EndpointError(text) from error
        return tuple(answer.container_responses[0].device_ids) if answer.container_responses else ()

    async def allocate(self, ids: Sequence[str]) -> bytes:
        """Call Allocate for one container; return the encoded response."""
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        try:
            async with self._allocating:
                self._check()
                answer = await self._answer(self._stub.Allocate(request, timeout=ALLOCATE_TIMEOUT_SECONDS))
        except _FAILURES as error:
            raise EndpointError(self._why(error)) from error
        if not answer.container_responses:
            raise EndpointError(f"no containers return in allocation response {_EMPTY_ANSWER}")
        response: bytes = answer.container_responses[0].SerializeToString(deterministic=True)
        return response

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Call PreStartContainer; raises `EndpointError`."""
        try:
            self._check()
            request = pb.PreStartContainerRequest(devices_ids=ids)
            await self._answer(self._stub.PreStartContainer(request, timeout=PRE_START_TIMEOUT_SECONDS))
        except _FAILURES as error:
            text = f"device plugin PreStartContainer rpc failed with err: {self._why(error)}"
            raise EndpointError(text) from error

    async def stop(self) -> None:
        """Close the connection; pending calls fail."""
        self._stopped = True
        await self._channel.close(None)

    @property
    def stopped(self) -> bool:
        """Whether the connection is closed."""
        return self._stopped

    @property
    def usable(self) -> bool:
        """Whether calls can be made."""
        return not (self._stopped or self._stalled)

    def stall(self) -> None:
        """Fail pending and further calls: the plugin's process does not answer. Its stream stays open."""
        self._stalled = True
        for call in tuple(self._calls):
            call.cancel()

    def resume(self) -> None:
        """Allow calls again."""
        self._stalled = False

    async def _answer(self, call: Any) -> Any:
        self._calls.add(call)
        try:
            return await answer_of(call)
        finally:
            self._calls.discard(call)

    def _check(self) -> None:
        if self._stopped:
            raise EndpointError(f"endpoint {self.path} has been stopped")
        if self._stalled:
            raise EndpointError(f"the device plugin of {self.resource} does not answer")

    def _why(self, error: Exception) -> str:
        if isinstance(error, grpc.aio.AioRpcError):
            return error_text(error)
        why = "does not answer" if self._stalled else "has gone"
        return f"rpc error: code = Unavailable desc = the device plugin {why}"
