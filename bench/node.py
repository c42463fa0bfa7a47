"""The benchmarks of the node agent: containers by each runtime, and Pods on simulated nodes."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench import node_agent, node_parts
from bench.rows import Row
from dray.api.document import Document, GroupVersion
from dray.client.in_process import in_process_client
from dray.client.interface import Client, unstructured
from dray.client.resources import PODS
from dray.cmd import apiserver
from dray.cmd.settings import APIServerSettings
from dray.cmd.simulated_nodes import SimulatedNodes, Simulation
from dray.node.cdi.cache import CdiCache
from dray.node.runtimes.process.runtime import ProcessRuntime
from dray.node.runtimes.runtime import ContainerRecord, ContainerSpec, Runtime, Sandbox
from dray.runtime.system import SystemClock
from dray.runtime.tasks import ChildTasks, TaskGroup

DOCUMENTS = unstructured(GroupVersion("", "v1"), "pods", "Pod")
ACCOUNTS = unstructured(GroupVersion("", "v1"), "serviceaccounts", "ServiceAccount")
RUNS = 20
NODES = 1000
PODS_TOTAL = 1000
RUNNING_SECONDS_MAX = 300.0


# What a node holds at most in Kubernetes, and ten times that.
FULL = (110, 1100)
QUICK = (110,)


def rows(counts: tuple[int, ...] = FULL) -> Iterator[Row]:
    """All of them; some for each number of Pods."""
    yield from node_parts.rows(counts)
    # A process for each of more Pods than that is the machine's affair, not the agent's.
    yield from node_agent.rows(QUICK)
    yield from _runtimes()


def _runtimes() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clock, cdi = SystemClock(), CdiCache([str(folder / "cdi")])
        yield _run_row(asyncio.run(_runs(ProcessRuntime(folder / "process", clock, cdi))), "process")
        yield from asyncio.run(_simulated(folder / "server"))


def _run_row(seconds: list[float], name: str) -> Row:
    return Row(
        f"node: {name} container, start to known end", statistics.median(seconds) * 1000, "ms", {"runs": len(seconds)}
    )


async def _runs(runtime: Runtime) -> list[float]:
    ended: asyncio.Queue[ContainerRecord] = asyncio.Queue()
    await runtime.start(ended.put_nowait, ChildTasks("bench"))
    found = []
    with tempfile.TemporaryDirectory() as logs:
        sandbox = Sandbox("bench", "ns", "p", "p", logs)
        for attempt in range(RUNS):
            began = time.perf_counter()
            await runtime.run(ContainerSpec(sandbox, "a", attempt, "busybox", command=("/bin/true",)))
            record = await ended.get()
            found.append(time.perf_counter() - began)
            await runtime.remove_container(record.id)
    await runtime.stop()
    return found


async def _simulated(folder: Path) -> list[Row]:
    settings = APIServerSettings(data_dir=str(folder), port=0, store="memory")
    async with apiserver.running(settings) as running, TaskGroup("bench") as group:
        client = in_process_client(running.local, user="bench", groups=("system:masters",))
        await client.create(ACCOUNTS, {"metadata": {"name": "default"}}, "default")
        registered = asyncio.Event()
        began = time.perf_counter()
        group.spawn(SimulatedNodes(client, running.clock, Simulation(NODES)).run(registered), "nodes")
        await registered.wait()
        register_rate = NODES / (time.perf_counter() - began)
        began = time.perf_counter()
        for number in range(PODS_TOTAL):
            await client.create(DOCUMENTS, _pod(number), "default")
            if number % 50 == 0:
                await asyncio.sleep(0)
        await _all_running(client)
        pod_rate = PODS_TOTAL / (time.perf_counter() - began)
    return [
        Row("node: simulated nodes registered", register_rate, "nodes/s", {"nodes": NODES}),
        Row(
            "node: Pods created and running on simulated nodes",
            pod_rate,
            "Pods/s",
            {"nodes": NODES, "pods": PODS_TOTAL},
        ),
    ]


def _pod(number: int) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"p{number}", "namespace": "default"},
        "spec": {
            "nodeName": f"sim-{number % NODES}",
            "automountServiceAccountToken": False,
            "containers": [{"name": "a", "image": "none"}],
        },
    }


async def _all_running(client: Client) -> None:
    deadline = time.monotonic() + RUNNING_SECONDS_MAX
    while time.monotonic() < deadline:
        page = await client.list(PODS)
        if sum(pod.status.phase == "Running" for pod in page.items) == PODS_TOTAL:
            return
        await asyncio.sleep(0.1)
    raise TimeoutError("Pods do not run")


if __name__ == "__main__":
    for row in rows():
        print(row)
