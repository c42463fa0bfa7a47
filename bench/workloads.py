"""The workloads of the scheduler benchmarks, and the preparation of a cluster for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from bench import device_objects as made
from bench.cluster import create_all, for_all
from bench.rows import Target
from dray.api.document import Document
from dray.client.interface import Client, Resource


@dataclass(frozen=True, slots=True)
class Workload:
    """A cluster, and the Pods that are created in it."""

    name: str
    nodes: int
    pods: int
    pod: Callable[[int], Document] = made.device_pod
    # Devices of each node; none for Pods without claims.
    devices: int = 0
    slices: Callable[[int, int], Iterator[Document]] = made.whole_devices
    requests: Document | None = None
    # Further templates for claims, by name.
    templates: Mapping[str, Document] = field(default_factory=dict)
    # The share of devices that are allocated before the first Pod.
    in_use: float = 0.0
    # The number of Pods that are created and deleted concurrently; 0 if all are created at once and stay.
    churn: int = 0
    # Pods that are placed before the measurement, and their number.
    earlier_pod: Callable[[int], Document] | None = None
    earlier_pods: int = 0
    # Feature gates that are not on by default.
    feature_gates: str = ""
    # Pods in each gang; 0 for Pods alone.
    gang_size: int = 0
    target: Target | None = None
    memory_target: Target | None = None
    # Another workload of the same run, and the target share of its rate.
    against: str = ""
    against_target: Target | None = None
    # The maximum number of API requests per Pod, of all clients.
    requests_target: Target | None = None


def with_pods(workload: Workload, pods: int) -> Workload:
    """Return the workload with that many Pods, rounded up to whole gangs: the Pods of an incomplete one never run."""
    size = workload.gang_size or 1
    return replace(workload, pods=-(-pods // size) * size)


def at_least(pods_per_second: float) -> Target:
    """Return a target for a minimum rate."""
    return Target(pods_per_second, at_least=True)


def _steady(nodes: int, fullness: str, in_use: float, target: Target | None = None) -> Workload:
    name = f"steady, {nodes} nodes, {fullness}"
    return Workload(
        name,
        nodes,
        1000,
        devices=10,
        requests=made.ONE_DEVICE,
        in_use=in_use,
        churn=10,
        target=target,
        requests_target=Target(10.5),
    )


def _placed_together(name: str, pod: Callable[[int], Document], pods: int) -> tuple[Workload, Workload]:
    """Return a workload whose Pods look at each other, and its twin with five times the nodes."""
    usual = f"{name}, 1000 nodes"
    return (
        Workload(usual, 1000, pods, pod, target=at_least(300)),
        Workload(f"{name}, 5000 nodes", 5000, 1000, pod, against=usual, against_target=at_least(0.5)),
    )


FILL = Workload(
    "fill with devices, 500 nodes",
    500,
    5000,
    devices=10,
    requests=made.ONE_DEVICE,
    target=at_least(300),
    requests_target=Target(6.5),
)
EXTENDED = Workload(
    "fill through extended resources, 500 nodes",
    500,
    5000,
    made.extended_pod,
    devices=10,
    requests=made.ONE_DEVICE,
    against=FILL.name,
    against_target=at_least(0.9),
)


def _preemption(nodes: int, pods: int, target: Target | None = None) -> Workload:
    """Return a cluster whose devices are all used by Pods of a low priority."""
    return Workload(
        f"preemption, {nodes} nodes, {nodes * 10} Pods with devices",
        nodes,
        pods,
        made.urgent_pod,
        devices=10,
        requests=made.ONE_DEVICE,
        earlier_pod=made.batch_pod,
        earlier_pods=nodes * 10,
        target=target,
    )


def _gangs(nodes: int, gangs: int, target: Target | None = None, *, size: int = 9) -> Workload:
    """Return gangs whose Pods have a device each."""
    return Workload(
        f"gangs of {size} with devices, {nodes} nodes",
        nodes,
        gangs * size,
        made.gang_pod(size),
        devices=10,
        requests=made.ONE_DEVICE,
        feature_gates="GenericWorkload=true",
        gang_size=size,
        target=target,
    )


def _mixed(nodes: int, against: str = "") -> Workload:
    """Return Pods of 20 kinds on nodes with devices."""
    return Workload(
        f"20 kinds of Pods, {nodes} nodes",
        nodes,
        2000,
        made.mixed_pod,
        devices=12,
        requests=made.ONE_DEVICE,
        templates=made.ONE_TO_FOUR_DEVICES,
        against=against,
        against_target=at_least(0.5) if against else None,
    )


def _mixed_partitions(nodes: int, pods: int, against: str) -> Workload:
    """Return Pods with partitions of all sizes, on nodes of 8 cards with 15 partitions each."""
    return Workload(
        f"mixed partitions, {nodes} nodes x 8 x 15",
        nodes,
        pods,
        made.partition_pod,
        devices=8,
        slices=made.mixed_partitions,
        requests=made.ONE_DEVICE,
        templates=made.ONE_PARTITION,
        against=against,
        against_target=at_least(0.5),
    )


LARGE = "fill with devices, 5000 nodes"
DEFAULT = (
    Workload("plain pods, 100 nodes", 100, 3000, made.pod, target=at_least(500)),
    Workload("plain pods, 1000 nodes", 1000, 2000, made.pod),
    Workload("plain pods, 5000 nodes", 5000, 1000, made.pod),
    Workload("node affinity, 1000 nodes", 1000, 1000, made.zonal_pod),
    *_placed_together("required anti-affinity by host", made.lonely_pod, 1000),
    *_placed_together("spread over 3 zones", made.spread_pod, 5000),
    FILL,
    EXTENDED,
    *(
        _steady(nodes, fullness, in_use, at_least(400) if (nodes, in_use) == (500, 1.0) else None)
        for nodes in (100, 500)
        for fullness, in_use in (("empty", 0.0), ("half full", 0.5), ("full", 1.0))
    ),
    _preemption(500, 500, at_least(150)),
    _gangs(500, 500),
    _gangs(500, 500, size=8),
    _gangs(500, 60, size=64),
    _gangs(5000, 1000, at_least(300)),
    Workload("second alternative, 500 nodes", 500, 1000, devices=10, requests=made.SECOND_ALTERNATIVE),
    Workload("two devices of one NUMA node, 500 nodes", 500, 1000, devices=10, requests=made.SAME_NUMA_NODE),
    Workload("partitions, 500 nodes", 500, 400, devices=2, slices=made.partitions, requests=made.FOUR_HALVES),
    _mixed_partitions(500, 5000, FILL.name),
    _mixed(500),
    _mixed(5000, "20 kinds of Pods, 500 nodes"),
    Workload(LARGE, 5000, 2000, devices=10, requests=made.ONE_DEVICE, target=at_least(150), memory_target=Target(600)),
    Workload(
        "fill with devices, 15000 nodes",
        15_000,
        5000,
        devices=8,
        requests=made.ONE_DEVICE,
        memory_target=Target(1200),
        against=FILL.name,
        against_target=at_least(0.5),
    ),
)
# Takes several minutes.
LONG = (
    Workload(f"{LARGE}, all of them", 5000, 50_000, devices=10, requests=made.ONE_DEVICE, target=at_least(150)),
    _preemption(5000, 500, at_least(75)),
)
QUICK = (
    Workload("plain pods, 50 nodes", 50, 300, made.pod),
    Workload("fill with devices, 50 nodes", 50, 500, devices=10, requests=made.ONE_DEVICE),
    Workload(
        "fill through extended resources, 50 nodes",
        50,
        500,
        made.extended_pod,
        devices=10,
        requests=made.ONE_DEVICE,
        against="fill with devices, 50 nodes",
    ),
    Workload("steady, 50 nodes, full", 50, 100, devices=10, requests=made.ONE_DEVICE, in_use=1.0, churn=10),
    _preemption(50, 50),
    _gangs(50, 30),
    _gangs(50, 6, size=64),
    Workload("second alternative, 50 nodes", 50, 200, devices=10, requests=made.SECOND_ALTERNATIVE),
    Workload("two devices of one NUMA node, 50 nodes", 50, 200, devices=10, requests=made.SAME_NUMA_NODE),
    Workload("partitions, 50 nodes", 50, 40, devices=2, slices=made.partitions, requests=made.FOUR_HALVES),
    _mixed_partitions(50, 300, "fill with devices, 50 nodes"),
)
# All workloads by their whole name.
BY_NAME: Final = {workload.name: workload for workload in (*DEFAULT, *LONG, *QUICK)}


async def prepare(client: Client, workload: Workload) -> None:
    """Create all objects that exist before the first Pod."""
    await create_all(client, _objects(workload))
    await for_all(_devices_in_use(workload), lambda device: _allocate(client, *device))


def _objects(workload: Workload) -> Iterator[tuple[Resource[Any], Document]]:
    for number in range(workload.nodes):
        yield made.NODES, made.node(number)
        if workload.devices:
            for document in workload.slices(number, workload.devices):
                yield made.SLICES, document
    if workload.requests is not None:
        yield from made.classes()
        yield made.TEMPLATES, made.template(workload.requests)
    for name, requests in workload.templates.items():
        yield made.TEMPLATES, made.template(requests, name)
    for number in range(-1, workload.pods // workload.gang_size) if workload.gang_size else ():
        yield made.POD_GROUPS, made.pod_group(number, workload.gang_size if number >= 0 else 1)
    if workload.earlier_pod is not None:
        yield made.PRIORITY_CLASSES, {"metadata": {"name": made.PRIORITY_CLASS}, "value": 1000}


def _devices_in_use(workload: Workload) -> Iterator[tuple[int, int]]:
    """Return node and device numbers, spread over all nodes; devices for the churn stay free."""
    devices = ((node, device) for device in range(workload.devices) for node in range(workload.nodes))
    count = int(workload.nodes * workload.devices * workload.in_use)
    return islice(devices, min(count, workload.nodes * workload.devices - workload.churn))


async def _allocate(client: Client, node: int, device: int) -> None:
    claim = await client.create(made.CLAIMS, made.held_claim(node * 1000 + device))
    await client.update_status(made.CLAIMS, made.holding(claim, node, device))
