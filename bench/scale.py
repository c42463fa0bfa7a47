"""`python -m bench.scale [NODES …]`: how the scheduler's processor time and memory grow with the number of nodes.

The scheduler's code places Pods with one device each on objects in memory, without an API server; each size has a
process of its own, so that its memory is its own too: `--run NODES` is that process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any, Final

from bench import device_objects as made
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


def main() -> None:
    """Measure each size, and print a table."""
    parser = argparse.ArgumentParser(prog="bench.scale", description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, default=list(SIZES), metavar="NODES")
    parser.add_argument("--run", type=int, metavar="NODES", help="one size, in this process, as JSON")
    given = parser.parse_args()
    if given.run is not None:
        print(json.dumps(measure(given.run)))
        return
    print(f"{'nodes':>7} {'devices':>8} {'ms of CPU a Pod':>16} {'MB':>7}")
    for nodes in given.sizes:
        command = [sys.executable, "-m", "bench.scale", "--run", str(nodes)]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=SECONDS_MAX)
        found = json.loads(answer.stdout)
        print(f"{nodes:7,} {nodes * DEVICES:8,} {found['ms']:16.2f} {found['megabytes']:7.0f}", flush=True)


if __name__ == "__main__":
    main()
