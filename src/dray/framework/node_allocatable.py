"""CPU, memory and huge pages of the node that devices of a Pod's claims use, as recorded in the Pod's status.

A device maps to an amount of a resource, such as the CPUs that it stands for, or has an overhead, such as the memory of
its driver for each Pod and each container that uses the claim. The scheduler writes the amounts of each claim into the
Pod's status; scheduler and node agent count them beside the Pod's requests. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from dray.api.pod_claims import pod_claims
from dray.api.quantity import Quantity
from dray.api.types.core_v1 import (
    NodeAllocatableMappedResources,
    NodeAllocatableOverheadResources,
    NodeAllocatableResourceClaimStatus,
    Pod,
)
from dray.api.types.resource_v1 import Device, DeviceRequestAllocationResult, NodeAllocatableMapping

# The feature that nodes declare; also the gate.
NODE_ALLOCATABLE_RESOURCES: Final = "DRANodeAllocatableResources"

FindDevice = Callable[[DeviceRequestAllocationResult], Device | None]
Statuses = Sequence[NodeAllocatableResourceClaimStatus]

_ZERO: Final = Quantity(0)
_CPU: Final = "cpu"
_UNIT: Final = 10**9


class AmountError(Exception):
    """The amounts of a device cannot be determined."""


def is_mapped(results: Iterable[DeviceRequestAllocationResult], find: FindDevice) -> bool:
    """Return whether a device maps to resources of the node, so that only one Pod can use it."""
    devices = (find(result) for result in results if not result.admin_access)
    return any(
        resource.mapping is not None
        for device in devices
        if device is not None
        for resource in device.node_allocatable_resources.values()
    )


def claim_status(
    pod: Pod, claim_name: str, results: Iterable[DeviceRequestAllocationResult], find: FindDevice
) -> NodeAllocatableResourceClaimStatus | None:
    """Return the amounts of a claim's devices, summed by resource; None if they use nothing of the node.

    Raises `AmountError`. Admin access uses nothing.
    """
    mapped: dict[str, Quantity] = {}
    per_pod: dict[str, Quantity] = {}
    per_container: dict[str, Quantity] = {}
    for result in results:
        device = None if result.admin_access else find(result)
        for name, resource in {} if device is None else device.node_allocatable_resources.items():
            if resource.mapping is not None:
                _add(mapped, name, _mapped(result, resource.mapping))
            if resource.overhead is not None:
                _add(per_pod, name, _parsed(resource.overhead.per_pod))
                _add(per_container, name, _parsed(resource.overhead.per_container))
    if not (mapped or per_pod or per_container):
        return None
    return NodeAllocatableResourceClaimStatus(
        resource_claim_name=claim_name,
        containers=_users(pod, claim_name),
        mapping=tuple(
            NodeAllocatableMappedResources(name=name, quantity=str(amount)) for name, amount in sorted(mapped.items())
        ),
        overhead=tuple(
            NodeAllocatableOverheadResources(
                name=name, per_pod=_text(per_pod.get(name)), per_container=_text(per_container.get(name))
            )
            for name in sorted(per_pod.keys() | per_container.keys())
        ),
    )


def _mapped(result: DeviceRequestAllocationResult, mapping: NodeAllocatableMapping) -> Quantity | None:
    if not mapping.capacity_key:
        return _parsed(mapping.device_multiplier)
    if not result.consumed_capacity:
        device = f"{result.driver}/{result.pool}/{result.device}"
        raise AmountError(f"device {device} has no consumed capacity for capacity key {mapping.capacity_key}")
    consumed = _parsed(result.consumed_capacity.get(mapping.capacity_key))
    multiplier = _parsed(mapping.capacity_multiplier)
    if consumed is None or multiplier is None:
        return None
    return Quantity(-(-consumed.nanos * multiplier.nanos // _UNIT), consumed.format)


def _users(pod: Pod, claim_name: str) -> tuple[str, ...]:
    """Return the containers that use a claim."""
    entries = {entry.entry for entry in pod_claims(pod) if entry.claim_name == claim_name}
    return tuple(
        container.name
        for container in (*pod.spec.init_containers, *pod.spec.containers)
        if any(used.name in entries for used in container.resources.claims)
    )


# ---- amounts in a status


def pod_amounts(statuses: Statuses) -> dict[str, Quantity]:
    """Return what all claims use, by resource: mapped amounts, and overhead for the Pod and its containers."""
    total: dict[str, Quantity] = {}
    for status in statuses:
        for mapped in status.mapping:
            _add(total, mapped.name, _parsed(mapped.quantity))
        for overhead in status.overhead:
            _add(total, overhead.name, _parsed(overhead.per_pod))
            each = _parsed(overhead.per_container)
            if each is not None:
                _add(total, overhead.name, Quantity(each.nanos * len(status.containers), each.format))
    return total


def container_amounts(statuses: Statuses, container: str) -> dict[str, Quantity]:
    """Return what the claims of one container use for it; mapped amounts and those of the Pod count in full."""
    total: dict[str, Quantity] = {}
    for status in statuses:
        if container in status.containers:
            for mapped in status.mapping:
                _add(total, mapped.name, _parsed(mapped.quantity))
            for overhead in status.overhead:
                _add(total, overhead.name, _parsed(overhead.per_pod))
                _add(total, overhead.name, _parsed(overhead.per_container))
    return total


def container_share(statuses: Statuses, container: str, resource: str) -> Quantity:
    """Return one container's part of a resource, if the containers of a claim share it equally."""
    share = _ZERO
    for status in statuses:
        if container in status.containers:
            users = len(status.containers)
            shared = [_parsed(item.quantity) for item in status.mapping if item.name == resource]
            for overhead in status.overhead:
                if overhead.name == resource:
                    shared.append(_parsed(overhead.per_pod))
                    share += _parsed(overhead.per_container) or _ZERO
            for amount in shared:
                share += _ZERO if amount is None else Quantity(amount.nanos // users, amount.format)
    return share


def integers(amounts: Mapping[str, Quantity]) -> dict[str, int]:
    """Return amounts as integers, CPU in thousandths."""
    return {name: amount.milli_value() if name == _CPU else amount.value() for name, amount in amounts.items()}


def _parsed(text: str | None) -> Quantity | None:
    return None if text is None else Quantity.parse(text)


def _text(amount: Quantity | None) -> str | None:
    return None if amount is None else str(amount)


def _add(total: dict[str, Quantity], name: str, amount: Quantity | None) -> None:
    if amount is not None:
        total[name] = total.get(name, _ZERO) + amount
