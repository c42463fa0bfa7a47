"""Benchmark of Pods whose claims a classic driver allocates: each Pod has one Delayed claim.

`python -m bench.classic [--quick]` prints the rows; `--run NODES PODS` measures in this process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import uvloop

from bench import device_objects as made
from bench.cluster import BoundPods, cluster, create_all, for_all
from bench.rows import Row, Target, percentile, progress, show
from dray.api.document import Document, GroupVersion
from dray.client.interface import Client, unstructured
from dray.driver.classic import Allocation, Claim, ClassicController, NoRoomError, Options, serve
from dray.runtime.system import SystemClock
from dray.runtime.tasks import TaskGroup

CLASSES = unstructured(GroupVersion("cdi.k8s.io", "v1alpha1"), "resourceclasses", "ResourceClass", namespaced=False)
DRIVER = "board.example.com"
DRIVER_SECONDS = 0.001
BOARDS_PER_NODE = 20
SECONDS_MAX = 400.0
TARGET = Target(100, at_least=True)


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the cluster."""

    nodes: int
    pods: int


FULL = Size(100, 1000)
QUICK = Size(20, 200)


class Boards(ClassicController):
    """A driver that responds to every call within a millisecond."""

    name = DRIVER

    def __init__(self) -> None:
        self._used: dict[str, str] = {}
        self._counts: Counter[str] = Counter()

    async def unsuitable_nodes(self, claims: Sequence[Claim], nodes: Sequence[str]) -> Iterable[str]:
        """Return the nodes without enough free boards."""
        await asyncio.sleep(DRIVER_SECONDS)
        return [node for node in nodes if self._counts[node] + len(claims) > BOARDS_PER_NODE]

    async def allocate(
        self, claim: Claim, class_parameters: Mapping[str, Any], claim_parameters: Mapping[str, Any], node: str | None
    ) -> Allocation:
        """Allocate a board of the node."""
        await asyncio.sleep(DRIVER_SECONDS)
        if node is None or self._counts[node] >= BOARDS_PER_NODE:
            raise NoRoomError(f"no board on {node}")
        self._counts[node] += 1
        self._used[claim.uid] = node
        return Allocation({"node": node}, nodes=[node])

    async def deallocate(self, claim: Claim) -> None:
        """Free the board."""
        node = self._used.pop(claim.uid, None)
        if node is not None:
            self._counts[node] -= 1


def pod(number: int) -> Document:
    """Return a Pod with its own claim."""
    entry = {"name": "board", "template": {"spec": {"resourceClassName": "board"}}}
    return made.pod(number, resourceClaims=[entry])


async def _prepare(client: Client, size: Size) -> None:
    await client.create(CLASSES, {"metadata": {"name": "board"}, "driverName": DRIVER})
    await create_all(client, ((made.NODES, made.node(number)) for number in range(size.nodes)))


async def measure(size: Size) -> dict[str, Any]:
    """Measure from the first created Pod to the last scheduled one."""
    async with cluster(lambda client: _prepare(client, size)) as (client, counted), TaskGroup("bench") as group:
        group.spawn(serve(Boards(), client, SystemClock(), options=Options(leader_elect=False)), "driver")
        bound = BoundPods(time.perf_counter)
        group.spawn(bound.watch(client), "bound Pods")
        await bound.wait_until_watching()
        created: dict[str, float] = {}

        async def create(number: int) -> None:
            document = pod(number)
            created[document["metadata"]["name"]] = time.perf_counter()
            await client.create(made.PODS, document)

        await create(size.pods)
        await bound.wait_for(1)
        counted.requests.clear()
        started, used = time.perf_counter(), time.process_time()
        await for_all(range(size.pods), create)
        await asyncio.wait_for(bound.wait_for(size.pods + 1), SECONDS_MAX)
        ended, used = time.perf_counter(), time.process_time() - used
        await group.cancel()
    latencies = [when - created[name] for name, when in bound.bound.items()]
    return {
        "rate": size.pods / (ended - started),
        "p50": percentile(latencies, 0.5),
        "p99": percentile(latencies, 0.99),
        "requests": counted.requests.total() / size.pods,
        "processor": used / size.pods,
    }


def rows(size: Size = FULL) -> Iterator[Row]:
    """Measure in a subprocess and yield the rows."""
    progress("classic claims")
    command = [sys.executable, "-m", "bench.classic", "--run", str(size.nodes), str(size.pods)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=SECONDS_MAX)
    found = json.loads(answer.stdout)
    parameters = {
        "pods": size.pods,
        "nodes": size.nodes,
        "driver": "1ms",
        "requests": f"{found['requests']:.1f}/pod",
        "processor": f"{1000 * found['processor']:.2f}ms/pod",
    }
    yield Row("classic: one delayed claim each", found["rate"], "pods/s", parameters, TARGET)
    yield Row("classic: one delayed claim each, p50", 1000 * found["p50"], "ms")
    yield Row("classic: one delayed claim each, p99", 1000 * found["p99"], "ms")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="bench.classic", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="use a smaller cluster")
    parser.add_argument("--run", nargs=2, type=int, metavar=("NODES", "PODS"), help="in this process, as JSON")
    arguments = parser.parse_args()
    if arguments.run is not None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            print(json.dumps(runner.run(measure(Size(*arguments.run)))))
        return
    for row in rows(QUICK if arguments.quick else FULL):
        show(row)


if __name__ == "__main__":
    main()
