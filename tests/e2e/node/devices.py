"""A device plugin and example drivers beside a real agent, and what its PodResources socket says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dray.api.document import Document
from dray.rpc.pb.podresources.v1 import api_pb2 as v1
from dray.rpc.pb.podresources.v1.api_pb2_grpc import PodResourcesListerStub
from dray.rpc.sockets import connect
from tests.e2e.node.harness import LOOK_SECONDS, NODES, Agent, Cluster, shell
from tests.fork_server import ForkedPopen
from tests.servers import Server

TOP = Path(__file__).parents[3]
EXAMPLES = TOP / "examples"
PLUGIN = TOP / "tests" / "e2e" / "node_devices" / "plugin_process.py"
FOO = "vendor.com/foo"
WAIT_SECONDS = 120.0


async def until(condition: Callable[[], Any], what: str = "") -> None:
    """Wait for the condition, with a bound; it may be a coroutine function."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        answer = condition()
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer:
            return
        assert time.monotonic() < deadline, f"not in {WAIT_SECONDS} s: {what or condition}"
        await asyncio.sleep(LOOK_SECONDS)


@dataclass(slots=True)
class Plugin:
    """A device plugin with some devices of `vendor.com/foo`, as a process of its own."""

    agent: Agent
    ids: tuple[str, ...]
    process: subprocess.Popen[str] | None = field(default=None)

    @property
    def control(self) -> Path:
        return self.agent.root / "plugin-control"

    def start(self) -> None:
        self.control.mkdir(exist_ok=True)
        environment = {**os.environ, "PYTHONPATH": str(TOP)}
        arguments = (str(self.agent.root / "device-plugins"), str(self.control), ",".join(self.ids))
        with (self.agent.root / "plugin.log").open("a") as log:
            command = [sys.executable, str(PLUGIN), *arguments]
            self.process = ForkedPopen(command, env=environment, stdout=log, stderr=log)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None

    def fail(self, name: str) -> None:
        (self.control / f"bad-{name}").touch()

    def mend(self, name: str) -> None:
        (self.control / f"bad-{name}").unlink()


@contextlib.contextmanager
def plugin(agent: Agent, *ids: str) -> Iterator[Plugin]:
    """The plugin for the time of the block, started."""
    found = Plugin(agent, ids)
    found.start()
    try:
        yield found
    finally:
        found.kill()


@contextlib.contextmanager
def driver(agent: Agent, server: Server, example: str = "env-driver", **environment: str) -> Iterator[None]:
    """An example driver as its author would start it."""
    arguments = (
        sys.executable,
        str(EXAMPLES / example / "driver.py"),
        f"--node-name={agent.name}",
        f"--kubeconfig={server.kubeconfig}",
        f"--root-dir={agent.root}",
        f"--cdi-dir={agent.root}/cdi",
    )
    with (agent.root / "driver.log").open("a") as log:
        process = ForkedPopen(arguments, stdout=log, stderr=log, env={**os.environ, **environment})
    try:
        yield
    finally:
        process.terminate()
        process.wait(10)


def with_foo(script: str, amount: int = 1, name: str = "a", **fields: Any) -> Document:
    """A container that has devices."""
    return shell(name, script, resources={"limits": {FOO: str(amount)}}, **fields)


async def amounts(cluster: Cluster, resource: str = FOO) -> tuple[str | None, str | None]:
    """Capacity and allocatable in the Node's status."""
    status = (await cluster.client.get(NODES, cluster.node)).get("status", {})
    return status.get("capacity", {}).get(resource), status.get("allocatable", {}).get(resource)


async def until_amounts(cluster: Cluster, capacity: int, allocatable: int, resource: str = FOO) -> None:
    wanted = (str(capacity), str(allocatable))

    async def there() -> bool:
        return await amounts(cluster, resource) == wanted

    await until(there, f"{resource} {wanted}")


@contextlib.asynccontextmanager
async def pod_resources(agent: Agent) -> AsyncIterator[Any]:
    """A client of the agent's PodResources."""
    async with connect(str(agent.root / "pod-resources" / "kubelet.sock")) as channel:
        yield PodResourcesListerStub(channel)


async def held(agent: Agent) -> dict[str, list[str]]:
    """The plugin's devices by Pod, as PodResources tells; no device twice."""
    async with pod_resources(agent) as client:
        found = await client.List(v1.ListPodResourcesRequest(), timeout=WAIT_SECONDS, wait_for_ready=True)
    by_pod = {
        item.name: sorted(one for part in item.containers for entry in part.devices for one in entry.device_ids)
        for item in found.pod_resources
    }
    every = [name for names in by_pod.values() for name in names]
    assert len(every) == len(set(every)), f"a device is given twice: {by_pod}"
    return {name: names for name, names in by_pod.items() if names}


async def resources_of(agent: Agent, name: str, namespace: str) -> v1.PodResources:
    """What one Pod has."""
    async with pod_resources(agent) as client:
        request = v1.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace)
        answer = await client.Get(request, timeout=WAIT_SECONDS, wait_for_ready=True)
    found: v1.PodResources = answer.pod_resources
    return found
