"""How fast the allocator is here: taking in slices, attempts that fit and that do not, hard cases, memory.

`python bench/allocator.py` prints a table; `rows()` gives the same as data.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from dray.allocator import Allocations, Allocator, Inventory
from dray.api.types import core_v1, meta_v1
from dray.api.types import resource_v1 as r

Row = dict[str, Any]
DRIVER = "gpu.example.com"
NODES = 5_000
DEVICES = 10
SHARED_NODES = 1_000
SHARED_DEVICES = 8


def row(name: str, value: float, unit: str, **parameters: object) -> Row:
    """One line of the table."""
    return {"name": name, "value": round(value, 3), "unit": unit, "parameters": parameters}


def resident_bytes() -> int:
    """Memory of this process; Linux only."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def resource_slice(number: int) -> r.ResourceSlice:
    """The devices of one node, each with an identity of its own, as drivers publish them."""
    devices = tuple(
        r.Device(
            name=f"gpu-{index}",
            attributes={
                "uuid": r.DeviceAttribute(string=f"GPU-{number:05}-{index:02}"),
                "model": r.DeviceAttribute(string="a100"),
                "numa": r.DeviceAttribute(int_=index % 2),
            },
            capacity={"memory": r.DeviceCapacity(value="80Gi")},
        )
        for index in range(DEVICES)
    )
    name = f"node-{number:05}"
    pool = r.ResourcePool(name=name, generation=1, resource_slice_count=1)
    return r.ResourceSlice(
        metadata=meta_v1.ObjectMeta(name=f"slice-{number:05}"),
        spec=r.ResourceSliceSpec(driver=DRIVER, node_name=name, pool=pool, devices=devices),
    )


def shared_slice(number: int) -> r.ResourceSlice:
    """The devices of a node that claims share by their capacity."""
    found = resource_slice(number)
    policy = r.CapacityRequestPolicy(default="1000", valid_range=r.CapacityRequestPolicyRange(min="1", step="1"))
    devices = tuple(
        msgspec.structs.replace(
            device,
            allow_multiple_allocations=True,
            capacity={"milli": r.DeviceCapacity(value="1000", request_policy=policy)},
        )
        for device in found.spec.devices[:SHARED_DEVICES]
    )
    return msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, devices=devices))


def share(milli: int) -> r.ResourceClaim:
    """A claim for a share of one device."""
    capacity = r.CapacityRequirements(requests={"milli": str(milli)})
    spec = r.ExactDeviceRequest(device_class_name="gpu", allocation_mode="ExactCount", count=1, capacity=capacity)
    return r.ResourceClaim(
        metadata=meta_v1.ObjectMeta(name="claim", namespace="default", uid="uid"),
        spec=r.ResourceClaimSpec(devices=r.DeviceClaim(requests=(r.DeviceRequest(name="gpu", exactly=spec),))),
    )


def shared_rows() -> list[Row]:
    """One claim on nodes with shared devices, parts of which are in use: whether it fits, without the result."""
    nodes = [core_v1.Node(metadata=meta_v1.ObjectMeta(name=f"node-{number:05}")) for number in range(SHARED_NODES)]
    inventory, allocations = Inventory(), Allocations()
    inventory.apply_class(device_class())
    for number in range(SHARED_NODES):
        inventory.apply_slice(shared_slice(number))
    allocator = Allocator(inventory, allocations)
    for number, node in enumerate(nodes):
        claims = [share(100 + number % 800)]
        found = allocator.allocate(node, claims).allocations
        assert found is not None
        metadata = meta_v1.ObjectMeta(name=f"held-{number}", namespace="default", uid=f"held-{number}")
        status = r.ResourceClaimStatus(allocation=found[0])
        allocations.apply_claim(msgspec.structs.replace(claims[0], metadata=metadata, status=status))
    size: dict[str, object] = {"nodes": SHARED_NODES, "devices": SHARED_NODES * SHARED_DEVICES}
    wanted = [share(850)]

    def ask() -> None:
        for node in nodes:
            assert allocator.find(node, wanted).fits

    return [
        row(f"shared devices, {when}", timed(ask) / len(nodes) * 1e6, "microseconds", **size)
        for when in ("first time", "asked again")
    ]


def device_class() -> r.DeviceClass:
    """All devices of the driver."""
    selector = r.DeviceSelector(cel=r.CELDeviceSelector(expression=f'device.driver == "{DRIVER}"'))
    return r.DeviceClass(metadata=meta_v1.ObjectMeta(name="gpu"), spec=r.DeviceClassSpec(selectors=(selector,)))


def claim(count: int = 1, *, match: bool = False, request: str = "gpu") -> r.ResourceClaim:
    """A claim for so many devices with enough memory, optionally of one NUMA node.

    Another name of the request makes it another question, to which no answer is known.
    """
    expression = f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0'
    spec = r.ExactDeviceRequest(
        device_class_name="gpu",
        allocation_mode="ExactCount",
        count=count,
        selectors=(r.DeviceSelector(cel=r.CELDeviceSelector(expression=expression)),),
    )
    constraints = (r.DeviceConstraint(match_attribute=f"{DRIVER}/numa"),) if match else ()
    return r.ResourceClaim(
        metadata=meta_v1.ObjectMeta(name="claim", namespace="default", uid="uid"),
        spec=r.ResourceClaimSpec(
            devices=r.DeviceClaim(requests=(r.DeviceRequest(name=request, exactly=spec),), constraints=constraints)
        ),
    )


def holder(node: int, device: int) -> r.ResourceClaim:
    """A claim that has a device."""
    result = r.DeviceRequestAllocationResult(
        request="gpu", driver=DRIVER, pool=f"node-{node:05}", device=f"gpu-{device}"
    )
    name = f"holder-{node}-{device}"
    return r.ResourceClaim(
        metadata=meta_v1.ObjectMeta(name=name, namespace="default", uid=name),
        status=r.ResourceClaimStatus(
            allocation=r.AllocationResult(devices=r.DeviceAllocationResult(results=(result,)))
        ),
    )


def timed(work: Callable[[], None]) -> float:
    """Seconds taken."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def per_node(allocator: Allocator, nodes: list[core_v1.Node], claims: list[r.ResourceClaim]) -> float:
    """Microseconds for an attempt, over all nodes."""

    def attempt() -> None:
        for node in nodes:
            allocator.allocate(node, claims)

    return timed(attempt) / len(nodes) * 1e6


def rows() -> list[Row]:
    """All measurements."""
    slices = [resource_slice(number) for number in range(NODES)]
    nodes = [core_v1.Node(metadata=meta_v1.ObjectMeta(name=f"node-{number:05}")) for number in range(NODES)]
    size: dict[str, object] = {"nodes": NODES, "devices": NODES * DEVICES}
    gc.collect()
    before = resident_bytes()
    inventory, allocations = Inventory(), Allocations()
    inventory.apply_class(device_class())

    def take_in() -> None:
        for item in slices:
            inventory.apply_slice(item)

    found = [row("take in all slices", timed(take_in), "seconds", **size)]
    allocator = Allocator(inventory, allocations)
    one = [claim()]
    found.append(row("first attempt on a node", per_node(allocator, nodes, one), "microseconds", **size))
    gc.collect()
    used = (resident_bytes() - before) / 2**20
    found.append(row("memory of the inventory, beside the slices", used, "MiB", **size))
    found.append(row("asked again", per_node(allocator, nodes, one), "microseconds", **size))
    other = [claim(request="other")]
    found.append(row("one device, fits", per_node(allocator, nodes, other), "microseconds", **size))
    found.append(row("eight devices, fits", per_node(allocator, nodes, [claim(8)]), "microseconds", **size))
    matched = [claim(5, match=True)]
    found.append(row("five that match, fits", per_node(allocator, nodes, matched), "microseconds", **size))
    too_many = [claim(6, match=True)]
    found.append(row("six that match of five, no fit", per_node(allocator, nodes, too_many), "microseconds", **size))
    holders = [holder(node, device) for node in range(NODES) for device in range(DEVICES)]

    def hold() -> None:
        for item in holders:
            allocations.apply_claim(item)

    found.append(row("note that a device is in use", timed(hold) / len(holders) * 1e6, "microseconds", **size))
    found.append(row("full node, first look", per_node(allocator, nodes, one), "microseconds", **size))
    found.append(row("full node", per_node(allocator, nodes, [claim(request="late")]), "microseconds", **size))
    found.append(row("full node, asked again", per_node(allocator, nodes, one), "microseconds", **size))
    return found + shared_rows()


if __name__ == "__main__":
    for line in rows():
        print(f"{line['name']:45} {line['value']:>12} {line['unit']:13} {line['parameters']}")
