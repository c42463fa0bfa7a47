"""Scheduling throughput of a whole cluster, with and without devices; `workloads` defines the Pods.

`python -m bench.scheduler [--quick | --long] [PATTERN]` prints a table. Each workload has a process of its own, so that
its processor time and its memory are its own too: `--run NAME` is that process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from bench import workloads
from bench.cluster import BoundPods, Counted, cluster, for_all
from bench.device_objects import PODS
from bench.rows import Row, Target, number, percentile, progress, show
from bench.workloads import Workload
from dray.client.interface import Client, DeleteOptions
from dray.runtime.tasks import TaskGroup

SECONDS_MAX = 400.0
NOW = DeleteOptions(grace_period_seconds=0)


@dataclass(slots=True)
class Measured:
    """Measurements of one run."""

    seconds: float
    processor_seconds: float
    # From asking for each Pod to hearing of its node.
    waited: list[float]
    # Pods placed in each whole second.
    each_second: list[int]
    setup_megabytes: float
    peak_megabytes: float
    # What the API server was asked, by verb and resource.
    requests: Counter[str]


class Run:
    """One workload on its cluster."""

    def __init__(self, workload: Workload, client: Client, counted: Counted) -> None:
        self._workload = workload
        self._client = client
        self._counted = counted
        self._asked: dict[str, float] = {}
        self._pods = BoundPods(time.perf_counter)

    async def measure(self) -> Measured:
        """All Pods of the workload, from the first that is asked for to the last that is placed."""
        async with TaskGroup("listen") as group:
            group.spawn(self._pods.watch(self._client), "bound Pods")
            await self._pods.wait_until_watching()
            await self._warm_up()
            memory = peak_megabytes()
            self._counted.requests.clear()
            started, used = time.perf_counter(), time.process_time()
            await asyncio.wait_for(self._all(), SECONDS_MAX)
            ended, used = time.perf_counter(), time.process_time() - used
            await group.cancel()
        bound = {name: when for name, when in self._pods.bound.items() if name in self._asked}
        return Measured(
            ended - started,
            used,
            [when - self._asked[name] for name, when in bound.items()],
            per_second([when - started for when in bound.values()]),
            memory,
            peak_megabytes(),
            self._counted.requests.copy(),
        )

    async def _warm_up(self) -> None:
        """Wait until a first Pod is scheduled: all informers have synced by then."""
        await self._client.create(
            PODS, self._workload.pod(-1) | {"metadata": {"name": "first", "namespace": "default"}}
        )
        await self._pods.wait_for(1)
        await self._client.delete(PODS, "first", "default", NOW)
        earlier = self._workload.earlier_pod
        if earlier is not None:
            numbers = range(self._workload.earlier_pods)
            await for_all(numbers, lambda number: self._client.create(PODS, earlier(number)))
            await self._pods.wait_for(1 + self._workload.earlier_pods)

    async def _all(self) -> None:
        size = self._workload.churn or self._workload.pods
        for start in range(0, self._workload.pods, size):
            numbers = range(start, min(start + size, self._workload.pods))
            await for_all(numbers, self._create)
            await self._pods.wait_for(numbers.stop + 1 + self._workload.earlier_pods)
            if self._workload.churn:
                await for_all(numbers, self._delete)

    async def _create(self, number: int) -> None:
        document = self._workload.pod(number)
        self._asked[document["metadata"]["name"]] = time.perf_counter()
        await self._client.create(PODS, document)

    async def _delete(self, number: int) -> None:
        await self._client.delete(PODS, self._workload.pod(number)["metadata"]["name"], "default", NOW)


def per_second(moments: Sequence[float]) -> list[int]:
    """How many fall into each whole second; the last one, which is not whole, is left out unless it is the only one."""
    counted = Counter(int(moment) for moment in moments)
    return [counted[second] for second in range(max(counted))] or [len(moments)]


def peak_megabytes() -> float:
    """Return the peak memory of this process; the value of getrusage includes the parent process before exec."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise SystemExit("the kernel does not tell the peak of memory")


async def measure(workload: Workload, kind: type[Run] = Run, *, uses_huge_pages: bool = True) -> Measured:
    """Run one workload in this process."""
    prepare = partial(workloads.prepare, workload=workload)
    running = cluster(prepare, feature_gates=workload.feature_gates, uses_huge_pages=uses_huge_pages)
    async with running as (client, counted):
        return await kind(workload, client, counted).measure()


def rows_of(workload: Workload, found: Measured) -> Iterator[Row]:
    """Return the row of a run in the report."""
    shares = {f"p{int(100 * share)}/s": percentile(found.each_second, share) for share in (0.1, 0.5, 0.9)}
    parameters: dict[str, Any] = {"pods": workload.pods, "nodes": workload.nodes}
    if workload.devices:
        parameters["devices"] = workload.nodes * workload.devices
    # On a busy machine the processor time says more than the clock.
    parameters |= shares | {"processor": f"{1000 * found.processor_seconds / workload.pods:.2f}ms/pod"}
    name = f"scheduler: {workload.name}"
    yield Row(name, workload.pods / found.seconds, "pods/s", parameters, workload.target)
    yield Row(f"{name}, p50", 1000 * percentile(found.waited, 0.5), "ms")
    yield Row(f"{name}, p99", 1000 * percentile(found.waited, 0.99), "ms")
    yield Row(f"{name}, processor", found.processor_seconds, "s", {"seconds": round(found.seconds, 1)})
    each = {kind: round(count / workload.pods, 2) for kind, count in sorted(found.requests.items())}
    asked = {kind: count for kind, count in each.items() if count}
    yield Row(f"{name}, requests", found.requests.total() / workload.pods, "/pod", asked, workload.requests_target)
    yield Row(
        f"{name}, peak memory",
        found.peak_megabytes,
        "MB",
        {"before the first Pod": number(found.setup_megabytes)},
        workload.memory_target,
    )


def in_own_process(workload: Workload) -> Iterator[Row]:
    """The rows of a workload, measured by a new process."""
    progress(workload.name)
    command = [sys.executable, "-m", "bench.scheduler", "--run", workload.name]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=SECONDS_MAX)
    for line in answer.stdout.splitlines():
        document = json.loads(line)
        limit, sign = document.pop("limit"), document.pop("at_least")
        yield Row(**document, target=None if limit is None else Target(limit, sign))


def answer(workload: Workload) -> None:
    """Measure, and write the rows to the process that asked."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(measure(workload))
    for row in rows_of(workload, found):
        target = row.target
        document = {"name": row.name, "value": row.value, "unit": row.unit, "parameters": row.parameters}
        document |= {"limit": target and target.limit, "at_least": target is not None and target.at_least}
        print(json.dumps(document))


def rows(chosen: Sequence[Workload] = workloads.DEFAULT, pattern: str = "") -> Iterator[Row]:
    """All measurements of the workloads whose name has the pattern in it."""
    rates: dict[str, float] = {}
    for workload in chosen:
        if pattern not in workload.name:
            continue
        first, *others = in_own_process(workload)
        rates[workload.name] = first.value
        yield from (first, *others)
        if workload.against in rates:
            share = first.value / rates[workload.against]
            name = f"scheduler: {workload.name}, of the rate of {workload.against}"
            yield Row(name, share, "x", target=workload.against_target)


def main() -> None:
    """Run the selected workloads."""
    parser = argparse.ArgumentParser(prog="bench.scheduler", description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="part of a workload's name")
    parser.add_argument("--quick", action="store_true", help="smaller clusters, for a look")
    parser.add_argument("--long", action="store_true", help="what takes minutes, too")
    parser.add_argument("--run", metavar="NAME", help="one workload, in this process, as JSON")
    given = parser.parse_args()
    if given.run is not None:
        answer(workloads.BY_NAME[given.run])
        return
    chosen = workloads.QUICK if given.quick else workloads.DEFAULT + (workloads.LONG if given.long else ())
    for row in rows(chosen, given.pattern):
        progress("")
        show(row)


if __name__ == "__main__":
    main()
