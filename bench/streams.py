"""Streams into containers: how soon a command is ready, how fast bytes pass, and what many sessions cost the API."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Iterator
from typing import Any

from kubernetes import client as kubernetes
from kubernetes import config
from kubernetes.stream import stream

from bench.load import cpu_seconds
from bench.node_agent import ACCOUNTS, DOCUMENTS, running_agent
from bench.rows import Row, Target
from dray.api.errors import AlreadyExistsError
from dray.client.interface import Client
from tests.e2e.node.harness import Agent, client_of

RUNS = 20
SESSIONS = 50
# Processor time is counted in hundredths of a second: a pair is exact to about 2 %.
REQUESTS = 1500
ROUNDS = 5
READY_MILLISECONDS_MAX = 50.0
# Requests beside idle sessions take at most this much more processor time.
SLOWDOWN_PERCENT_MAX = 10.0
WAIT_SECONDS = 60.0
POD = {"name": "a", "image": "none", "command": ["sleep", "3600"]}


def rows() -> Iterator[Row]:
    """All of them, with the process runtime."""
    with running_agent(10) as agent, config.new_client_from_config(str(agent.server.kubeconfig)) as api:
        core = kubernetes.CoreV1Api(api)
        asyncio.run(_start(agent))
        ready = statistics.median(_ready_seconds(core) for _ in range(RUNS)) * 1000
        yield Row(
            "streams: exec ready", ready, "ms", {"runs": RUNS, "runtime": "process"}, Target(READY_MILLISECONDS_MAX)
        )
        assert agent.process is not None
        pids = (agent.process.pid, agent.server.process.pid)
        before = sum(map(cpu_seconds, pids))
        for _ in range(RUNS):
            _ready_seconds(core)
        cpu = (sum(map(cpu_seconds, pids)) - before) / RUNS * 1000
        yield Row("streams: CPU of agent and server for an exec", cpu, "ms", {"runs": RUNS, "runtime": "process"})
        pairs = [_pair(core, agent) for _ in range(ROUNDS)]
        alone, beside = (statistics.median(pair[index] for pair in pairs) for index in (0, 1))
        parameters = {"sessions": SESSIONS, "pairs": ROUNDS}
        yield Row("streams: CPU of the server for a request", alone * 1e6, "us", {"pairs": ROUNDS})
        yield Row("streams: the same beside sessions", beside * 1e6, "us", parameters)
        slower = (statistics.median(pair[1] / pair[0] for pair in pairs) - 1) * 100
        yield Row("streams: API slower by", slower, "%", parameters, Target(SLOWDOWN_PERCENT_MAX))


def _pair(core: kubernetes.CoreV1Api, agent: Agent) -> tuple[float, float]:
    """Return the server's processor time of a request alone, and beside idle sessions."""
    alone = asyncio.run(_request_seconds(agent))
    sessions = [_execute(core, "cat") for _ in range(SESSIONS)]
    beside = asyncio.run(_request_seconds(agent))
    for session in sessions:
        session.close()
    return alone, beside


async def _start(agent: Agent) -> None:
    client = client_of(agent.server)
    with contextlib.suppress(AlreadyExistsError):
        await client.create(ACCOUNTS, {"metadata": {"name": "default"}}, "default")
    spec = {"nodeName": agent.name, "automountServiceAccountToken": False, "containers": [POD]}
    await client.create(DOCUMENTS, {"metadata": {"name": "p"}, "spec": spec}, "default")
    await _until_running(client)
    await client.close()


async def _until_running(client: Client) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while (await client.get(DOCUMENTS, "p", "default")).get("status", {}).get("phase") != "Running":
        if time.monotonic() > deadline:
            raise TimeoutError("the Pod does not run")
        await asyncio.sleep(0.05)


def _execute(core: kubernetes.CoreV1Api, script: str) -> Any:
    options = {"stdin": True, "stdout": True, "stderr": True, "tty": False, "_preload_content": False}
    command = ["sh", "-c", f"echo ready; {script}"]
    session = stream(core.connect_get_namespaced_pod_exec, "p", "default", command=command, **options)
    if session.readline_stdout(timeout=WAIT_SECONDS) != "ready":
        raise SystemExit("the command does not answer")
    return session


def _ready_seconds(core: kubernetes.CoreV1Api) -> float:
    began = time.perf_counter()
    session = _execute(core, "cat")
    seconds = time.perf_counter() - began
    session.close()
    return seconds


async def _request_seconds(agent: Agent) -> float:
    """Return the server's processor time of a GET request of one client."""
    client, pid = client_of(agent.server), agent.server.process.pid
    for _ in range(REQUESTS // 10):
        await client.get(DOCUMENTS, "p", "default")
    began = cpu_seconds(pid)
    for _ in range(REQUESTS):
        await client.get(DOCUMENTS, "p", "default")
    seconds = cpu_seconds(pid) - began
    await client.close()
    return seconds / REQUESTS
