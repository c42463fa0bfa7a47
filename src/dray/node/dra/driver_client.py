"""The gRPC client of one driver instance: one channel for all calls and the health stream, with its state watched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import grpc
import grpc.aio

from dray.api.document import UID
from dray.lib.clock import Clock
from dray.node.dra.claim_info_cache import ClaimRef
from dray.node.dra.claims import PREPARE, UNPREPARE, Device
from dray.node.dra.metrics import DriverMetrics
from dray.node.plugins.handler import Plugin, PluginError
from dray.rpc.dra_services import DRA_PLUGIN, DRA_SERVICES, HEALTH_SERVICES, choose_health_service
from dray.rpc.liveness import is_greeted
from dray.rpc.sockets import ChannelClosedError, answer_of, code_name, connect, error_text
from dray.runtime.tasks import first_completed

CALL_TIMEOUT_SECONDS: Final = 45.0
# While a call is pending: how often it is checked that the driver's process responds, and how long it may take.
PROBE_SECONDS: Final = 10.0
LATE_SECONDS: Final = 10.0
_GONE: Final = "rpc error: code = Unavailable desc = the plugin was deregistered"


class ResponseError(Exception):
    """A call that failed, or a response that does not cover the claims of the request."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """What the clients of a manager's drivers have in common."""

    metrics: DriverMetrics
    clock: Clock


class PluginClient:
    """The connection to one registered instance of a plugin."""

    # The gRPC service's name without its package.
    service_name: ClassVar[str]

    def __init__(
        self,
        plugin: Plugin,
        messages: Any,
        stub: Callable[[grpc.aio.Channel], Any],
        options: ClientOptions,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`messages` and `stub` are generated; `on_change` is called when the plugin connects or disconnects."""
        self.driver = plugin.name
        self.endpoint = plugin.endpoint
        self._metrics = options.metrics
        self._clock = options.clock
        self._on_change = on_change
        self._channel = connect(plugin.endpoint)
        self._messages = messages
        self._stub = stub(self._channel)
        self._connected = False

    @property
    def connected(self) -> bool:
        """Whether the channel was connected when its state last changed."""
        return self._connected

    async def watch_state(self) -> None:
        """Keep the channel connected and `connected` up to date, until cancelled."""
        while True:
            state = self._channel.get_state(try_to_connect=True)
            connected = state is grpc.ChannelConnectivity.READY
            if connected != self._connected:
                self._connected = connected
                self._on_change()
            await self._channel.wait_for_state_change(state)

    async def close(self) -> None:
        """Close the channel; pending calls fail."""
        await self._channel.close(None)

    async def _call(self, method: str, request: Any) -> Any:
        started, code = self._clock.monotonic(), grpc.StatusCode.OK
        try:
            return await self._answer(method, getattr(self._stub, method)(request, timeout=CALL_TIMEOUT_SECONDS))
        except grpc.aio.AioRpcError as error:
            code = error.code()
            raise ResponseError(f"{method}: {error_text(error)}") from error
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED
            raise
        except ChannelClosedError as error:
            # The plugin was deregistered.
            code = grpc.StatusCode.CANCELLED
            raise ResponseError(f"{method}: {_GONE}") from error
        except grpc.aio.UsageError as error:
            code = grpc.StatusCode.UNAVAILABLE
            raise ResponseError(f"{method}: {_GONE}") from error
        finally:
            path = f"/{self._messages.DESCRIPTOR.package}.{self.service_name}/{method}"
            self._metrics.observe_call(self.driver, path, code_name(code), self._clock.monotonic() - started)

    async def _answer(self, method: str, call: Any) -> Any:
        """Await the answer; raise before the call's deadline if the driver's process does not respond at all."""
        position, answer = await first_completed(answer_of(call), self._until_unresponsive())
        if position == 0:
            return answer
        raise ResponseError(
            f"{method}: driver {self.driver} does not respond: its process is stopped or gets no CPU time"
        )

    async def _until_unresponsive(self) -> None:
        """Return when a new connection has not been greeted in time; a driver that is only busy greets."""
        while True:
            await self._clock.sleep(PROBE_SECONDS)
            late = asyncio.Event()
            position, _ = await first_completed(is_greeted(self.endpoint, LATE_SECONDS, late.set), late.wait())
            if position == 1:
                return


class DriverClient(PluginClient):
    """The client of one registered instance of a DRA driver."""

    service_name = DRA_PLUGIN

    def __init__(self, plugin: Plugin, options: ClientOptions, on_change: Callable[[], None]) -> None:
        """Raise `PluginError` if the plugin supports none of `DRA_SERVICES`."""
        service = DRA_SERVICES[choose_service(plugin)]
        super().__init__(plugin, service.messages, service.stub, options, on_change)
        # The health service to watch; None if the plugin lists none.
        self.health_service = choose_health_service(plugin.versions)

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[UID, tuple[Device, ...]]:
        """Call NodePrepareResources; raises `ResponseError` unless the driver prepared all claims."""
        request = self._messages.NodePrepareResourcesRequest(claims=self._claims(claims))
        answer = await self._call(PREPARE, request)
        uids = check_response(PREPARE, claims, {uid: entry.error for uid, entry in answer.claims.items()})
        return {uid: tuple(_device(item) for item in answer.claims[uid].devices) for uid in uids}

    async def unprepare(self, claims: Sequence[ClaimRef]) -> tuple[UID, ...]:
        """Call NodeUnprepareResources; raises `ResponseError` unless the driver unprepared all claims."""
        request = self._messages.NodeUnprepareResourcesRequest(claims=self._claims(claims))
        answer = await self._call(UNPREPARE, request)
        return check_response(UNPREPARE, claims, {uid: entry.error for uid, entry in answer.claims.items()})

    async def watch_health(self) -> AsyncIterator[Sequence[Any]]:
        """Yield the devices of each report; ends or raises with the stream. Needs a `health_service`."""
        assert self.health_service is not None
        service = HEALTH_SERVICES[self.health_service]
        stream = service.stub(self._channel).NodeWatchResources(service.messages.NodeWatchResourcesRequest())
        try:
            async for update in stream:
                yield update.devices
        finally:
            stream.cancel()

    def _claims(self, claims: Sequence[ClaimRef]) -> list[Any]:
        return [
            self._messages.Claim(namespace=claim.key.namespace, uid=claim.uid, name=claim.key.name) for claim in claims
        ]


def _device(item: Any) -> Device:
    # v1beta1 has no share.
    share_id = item.share_id if "share_id" in item.DESCRIPTOR.fields_by_name and item.HasField("share_id") else None
    return Device(item.pool_name, item.device_name, share_id, tuple(item.request_names), tuple(item.cdi_device_ids))


def choose_service(plugin: Plugin) -> str:
    """Return the first service in the plugin's own order that is supported; raises `PluginError`."""
    text = f"invalid supported gRPC versions of DRA driver plugin {plugin.name} at endpoint {plugin.endpoint}: "
    if not plugin.versions:
        raise PluginError(f"{text}empty list of supported gRPC services (aka supported versions)")
    for service in plugin.versions:
        if service in DRA_SERVICES:
            return service
    raise PluginError(
        f"{text}none of services supported by the plugin ({_go_list(plugin.versions)}) "
        f"are supported by the kubelet ({_go_list(tuple(DRA_SERVICES))})"
    )


def _go_list(items: Sequence[str]) -> str:
    """Format a list of strings as Go's %q does."""
    quoted = " ".join(f'"{item}"' for item in items)
    return f"[{quoted}]"


def check_response(method: str, claims: Sequence[ClaimRef], errors: Mapping[str, str]) -> tuple[UID, ...]:
    """Return the UIDs of the claims if the response covers exactly these, all without an error.

    `errors` has the error of each entry of the response, empty for success. As in Kubernetes, one failed claim fails
    the whole call: the results of the other claims are discarded and requested again.
    """
    requested = {claim.uid: claim for claim in claims}
    for uid in sorted(errors):
        claim = requested.get(UID(uid))
        if claim is None:
            raise ResponseError(f"{method} returned result for unknown claim UID {uid}")
        if errors[uid]:
            raise ResponseError(f"{method} failed for ResourceClaim {claim.key.name}: {errors[uid]}")
    skipped = len(claims) - len(errors)
    if skipped:
        raise ResponseError(f"{method} skipped {skipped} ResourceClaims")
    return tuple(requested)
