"""Benchmark of the node agent process: startup time, memory, and the rate at which Pods start and stop."""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.load import cpu_seconds
from bench.processes import resident_megabytes, serving
from bench.rows import Row, Target
from dray.api.document import Document, GroupVersion
from dray.api.errors import AlreadyExistsError
from dray.client.interface import Client, DeleteOptions, ListOptions, unstructured
from dray.client.resources import PODS
from tests.e2e.node.devices import FOO, plugin
from tests.e2e.node.harness import Agent, client_of

DOCUMENTS = unstructured(GroupVersion("", "v1"), "pods", "Pod")
NODES = unstructured(GroupVersion("", "v1"), "nodes", "Node", namespaced=False)
ACCOUNTS = unstructured(GroupVersion("", "v1"), "serviceaccounts", "ServiceAccount")
READY_SECONDS_MAX = 1.0
IDLE_MEGABYTES_MAX = 60.0
WAIT_SECONDS = 300.0
STARTS = 3


def rows(counts: tuple[int, ...]) -> Iterator[Row]:
    """Start-up and memory, and Pods for each number of them."""
    with running_agent(110) as agent:
        seconds = [_start_again(agent) for _ in range(STARTS)]
        yield Row("node: agent ready", min(seconds), "s", {"starts": STARTS}, Target(READY_SECONDS_MAX))
        assert agent.process is not None
        pid = agent.process.pid
        time.sleep(2.0)
        memory = Target(IDLE_MEGABYTES_MAX)
        yield Row("node: agent's memory, idle", resident_megabytes(pid), "MB", {"measure": "resident"}, memory)
        yield Row("node: agent's memory, idle", _private_megabytes(pid), "MB", {"measure": "its own alone"})
    for count in counts:
        with running_agent(count) as agent:
            yield from asyncio.run(_pods(agent, count))


@contextlib.contextmanager
def running_agent(pods_max: int) -> Iterator[Agent]:
    """Run a server and an agent with the process runtime for the time of the block."""
    with tempfile.TemporaryDirectory(prefix="node") as name, serving() as server:
        flags = ("--runtime=process", f"--max-pods={pods_max}")
        agent = Agent(server, Path(name), "bench", flags)
        agent.start()
        try:
            yield agent
        finally:
            agent.stop()
            for pid in agent.shims():
                text = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[-2]
                folder = Path(re.sub(r"/job\.json$", "", text))
                if folder.is_relative_to(agent.root):
                    (folder / "control").write_text("SIGKILL\n")


def _start_again(agent: Agent) -> float:
    agent.stop()
    began = time.perf_counter()
    agent.start()
    return time.perf_counter() - began


def _private_megabytes(pid: int) -> float:
    """What no other process has too."""
    found = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(amount) for amount in re.findall(r"Private_(?:Clean|Dirty):\s+(\d+)", found)) * 1024 / 1e6


async def _pods(agent: Agent, count: int) -> list[Row]:
    client = client_of(agent.server)
    with contextlib.suppress(AlreadyExistsError):
        await client.create(ACCOUNTS, {"metadata": {"name": "default"}}, "default")
    assert agent.process is not None
    with plugin(agent, *(f"d{number}" for number in range(count))):
        await _until_allocatable(client, count)
        began, used = time.perf_counter(), cpu_seconds(agent.process.pid)
        for number in range(count):
            await client.create(DOCUMENTS, _pod(number), "default")
        await _until_running(client, count)
        seconds, cpu = time.perf_counter() - began, cpu_seconds(agent.process.pid) - used
        memory = resident_megabytes(agent.process.pid)
        began = time.perf_counter()
        for number in range(count):
            await client.delete(DOCUMENTS, f"p{number}", "default", DeleteOptions())
        await _until_gone(client)
        ended = time.perf_counter() - began
    await client.close()
    parameters = {"pods": count, "devices": count}
    return [
        Row("node: Pods with a device, created to running", count / seconds, "Pods/s", parameters),
        Row("node: agent's CPU for a Pod, seen to running", cpu / count * 1000, "ms", parameters),
        Row("node: Pods with a device, deleted to gone", count / ended, "Pods/s", parameters),
        Row("node: agent's memory with Pods", memory, "MB", parameters),
    ]


def _pod(number: int) -> Document:
    container = {"name": "a", "image": "none", "command": ["sleep", "3600"], "resources": {"limits": {FOO: "1"}}}
    return {
        "metadata": {"name": f"p{number}"},
        "spec": {
            "nodeName": "bench",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
        },
    }


async def _until_allocatable(client: Client, count: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while (await client.get(NODES, "bench")).get("status", {}).get("allocatable", {}).get(FOO) != str(count):
        if time.monotonic() > deadline:
            raise TimeoutError("the device plugin did not register")
        await asyncio.sleep(0.05)


async def _until_running(client: Client, count: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    options = ListOptions(field_selector="status.phase=Running")
    while len((await client.list(PODS, "default", options)).items) < count:
        if time.monotonic() > deadline:
            raise TimeoutError("Pods do not run")
        await asyncio.sleep(0.1)


async def _until_gone(client: Client) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while (await client.list(PODS, "default")).items:
        if time.monotonic() > deadline:
            raise TimeoutError("Pods do not go")
        await asyncio.sleep(0.1)
