"""Benchmark of Pods that share one allocated claim, of either API group: from the first created Pod to the last bound.

`python -m bench.sharing` prints the rows; `--run KIND PODS` measures in this process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import uvloop

from bench import device_objects as made
from bench.cluster import BoundPods, cluster, create_all, for_all
from bench.rows import Row, Target, progress, show
from dray.api.document import Document, GroupVersion
from dray.client.interface import Client, unstructured
from dray.runtime.tasks import TaskGroup

CDI = GroupVersion("cdi.k8s.io", "v1alpha1")
POD_GROUPS = unstructured(GroupVersion("scheduling.k8s.io", "v1beta1"), "podgroups", "PodGroup")
CLASSIC_CLAIMS = unstructured(CDI, "resourceclaims", "ResourceClaim")
NODES = 10
SECONDS_MAX = 300.0
# Seconds; the same number of Pods without claims takes one.
TARGET = Target(3.0)


@dataclass(frozen=True, slots=True)
class Kind:
    """An API group with claims; `gates` are not enabled by default."""

    name: str
    group: str
    pods: int
    target: Target = TARGET
    gates: str = ""


KINDS = (
    Kind("classic", "cdi.k8s.io", 100),
    Kind("structured", "resource.k8s.io", 100),
    # The reservation is the group's, so that it does not bound the number of Pods.
    Kind("group", "a PodGroup", 1000, Target(30.0), "GenericWorkload=true,DRAWorkloadResourceClaims=true"),
)
# Milliseconds of processor time for each Pod of a group, of all components.
GROUP_TARGET = Target(3.0)
ENTRY = {"name": "shared", "resourceClaimName": "shared"}


async def _classic_claim(client: Client) -> None:
    metadata = {"name": "shared", "namespace": "default"}
    spec = {"resourceClassName": "board", "allocationMode": "Immediate"}
    claim = await client.create(CLASSIC_CLAIMS, {"metadata": metadata, "spec": spec})
    status = {"phase": "Allocated", "driverName": "board.example.com", "userLimit": -1}
    await client.update_status(CLASSIC_CLAIMS, {**claim, "status": status})


async def _structured_claim(client: Client) -> None:
    metadata = {"name": "shared", "namespace": "default"}
    claim = await client.create(made.CLAIMS, {"metadata": metadata, "spec": {"devices": made.ONE_DEVICE}})
    result = {"request": "gpu", "driver": made.DRIVER, "pool": "fabric", "device": "gpu-0"}
    await client.update_status(made.CLAIMS, {**claim, "status": {"allocation": {"devices": {"results": [result]}}}})


async def _prepare(client: Client, kind: str) -> None:
    await create_all(client, made.classes())
    await create_all(client, ((made.NODES, made.node(number)) for number in range(NODES)))
    await (_classic_claim(client) if kind == "classic" else _structured_claim(client))
    if kind == "group":
        spec = {"schedulingPolicy": {"basic": {}}, "resourceClaims": [ENTRY]}
        await client.create(POD_GROUPS, {"metadata": {"name": "all", "namespace": "default"}, "spec": spec})


def pod(number: int, kind: str) -> Document:
    """Return a Pod that uses the shared claim."""
    group = {"schedulingGroup": {"podGroupName": "all"}} if kind == "group" else {}
    return made.pod(number, resourceClaims=[ENTRY], **group)


async def measure(kind: str, pods: int) -> dict[str, Any]:
    """Measure from the first created Pod to the last bound one."""
    gates = next(item.gates for item in KINDS if item.name == kind)
    running = cluster(lambda client: _prepare(client, kind), feature_gates=gates)
    async with running as (client, counted), TaskGroup("bench") as group:
        bound = BoundPods(time.perf_counter)
        group.spawn(bound.watch(client), "bound Pods")
        await bound.wait_until_watching()
        counted.requests.clear()
        started, used = time.perf_counter(), time.process_time()
        await for_all(range(pods), lambda number: client.create(made.PODS, pod(number, kind)))
        await asyncio.wait_for(bound.wait_for(pods), SECONDS_MAX)
        ended, used = time.perf_counter(), time.process_time() - used
        await group.cancel()
    writes = sum(count for name, count in counted.requests.items() if name.startswith("update resourceclaims"))
    return {"seconds": ended - started, "processor": used / pods, "writes": writes}


def rows() -> Iterator[Row]:
    """Measure each kind in a subprocess and yield the rows."""
    for kind in KINDS:
        progress(f"sharing: {kind.group}")
        command = [sys.executable, "-m", "bench.sharing", "--run", kind.name, str(kind.pods)]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=SECONDS_MAX)
        found = json.loads(answer.stdout)
        parameters = {
            "pods": kind.pods,
            "claim writes": found["writes"],
            "processor": f"{1000 * found['processor']:.2f}ms/pod",
        }
        name = f"sharing: one claim of {kind.group}"
        yield Row(name, found["seconds"], "s", parameters, kind.target)
        if kind.name == "group":
            yield Row(f"{name}, processor", 1000 * found["processor"], "ms/pod", {"pods": kind.pods}, GROUP_TARGET)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="bench.sharing", description=__doc__)
    parser.add_argument("--run", nargs=2, metavar=("KIND", "PODS"), help="in this process, as JSON")
    arguments = parser.parse_args()
    if arguments.run is not None:
        kind, pods = arguments.run
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            print(json.dumps(runner.run(measure(kind, int(pods)))))
        return
    for row in rows():
        show(row)


if __name__ == "__main__":
    main()
