"""Kubelet's side of the device plugin API: the registration service, and calls to the registered plugin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from dray.cli.conformance.driver_client import CallError, is_socket
from dray.cli.conformance.findings import CheckFailedError, SkipError
from dray.cli.conformance.rules.registration import DEVICE_PLUGIN_VERSION, PluginRequest
from dray.rpc.pb.deviceplugin.v1beta1 import api_pb2 as pb
from dray.rpc.pb.deviceplugin.v1beta1.api_pb2_grpc import (
    DevicePluginStub,
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)
from dray.rpc.sockets import connect, listen, remove_socket

SOCKET: Final = "kubelet.sock"
# Kubelet's timeouts.
DIAL_SECONDS: Final = 10.0
PRE_START_SECONDS: Final = 30.0
CALL_SECONDS: Final = 45.0


@dataclass(frozen=True, slots=True)
class Registered:
    """A call of Register, and the result of calling the plugin before responding."""

    request: PluginRequest
    options: tuple[bool, bool] | None
    failure: str = ""


class KubeletSocket(RegistrationServicer):  # type: ignore[misc]
    """Serves `kubelet.sock`; `restart` recreates it as a restart of kubelet does."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server: grpc.aio.Server | None = None
        self._calls: asyncio.Queue[Registered] = asyncio.Queue()
        self._last: Registered | None = None

    @property
    def last(self) -> Registered:
        """Return the last registration; raises `SkipError` if there is none."""
        if self._last is None:
            raise SkipError("the plugin did not register")
        return self._last

    @property
    def plugin_path(self) -> str:
        """Return the path of the plugin's socket."""
        return str(self._folder / self.last.request.endpoint)

    async def start(self) -> None:
        """Start serving."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._server = grpc.aio.server()
        add_RegistrationServicer_to_server(self, self._server)
        await listen(self._server, str(self._folder / SOCKET))

    async def stop(self) -> None:
        """Stop serving and remove the socket."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)
        remove_socket(str(self._folder / SOCKET))

    async def restart(self, *, clear: bool) -> None:
        """Restart as kubelet does, with `clear` also removing all sockets in the directory."""
        await self.stop()
        if clear:
            for path in self._folder.glob("*.sock"):
                remove_socket(str(path))
        while not self._calls.empty():
            self._calls.get_nowait()
        await self.start()

    async def registered(self, seconds: float) -> Registered:
        """Wait for the next registration."""
        try:
            async with asyncio.timeout(seconds):
                self._last = await self._calls.get()
        except TimeoutError as error:
            raise CheckFailedError(
                f"Register was not called within {seconds:g} s at {self._folder / SOCKET}"
            ) from error
        return self._last

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:  # noqa: N802 - the wire's name
        """Call the plugin before responding, as kubelet does."""
        declared = None
        if request.HasField("options"):
            declared = request.options.pre_start_required, request.options.get_preferred_allocation_available
        received = PluginRequest(request.version, request.endpoint, request.resource_name, declared)
        options, failure = await _get_options(str(self._folder / request.endpoint))
        self._calls.put_nowait(Registered(received, options, failure))
        if request.version != DEVICE_PLUGIN_VERSION:
            await context.abort(grpc.StatusCode.UNKNOWN, f'requested API version "{request.version}" is not supported')
        return pb.Empty()


async def _get_options(path: str) -> tuple[tuple[bool, bool] | None, str]:
    if not is_socket(path):
        return None, "not a socket"
    try:
        async with PluginClient(path) as plugin:
            return await plugin.options(DIAL_SECONDS), ""
    except CallError as error:
        return None, str(error)


class PluginClient:
    """A connection to a device plugin."""

    def __init__(self, path: str) -> None:
        self._channel = connect(path)
        self._stub = DevicePluginStub(self._channel)

    async def __aenter__(self) -> PluginClient:
        """Return the client; the first call connects."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connection."""
        await self._channel.close(None)

    async def options(self, seconds: float = CALL_SECONDS) -> tuple[bool, bool]:
        """Call GetDevicePluginOptions."""
        answer = await self._call("GetDevicePluginOptions", pb.Empty(), seconds)
        return answer.pre_start_required, answer.get_preferred_allocation_available

    async def lists(self) -> AsyncGenerator[Sequence[pb.Device], None]:
        """Call ListAndWatch and yield each list."""
        stream = self._stub.ListAndWatch(pb.Empty(), wait_for_ready=True)
        try:
            async for update in stream:
                yield update.devices
        except grpc.aio.AioRpcError as error:
            raise CallError("ListAndWatch", error) from error
        finally:
            stream.cancel()

    async def allocate(self, *containers: Sequence[str]) -> Sequence[pb.ContainerAllocateResponse]:
        """Call Allocate for one or more containers."""
        requests = [pb.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
        answer = await self._call("Allocate", pb.AllocateRequest(container_requests=requests), CALL_SECONDS)
        return list(answer.container_responses)

    async def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Call GetPreferredAllocation for one container."""
        item = pb.ContainerPreferredAllocationRequest(
            available_device_ids=available, must_include_device_ids=must_include, allocation_size=size
        )
        request = pb.PreferredAllocationRequest(container_requests=[item])
        answer = await self._call("GetPreferredAllocation", request, CALL_SECONDS)
        if len(answer.container_responses) != 1:
            raise CheckFailedError(f"{len(answer.container_responses)} responses for one container")
        return list(answer.container_responses[0].device_ids)

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Call PreStartContainer."""
        await self._call("PreStartContainer", pb.PreStartContainerRequest(devices_ids=ids), PRE_START_SECONDS)

    async def _call(self, method: str, request: Any, seconds: float) -> Any:
        try:
            return await getattr(self._stub, method)(request, timeout=seconds, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            raise CallError(method, error) from error


async def first_list(plugin: PluginClient, seconds: float) -> Sequence[pb.Device]:
    """Return the first list, which must be sent immediately."""
    lists = plugin.lists()
    try:
        async with asyncio.timeout(seconds):
            async for devices in lists:
                return devices
    except TimeoutError as error:
        raise CheckFailedError(f"no list within {seconds:g} s") from error
    finally:
        with suppress(CallError):
            await lists.aclose()
    raise CheckFailedError("the stream ended without a list")
