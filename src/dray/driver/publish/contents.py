"""How a pool is split into slices, and which part of a slice the driver determines. Pure.

Kubernetes allows 128 devices in a slice, 64 if any has taints, counters or lists. Counter sets have slices of their
own, with at most 8 each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from dray.api.quantity import Quantity
from dray.api.types.core_v1 import NodeSelector
from dray.api.types.resource_v1 import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceTaint,
    NodeAllocatableMapping,
    NodeAllocatableOverhead,
    NodeAllocatableResource,
    ResourceSliceSpec,
)
from dray.driver.devices import Pool

T = TypeVar("T")

DEVICES_MAX: Final = 128
DEVICES_WITH_EXTRAS_MAX: Final = 64
COUNTER_SETS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class SliceContent:
    """Content of a slice, without the pool's name, generation and slice count."""

    devices: tuple[Device, ...] = ()
    counters: tuple[CounterSet, ...] = ()
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    per_device_nodes: bool = False
    skip_node_operations: tuple[str, ...] = ()
    partition_type_attribute: str = ""

    @property
    def names(self) -> frozenset[str]:
        """Names of devices and counter sets, by which a changed slice is matched."""
        return frozenset(item.name for item in self.devices) | frozenset(item.name for item in self.counters)


def contents_of(pool: Pool) -> tuple[SliceContent, ...]:
    """Return the slices of a pool, counters first; an empty pool is one empty slice, so that it exists."""
    limit = DEVICES_WITH_EXTRAS_MAX if any(_has_extras(device) for device in pool.devices) else DEVICES_MAX
    parts = [
        *((part, ()) for part in _parts(tuple(_counter_set(item) for item in pool.counters), COUNTER_SETS_MAX)),
        *(((), part) for part in _parts(tuple(_device(item) for item in pool.devices), limit)),
    ]
    return tuple(_content(pool, devices, counters) for counters, devices in parts or [((), ())])


def _content(pool: Pool, devices: tuple[Device, ...], counters: tuple[CounterSet, ...]) -> SliceContent:
    # Only slices with partitions can name the attribute.
    is_partitioned = any(device.consumes_counters for device in devices)
    return SliceContent(
        devices=devices,
        counters=counters,
        node_selector=pool.node_selector,
        all_nodes=pool.all_nodes,
        per_device_nodes=pool.per_device_nodes,
        skip_node_operations=pool.skip_node_operations,
        partition_type_attribute=pool.partition_type_attribute if is_partitioned else "",
    )


def content_of(spec: ResourceSliceSpec) -> SliceContent:
    """Return the content of a published slice, without taint times added by the API server."""
    return SliceContent(
        devices=tuple(_device(item) for item in spec.devices),
        counters=tuple(_counter_set(item) for item in spec.shared_counters),
        node_selector=spec.node_selector,
        all_nodes=bool(spec.all_nodes),
        per_device_nodes=bool(spec.per_device_node_selection),
        skip_node_operations=spec.skip_node_operations,
        partition_type_attribute=spec.partition_type_attribute or "",
    )


def dropped_gates(asked: SliceContent, stored: SliceContent) -> tuple[str, ...]:
    """Return the feature gates of fields that the API server has dropped."""
    return tuple(name for name, uses in _GATES.items() if uses(asked) and not uses(stored))


def _uses_groups(content: SliceContent) -> bool:
    return any(item.compatibility_groups for device in content.devices for item in device.consumes_counters)


_GATES: Final[Mapping[str, Callable[[SliceContent], bool]]] = {
    "DRAConsumableCapacity": lambda content: any(device.allow_multiple_allocations for device in content.devices),
    "DRADeviceBindingConditions": lambda content: any(device.binding_conditions for device in content.devices),
    "DRADeviceCompatibilityGroups": _uses_groups,
    "DRADeviceTaints": lambda content: any(device.taints for device in content.devices),
    "DRANodeAllocatableResources": lambda content: any(device.node_allocatable_resources for device in content.devices),
    "DRAOptionalNodeOperations": lambda content: bool(content.skip_node_operations),
    "DRAPartitionableDevices": lambda content: bool(content.counters),
    "DRAPartitionableDevicesType": lambda content: bool(content.partition_type_attribute),
}


def _parts(items: tuple[T, ...], size: int) -> Iterator[tuple[T, ...]]:
    yield from (items[start : start + size] for start in range(0, len(items), size))


def _has_extras(device: Device) -> bool:
    return bool(device.taints or device.consumes_counters) or any(map(_is_list, device.attributes.values()))


def _is_list(attribute: DeviceAttribute) -> bool:
    return bool(attribute.bools or attribute.ints or attribute.strings or attribute.versions)


# --- Normal form: the API server changes the format of quantities and adds times to taints. ---


def _device(device: Device) -> Device:
    return msgspec.structs.replace(
        device,
        capacity={key: _capacity(value) for key, value in device.capacity.items()},
        consumes_counters=tuple(
            msgspec.structs.replace(item, counters=_counters(item.counters)) for item in device.consumes_counters
        ),
        taints=tuple(msgspec.structs.replace(taint, time_added=None) for taint in device.taints),
        node_allocatable_resources={
            key: _node_allocatable(value) for key, value in device.node_allocatable_resources.items()
        },
    )


def _node_allocatable(resource: NodeAllocatableResource) -> NodeAllocatableResource:
    mapping, overhead = resource.mapping, resource.overhead
    if mapping is not None:
        mapping = NodeAllocatableMapping(
            capacity_key=mapping.capacity_key,
            capacity_multiplier=_optional_quantity(mapping.capacity_multiplier),
            device_multiplier=_optional_quantity(mapping.device_multiplier),
        )
    if overhead is not None:
        overhead = NodeAllocatableOverhead(
            per_pod=_optional_quantity(overhead.per_pod), per_container=_optional_quantity(overhead.per_container)
        )
    return NodeAllocatableResource(mapping=mapping, overhead=overhead)


def _optional_quantity(text: str | None) -> str | None:
    return None if text is None else _quantity(text)


def _capacity(capacity: DeviceCapacity) -> DeviceCapacity:
    policy = capacity.request_policy
    return DeviceCapacity(value=_quantity(capacity.value), request_policy=None if policy is None else _policy(policy))


def _policy(policy: CapacityRequestPolicy) -> CapacityRequestPolicy:
    valid = policy.valid_range
    return CapacityRequestPolicy(
        default=None if policy.default is None else _quantity(policy.default),
        valid_range=None if valid is None else _range(valid),
        valid_values=tuple(_quantity(value) for value in policy.valid_values),
    )


def _range(valid: CapacityRequestPolicyRange) -> CapacityRequestPolicyRange:
    return CapacityRequestPolicyRange(
        min=_quantity(valid.min),
        max=None if valid.max is None else _quantity(valid.max),
        step=None if valid.step is None else _quantity(valid.step),
    )


def _counter_set(item: CounterSet) -> CounterSet:
    return CounterSet(name=item.name, counters=_counters(item.counters))


def _counters(counters: Mapping[str, Counter]) -> dict[str, Counter]:
    return {key: Counter(value=_quantity(value.value)) for key, value in counters.items()}


def _quantity(text: str) -> str:
    return str(Quantity.parse(text))


def keep_times(published: Sequence[Device], devices: Sequence[Device]) -> tuple[Device, ...]:
    """Return the devices with the taint times of the published ones: publishing again does not renew a taint."""
    times = {(device.name, *_taint_key(taint)): taint.time_added for device in published for taint in device.taints}
    return tuple(
        msgspec.structs.replace(
            device,
            taints=tuple(
                msgspec.structs.replace(
                    taint, time_added=taint.time_added or times.get((device.name, *_taint_key(taint)))
                )
                for taint in device.taints
            ),
        )
        for device in devices
    )


def _taint_key(taint: DeviceTaint) -> tuple[str, str, str]:
    return taint.key, taint.value or "", taint.effect
