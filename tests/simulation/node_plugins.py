"""A DRA driver and a device plugin in the event loop, behind the gRPC channels of the node agent.

They are processes of their own: what they have done survives a crash of the agent, and they check what they are asked.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import grpc
import grpc.aio

from dray.node.devices import plugin_handler
from dray.node.devices.endpoint import EndpointError
from dray.node.devices.inventory import Device
from dray.node.dra import driver_client
from dray.rpc.pb.deviceplugin.v1beta1 import api_pb2 as plugin_pb
from dray.rpc.pb.dra.v1 import api_pb2 as dra_pb
from tests.simulation.faults import Faults

DRIVER = "gpu.example.com"
RESOURCE = "example.com/widget"

FAULTS = {
    # The driver or plugin answers with an error.
    "call_refused": 0.04,
    # It executes the call, but the response is lost.
    "answer_lost": 0.04,
    "call_slow": 0.05,
}


class Driver:
    """Prepares claims; `devices_of` returns the devices that a claim was allocated."""

    def __init__(
        self,
        rng: random.Random,
        faults: Faults,
        devices_of: Callable[[str], Sequence[str]],
        users_of: Callable[[str], Collection[str]],
    ) -> None:
        # The devices of prepared claims, by UID.
        self.prepared: dict[str, tuple[str, ...]] = {}
        self._rng = rng
        self._faults = faults
        self._devices_of = devices_of
        # The containers that run with a claim.
        self._users_of = users_of

    async def call(self, method: str, request: Any, step: Callable[[str], None]) -> Any:
        """Answer a call; `step` raises if the agent crashes there."""
        step(f"before {method}")
        fault = self._faults.choose(("call_refused", "answer_lost", "call_slow"), self._rng)
        await asyncio.sleep(self._rng.uniform(0.1, 1.0) if fault == "call_slow" else self._rng.uniform(0.0, 0.01))
        if fault == "call_refused":
            raise _error("the driver is not ready")
        answer = self._prepare(request) if method == "NodePrepareResources" else self._unprepare(request)
        if fault == "answer_lost":
            raise _error("connection reset")
        step(f"after {method}")
        return answer

    def _prepare(self, request: Any) -> Any:
        answer = dra_pb.NodePrepareResourcesResponse()
        for claim in request.claims:
            devices = tuple(self._devices_of(claim.uid))
            for other, held in self.prepared.items():
                shared = set(held).intersection(devices)
                assert other == claim.uid or not shared, f"{shared} prepared for {claim.uid} and {other}"
            self.prepared[claim.uid] = devices
            entry = answer.claims[claim.uid]
            for name in devices:
                entry.devices.add(
                    pool_name="pool",
                    device_name=name,
                    request_names=["device"],
                    cdi_device_ids=[f"{DRIVER}/gpu={name}"],
                )
        return answer

    def _unprepare(self, request: Any) -> Any:
        answer = dra_pb.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            users = self._users_of(claim.uid)
            assert not users, f"claim {claim.uid} is unprepared while {users} run with it"
            self.prepared.pop(claim.uid, None)
            answer.claims[claim.uid].error = ""
        return answer


def _error(details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details, debug_error_string=None
    )


class _Channel:
    """What the client of a driver uses of a `grpc.aio.Channel`."""

    def __init__(self, driver: Driver, step: Callable[[str], None]) -> None:
        self._driver = driver
        self._step = step

    def unary_unary(self, method: str, **_: Any) -> Callable[..., Any]:
        name = method.rpartition("/")[2]
        return lambda request, timeout: self._driver.call(name, request, self._step)

    def get_state(self, *, try_to_connect: bool) -> grpc.ChannelConnectivity:
        return grpc.ChannelConnectivity.READY

    async def wait_for_state_change(self, _state: object) -> None:
        await asyncio.Event().wait()

    async def close(self, _grace: float | None) -> None:
        """Nothing is held."""


class DevicePlugin:
    """Hands out devices; no call tells it when they are free again."""

    def __init__(self, rng: random.Random, faults: Faults, ids: Sequence[str]) -> None:
        self._rng = rng
        self._faults = faults
        self.devices = tuple(Device(name, healthy=True) for name in ids)

    async def answer(self, step: Callable[[str], None], what: str) -> None:
        step(f"before {what}")
        fault = self._faults.choose(("call_refused", "answer_lost", "call_slow"), self._rng)
        await asyncio.sleep(self._rng.uniform(0.1, 1.0) if fault == "call_slow" else self._rng.uniform(0.0, 0.01))
        if fault in ("call_refused", "answer_lost"):
            raise EndpointError(f"{what}: {fault}")
        step(f"after {what}")


class _Endpoint:
    """Stands for `dray.node.devices.endpoint.Endpoint`."""

    def __init__(self, plugin: DevicePlugin, step: Callable[[str], None], resource: str, path: str) -> None:
        self.resource = resource
        self.path = path
        self.options = plugin_pb.DevicePluginOptions(pre_start_required=True)
        self.stopped = False
        self._plugin = plugin
        self._step = step

    @property
    def usable(self) -> bool:
        return not self.stopped

    async def dial(self, _timeout_seconds: float) -> bool:
        return True

    async def fetch_options(self) -> None:
        """They are known."""

    async def watch(self) -> AsyncIterator[tuple[Device, ...]]:
        yield self._plugin.devices
        await asyncio.Event().wait()

    async def allocate(self, ids: Sequence[str]) -> bytes:
        await self._plugin.answer(self._step, "Allocate")
        return bytes(plugin_pb.ContainerAllocateResponse(envs={"WIDGETS": ",".join(ids)}).SerializeToString())

    async def pre_start(self, _ids: Sequence[str]) -> None:
        await self._plugin.answer(self._step, "PreStartContainer")

    async def stop(self) -> None:
        self.stopped = True


@contextmanager
def reachable_plugins(driver: Driver, plugin: DevicePlugin, step: Callable[[str], None]) -> Iterator[None]:
    """Agents that run inside reach the driver and the plugin; `step` is that of the present agent."""

    def connect(_path: str) -> _Channel:
        return _Channel(driver, step)

    def endpoint(resource: str, path: str) -> _Endpoint:
        return _Endpoint(plugin, step, resource, path)

    async def is_greeted(*_arguments: object) -> bool:
        return True

    with (
        mock.patch.object(driver_client, "connect", connect),
        mock.patch.multiple(plugin_handler, Endpoint=endpoint, is_greeted=is_greeted),
    ):
        yield
