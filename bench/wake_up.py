"""How long it takes to wake pending Pods when one device is freed: those that could use it, and no others.

`python -m bench.wake_up` prints the rows. The queue and the plugins are the scheduler's; there is no API server.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench import device_objects as made
from bench.rows import Row, Target, show
from dray.api.codec import from_document
from dray.api.document import Document
from dray.api.types.core_v1 import Node, Pod
from dray.api.types.resource_v1 import DeviceClass, ResourceClaim, ResourceSlice
from dray.client.resources import DEVICE_CLASSES, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dray.framework.events import RESOURCE_CLAIM, Action, ClusterEvent
from dray.framework.pod_info import PodInfo
from dray.scheduler.plugins.dynamic_resources.device_filter import NAME
from dray.scheduler.queue import SchedulingQueue
from dray.sim.placer import Placer

DEVICES = 10
CLAIM_DELETE = ClusterEvent(RESOURCE_CLAIM, Action.DELETE, "ResourceClaimDelete")


@dataclass(frozen=True, slots=True)
class Size:
    """A full cluster, and the Pods that wait; every node has devices of one model."""

    nodes: int
    pods: int
    models: int
    # Milliseconds.
    target: Target | None = None


FULL = (Size(500, 10_000, 20, Target(50.0)), Size(500, 10_000, 1, Target(50.0)))
QUICK = (Size(20, 200, 20),)


def _slice(number: int, models: int) -> Document:
    (document,) = made.whole_devices(number, DEVICES)
    for device in document["spec"]["devices"]:
        device["attributes"] = {"model": {"string": f"model-{number % models}"}}
    return document


def _claim(name: str, model: int, driver: str) -> ResourceClaim:
    expression = f'device.attributes["{driver}"].model == "model-{model}"'
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
    request = {"name": "gpu", "exactly": {**exactly, "selectors": [{"cel": {"expression": expression}}]}}
    metadata = {"name": name, "namespace": "default", "uid": name}
    return from_document(ResourceClaim, {"metadata": metadata, "spec": {"devices": {"requests": [request]}}})


def _pod(name: str) -> Pod:
    document = made.device_pod(0)
    document["metadata"] = {"name": name, "namespace": "default", "uid": name}
    entry = {"name": document["spec"]["resourceClaims"][0]["name"], "resourceClaimName": name}
    document["spec"] |= {"resourceClaims": [entry], "schedulerName": "default-scheduler"}
    return from_document(Pod, document)


def measure(size: Size) -> tuple[float, int]:
    """Return the processor seconds that the change takes, and the number of Pods that are ready afterwards."""
    placer = Placer()
    for _, document in made.classes():
        placer.put(DEVICE_CLASSES, from_document(DeviceClass, document))
    driver = ""
    for number in range(size.nodes):
        document = made.node(number)
        placer.put(NODES, from_document(Node, document))
        slices = _slice(number, size.models)
        driver = slices["spec"]["driver"]
        placer.put(RESOURCE_SLICES, from_document(ResourceSlice, slices))
    for number in range(size.nodes * DEVICES):
        name = f"running-{number}"
        placer.place(_pod(name), (_claim(name, number % size.models, driver),))
    queue = SchedulingQueue(lambda _pod: placer.profile, [placer.profile])
    for number in range(size.pods):
        name = f"pending-{number}"
        placer.put(RESOURCE_CLAIMS, _claim(name, number % size.models, driver))
        queue.add(PodInfo(_pod(name)), 0.0)
        queued = queue.pop(0.0)
        assert queued is not None, "it is the only one"
        queue.reject(queued, 0.0, plugins=(NAME,))
    placed = placer.placed["running-0"]
    started = time.process_time()
    placer.remove("running-0")
    queue.requeue_for_event(CLAIM_DELETE, placed.claims[0], None, 10.0)
    return time.process_time() - started, queue.counts()["active"]


def rows(sizes: tuple[Size, ...] = FULL) -> Iterator[Row]:
    """Measure each size."""
    for size in sizes:
        seconds, woken = measure(size)
        parameters = {"pods": size.pods, "kinds": size.models, "nodes": size.nodes, "woken": woken}
        name = f"scheduler: one device freed, {size.pods} pending Pods of {size.models} kinds"
        yield Row(name, 1000 * seconds, "ms", parameters, size.target)


if __name__ == "__main__":
    for row in rows():
        show(row)
