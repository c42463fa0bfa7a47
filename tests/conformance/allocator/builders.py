"""Tiny builders of claims, classes, slices and nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dray.api.types import core_v1, meta_v1
from dray.api.types import resource_v1 as r

DRIVER_A = "driver-a"
DRIVER_B = "driver-b"
CLASS_A = "class-a"
CLASS_B = "class-b"


def node(name: str = "node-1", **labels: str) -> core_v1.Node:
    return core_v1.Node(metadata=meta_v1.ObjectMeta(name=name, labels={"region": "region-1", **labels}))


def cel(expression: str) -> r.DeviceSelector:
    return r.DeviceSelector(cel=r.CELDeviceSelector(expression=expression))


def device_class(name: str = CLASS_A, *expressions: str, config: Sequence[str] = ()) -> r.DeviceClass:
    """A class for the driver of the same letter unless expressions are given."""
    texts = expressions or (f'device.driver == "{name.replace("class", "driver")}"',)
    return r.DeviceClass(
        metadata=meta_v1.ObjectMeta(name=name),
        spec=r.DeviceClassSpec(
            selectors=tuple(cel(text) for text in texts),
            config=tuple(r.DeviceClassConfiguration(opaque=opaque(item)) for item in config),
        ),
    )


def opaque(value: str, driver: str = DRIVER_A) -> r.OpaqueDeviceConfiguration:
    return r.OpaqueDeviceConfiguration(driver=driver, parameters={"value": value})


def request(
    name: str = "req-0", class_name: str = CLASS_A, count: int = 1, *selectors: str, **fields: Any
) -> r.DeviceRequest:
    return r.DeviceRequest(name=name, exactly=_spec(r.ExactDeviceRequest, class_name, count, selectors, fields))


def all_devices(name: str = "req-0", class_name: str = CLASS_A, *selectors: str, **fields: Any) -> r.DeviceRequest:
    return request(name, class_name, 0, *selectors, allocation_mode="All", **fields)


def sub(name: str, class_name: str = CLASS_A, count: int = 1, *selectors: str, **fields: Any) -> r.DeviceSubRequest:
    made: r.DeviceSubRequest = _spec(r.DeviceSubRequest, class_name, count, selectors, {"name": name, **fields})
    return made


def sub_all(name: str, class_name: str = CLASS_A, *selectors: str, **fields: Any) -> r.DeviceSubRequest:
    return sub(name, class_name, 0, *selectors, allocation_mode="All", **fields)


def first_of(name: str, *alternatives: r.DeviceSubRequest) -> r.DeviceRequest:
    return r.DeviceRequest(name=name, first_available=alternatives)


def _spec(kind: Any, class_name: str, count: int, selectors: Sequence[str], fields: dict[str, Any]) -> Any:
    capacity = fields.pop("capacity", None)
    derived = fields.pop("derived", {})
    return kind(
        device_class_name=class_name,
        count=count or None,
        selectors=tuple(cel(text) for text in selectors),
        capacity=None if capacity is None else r.CapacityRequirements(requests=capacity),
        derived_attributes=tuple(
            r.DeviceDerivedAttribute(name=name, expression=text) for name, text in derived.items()
        ),
        **{"allocation_mode": "ExactCount", **fields},
    )


def claim(
    *requests: r.DeviceRequest,
    name: str = "claim-0",
    constraints: Sequence[r.DeviceConstraint] = (),
    config: Sequence[r.DeviceClaimConfiguration] = (),
) -> r.ResourceClaim:
    return r.ResourceClaim(
        metadata=meta_v1.ObjectMeta(name=name, namespace="ns", uid=f"uid-{name}"),
        spec=r.ResourceClaimSpec(
            devices=r.DeviceClaim(requests=requests, constraints=tuple(constraints), config=tuple(config))
        ),
    )


def match(attribute: str, *requests: str) -> r.DeviceConstraint:
    return r.DeviceConstraint(match_attribute=f"{DRIVER_A}/{attribute}", requests=requests)


def distinct(attribute: str, *requests: str) -> r.DeviceConstraint:
    return r.DeviceConstraint(distinct_attribute=f"{DRIVER_A}/{attribute}", requests=requests)


def config(value: str, *requests: str) -> r.DeviceClaimConfiguration:
    return r.DeviceClaimConfiguration(opaque=opaque(value), requests=requests)


def attribute(value: Any) -> r.DeviceAttribute:
    """An attribute of the value's kind; versions start with a `v`."""
    if isinstance(value, bool):
        return r.DeviceAttribute(bool_=value)
    if isinstance(value, int):
        return r.DeviceAttribute(int_=value)
    if isinstance(value, list):
        field = {bool: "bools", int: "ints", str: "strings"}[type(value[0])]
        if field == "strings" and value[0].startswith("v"):
            return r.DeviceAttribute(versions=tuple(item[1:] for item in value))
        values: dict[str, Any] = {field: tuple(value)}
        return r.DeviceAttribute(**values)
    if value.startswith("v") and value[1:2].isdigit():
        return r.DeviceAttribute(version=value[1:])
    return r.DeviceAttribute(string=value)


def device(name: str, attributes: Mapping[str, Any] | None = None, **fields: Any) -> r.Device:
    capacity = {
        key: value if isinstance(value, r.DeviceCapacity) else r.DeviceCapacity(value=value)
        for key, value in fields.pop("capacity", {}).items()
    }
    groups = fields.pop("groups", {})
    consumes = tuple(
        r.DeviceCounterConsumption(
            counter_set=name, counters=counters(amounts), compatibility_groups=tuple(groups.get(name, ()))
        )
        for name, amounts in fields.pop("consumes", {}).items()
    )
    return r.Device(
        name=name,
        attributes={key: attribute(value) for key, value in (attributes or {}).items()},
        capacity=capacity,
        consumes_counters=consumes,
        **fields,
    )


def counters(amounts: Mapping[str, str]) -> dict[str, r.Counter]:
    return {name: r.Counter(value=value) for name, value in amounts.items()}


def counter_set(name: str, **amounts: str) -> r.CounterSet:
    return r.CounterSet(name=name, counters=counters(amounts))


def shared(
    name: str, capacity: Mapping[str, Any] | None = None, attributes: Mapping[str, Any] | None = None
) -> r.Device:
    return device(name, attributes, capacity=capacity or {}, allow_multiple_allocations=True)


def ranged(value: str, default: str = "2", least: str = "2", step: str = "2", most: str = "4") -> r.DeviceCapacity:
    policy = r.CapacityRequestPolicy(
        default=default, valid_range=r.CapacityRequestPolicyRange(min=least, step=step, max=most)
    )
    return r.DeviceCapacity(value=value, request_policy=policy)


def listed(value: str, *values: str, default: str) -> r.DeviceCapacity:
    return r.DeviceCapacity(
        value=value, request_policy=r.CapacityRequestPolicy(default=default, valid_values=(default, *values))
    )


def devices(count: int, **attributes: Any) -> tuple[r.Device, ...]:
    return tuple(device(f"device-{number}", attributes) for number in range(count))


def slice_of(*members: r.Device | str, pool: str = "pool-1", driver: str = DRIVER_A, **fields: Any) -> r.ResourceSlice:
    """A slice for node-1 that is its whole pool, by default."""
    name = fields.pop("name", f"slice-{driver}-{pool}")
    size, generation = fields.pop("size", 1), fields.pop("generation", 1)
    if not fields.keys() & {"node_name", "node_selector", "all_nodes", "per_device_node_selection"}:
        fields["node_name"] = "node-1"
    return r.ResourceSlice(
        metadata=meta_v1.ObjectMeta(name=name),
        spec=r.ResourceSliceSpec(
            driver=driver,
            pool=r.ResourcePool(name=pool, generation=generation, resource_slice_count=size),
            devices=tuple(device(item) if isinstance(item, str) else item for item in members),
            **fields,
        ),
    )


def requirement(key: str, operator: str, *values: str) -> core_v1.NodeSelectorRequirement:
    return core_v1.NodeSelectorRequirement(key=key, operator=operator, values=values)


def labelled(
    *expressions: core_v1.NodeSelectorRequirement, fields: Sequence[core_v1.NodeSelectorRequirement] = ()
) -> core_v1.NodeSelector:
    term = core_v1.NodeSelectorTerm(match_expressions=expressions, match_fields=tuple(fields))
    return core_v1.NodeSelector(node_selector_terms=(term,))


def in_region(region: str = "region-1") -> core_v1.NodeSelector:
    return labelled(requirement("region", "In", region))


def on_node(name: str = "node-1") -> core_v1.NodeSelector:
    return labelled(fields=[requirement("metadata.name", "In", name)])


def taint(effect: str = "NoSchedule", key: str = "maintenance", value: str | None = None) -> r.DeviceTaint:
    return r.DeviceTaint(key=key, effect=effect, value=value)


def toleration(key: str | None = "maintenance", operator: str = "Exists", **fields: Any) -> r.DeviceToleration:
    return r.DeviceToleration(key=key, operator=operator, **fields)


def holding(*keys: str, name: str = "other", **fields: Any) -> r.ResourceClaim:
    """A claim that has devices, each written `driver/pool/device`."""
    results = []
    for key in keys:
        driver, _, rest = key.partition("/")
        pool, _, device_name = rest.rpartition("/")
        results.append(
            r.DeviceRequestAllocationResult(request="req-0", driver=driver, pool=pool, device=device_name, **fields)
        )
    return r.ResourceClaim(
        metadata=meta_v1.ObjectMeta(name=name, namespace="ns", uid=f"uid-{name}"),
        status=r.ResourceClaimStatus(
            allocation=r.AllocationResult(devices=r.DeviceAllocationResult(results=tuple(results)))
        ),
    )


def result(name: str, key: str, **fields: Any) -> r.DeviceRequestAllocationResult:
    driver, _, rest = key.partition("/")
    pool, _, device_name = rest.rpartition("/")
    return r.DeviceRequestAllocationResult(request=name, driver=driver, pool=pool, device=device_name, **fields)


def no_such_key(key: str, name: str = "x") -> str:
    """The error about an attribute that a device does not have."""
    return f"claim ns/claim-0: selector #0 on device driver-a/pool-1/{name}: {no_such_key_text(key)}"


def no_such_key_text(key: str) -> str:
    hint = "consider using CEL optional chaining (.? followed by orValue()) or guarding the check with has()"
    return f"CEL runtime error: no such key: {key}. {hint} for optional fields"
