"""What a Pod uses of quotas, which scopes it is in, and what it must say for a quota to be able to tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from dray.api.extended_resources import is_dra_extended_resource_name
from dray.api.quantity import Quantity
from dray.api.quota.amounts import ONE, Usage, add_to, parse_amounts, raise_to
from dray.api.quota.classes import ClassNames
from dray.api.quota.names import COMPUTE, HUGE_PAGES_PREFIX, LIMITS_PREFIX, PODS, count_name, requests_name
from dray.api.types.core_v1 import Container, ContainerStatus, Pod, ResourceRequirements

_AmountsOf: TypeAlias = Callable[[Container], dict[str, Quantity]]

_COUNT: Final = count_name(PODS)
_ENDED: Final = frozenset({"Succeeded", "Failed"})
_POD_LEVEL: Final = frozenset({"cpu", "memory"})
# A quota for one of these makes every container name its amount; as Kubernetes has it, for no other names.
_DEMANDED: Final = frozenset({"cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"})


def pod_usage(pod: Pod, classes: ClassNames | None, now: datetime) -> dict[str, Quantity]:
    """What the Pod uses; `classes` is None when extended resources are never served by devices."""
    usage = {_COUNT: ONE}
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
