"""Writes to an API server in the same process, as the controllers make them: without HTTP and TLS.

`python -m bench.in_process` reads a plan as JSON from stdin and writes the measurements as JSON to stdout.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

from bench.load import FILLER
from dray.api.document import Document, GroupVersion
from dray.client.in_process import in_process_client
from dray.client.interface import unstructured
from dray.client.rest import RestClient
from dray.cmd import apiserver
from dray.cmd.settings import APIServerSettings

CONFIG_MAPS = unstructured(GroupVersion("", "v1"), "configmaps", "ConfigMap")
NAMESPACE = "default"


def config_map(name: str) -> Document:
    """Return the object that the load generator writes."""
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "data": {"text": FILLER}}


async def create(client: RestClient, plan: dict[str, Any], times: list[float]) -> Callable[[], Awaitable[None]]:
    """Return a coroutine function of one client that creates objects; all clients share the numbers."""
    numbers = iter(range(plan["total"]))

    async def run_client() -> None:
        for number in numbers:
            start = time.perf_counter()
            await client.create(CONFIG_MAPS, config_map(f"{plan['prefix']}-{number}"))
            times.append(time.perf_counter() - start)

    return run_client


async def update(client: RestClient, plan: dict[str, Any], times: list[float]) -> Callable[[], Awaitable[None]]:
    """Return a coroutine function of one client that updates its own object, with resource version checks."""
    created = iter(
        [
            await client.create(CONFIG_MAPS, config_map(f"{plan['prefix']}-{number}"))
            for number in range(plan["clients"])
        ]
    )
    rounds = plan["total"] // plan["clients"]

    async def run_client() -> None:
        current = next(created)
        for number in range(rounds):
            changed = {**current, "data": {"text": FILLER, "n": str(number)}}
            start = time.perf_counter()
            current = await client.update(CONFIG_MAPS, changed)
            times.append(time.perf_counter() - start)

    return run_client


MODES = {"create": create, "update": update}


async def run(plan: dict[str, Any]) -> dict[str, Any]:
    """Start a server and run the plan."""
    settings = APIServerSettings(
        data_dir=plan["data_dir"], port=0, store=plan["store"], etcd_servers=tuple(plan.get("etcd", ()))
    )
    async with apiserver.running(settings) as running:
        client = in_process_client(running.local, user="admin", groups=("system:masters",))
        times: list[float] = []
        work = await MODES[plan["mode"]](client, plan, times)
        start, before = time.perf_counter(), time.process_time()
        await asyncio.gather(*(work() for _ in range(plan["clients"])))
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "times": times, "server_cpu": time.process_time() - before}


def main() -> None:
    """Read the plan, run it and write the measurements."""
    plan = json.load(sys.stdin)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        json.dump(runner.run(run(plan)), sys.stdout)


if __name__ == "__main__":
    main()
