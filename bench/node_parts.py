"""The node's own work for Pods with devices: admission and preparation, and what PodResources answers.

Device plugin and driver are processes of their own, so that what is counted is the node's.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from bench.processes import serving
from bench.rows import Row, Target, percentile
from dray.api.codec import from_document
from dray.api.document import UID, Document, GroupVersion, NamespacedName
from dray.api.types.core_v1 import Pod
from dray.client.credentials import load_access
from dray.client.http import http_client
from dray.client.interface import Client, WriteOptions, unstructured
from dray.cmd.main import GC_THRESHOLDS
from dray.node.devices.assignments import NO_NUMA_NODE, Assignment, AssignmentKey
from dray.node.devices.checkpoint import FILE_NAME as DEVICES_FILE
from dray.node.devices.checkpoint import Checkpoint as DeviceCheckpoint
from dray.node.devices.checkpoint import encode as encode_devices
from dray.node.devices.device_manager import DeviceManager, NodePods
from dray.node.dra.checkpoint import FILE_NAME as CLAIMS_FILE
from dray.node.dra.checkpoint import encode as encode_claims
from dray.node.dra.claims import ClaimInfo, Device
from dray.node.dra.dra_manager import DraManager, Prepared
from dray.node.plugins.plugin_manager import PluginManager
from dray.node.pod_resources import server as pod_resources
from dray.node.pod_resources.sources import Sources
from dray.node.topology.topology_manager import TopologyManager
from dray.rpc.dra_services import DRA_PLUGIN
from dray.runtime.metrics import Metrics
from dray.runtime.system import SystemClock
from dray.runtime.tasks import TaskGroup

TOP = Path(__file__).parents[1]
PLUGIN = TOP / "tests" / "e2e" / "node_devices" / "plugin_process.py"
DRIVER = TOP / "examples" / "env-driver" / "driver.py"
NAME = "env.example.com"
FOO = "vendor.com/foo"
NODE = "bench"
CLAIMS = unstructured(GroupVersion("resource.k8s.io", "v1"), "resourceclaims", "ResourceClaim")
# The Pods that are looked at, of however many the node has.
MEASURED = 110
CPU_MILLISECONDS_MAX = 3.0
LIST_MILLISECONDS_MAX = 5.0
DEVICES_EACH = 8
# Below PodResources' own bound of a hundred a second.
CALLS_PER_SECOND = 80
CALLS = 400
WAIT_SECONDS = 60.0


class Pods:
    """The node's Pods."""

    def __init__(self, pods: Iterable[Pod] = ()) -> None:
        self.items = {pod.metadata.uid or "": pod for pod in pods}

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
    """On the loop that agents have, with as few collections as there."""
    gc.set_threshold(*GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


# --- Admission and preparation. ---


async def _admissions(count: int) -> list[Row]:
    """Of the last Pods that make up the number; the node has the others already, from its checkpoints."""
    held, new = _pods(count - MEASURED), _pods(count)[-MEASURED:]
    with tempfile.TemporaryDirectory() as name, serving(command="apiserver") as server:
        client = http_client(load_access({}, path=str(server.kubeconfig)), SystemClock())
        await _make_claims(client, new)
        root = Path(name)
        (root / "plugins_registry").mkdir()
        _hold(root, held, devices_each=1)
        with _process(root, DRIVER, f"--kubeconfig={server.kubeconfig}", f"--node-name={NODE}", *_places(root)):
            found = await _admit_all(root, client, held, new)
        await client.close()
    return found


def _places(root: Path) -> tuple[str, ...]:
    return f"--root-dir={root}", f"--cdi-dir={root}/cdi"


def _pods(count: int, devices: int = 1) -> list[Pod]:
    return [_pod(f"{number:04}", devices) for number in range(count)]


def _claim_of(pod: Pod) -> str:
    return pod.spec.resource_claims[0].resource_claim_name or ""


def _hold(root: Path, pods: list[Pod], devices_each: int) -> None:
    """As if the node had admitted the Pods before it was started."""
    assigned, claims = [], []
    for number, pod in enumerate(pods):
        uid, key = UID(pod.metadata.uid or ""), NamespacedName("default", _claim_of(pod))
        ids = tuple(f"d{number * devices_each + device}" for device in range(devices_each))
        assigned.append((AssignmentKey(uid, "a", FOO), Assignment({NO_NUMA_NODE: ids}, b"")))
        device = Device(NODE, f"slot-{number}", None, ("r",), (f"{NAME}/slot={number}",))
        claims.append(ClaimInfo(UID(f"{uid}-claim"), key, {NAME: (device,)}, frozenset({uid})))
    (root / "device-plugins").mkdir()
    (root / "control").mkdir()
    if pods:
        state = DeviceCheckpoint(tuple(assigned), {FOO: ()})
        (root / "device-plugins" / DEVICES_FILE).write_bytes(encode_devices(state))
        (root / CLAIMS_FILE).write_bytes(encode_claims(claims))


async def _make_claims(client: Client, pods: list[Pod]) -> None:
    request = {"name": "r", "exactly": {"deviceClassName": NAME}}
    for number, pod in enumerate(pods):
        body = {"metadata": {"name": _claim_of(pod)}, "spec": {"devices": {"requests": [request]}}}
        claim = await client.create(CLAIMS, body, "default")
        result = {"request": "r", "driver": NAME, "pool": NODE, "device": f"slot-{number}"}
        consumer = {"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid}
        claim["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [consumer]}
        await client.update(CLAIMS, claim, WriteOptions(subresource="status"))


@dataclass(slots=True)
class _Node:
    """The parts of a node that Pods with devices need."""

    pods: Pods
    claims: DraManager
    manager: TopologyManager

    async def admit(self, pod: Pod) -> None:
        assert await self.manager.admit(pod) is None
        self.pods.items[pod.metadata.uid or ""] = pod
        outcome = await self.claims.prepare_claims(pod)
        assert isinstance(outcome, Prepared), outcome
        self.claims.container_devices(pod, pod.spec.containers[0])
        self.manager.container_options(pod, "a")

    async def release(self, pod: Pod) -> None:
        assert await self.claims.unprepare_claims(UID(pod.metadata.uid or "")) is None
        await self.manager.release(pod)
        del self.pods.items[pod.metadata.uid or ""]


async def _admit_all(root: Path, client: Client, held: list[Pod], new: list[Pod]) -> list[Row]:
    pods, clock, metrics = Pods(held), SystemClock(), Metrics()
    claims = DraManager(client, NODE, str(root), clock, metrics)
    plugins = PluginManager(str(root / "plugins_registry"), {DRA_PLUGIN: claims}, clock, metrics)
    count = len(held) + len(new)
    async with _device_plugin(root, pods, count) as devices, TaskGroup("bench") as group:
        group.spawn(claims.run(), "claims")
        group.spawn(plugins.run(), "plugins")
        node = _Node(pods, claims, TopologyManager(devices))
        await _until_prepared(root, node, new[0])
        alone = [await _measured(_one_by_one(step, new)) for step in (node.admit, node.release)]
        together = [await _measured(_at_once(step, new)) for step in (node.admit, node.release)]
    found = []
    for way, costs in {"one by one": alone, "all at once": together}.items():
        parameters = {"pods": count, "come": way}
        admit, release = costs
        found += [
            _cpu_row("node: CPU to admit and prepare a Pod", admit, parameters),
            Row("node: time to admit and prepare a Pod", admit.wall, "ms", parameters),
            _cpu_row("node: CPU to release a Pod", release, parameters),
        ]
    return found


def _cpu_row(name: str, cost: _Cost, parameters: dict[str, Any]) -> Row:
    shown = {**parameters, "kernel": f"{cost.kernel:.2f}"}
    # That of what Kubernetes allows on a node; ten times that shows how the cost grows.
    target = Target(CPU_MILLISECONDS_MAX) if parameters["pods"] <= MEASURED else None
    return Row(name, cost.user + cost.kernel, "ms", shown, target)


async def _until_prepared(root: Path, node: _Node, pod: Pod) -> None:
    """The driver and the plugin are there, and everything has been done once."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not isinstance(outcome := await node.claims.prepare_claims(pod), Prepared):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{outcome}: {(root / 'log').read_text()}")
        await asyncio.sleep(0.05)
    await node.admit(pod)
    await node.release(pod)


async def _one_by_one(step: Callable[[Pod], Awaitable[None]], pods: list[Pod]) -> None:
    for pod in pods:
        await step(pod)


async def _at_once(step: Callable[[Pod], Awaitable[None]], pods: list[Pod]) -> None:
    await asyncio.gather(*map(step, pods))


@dataclass(frozen=True, slots=True)
class _Cost:
    """Milliseconds for one Pod: of all threads of this process, and of the clock on the wall."""

    user: float
    # Among others for files that are on the disk before the Pod goes on.
    kernel: float
    wall: float


async def _measured(work: Awaitable[None]) -> _Cost:
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    await work
    after, ended = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    spent = (after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime, ended - began)
    return _Cost(*(seconds / MEASURED * 1000 for seconds in spent))


def _pod(number: str, devices: int) -> Pod:
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
async def _device_plugin(root: Path, pods: Pods, count: int) -> AsyncIterator[DeviceManager]:
    """Return the node's device manager after a plugin has reported this number of devices."""
    folder = root / "device-plugins"
    devices = DeviceManager(str(folder), NodePods(pods), SystemClock(), Metrics())
    ids = ",".join(f"d{number}" for number in range(count))
    async with TaskGroup("device manager") as group:
        group.spawn(devices.run(), "devices")
        await devices.wait_started()
        with _process(root, PLUGIN, str(folder), str(root / "control"), ids):
            deadline = time.monotonic() + WAIT_SECONDS
            while devices.node_resources().allocatable.get(FOO) != str(count):
                if time.monotonic() > deadline:
                    raise TimeoutError((root / "log").read_text())
                await asyncio.sleep(0.05)
            yield devices


# --- PodResources. ---


async def _listing(count: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        root, pods = Path(name), Pods(_pods(count, DEVICES_EACH))
        _hold(root, list(pods.active()), DEVICES_EACH)
        async with _device_plugin(root, pods, count * DEVICES_EACH) as devices, TaskGroup("bench") as group:
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

    async with TaskGroup("changes") as group:
        group.spawn(change(), "change")
        out, _ = await client.communicate()
    assert client.returncode == 0, f"the client ended with {client.returncode}"
    found: list[float] = json.loads(out)
    return found


def _document(pod: Pod) -> Document:
    from dray.api.codec import to_document

    return to_document(pod)
