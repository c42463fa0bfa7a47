"""Functions that build devices, counters and pools of the API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dray.api.types.core_v1 import NodeSelector
from dray.api.types.resource_v1 import (
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
    DeviceTaint,
)


class Version(str):
    """A semantic version: selectors compare it as such."""

    __slots__ = ()


AttributeValue = bool | int | str | Version | Sequence[bool] | Sequence[int] | Sequence[str]


def device(
    name: str,
    *,
    attributes: Mapping[str, AttributeValue | DeviceAttribute] | None = None,
    capacity: Mapping[str, str | int | DeviceCapacity] | None = None,
    consumes: Mapping[str, Mapping[str, str | int]] | None = None,
    compatibility_groups: Mapping[str, Iterable[str]] | None = None,
    taints: Iterable[DeviceTaint] = (),
    **fields: Any,
) -> Device:
    """Return a device; other fields are those of the API in snake case.

    `consumes` are amounts per counter set, and `compatibility_groups` the groups for a counter set: devices that
    consume from it are in use together only if they all have one in common.
    """
    groups = compatibility_groups or {}
    return Device(
        name=name,
        attributes={key: attribute(value) for key, value in (attributes or {}).items()},
        capacity={key: _capacity(value) for key, value in (capacity or {}).items()},
        consumes_counters=tuple(
            DeviceCounterConsumption(
                counter_set=key, counters=_counters(amounts), compatibility_groups=tuple(groups.get(key, ()))
            )
            for key, amounts in (consumes or {}).items()
        ),
        taints=tuple(taints),
        **fields,
    )


def attribute(value: AttributeValue | DeviceAttribute) -> DeviceAttribute:
    """Return an attribute of the value's type."""
    match value:
        case DeviceAttribute():
            return value
        case bool():
            return DeviceAttribute(bool_=value)
        case int():
            return DeviceAttribute(int_=value)
        case Version():
            return DeviceAttribute(version=str(value))
        case str():
            return DeviceAttribute(string=value)
    return _list_attribute(tuple(value))


def _list_attribute(values: tuple[Any, ...]) -> DeviceAttribute:
    if all(isinstance(item, bool) for item in values):
        return DeviceAttribute(bools=values)
    if all(isinstance(item, int) for item in values):
        return DeviceAttribute(ints=values)
    if all(isinstance(item, Version) for item in values):
        return DeviceAttribute(versions=tuple(str(item) for item in values))
    return DeviceAttribute(strings=tuple(str(item) for item in values))


def _capacity(value: str | int | DeviceCapacity) -> DeviceCapacity:
    return value if isinstance(value, DeviceCapacity) else DeviceCapacity(value=str(value))


def counter_set(name: str, counters: Mapping[str, str | int]) -> CounterSet:
    """Return counters that devices of the pool share, e.g. the memory of a partitioned card."""
    return CounterSet(name=name, counters=_counters(counters))


def _counters(amounts: Mapping[str, str | int]) -> dict[str, Counter]:
    return {key: Counter(value=str(amount)) for key, amount in amounts.items()}


@dataclass(frozen=True, slots=True)
class Pool:
    """Devices of one pool; by default they are local to the driver's node."""

    devices: tuple[Device, ...] = ()
    counters: tuple[CounterSet, ...] = ()
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    # Each device has its own node selection.
    per_device_nodes: bool = False
    # Ignored if below the published generation.
    generation: int = 0
    # Calls that nodes need not make for these devices: NodePrepareResources, NodeUnprepareResources, or * for all.
    skip_node_operations: tuple[str, ...] = ()
    # The string attribute with the type of a partition, by which the status of the pool counts them.
    partition_type_attribute: str = ""

    @property
    def on_node(self) -> bool:
        """Whether the devices are local to the driver's node."""
        return not (self.node_selector or self.all_nodes or self.per_device_nodes)
