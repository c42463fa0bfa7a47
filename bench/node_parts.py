"""The node's own work for Pods with devices: admission and preparation, and what PodResources answers.

Device plugin and driver are processes of their own, so that what is counted is the node's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any

import uvloop

from bench.processes import serving
from bench.rows import Row, Target, percentile
from dray.api.codec import from_document
from dray.api.document import UID, Document, GroupVersion
from dray.api.types.core_v1 import Pod
from dray.client.files import load_access
from dray.client.http import http_client
from dray.client.interface import Client, WriteOptions, unstructured
from dray.node.devices.loop import NodePods, PluginDevices
from dray.node.dra.loop import DynamicResources, Prepared
from dray.node.plugins.interface import DRA_PLUGIN
from dray.node.plugins.loop import PluginRegistry
from dray.node.pod_resources import loop as pod_resources
from dray.node.pod_resources.interface import Sources
from dray.node.topology.loop import AlignedResources
from dray.runtime.clock import SystemClock
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup

TOP = Path(__file__).parents[1]
PLUGIN = TOP / "tests" / "e2e" / "node_devices" / "plugin_process.py"
DRIVER = TOP / "examples" / "env-driver" / "driver.py"
NAME = "env.example.com"
FOO = "vendor.com/foo"
NODE = "bench"
CLAIMS = unstructured(GroupVersion("resource.k8s.io", "v1"), "resourceclaims", "ResourceClaim")
CPU_MILLISECONDS_MAX = 3.0
LIST_MILLISECONDS_MAX = 5.0
DEVICES_EACH = 8
# Below PodResources' own bound of a hundred a second.
CALLS_PER_SECOND = 80
CALLS = 400
WAIT_SECONDS = 60.0


class Pods:
    """The node's Pods."""

    def __init__(self) -> None:
        self.items: dict[str, Pod] = {}

    def active(self) -> tuple[Pod, ...]:
        """All of them."""
        return tuple(self.items.values())

    all = active

    def get(self, uid: str) -> Pod | None:
        """One of them."""
        return self.items.get(uid)


def rows(counts: tuple[int, ...]) -> Iterator[Row]:
    """For each number of Pods."""
    for count in counts:
        yield from _run(_admissions(count))
    for count in counts:
        yield from _run(_listing(count))


def _run(work: Coroutine[Any, Any, list[Row]]) -> list[Row]:
    """On the loop that agents have."""
    # gRPC's handlers around fork only complain when a program is started.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


# --- Admission and preparation. ---


async def _admissions(count: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as name, serving(command="apiserver") as server:
        client = http_client(load_access({}, path=str(server.kubeconfig)), SystemClock())
        await _make_claims(client, count)
        root = Path(name)
        (root / "plugins_registry").mkdir()
        with _process(root, DRIVER, f"--kubeconfig={server.kubeconfig}", f"--node-name={NODE}", *_places(root)):
            found = await _admit_all(root, client, count)
        await client.close()
    return found


def _places(root: Path) -> tuple[str, ...]:
    return f"--root-dir={root}", f"--cdi-dir={root}/cdi"


async def _make_claims(client: Client, count: int) -> None:
    request = {"name": "r", "exactly": {"deviceClassName": NAME}}
    for number in range(count):
        body = {"metadata": {"name": f"c{number}"}, "spec": {"devices": {"requests": [request]}}}
        claim = await client.create(CLAIMS, body, "default")
        result = {"request": "r", "driver": NAME, "pool": NODE, "device": f"slot-{number}"}
        consumer = {"resource": "pods", "name": f"p{number}", "uid": f"u{number}"}
        claim["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [consumer]}
        await client.update(CLAIMS, claim, WriteOptions(subresource="status"))


async def _admit_all(root: Path, client: Client, count: int) -> list[Row]:
    pods, clock, metrics = Pods(), SystemClock(), Metrics()
    claims = DynamicResources(client, NODE, str(root), clock, metrics)
    plugins = PluginRegistry(str(root / "plugins_registry"), {DRA_PLUGIN: claims}, clock, metrics)
    async with _device_plugin(root, pods, count) as devices, TaskGroup("bench") as group:
        group.spawn(claims.run(), "claims")
        group.spawn(plugins.run(), "plugins")
        manager = AlignedResources(devices)
        warm = _pod("warm", 0)
        deadline = time.monotonic() + WAIT_SECONDS
        while not isinstance(outcome := await claims.prepare(_pod(0, 1)), Prepared):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{outcome}: {(root / 'log').read_text()}")
            await asyncio.sleep(0.05)
        await manager.admit(warm)
        began, used = time.perf_counter(), time.process_time()
        for number in range(count):
            pod = _pod(number, 1)
            assert await manager.admit(pod) is None
            pods.items[pod.metadata.uid or ""] = pod
            outcome = await claims.prepare(pod)
            assert isinstance(outcome, Prepared), outcome
            claims.container_devices(pod, pod.spec.containers[0])
            manager.container_options(pod, "a")
        wall, cpu = time.perf_counter() - began, time.process_time() - used
        used = time.process_time()
        for pod in pods.active():
            assert await claims.unprepare(UID(pod.metadata.uid or "")) is None
            await manager.release(pod)
        undo = time.process_time() - used
    parameters = {"pods": count}
    target = Target(CPU_MILLISECONDS_MAX) if count <= 110 else None
    return [
        Row("node: CPU to admit and prepare a Pod", cpu / count * 1000, "ms", parameters, target),
        Row("node: time to admit and prepare a Pod", wall / count * 1000, "ms", parameters),
        Row("node: CPU to release a Pod", undo / count * 1000, "ms", parameters, target),
    ]


def _pod(number: int | str, devices: int) -> Pod:
    return from_document(
        Pod,
        {
            "metadata": {"name": f"p{number}", "namespace": "default", "uid": f"u{number}"},
            "spec": {
                "containers": [
                    {
                        "name": "a",
                        "image": "x",
                        "resources": {"limits": {FOO: str(devices)}, "claims": [{"name": "c"}]},
                    }
                ],
                "resourceClaims": [{"name": "c", "resourceClaimName": f"c{number}"}],
            },
        },
    )


@contextlib.contextmanager
def _process(root: Path, program: Path, *arguments: str) -> Iterator[None]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(TOP), os.environ.get("PYTHONPATH")]))}
    with (root / "log").open("a") as log:
        process = subprocess.Popen([sys.executable, str(program), *arguments], env=environment, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.asynccontextmanager
async def _device_plugin(root: Path, pods: Pods, count: int) -> AsyncIterator[PluginDevices]:
    """The node's side of a plugin with so many devices, once it knows them."""
    folder = root / "device-plugins"
    (root / "control").mkdir()
    devices = PluginDevices(str(folder), NodePods(pods), SystemClock(), Metrics())
    serving_devices = asyncio.create_task(devices.run())
    await devices.wait_started()
    ids = ",".join(f"d{number}" for number in range(count))
    with _process(root, PLUGIN, str(folder), str(root / "control"), ids):
        deadline = time.monotonic() + WAIT_SECONDS
        while devices.node_resources().allocatable.get(FOO) != str(count):
            if time.monotonic() > deadline:
                raise TimeoutError((root / "log").read_text())
            await asyncio.sleep(0.05)
        yield devices
    serving_devices.cancel()
    await asyncio.gather(serving_devices, return_exceptions=True)


# --- PodResources. ---


async def _listing(count: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        root, pods = Path(name), Pods()
        async with _device_plugin(root, pods, count * DEVICES_EACH) as devices, TaskGroup("bench") as group:
            manager = AlignedResources(devices)
            for number in range(count):
                pod = _pod(number, DEVICES_EACH)
                assert await manager.admit(pod) is None
                pods.items[pod.metadata.uid or ""] = pod
            server = pod_resources.PodResourcesServer(name, Sources(pods, devices), SystemClock(), Metrics())
            group.spawn(server.run(), "pod resources")
            await server.wait_started()
            used = time.process_time()
            seconds = await _ask(server.path, pods)
            cpu = time.process_time() - used
    parameters = {"pods": count, "devices": count * DEVICES_EACH, "calls/s": CALLS_PER_SECOND}
    target = Target(LIST_MILLISECONDS_MAX) if count <= 110 else None
    return [
        Row("node: PodResources List, p99", percentile(seconds, 0.99) * 1000, "ms", parameters, target),
        Row("node: PodResources List, calls a second of CPU", len(seconds) / cpu, "calls/s", parameters),
    ]


async def _ask(path: str, pods: Pods) -> list[float]:
    """Ask from another process, while Pods come and go."""
    client = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("pod_resources_client.py")),
        path,
        str(CALLS),
        str(CALLS_PER_SECOND),
        stdout=asyncio.subprocess.PIPE,
    )

    async def change() -> None:
        while True:
            await asyncio.sleep(1.0)
            # A new form of a Pod: the last answer is no good any more.
            uid, pod = next(iter(pods.items.items()))
            pods.items[uid] = from_document(Pod, _document(pod))

    changing = asyncio.create_task(change())
    out, _ = await client.communicate()
    changing.cancel()
    found: list[float] = json.loads(out)
    return found


def _document(pod: Pod) -> Document:
    from dray.api.codec import to_document

    return to_document(pod)
