"""Device plugins and the node's part for them in one process, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from dray.api.types.core_v1 import Pod
from dray.driver.device_plugin import Allocation, Device, DevicePlugin, HostDevice, Options, serve
from dray.node.devices.device_manager import DeviceManager, DeviceSettings, NodePods
from dray.node.resource_manager import Rejection
from dray.node.runtimes.runtime import ContainerRecord
from dray.node.topology.topology_manager import Alignment, TopologyManager
from dray.rpc.pb.deviceplugin.v1beta1 import api_pb2 as pb
from dray.rpc.pb.deviceplugin.v1beta1.api_pb2_grpc import RegistrationStub
from dray.rpc.sockets import connect
from dray.runtime.metrics import Metrics
from dray.runtime.system import SystemClock
from tests.unit.node.devices.builders import FOO, Pods

WAIT_SECONDS = 120.0
SETTINGS = DeviceSettings()
ALIGNMENT = Alignment()


@contextlib.contextmanager
def short_folder() -> Iterator[str]:
    """A folder whose path leaves room for socket names."""
    path = tempfile.mkdtemp(prefix="dp")
    try:
        yield path
    finally:
        shutil.rmtree(path)


async def until(condition: Callable[[], Any], what: str = "") -> None:
    """Wait for the condition, with a bound."""
    deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"not in {WAIT_SECONDS} s: {what or condition}")
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def task(work: Any) -> AsyncIterator[asyncio.Task[Any]]:
    """Run something beside; cancelled and awaited at the end."""
    running = asyncio.create_task(work)
    try:
        yield running
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


@dataclass
class Node:
    """The node's side; `changes` is what listeners received."""

    folder: str
    devices: DeviceManager
    manager: TopologyManager
    pods: Pods
    metrics: Metrics
    changes: list[tuple[str, ...]] = field(default_factory=list)
    warnings: list[tuple[str, str]] = field(default_factory=list)

    async def admit(self, item: Pod) -> Rejection | None:
        """As the agent does: a Pod that is admitted is active from then on."""
        rejection = await self.manager.admit(item)
        if rejection is None:
            self.pods.add(item)
        return rejection

    def amounts(self, resource: str = FOO) -> tuple[str | None, str | None]:
        found = self.manager.node_resources()
        return found.capacity.get(resource), found.allocatable.get(resource)

    async def until_amounts(self, capacity: int, allocatable: int, resource: str = FOO) -> None:
        wanted = (str(capacity), str(allocatable))
        await until(lambda: self.amounts(resource) == wanted, f"{resource} {wanted}, is {self.amounts(resource)}")

    def serves(self, socket_name: str) -> bool:
        """Whether the plugin at the socket is the one that is called."""
        endpoint = self.devices.plugin_handler.get(FOO)
        return endpoint is not None and os.path.basename(endpoint.path) == socket_name

    def held(self, uid: str, container: str = "main") -> list[str]:
        return [item.id for item in self.devices.container_devices(uid, container)]

    async def call_register(self, **request: Any) -> None:
        fields = {"version": "v1beta1", "endpoint": "foo.sock", "resource_name": FOO} | request
        async with connect(os.path.join(self.folder, "kubelet.sock")) as channel:
            await RegistrationStub(channel).Register(pb.RegisterRequest(**fields), timeout=WAIT_SECONDS)


@contextlib.asynccontextmanager
async def node(
    folder: str,
    pods: Pods | None = None,
    settings: DeviceSettings = SETTINGS,
    *,
    alignment: Alignment = ALIGNMENT,
    ready: Callable[[], bool] = lambda: True,
    running: Sequence[tuple[str, str]] = (),
    admitted_before: Sequence[str] = (),
    serves: bool = True,
    found: Sequence[ContainerRecord] = (),
) -> AsyncIterator[Node]:
    """The node's side, serving registration."""
    pods, metrics = pods or Pods(), Metrics()
    running = [*running, *((item.pod_uid, item.name) for item in found if item.exit is None)]
    admitted_before = [*admitted_before, *(item.pod_uid for item in found)]
    known = NodePods(pods, ready, running, pods.orphans, admitted_before, found)
    devices = DeviceManager(folder, known, SystemClock(), metrics, settings)
    manager = TopologyManager(devices, alignment=alignment, admitted_before=admitted_before)
    result = Node(folder, devices, manager, pods, metrics)
    devices.on_warning(lambda *warning: result.warnings.append(warning))
    result.manager.on_change(lambda uids: result.changes.append(tuple(uids)))
    if not serves:
        yield result
        return
    async with task(devices.run()):
        await devices.wait_started()
        yield result


class Foo(DevicePlugin):
    """A plugin whose devices a test sets."""

    resource_name = FOO

    def __init__(self, *ids: str | Device, resource: str = FOO) -> None:
        self.resource_name = resource
        self.list = [item if isinstance(item, Device) else Device(item) for item in ids]
        self.allocated: list[list[str]] = []
        self.failure: str = ""

    async def devices(self) -> Sequence[Device]:
        return tuple(self.list)

    async def allocate(self, ids: Sequence[str]) -> Allocation:
        if self.failure:
            raise RuntimeError(self.failure)
        self.allocated.append(list(ids))
        return Allocation(
            envs={"FOO": ",".join(ids)}, devices=[HostDevice(f"/dev/{name}", f"/dev/{name}") for name in ids]
        )

    def set(self, *devices: Device) -> None:
        self.list = list(devices)
        self.changed()


@contextlib.asynccontextmanager
async def plugin(folder: str, served: DevicePlugin, **options: Any) -> AsyncIterator[asyncio.Task[Any]]:
    """Serve the plugin."""
    async with task(serve(served, Options(folder=folder, poll_seconds=0.05, **options))) as running:
        yield running


@contextlib.asynccontextmanager
async def raw_server(path: str, servicer: Any, add: Callable[[Any, Any], None]) -> AsyncIterator[grpc.aio.Server]:
    """A gRPC server at a socket, without the SDK."""
    server = grpc.aio.server()
    add(servicer, server)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield server
    finally:
        await server.stop(None)
