"""Amounts by name, and the few sums that quotas need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from dray.api.extended_resources import is_dra_extended_resource_name
from dray.api.pod_claims import EXTENDED_RESOURCE_ANNOTATION
from dray.api.quantity import Quantity
from dray.api.quota.names import (
    CLAIMS,
    COMPUTE,
    HUGE_PAGES_PREFIX,
    LIMITS_PREFIX,
    PODS,
    ClassNames,
    count_name,
    devices_name,
    requests_name,
)
from dray.api.types.core_v1 import Container, ContainerStatus, Pod, ResourceRequirements
from dray.api.types.meta_v1 import OwnerReference
from dray.api.types.resource_v1 import DeviceRequest, DeviceSubRequest, ExactDeviceRequest, ResourceClaim

Usage: TypeAlias = Mapping[str, Quantity]

ZERO: Final = Quantity(0)
ONE: Final = Quantity.parse("1")


def parse_amounts(texts: Mapping[str, str]) -> dict[str, Quantity]:
    """Amounts as a document has them."""
    return {name: Quantity.parse(text) for name, text in texts.items()}


def write_amounts(usage: Usage) -> dict[str, str]:
    """Amounts as a document has them, in the order of their names."""
    return {name: str(usage[name]) for name in sorted(usage)}


def add_to(total: dict[str, Quantity], more: Usage) -> None:
    """Add amounts to a total in place."""
    for name, amount in more.items():
        total[name] = total.get(name, ZERO) + amount


def subtract_to_zero(usage: Usage, less: Usage) -> dict[str, Quantity]:
    """What is left of each amount, never less than nothing."""
    left = {name: amount - less.get(name, ZERO) for name, amount in usage.items()}
    return {name: amount if amount.nanos > 0 else ZERO for name, amount in left.items()}


def raise_to(total: dict[str, Quantity], least: Usage) -> None:
    """Raise amounts in place to at least these."""
    for name, amount in least.items():
        if name not in total or amount > total[name]:
            total[name] = amount


def masked(usage: Usage, names: Iterable[str]) -> dict[str, Quantity]:
    """The amounts under these names."""
    return {name: usage[name] for name in names if name in usage}


def describe(usage: Usage) -> str:
    """Amounts as messages list them."""
    return ",".join(f"{name}={usage[name]}" for name in sorted(usage))


_AmountsOf: TypeAlias = Callable[[Container], dict[str, Quantity]]

_POD_COUNT: Final = count_name(PODS)
_ENDED: Final = frozenset({"Succeeded", "Failed"})
_POD_LEVEL: Final = frozenset({"cpu", "memory"})
# A quota for one of these makes every container name its amount; as Kubernetes has it, for no other names.
_DEMANDED: Final = frozenset({"cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"})


def pod_usage(pod: Pod, classes: ClassNames | None, now: datetime) -> dict[str, Quantity]:
    """What the Pod uses; `classes` is None when extended resources are never served by devices."""
    usage = {_POD_COUNT: ONE}
    if not uses_resources(pod, now):
        return usage
    requests, limits = pod_requests(pod), pod_limits(pod)
    usage.update(_compute_usage(requests, limits))
    add_to(usage, _device_usage(requests, classes))
    return usage


def uses_resources(pod: Pod, now: datetime) -> bool:
    """Whether the Pod counts beyond being there: not when it has ended, nor when its end is overdue."""
    if pod.status.phase in _ENDED:
        return False
    deleted, grace = pod.metadata.deletion_timestamp, pod.metadata.deletion_grace_period_seconds
    return deleted is None or grace is None or now <= deleted + timedelta(seconds=grace)


def missing_amounts(pod: Pod, names: Iterable[str]) -> str | None:
    """What containers must specify under limited names, in Kubernetes' words; None when nothing is missing."""
    if _pod_level(pod):
        return None
    demanded = _DEMANDED.intersection(names)
    missing: dict[str, set[str]] = {}
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        resources = container.resources
        given = _compute_usage(parse_amounts(resources.requests), parse_amounts(resources.limits)).keys()
        for name in demanded - given:
            missing.setdefault(name, set()).add(container.name)
    if not missing:
        return None
    return "must specify " + "; ".join(f"{name} for: {','.join(sorted(missing[name]))}" for name in sorted(missing))


# --- How much the containers ask for. ---


def pod_requests(pod: Pod) -> dict[str, Quantity]:
    """What the Pod needs at its busiest moment."""
    statuses = _statuses(pod)
    total = _busiest(pod, lambda container: _requests_of(container, statuses.get(container.name)))
    total.update(_chosen_for_pod(pod.spec.resources, "requests"))
    add_to(total, parse_amounts(pod.spec.overhead))
    return total


def pod_limits(pod: Pod) -> dict[str, Quantity]:
    """The most the Pod may take; what has no limit is left out."""
    statuses = _statuses(pod)
    total = _busiest(pod, lambda container: _limits_of(container, statuses.get(container.name)))
    total.update(_chosen_for_pod(pod.spec.resources, "limits"))
    add_to(total, {name: amount for name, amount in parse_amounts(pod.spec.overhead).items() if total.get(name)})
    return total


def _busiest(pod: Pod, amounts_of: _AmountsOf) -> dict[str, Quantity]:
    """Containers and sidecars run together; an ordinary init container runs with the sidecars before it."""
    total: dict[str, Quantity] = {}
    for container in pod.spec.containers:
        add_to(total, amounts_of(container))
    sidecars: dict[str, Quantity] = {}
    highest: dict[str, Quantity] = {}
    for container in pod.spec.init_containers:
        amounts = amounts_of(container)
        if container.restart_policy == "Always":
            add_to(total, amounts)
            add_to(sidecars, amounts)
            raise_to(highest, sidecars)
        else:
            add_to(amounts, sidecars)
            raise_to(highest, amounts)
    raise_to(total, highest)
    return total


def _requests_of(container: Container, status: ContainerStatus | None) -> dict[str, Quantity]:
    requests = parse_amounts(container.resources.requests)
    if status is not None:
        # While a resize is under way, the most of what is wanted, granted and in force counts.
        raise_to(requests, parse_amounts(status.allocated_resources))
        if status.resources is not None:
            raise_to(requests, parse_amounts(status.resources.requests))
    return requests


def _limits_of(container: Container, status: ContainerStatus | None) -> dict[str, Quantity]:
    limits = parse_amounts(container.resources.limits)
    if status is not None and status.resources is not None:
        raise_to(limits, parse_amounts(status.resources.limits))
    return limits


def _statuses(pod: Pod) -> Mapping[str, ContainerStatus]:
    every = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    return {status.name: status for status in every if status.resources is not None or status.allocated_resources}


def _chosen_for_pod(resources: ResourceRequirements | None, field: str) -> dict[str, Quantity]:
    """What is asked for the Pod as a whole, which replaces the sum of its containers."""
    amounts = parse_amounts(getattr(resources, field)) if resources is not None else {}
    return {name: amount for name, amount in amounts.items() if name in _POD_LEVEL or _is_huge_pages(name)}


def _pod_level(pod: Pod) -> bool:
    return any(_chosen_for_pod(pod.spec.resources, field) for field in ("requests", "limits"))


def _is_huge_pages(name: str) -> bool:
    return name.startswith(HUGE_PAGES_PREFIX)


# --- The names these amounts go by. ---


def _compute_usage(requests: Usage, limits: Usage) -> dict[str, Quantity]:
    usage = {"pods": ONE}
    for name in COMPUTE:
        if name in requests:
            usage[name] = usage[requests_name(name)] = requests[name]
        if name in limits:
            usage[LIMITS_PREFIX + name] = limits[name]
    for name, amount in requests.items():
        if _is_huge_pages(name):
            usage[name] = usage[requests_name(name)] = amount
    return usage


def _device_usage(requests: Usage, classes: ClassNames | None) -> dict[str, Quantity]:
    """Extended resources, each charged under all names of the class that may serve it."""
    usage: dict[str, Quantity] = {}
    for resource, amount in requests.items():
        if not is_dra_extended_resource_name(resource):
            continue
        device_class = classes.class_of(resource) if classes is not None else None
        if classes is None or device_class is None:
            names: tuple[str, ...] = (requests_name(resource),)
        else:
            names = classes.quota_names(device_class)
        add_to(usage, dict.fromkeys(names, amount))
    return usage


# What a request for all devices may come to: no claim gets more.
ALL_DEVICES: Final = 32

_CLAIM_COUNT: Final = count_name(CLAIMS)


def claim_usage(claim: ResourceClaim, classes: ClassNames | None, charged: Usage | None = None) -> dict[str, Quantity]:
    """What the claim uses; `charged` is what its Pod was charged already for the same devices.

    `classes` is None when devices never serve extended resources.
    """
    usage = {_CLAIM_COUNT: ONE}
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


def extended_resource_pod(claim: ResourceClaim) -> OwnerReference | None:
    """The Pod for whose extended resources the claim says it was made; None for other claims."""
    if not claim.metadata.annotations.get(EXTENDED_RESOURCE_ANNOTATION):
        return None
    owner = next((item for item in claim.metadata.owner_references if item.controller), None)
    return owner if owner is not None and (owner.api_version, owner.kind) == ("v1", "Pod") else None


def is_charged_to(claim: ResourceClaim, pod: Pod, siblings: Sequence[ResourceClaim]) -> bool:
    """Whether the Pod has paid for the claim's devices: at most one claim of a Pod can say so.

    `siblings` are the stored special claims that name the Pod as their owner, this one too if it is stored.
    """
    owner = extended_resource_pod(claim)
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
