"""Two views of a pool: what is left of shareable devices, and how many partitions of each type still fit. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from dray.api.document import Document
from dray.api.quantity import Quantity
from dray.api.types.resource_v1 import Device
from dray.controllers.resource_pool_status.pools import Consumption, Pool, qualified

ENTRIES_MAX: Final = 32
_NOTHING: Final = Quantity.parse("0")

# Counter set and counter -> amount.
Counters = dict[tuple[str, str], Quantity]


class SummaryError(Exception):
    """A view cannot be given; the text begins with its reason."""


def shareable_summary(pool: Pool, used: Consumption) -> Document | None:
    """Return what is left of the devices that several claims can share; None if there are none."""
    devices = [device for device in pool.devices() if device.allow_multiple_allocations]
    if not devices:
        return None
    partly = sum(device.name in used for device in devices)
    summary: Document = {"fullyAvailableDevices": len(devices) - partly, "partiallyAvailableDevices": partly}
    capacity = [_capacity(name, total, taken) for name, (total, taken) in sorted(_capacities(pool, devices, used))]
    if len(capacity) > ENTRIES_MAX:
        text = f"pool {pool.driver}/{pool.name} has {len(capacity)} capacities, at most {ENTRIES_MAX} can be listed"
        raise SummaryError(f"ShareableSummaryOverCap: {text}")
    if capacity:
        summary["capacity"] = capacity
    return summary


def _capacities(
    pool: Pool, devices: Iterable[Device], used: Consumption
) -> Iterator[tuple[str, tuple[Quantity, Quantity]]]:
    totals: dict[str, tuple[Quantity, Quantity]] = {}
    for device in devices:
        taken = used.get(device.name) or {}
        for name, capacity in device.capacity.items():
            total, consumed = totals.get(name, (_NOTHING, _NOTHING))
            own = taken.get(qualified(name, pool.driver), _NOTHING)
            totals[name] = (total + Quantity.parse(capacity.value), consumed + own)
    yield from totals.items()


def _capacity(name: str, total: Quantity, consumed: Quantity) -> Document:
    left = total - consumed
    available = left if left.sign > 0 else _NOTHING
    return {"name": name, "total": str(total), "consumed": str(consumed), "available": str(available)}


@dataclass(frozen=True, slots=True)
class _Partition:
    """A device that consumes counters, with its type."""

    device: Device
    attribute: str
    type: str
    cost: Counters


def partition_summary(pool: Pool, used: Consumption, default_attribute: str | None) -> list[Document]:
    """Return for each type of partition how many there are and how many more fit; empty if there are no types.

    The attribute of a slice counts; the default only if no slice of the pool has one.
    """
    partitions = list(_partitions(pool, default_attribute))
    if not partitions:
        return []
    left = _left(pool, used)
    groups: dict[tuple[str, str], list[_Partition]] = {}
    for partition in partitions:
        groups.setdefault((partition.attribute, partition.type), []).append(partition)
    if len(groups) > ENTRIES_MAX:
        text = f"pool {pool.driver}/{pool.name} has {len(groups)} partition types, at most {ENTRIES_MAX} can be listed"
        raise SummaryError(f"PartitionSummaryOverCap: {text}")
    return [_group(pool, key, members, used, left) for key, members in sorted(groups.items())]


def _partitions(pool: Pool, default_attribute: str | None) -> Iterator[_Partition]:
    own = any(item.spec.partition_type_attribute for item in pool.slices)
    for item in pool.slices:
        attribute = item.spec.partition_type_attribute or (None if own else default_attribute)
        if attribute is None:
            continue
        for device in item.spec.devices:
            if device.consumes_counters:
                yield _Partition(device, attribute, _type(pool, device, attribute), _cost(device))


def _type(pool: Pool, device: Device, attribute: str) -> str:
    domain, _, identifier = attribute.partition("/")
    value = device.attributes.get(attribute)
    if value is None and domain == pool.driver:
        value = device.attributes.get(identifier)
    if value is None or value.string is None:
        raise SummaryError(f"PartitionTypeMissing: device {device.name} has no string attribute {attribute}")
    return value.string


def _cost(device: Device) -> Counters:
    return {
        (item.counter_set, name): Quantity.parse(counter.value)
        for item in device.consumes_counters
        for name, counter in item.counters.items()
    }


def _left(pool: Pool, used: Consumption) -> Counters:
    """Return the counters that the devices in use leave; a device counts once, however many share it."""
    left: Counters = {
        (counter_set.name, name): Quantity.parse(counter.value)
        for item in pool.slices
        for counter_set in item.spec.shared_counters
        for name, counter in counter_set.counters.items()
    }
    for device in pool.devices():
        if device.name in used:
            for key, amount in _cost(device).items():
                if key in left:
                    left[key] = left[key] - amount
    return left


def _group(pool: Pool, key: tuple[str, str], members: list[_Partition], used: Consumption, left: Counters) -> Document:
    attribute, kind = key
    cost = members[0].cost
    if any(member.cost != cost for member in members):
        text = f"devices with {attribute} {kind} consume different counters"
        raise SummaryError(f"PartitionCostMismatch: {text}")
    if not cost or any(name not in left for name in cost):
        raise SummaryError(
            f"PartitionTypeMissing: pool {pool.driver}/{pool.name} has no counters for {attribute} {kind}"
        )
    unused = sum(member.device.name not in used for member in members)
    fitting = min((_times(left[name], amount) for name, amount in cost.items() if amount.sign > 0), default=unused)
    return {"attribute": attribute, "type": kind, "total": len(members), "allocatable": min(unused, fitting)}


def _times(available: Quantity, amount: Quantity) -> int:
    """Return how often the amount fits into what is available."""
    return max(0, available.nanos // amount.nanos)
