"""The connection to one instance of a driver: one channel for all calls and the health stream, its state watched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

import grpc
import grpc.aio

from dray.api.document import UID
from dray.lib.clock import Clock
from dray.node.dra.claim_info_cache import ClaimRef
from dray.node.dra.claims import Device
from dray.node.dra.drivers.choice import V1
from dray.node.dra.metrics import DriverMetrics
from dray.rpc.pb.dra.v1 import api_pb2 as v1
from dray.rpc.pb.dra.v1.api_pb2_grpc import DRAPluginStub as V1Stub
from dray.rpc.pb.dra.v1beta1 import api_pb2 as v1beta1
from dray.rpc.pb.dra.v1beta1.api_pb2_grpc import DRAPluginStub as V1Beta1Stub
from dray.rpc.pb.dra_health.v1alpha1 import api_pb2 as health
from dray.rpc.pb.dra_health.v1alpha1.api_pb2_grpc import DRAResourceHealthStub
from dray.rpc.sockets import ChannelClosedError, answer_of, code_name, connect, error_text

CALL_TIMEOUT_SECONDS: Final = 45.0
_GONE: Final = "rpc error: code = Unavailable desc = the plugin was deregistered"


class PluginClient:
    """Speaks to one registered instance of a plugin; `on_change` hears when it connects or disconnects."""

    # The gRPC service's name without its package.
    service_name: ClassVar[str]

    def __init__(
        self, driver: str, endpoint: str, metrics: DriverMetrics, clock: Clock, on_change: Callable[[], None]
    ) -> None:
        self.driver = driver
        self.endpoint = endpoint
        self._metrics = metrics
        self._clock = clock
        self._on_change = on_change
        self._channel = connect(endpoint)
        # The module of the service's messages, and the stub; set by those who know the service.
        self._messages: Any
        self._stub: Any
        self._connected = False

    @property
    def connected(self) -> bool:
        """Whether the socket answered when it was last looked at."""
        return self._connected

    async def watch_state(self) -> None:
        """Keep the channel connected and `connected` true to it, until cancelled."""
        while True:
            state = self._channel.get_state(try_to_connect=True)
            connected = state is grpc.ChannelConnectivity.READY
            if connected != self._connected:
                self._connected = connected
                self._on_change()
            await self._channel.wait_for_state_change(state)

    async def close(self) -> None:
        """Give up the connection; calls under way end."""
        await self._channel.close(None)

    async def _call(self, method: str, request: Any) -> Any:
        started, code = self._clock.monotonic(), grpc.StatusCode.OK
        try:
            return await answer_of(getattr(self._stub, method)(request, timeout=CALL_TIMEOUT_SECONDS))
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


class DriverClient(PluginClient):
    """Speaks to one registered instance of a DRA driver."""

    service_name = "DRAPlugin"

    def __init__(
        self,
        driver: str,
        endpoint: str,
        service: str,
        metrics: DriverMetrics,
        clock: Clock,
        on_change: Callable[[], None],
    ) -> None:
        super().__init__(driver, endpoint, metrics, clock, on_change)
        self.service = service
        self._messages = v1 if service == V1 else v1beta1
        self._stub = (V1Stub if service == V1 else V1Beta1Stub)(self._channel)

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[UID, tuple[Device, ...]]:
        """Have the driver prepare the claims; raises `ResponseError` unless it did so for all of them."""
        request = self._messages.NodePrepareResourcesRequest(claims=self._claims(claims))
        answer = await self._call(PREPARE, request)
        uids = check_response(PREPARE, claims, {uid: entry.error for uid, entry in answer.claims.items()})
        return {uid: tuple(_device(item) for item in answer.claims[uid].devices) for uid in uids}

    async def unprepare(self, claims: Sequence[ClaimRef]) -> tuple[UID, ...]:
        """Have the driver unprepare the claims; raises `ResponseError` unless it did so for all of them."""
        request = self._messages.NodeUnprepareResourcesRequest(claims=self._claims(claims))
        answer = await self._call(UNPREPARE, request)
        return check_response(UNPREPARE, claims, {uid: entry.error for uid, entry in answer.claims.items()})

    async def watch_health(self) -> AsyncIterator[Sequence[health.DeviceHealth]]:
        """The complete list of devices each time the driver sends it; ends or raises with the stream."""
        stream = DRAResourceHealthStub(self._channel).NodeWatchResources(health.NodeWatchResourcesRequest())
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


PREPARE: Final = "NodePrepareResources"
UNPREPARE: Final = "NodeUnprepareResources"


class ResponseError(Exception):
    """An answer that does not settle what was asked."""


def check_response(method: str, claims: Sequence[ClaimRef], errors: Mapping[str, str]) -> tuple[UID, ...]:
    """The claims' UIDs when all is well; `errors` has the text of each entry of the answer, empty for success."""
    asked = {claim.uid: claim for claim in claims}
    for uid in sorted(errors):
        claim = asked.get(UID(uid))
        if claim is None:
            raise ResponseError(f"{method} returned result for unknown claim UID {uid}")
        if errors[uid]:
            raise ResponseError(f"{method} failed for ResourceClaim {claim.key.name}: {errors[uid]}")
    skipped = len(claims) - len(errors)
    if skipped:
        raise ResponseError(f"{method} skipped {skipped} ResourceClaims")
    return tuple(asked)
