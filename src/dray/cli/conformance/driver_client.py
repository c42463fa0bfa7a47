"""Calls to a driver as kubelet makes them, with kubelet's deadlines; a failed call is a `CallError`."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
import grpc.aio

from dray.cli.conformance.rules.registration import Info
from dray.cli.conformance.rules.responses import ClaimRef, ClaimResponse, PreparedDevice, Responses
from dray.lib.clock import Clock
from dray.rpc.dra_services import DRA_SERVICES, HEALTH_SERVICES
from dray.rpc.pb.classic_dra.v1alpha1 import api_pb2 as classic
from dray.rpc.pb.classic_dra.v1alpha1.api_pb2_grpc import NodeStub
from dray.rpc.pb.plugin_registration.v1 import api_pb2 as registration
from dray.rpc.pb.plugin_registration.v1.api_pb2_grpc import RegistrationStub
from dray.rpc.sockets import connect, error_text

DIAL_SECONDS: Final = 10.0
# Longer than kubelet's second, to distinguish a slow driver from one that does not respond.
INFO_SECONDS: Final = 10.0
NOTIFY_SECONDS: Final = 5.0


# A call with one of these codes was not answered by the driver.
UNANSWERED: Final = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


class CallError(Exception):
    """A call failed."""

    def __init__(self, method: str, error: grpc.aio.AioRpcError | None = None) -> None:
        super().__init__(f"{method}: {error_text(error) if error is not None else 'no connection'}")
        self.code = error.code() if error is not None else grpc.StatusCode.UNAVAILABLE


def is_socket(path: str) -> bool:
    """Return whether the path is a socket."""
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


async def _translate_errors(method: str, call: Awaitable[Any]) -> Any:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise CallError(method, error) from error


@asynccontextmanager
async def connected_channel(path: str) -> AsyncIterator[grpc.aio.Channel]:
    """Connect to a socket and wait until the channel is ready."""
    async with connect(path) as channel:
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                await channel.channel_ready()
        except TimeoutError as error:
            raise CallError(f"connecting to {path}") from error
        yield channel


async def get_info(path: str) -> Info:
    """Call GetInfo on a registration socket."""
    async with connected_channel(path) as channel:
        call = RegistrationStub(channel).GetInfo(registration.InfoRequest(), timeout=INFO_SECONDS)
        answer = await _translate_errors("GetInfo", call)
    return Info(answer.type, answer.name, answer.endpoint, tuple(answer.supported_versions))


async def notify(path: str, error: str = "") -> None:
    """Call NotifyRegistrationStatus."""
    status = registration.RegistrationStatus(plugin_registered=not error, error=error)
    async with connected_channel(path) as channel:
        call = RegistrationStub(channel).NotifyRegistrationStatus(status, timeout=NOTIFY_SECONDS)
        await _translate_errors("NotifyRegistrationStatus", call)


class DriverClient:
    """A connection to the driver's service; `observe` gets the duration of calls that are not cancelled on purpose."""

    def __init__(self, path: str, clock: Clock, call_seconds: float, observe: Callable[[str, float], None]) -> None:
        self._observe = observe
        self._channel = connect(path)
        self._clock = clock
        self._call_seconds = call_seconds

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close(None)

    async def prepare(
        self,
        version: str,
        refs: Sequence[ClaimRef],
        deadline_seconds: float | None = None,
    ) -> Responses:
        """Call NodePrepareResources."""
        answer = await self._call(version, "NodePrepareResources", refs, deadline_seconds)
        return {
            uid: ClaimResponse(item.error, tuple(map(_device, item.devices))) for uid, item in answer.claims.items()
        }

    async def unprepare(
        self,
        version: str,
        refs: Sequence[ClaimRef],
        deadline_seconds: float | None = None,
    ) -> Responses:
        """Call NodeUnprepareResources."""
        answer = await self._call(version, "NodeUnprepareResources", refs, deadline_seconds)
        return {uid: ClaimResponse(item.error) for uid, item in answer.claims.items()}

    async def watch_health(self, version: str) -> AsyncGenerator[Sequence[Any], None]:
        """Call NodeWatchResources and yield each list."""
        service = HEALTH_SERVICES[version]
        stream = service.stub(self._channel).NodeWatchResources(service.messages.NodeWatchResourcesRequest())
        try:
            async for update in stream:
                yield update.devices
        except grpc.aio.AioRpcError as error:
            raise CallError("NodeWatchResources", error) from error
        finally:
            stream.cancel()

    async def prepare_classic(self, uid: str) -> tuple[str, ...]:
        """Call NodePrepareResource of a classic plugin and return the CDI devices."""
        request = classic.NodePrepareResourceRequest(resource_uid=uid)
        answer = await self._timed("NodePrepareResource", NodeStub(self._channel).NodePrepareResource, request)
        return tuple(answer.cdi_device)

    async def unprepare_classic(self, uid: str, cdi_devices: Sequence[str] = ()) -> None:
        """Call NodeUnprepareResource of a classic plugin."""
        request = classic.NodeUnprepareResourceRequest(resource_id=uid, cdi_device=cdi_devices)
        await self._timed("NodeUnprepareResource", NodeStub(self._channel).NodeUnprepareResource, request)

    async def _call(
        self,
        version: str,
        method: str,
        refs: Sequence[ClaimRef],
        deadline_seconds: float | None,
    ) -> Any:
        service = DRA_SERVICES[version]
        messages = service.messages
        claims = [messages.Claim(namespace=ref.namespace, uid=ref.uid, name=ref.name) for ref in refs]
        request = getattr(messages, f"{method}Request")(claims=claims)
        return await self._timed(method, getattr(service.stub(self._channel), method), request, deadline_seconds)

    async def _timed(self, method: str, stub: Any, request: Any, deadline_seconds: float | None = None) -> Any:
        started = self._clock.monotonic()
        call = stub(request, timeout=deadline_seconds or self._call_seconds, wait_for_ready=True)
        try:
            return await _translate_errors(method, call)
        finally:
            if deadline_seconds is None:
                self._observe(method, self._clock.monotonic() - started)


def _device(item: Any) -> PreparedDevice:
    # v1beta1 has no share ids.
    share = item.share_id if "share_id" in item.DESCRIPTOR.fields_by_name and item.HasField("share_id") else ""
    return PreparedDevice(
        item.pool_name, item.device_name, tuple(item.request_names), tuple(item.cdi_device_ids), share
    )
