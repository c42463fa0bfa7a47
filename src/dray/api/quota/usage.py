"""Quota usage of Pods and claims, and arithmetic of amounts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, TypeAlias

from dray.api.document import Document, GroupResource
from dray.api.extended_resources import is_dra_extended_resource_name
from dray.api.pod_claims import EXTENDED_RESOURCE_ANNOTATION, TERMINAL_PHASES
from dray.api.quantity import Quantity
from dray.api.quota.names import (
    CLAIMS,
    COMPUTE,
    HUGE_PAGES_PREFIX,
    LIMITS_PREFIX,
    LOAD_BALANCERS,
    NODE_PORTS,
    PODS,
    SERVICES,
    STORAGE,
    STORAGE_CLASS_INFIX,
    VOLUME_CLAIMS,
    ClassNames,
    count_name,
    count_names,
    devices_name,
    requests_name,
)
from dray.api.timestamps import seconds_after
from dray.api.types.core_v1 import Container, ContainerStatus, Pod, ResourceRequirements
from dray.api.types.meta_v1 import OwnerReference
from dray.api.types.resource_v1 import (
    AllocationResult,
    DeviceRequest,
    DeviceSubRequest,
    ExactDeviceRequest,
    ResourceClaim,
)

Usage: TypeAlias = Mapping[str, Quantity]

ZERO: Final = Quantity(0)
ONE: Final = Quantity.parse("1")


def parse_amounts(texts: Mapping[str, str]) -> dict[str, Quantity]:
    """Parse the amounts of a document."""
    return {name: Quantity.parse(text) for name, text in texts.items()}


def write_amounts(usage: Usage) -> dict[str, str]:
    """Return the amounts in the form of a document, sorted by name."""
    return {name: str(usage[name]) for name in sorted(usage)}


def add_to(total: dict[str, Quantity], more: Usage) -> None:
    """Add amounts to a total in place."""
    for name, amount in more.items():
        total[name] = total.get(name, ZERO) + amount


def subtract_to_zero(usage: Usage, less: Usage) -> dict[str, Quantity]:
    """Return the difference of the amounts, at least zero."""
    left = {name: amount - less.get(name, ZERO) for name, amount in usage.items()}
    return {name: amount if amount.nanos > 0 else ZERO for name, amount in left.items()}


def raise_to_at_least(total: dict[str, Quantity], least: Usage) -> None:
    """Raise amounts in place to at least these."""
    for name, amount in least.items():
        if name not in total or amount > total[name]:
            total[name] = amount


def masked(usage: Usage, names: Iterable[str]) -> dict[str, Quantity]:
    """Return the amounts with these names."""
    return {name: usage[name] for name in names if name in usage}


def describe(usage: Usage) -> str:
    """Return the amounts as messages list them."""
    return ",".join(f"{name}={usage[name]}" for name in sorted(usage))


_AmountsOf: TypeAlias = Callable[[Container], dict[str, Quantity]]

_POD_COUNT: Final = count_name(PODS)
_POD_LEVEL: Final = frozenset({"cpu", "memory"})
# A quota for one of these requires every container to specify it; no other names do.
_REQUIRED: Final = frozenset({"cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"})


def pod_usage(pod: Pod, classes: ClassNames | None, now: datetime) -> dict[str, Quantity]:
    """Return the usage of the Pod; `classes` is None when devices never serve extended resources."""
    usage = {_POD_COUNT: ONE}
    if not uses_resources(pod, now):
        return usage
    requests, limits = pod_requests(pod), pod_limits(pod)
    usage.update(_compute_usage(requests, limits))
    add_to(usage, _device_usage(requests, classes))
    return usage


def uses_resources(pod: Pod, now: datetime) -> bool:
    """Report whether the Pod uses resources: it has not finished, and its deletion is not overdue."""
    if pod.status.phase in TERMINAL_PHASES:
        return False
    deleted, grace = pod.metadata.deletion_timestamp, pod.metadata.deletion_grace_period_seconds
    return deleted is None or grace is None or now <= seconds_after(deleted, grace)


def missing_amounts(pod: Pod, names: Iterable[str]) -> str | None:
    """Return the message about amounts that containers must specify for limited names; None when none is missing."""
    if _pod_level(pod):
        return None
    required = _REQUIRED.intersection(names)
    missing: dict[str, set[str]] = {}
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        resources = container.resources
        given = _compute_usage(parse_amounts(resources.requests), parse_amounts(resources.limits)).keys()
        for name in required - given:
            missing.setdefault(name, set()).add(container.name)
    if not missing:
        return None
    return "must specify " + "; ".join(f"{name} for: {','.join(sorted(missing[name]))}" for name in sorted(missing))


# --- Requests and limits of containers.


def pod_requests(pod: Pod) -> dict[str, Quantity]:
    """Return the Pod's peak requests."""
    statuses = _statuses(pod)
    total = _peak(pod, lambda container: _requests_of(container, statuses.get(container.name)))
    total.update(_pod_level_amounts(pod.spec.resources, "requests"))
    add_to(total, parse_amounts(pod.spec.overhead))
    return total


def pod_limits(pod: Pod) -> dict[str, Quantity]:
    """Return the Pod's peak limits; resources without a limit are omitted."""
    statuses = _statuses(pod)
    total = _peak(pod, lambda container: _limits_of(container, statuses.get(container.name)))
    total.update(_pod_level_amounts(pod.spec.resources, "limits"))
    add_to(total, {name: amount for name, amount in parse_amounts(pod.spec.overhead).items() if total.get(name)})
    return total


def _peak(pod: Pod, amounts_of: _AmountsOf) -> dict[str, Quantity]:
    return peak_amounts(
        [amounts_of(container) for container in pod.spec.containers],
        [(amounts_of(container), container.restart_policy == "Always") for container in pod.spec.init_containers],
    )


def peak_amounts(containers: Iterable[Usage], init_containers: Iterable[tuple[Usage, bool]]) -> dict[str, Quantity]:
    """Return the peak of containers' amounts; an init container comes with whether it is a sidecar.

    Containers run with all sidecars, an init container with the sidecars before it.
    """
    total: dict[str, Quantity] = {}
    for amounts in containers:
        add_to(total, amounts)
    sidecars: dict[str, Quantity] = {}
    highest: dict[str, Quantity] = {}
    for amounts, is_sidecar in init_containers:
        if is_sidecar:
            add_to(total, amounts)
            add_to(sidecars, amounts)
            raise_to_at_least(highest, sidecars)
        else:
            together = dict(sidecars)
            add_to(together, amounts)
            raise_to_at_least(highest, together)
    raise_to_at_least(total, highest)
    return total


def _requests_of(container: Container, status: ContainerStatus | None) -> dict[str, Quantity]:
    requests = parse_amounts(container.resources.requests)
    if status is not None:
        # During a resize, the maximum of the desired, allocated and actual resources counts.
        raise_to_at_least(requests, parse_amounts(status.allocated_resources))
        if status.resources is not None:
            raise_to_at_least(requests, parse_amounts(status.resources.requests))
    return requests


def _limits_of(container: Container, status: ContainerStatus | None) -> dict[str, Quantity]:
    limits = parse_amounts(container.resources.limits)
    if status is not None and status.resources is not None:
        raise_to_at_least(limits, parse_amounts(status.resources.limits))
    return limits


def _statuses(pod: Pod) -> Mapping[str, ContainerStatus]:
    every = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    return {status.name: status for status in every if status.resources is not None or status.allocated_resources}


def _pod_level_amounts(resources: ResourceRequirements | None, field: str) -> dict[str, Quantity]:
    """Return the pod-level amounts, which replace the sum of the containers."""
    amounts = parse_amounts(getattr(resources, field)) if resources is not None else {}
    return {name: amount for name, amount in amounts.items() if name in _POD_LEVEL or is_huge_pages(name)}


def _pod_level(pod: Pod) -> bool:
    return any(_pod_level_amounts(pod.spec.resources, field) for field in ("requests", "limits"))


def is_huge_pages(name: str) -> bool:
    """Return whether the resource is a size of huge pages."""
    return name.startswith(HUGE_PAGES_PREFIX)


# --- Resource names of these amounts.


def _compute_usage(requests: Usage, limits: Usage) -> dict[str, Quantity]:
    usage = {"pods": ONE}
    for name in COMPUTE:
        if name in requests:
            usage[name] = usage[requests_name(name)] = requests[name]
        if name in limits:
            usage[LIMITS_PREFIX + name] = limits[name]
    for name, amount in requests.items():
        if is_huge_pages(name):
            usage[name] = usage[requests_name(name)] = amount
    return usage


def _device_usage(requests: Usage, classes: ClassNames | None) -> dict[str, Quantity]:
    """Return the usage of extended resources, each charged under all names of the class that may serve it."""
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


# The count of a request for all devices: the maximum of a claim.
ALL_DEVICES: Final = 32

_CLAIM_COUNT: Final = count_name(CLAIMS)


def claim_usage(
    claim: ResourceClaim, classes: ClassNames | None, charged: Usage | None = None, *, follows_allocation: bool = False
) -> dict[str, Quantity]:
    """Return the usage of the claim; `charged` is the Pod's charge for the same devices.

    `classes` is None when devices never serve extended resources. If it follows the allocation, an allocated claim uses
    the devices that it got, and not the most that it could have got.
    """
    usage = {_CLAIM_COUNT: ONE}
    allocation = claim.status.allocation if follows_allocation else None
    devices = devices_by_class(claim) if allocation is None else allocated_by_class(claim, allocation)
    for device_class, count in devices.items():
        names = classes.quota_names(device_class) if classes is not None else (devices_name(device_class),)
        wanted = Quantity.parse(count)
        left = {name: wanted - (charged or {}).get(name, ZERO) for name in names}
        add_to(usage, {name: amount for name, amount in left.items() if amount.nanos > 0})
    return usage


def devices_by_class(claim: ResourceClaim) -> dict[str, int]:
    """Return the maximum number of devices of each class that the claim may get."""
    total: dict[str, int] = {}
    for request in claim.spec.devices.requests:
        for device_class, count in _counts(request).items():
            total[device_class] = total.get(device_class, 0) + count
    return total


def allocated_by_class(claim: ResourceClaim, allocation: AllocationResult) -> dict[str, int]:
    """Return the number of devices of each class that the claim got."""
    classes = {item.name: item.exactly.device_class_name for item in claim.spec.devices.requests if item.exactly}
    for request in claim.spec.devices.requests:
        classes |= {f"{request.name}/{sub.name}": sub.device_class_name for sub in request.first_available}
    return Counter(classes[result.request] for result in allocation.devices.results if result.request in classes)


def _counts(request: DeviceRequest) -> dict[str, int]:
    """Return the maximum count of each class: any one of the alternatives may be allocated."""
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
            # A mode of a later version, stored before a downgrade.
            return 0


# --- Other kinds.


def counted_usage(resource: GroupResource, document: Document) -> dict[str, Quantity]:
    """Return the usage of an object of any other kind: its number, and the ports or the storage that it takes."""
    usage = dict.fromkeys(count_names(resource), ONE)
    if resource == SERVICES:
        usage |= _service_usage(document.get("spec") or {})
    elif resource == VOLUME_CLAIMS:
        usage |= _volume_claim_usage(document)
    return usage


def _service_usage(spec: Document) -> dict[str, Quantity]:
    kind, ports = spec.get("type"), spec.get("ports") or ()
    balanced = kind == "LoadBalancer"
    if balanced and spec.get("allocateLoadBalancerNodePorts") is False:
        count = sum(1 for port in ports if port.get("nodePort"))
    else:
        count = len(ports) if balanced or kind == "NodePort" else 0
    return {NODE_PORTS: Quantity.parse(count), LOAD_BALANCERS: ONE if balanced else ZERO}


def _volume_claim_usage(claim: Document) -> dict[str, Quantity]:
    spec, status = claim.get("spec") or {}, claim.get("status") or {}
    texts = [((spec.get("resources") or {}).get("requests") or {}).get("storage")]
    # A claim that is being expanded or shrunk counts with the larger size.
    texts.append((status.get("allocatedResources") or {}).get("storage"))
    storage = max((Quantity.parse(text) for text in texts if text is not None), default=ZERO)
    usage = {STORAGE: storage}
    if storage_class := spec.get("storageClassName"):
        prefix = f"{storage_class}{STORAGE_CLASS_INFIX}"
        usage |= {f"{prefix}{STORAGE}": storage, f"{prefix}{VOLUME_CLAIMS.resource}": ONE}
    return usage


# --- Claims that the scheduler creates for extended resources.


def extended_resource_pod(claim: ResourceClaim) -> OwnerReference | None:
    """Return the Pod whose extended resources the claim holds; None for other claims."""
    if not claim.metadata.annotations.get(EXTENDED_RESOURCE_ANNOTATION):
        return None
    owner = next((item for item in claim.metadata.owner_references if item.controller), None)
    return owner if owner is not None and (owner.api_version, owner.kind) == ("v1", "Pod") else None


def is_charged_to(claim: ResourceClaim, pod: Pod, siblings: Sequence[ResourceClaim]) -> bool:
    """Report whether the claim's devices are charged to the Pod, which is so for at most one claim.

    `siblings` are the stored extended-resource claims of the Pod, including this one if it is stored.
    """
    owner = extended_resource_pod(claim)
    if owner is None or owner.uid != pod.metadata.uid or claim.metadata.namespace != pod.metadata.namespace:
        return False
    status = pod.status.extended_resource_claim_status
    if status is not None:
        return status.resource_claim_name == claim.metadata.name
    # The Pod's status does not name its claim yet: the oldest one counts. A claim that is not stored comes last.
    others = [item for item in siblings if item.metadata.uid != claim.metadata.uid]
    stored = len(others) < len(siblings)
    return not any(not stored or _age(item) < _age(claim) for item in others)


def _age(claim: ResourceClaim) -> tuple[float, str]:
    created = claim.metadata.creation_timestamp
    return (created.timestamp() if created is not None else 0.0, claim.metadata.name or "")
