"""`python -m bench.scale [--cluster] [NODES …]`: how costs grow with the number of nodes.

The scheduler's code places Pods with one device each on objects in memory, without an API server; with `--cluster` a
whole cluster does (`cluster_scale`). Each size has a process of its own, so that its memory is its own too: `--run`
is that process. `--plot FILE` draws the measurements of clusters as SVG.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import uvloop

from bench import cluster_scale
from bench import device_objects as made
from bench.cluster_scale import AGENTS, CONTROLLERS, SCHEDULER
from bench.rows import progress
from bench.scale_plot import Panel, draw
from bench.scheduler import peak_megabytes
from dray.api.codec import from_document
from dray.api.types.core_v1 import Node, Pod
from dray.api.types.resource_v1 import DeviceClass, ResourceClaim, ResourceSlice
from dray.client.resources import DEVICE_CLASSES, NODES, RESOURCE_SLICES
from dray.sim.placer import PlacedPod, Placer

SIZES: Final = (500, 1000, 2000, 5000, 10_000, 15_000)
DEVICES: Final = 8
PODS: Final = 1000
SECONDS_MAX: Final = 900

CLUSTER_SIZES: Final = (500, 2000, 5000, 15_000)
CLUSTER_STEPS: Final = {"prepare": cluster_scale.prepare, "cluster": cluster_scale.measure}


def _bytes_to(component: str, measurement: Mapping[str, Any]) -> float:
    return float(measurement["traffic"][component]["bytes"]) / 1e3


# What a measurement has, and the digits after the point.
COSTS: Final[Mapping[str, tuple[Callable[[Mapping[str, Any]], float], int]]] = {
    "processor time per Pod, ms": (lambda found: found["ms"], 2),
    "processor time per Pod, with a watch for each node, ms": (lambda found: found["agents"]["ms"], 2),
    "processor time per Lease renewal, ms": (lambda found: found["lease_ms"], 2),
    "peak memory, MB": (lambda found: found["megabytes"], 0),
    "peak memory, with a watch for each node, MB": (lambda found: found["agents"]["megabytes"], 0),
    "processor time of a restart, s": (lambda found: found["start_seconds"], 1),
    "lists of the scheduler at startup, MB": (lambda found: found["initial_bytes"][SCHEDULER] / 1e6, 1),
    "lists of the controllers at startup, MB": (lambda found: found["initial_bytes"][CONTROLLERS] / 1e6, 1),
    "watch events per Pod, scheduler": (lambda found: found["traffic"][SCHEDULER]["events"], 1),
    "watch traffic per Pod, scheduler, kB": (lambda found: _bytes_to(SCHEDULER, found), 1),
    "watch traffic per Pod, controllers, kB": (lambda found: _bytes_to(CONTROLLERS, found), 1),
    "watch events per Pod, agent of its node": (lambda found: found["agents"]["traffic"][AGENTS]["events"], 1),
    "watch traffic per Pod, agent of its node, kB": (lambda found: _bytes_to(AGENTS, found["agents"]), 1),
    "database with all nodes, MB": (lambda found: found["database_bytes"] / 1e6, 1),
    "database per Pod, with history, kB": (lambda found: found["growth_bytes"] / 1e3, 1),
    "objects of a Pod in the database, kB": (lambda found: found["content_bytes"] / 1e3, 1),
    "written to disk per Pod, kB": (lambda found: found["written_bytes"] / 1e3, 1),
}
# The costs of each panel of the picture, by the name of their line.
PANELS: Final[Mapping[str, Mapping[str, str]]] = {
    "Processor time per Pod, ms": {
        "without agents": "processor time per Pod, ms",
        "one watch per node": "processor time per Pod, with a watch for each node, ms",
    },
    "Peak memory, MB": {
        "without agents": "peak memory, MB",
        "one watch per node": "peak memory, with a watch for each node, MB",
    },
    "Lists at startup, MB": {
        "scheduler": "lists of the scheduler at startup, MB",
        "controllers": "lists of the controllers at startup, MB",
    },
    "Watch events per Pod, kB": {
        "scheduler": "watch traffic per Pod, scheduler, kB",
        "its node's agent": "watch traffic per Pod, agent of its node, kB",
    },
    "Database with all nodes, MB": {"": "database with all nodes, MB"},
    "Disk per Pod, kB": {"written": "written to disk per Pod, kB", "database": "database per Pod, with history, kB"},
}


def measure(nodes: int) -> dict[str, Any]:
    """Schedule Pods on a cluster of this number of nodes, in this process."""
    before = peak_megabytes()
    placer = Placer()
    placer.put(DEVICE_CLASSES, from_document(DeviceClass, made.classes()[0][1]))
    for number in range(nodes):
        placer.put(NODES, from_document(Node, made.node(number)))
        for document in made.whole_devices(number, DEVICES):
            placer.put(RESOURCE_SLICES, from_document(ResourceSlice, document))
    # The first Pod reads everything.
    place(placer, -1)
    used = time.process_time()
    for number in range(PODS):
        place(placer, number)
    used = time.process_time() - used
    return {"nodes": nodes, "ms": 1000 * used / PODS, "megabytes": peak_megabytes() - before}


def place(placer: Placer, number: int) -> None:
    """Schedule one Pod with its claim."""
    metadata = {"name": f"claim-{number}", "namespace": "default", "uid": f"claim-{number}"}
    claim = from_document(ResourceClaim, {"metadata": metadata, "spec": {"devices": made.ONE_DEVICE_DEFAULTED}})
    document = made.device_pod(number)
    document["metadata"]["uid"] = f"pod-{number}"
    document["spec"]["resourceClaims"] = [{"name": "devices", "resourceClaimName": f"claim-{number}"}]
    found = placer.place(from_document(Pod, document), (claim,))
    assert isinstance(found, PlacedPod), f"Pod {number} does not fit: {found}"


def run_step(step: str, nodes: int, data_dir: str = "") -> dict[str, Any]:
    """Run one step for one size, in this process."""
    if step == "scheduler":
        return measure(nodes)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(CLUSTER_STEPS[step](nodes, data_dir))


def in_own_process(step: str, nodes: int, data_dir: str = "") -> dict[str, Any]:
    """Run one step for one size, in a new process."""
    command = [sys.executable, "-m", "bench.scale", "--run", step, "--data-dir", data_dir, str(nodes)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=SECONDS_MAX)
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def measure_cluster(nodes: int) -> dict[str, Any]:
    """Create a cluster of this number of nodes, and place Pods in it."""
    with tempfile.TemporaryDirectory() as folder:
        data_dir = str(Path(folder) / "state")
        found = in_own_process("prepare", nodes, data_dir)
        before = cluster_scale.database_bytes(data_dir)
        found |= in_own_process("cluster", nodes, data_dir)
        growth = (cluster_scale.database_bytes(data_dir) - before) / cluster_scale.PLACED
        return found | {
            "database_bytes": before,
            "growth_bytes": growth,
            "content_bytes": cluster_scale.content_bytes(data_dir),
        }


def show_scheduler(sizes: Iterable[int]) -> None:
    """Measure the scheduler alone, and print a table."""
    print(f"{'nodes':>7} {'devices':>8} {'ms of CPU a Pod':>16} {'MB':>7}")
    for nodes in sizes:
        found = in_own_process("scheduler", nodes)
        print(f"{nodes:7,} {nodes * DEVICES:8,} {found['ms']:16.2f} {found['megabytes']:7.0f}", flush=True)


def show_clusters(sizes: Sequence[int], plot: str) -> None:
    """Measure clusters, and print a table with a row for each cost."""
    clusters = []
    for nodes in sizes:
        progress(f"a cluster of {nodes} nodes")
        clusters.append(measure_cluster(nodes))
    progress("")
    print("\n".join(table(clusters)))
    if plot:
        Path(plot).write_text(draw_clusters(clusters))


def table(clusters: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Yield the lines of a Markdown table with a column for each cluster."""
    yield "| | " + " | ".join(f"{found['nodes']:,} nodes" for found in clusters) + " |"
    yield "|---" * (1 + len(clusters)) + "|"
    for name, (cost, digits) in COSTS.items():
        yield f"| {name} | " + " | ".join(f"{cost(found):,.{digits}f}" for found in clusters) + " |"


def draw_clusters(clusters: Sequence[Mapping[str, Any]]) -> str:
    """Return the picture of clusters of several sizes."""
    panels = []
    for title, names in PANELS.items():
        costs = {line: COSTS[name][0] for line, name in names.items()}
        lines = {line: [(each["nodes"], cost(each)) for each in clusters] for line, cost in costs.items()}
        panels.append(Panel(title, lines))
    title = "Cost of a cluster by number of nodes; both axes logarithmic, dashes: proportional to the nodes"
    return draw(title, [each["nodes"] for each in clusters], panels)


def main() -> None:
    """Measure each size."""
    parser = argparse.ArgumentParser(prog="bench.scale", description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, metavar="NODES")
    parser.add_argument("--cluster", action="store_true", help="a whole cluster, not the scheduler alone")
    parser.add_argument("--plot", default="", metavar="FILE", help="write the picture of clusters")
    parser.add_argument("--run", choices=("scheduler", *CLUSTER_STEPS), help="one step, in this process, as JSON")
    parser.add_argument("--data-dir", default="", help="of the cluster; with --run")
    given = parser.parse_args()
    if given.plot and not given.cluster:
        parser.error("--plot draws clusters: give --cluster too")
    if given.run:
        for nodes in given.sizes:
            print(json.dumps(run_step(given.run, nodes, given.data_dir)))
    elif given.cluster:
        show_clusters(given.sizes or CLUSTER_SIZES, given.plot)
    else:
        show_scheduler(given.sizes or SIZES)


if __name__ == "__main__":
    main()
