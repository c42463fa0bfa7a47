"""What a ResourceClaim uses of quotas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from dray.api.pod_claims import EXTENDED_RESOURCE_ANNOTATION
from dray.api.quantity import Quantity
from dray.api.quota.amounts import ONE, ZERO, Usage, add_to
from dray.api.quota.classes import ClassNames
from dray.api.quota.names import CLAIMS, count_name, devices_name
from dray.api.types.core_v1 import Pod
from dray.api.types.meta_v1 import OwnerReference
from dray.api.types.resource_v1 import DeviceRequest, DeviceSubRequest, ExactDeviceRequest, ResourceClaim

# What a request for all devices may come to: no claim gets more.
ALL_DEVICES: Final = 32

_COUNT: Final = count_name(CLAIMS)


def claim_usage(claim: ResourceClaim, classes: ClassNames | None, charged: Usage | None = None) -> dict[str, Quantity]:
    """What the claim uses; `charged` is what its Pod was charged already for the same devices.

    `classes` is None when devices never serve extended resources.
    """
    usage = {_COUNT: ONE}
    for device_class, count in devices_by_class(claim).items():
        names = classes.quota_names(device_class) if classes is not None else (devices_name(device_class),)
        wanted = Quantity.parse(count)
        left = {name: wanted - (charged or {}).get(name, ZERO) for name in names}
        add_to(usage, {name: amount for name, amount in left.items() if amount.nanos > 0})
    return usage


def devices_by_class(claim: ResourceClaim) -> dict[str, int]:
    """The most devices of each class that the claim may get."""
    total: dict[str, int] = {}
    for request in claim.spec.devices.requests:
        for device_class, count in _counts(request).items():
            total[device_class] = total.get(device_class, 0) + count
    return total


def _counts(request: DeviceRequest) -> dict[str, int]:
    """Only one alternative will be used; which one is not known, so each class counts with its largest."""
    if request.first_available:
        alternatives: Iterable[DeviceSubRequest | ExactDeviceRequest] = request.first_available
    else:
        alternatives = (request.exactly,) if request.exactly is not None else ()
    counts: dict[str, int] = {}
    for item in alternatives:
        counts[item.device_class_name] = max(counts.get(item.device_class_name, 0), _count(item))
    return counts


def _count(request: DeviceSubRequest | ExactDeviceRequest) -> int:
    match request.allocation_mode:
        case "ExactCount":
            return request.count or 0
        case "All":
            return ALL_DEVICES
        case _:
            # A mode of a later version, left behind by a downgrade.
            return 0


# --- The claims that the scheduler makes for extended resources. ---


def special_owner(claim: ResourceClaim) -> OwnerReference | None:
    """The Pod for whose extended resources the claim says it was made; None for other claims."""
    if not claim.metadata.annotations.get(EXTENDED_RESOURCE_ANNOTATION):
        return None
    owner = next((item for item in claim.metadata.owner_references if item.controller), None)
    return owner if owner is not None and (owner.api_version, owner.kind) == ("v1", "Pod") else None


def is_charged_to(claim: ResourceClaim, pod: Pod, siblings: Sequence[ResourceClaim]) -> bool:
    """Whether the Pod has paid for the claim's devices: at most one claim of a Pod can say so.

    `siblings` are the stored special claims that name the Pod as their owner, this one too if it is stored.
    """
    owner = special_owner(claim)
    if owner is None or owner.uid != pod.metadata.uid or claim.metadata.namespace != pod.metadata.namespace:
        return False
    status = pod.status.extended_resource_claim_status
    if status is not None:
        return status.resource_claim_name == claim.metadata.name
    # Nobody has said yet which one it is: the first one. A claim that is not stored yet comes after all that are.
    others = [item for item in siblings if item.metadata.uid != claim.metadata.uid]
    stored = len(others) < len(siblings)
    return not any(not stored or _age(item) < _age(claim) for item in others)


def _age(claim: ResourceClaim) -> tuple[float, str]:
    created = claim.metadata.creation_timestamp
    return (created.timestamp() if created is not None else 0.0, claim.metadata.name or "")
