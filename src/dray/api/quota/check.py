"""Quota evaluation of an object against the quotas of its namespace, with Kubernetes' messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dray.api.document import GroupResource
from dray.api.quantity import Quantity
from dray.api.quota.names import measured_names
from dray.api.quota.usage import ZERO, Usage, describe, masked, missing_amounts, parse_amounts, subtract_to_zero
from dray.api.types.core_v1 import (
    Pod,
    PodAffinityTerm,
    ResourceQuota,
    ResourceRequirements,
    ScopedResourceSelectorRequirement,
)


@dataclass(frozen=True, slots=True)
class Subject:
    """An object for quota evaluation; `pod` is set for Pods, the only kind with scopes."""

    resource: GroupResource
    usage: Usage
    pod: Pod | None = None
    # The object before a change; None for a new one.
    previous: Subject | None = None
    # Whether extended resources may be served by devices.
    extended: bool = True


def applies(quota: ResourceQuota, subject: Subject) -> bool:
    """Report whether the quota, according to its status, limits the object."""
    names = measured_names(quota.status.hard, subject.resource, extended=subject.extended)
    return bool(names) and in_scopes(scopes_of(quota), subject.pod)


def requested(quota: ResourceQuota, subject: Subject) -> dict[str, Quantity]:
    """Return the usage that the object would add to the quota; empty when the quota does not limit it."""
    if not applies(quota, subject):
        return {}
    usage: Usage = subject.usage
    if subject.previous is not None and applies(quota, subject.previous):
        usage = subtract_to_zero(usage, subject.previous.usage)
    return {name: amount for name, amount in masked(usage, quota.status.hard).items() if amount}


def objection(quota: ResourceQuota, subject: Subject) -> str | None:
    """Return the reason why the quota cannot be evaluated; None when it can."""
    if not applies(quota, subject):
        return None
    names = measured_names(quota.status.hard, subject.resource, extended=subject.extended)
    name = quota.metadata.name
    missing = missing_amounts(subject.pod, names) if subject.pod is not None else None
    if missing is not None:
        return f"failed quota: {name}: {missing}"
    if any(item not in quota.status.used for item in names):
        return f"status unknown for quota: {name}, resources: {','.join(sorted(names))}"
    return None


def excess(quota: ResourceQuota, used: Usage, wanted: Usage) -> str | None:
    """Return the reason why the wanted amounts exceed the quota; None when they fit."""
    hard = parse_amounts(_limits(quota, wanted))
    over = [name for name, amount in wanted.items() if used.get(name, ZERO) + amount > hard[name]]
    if not over:
        return None
    parts = (describe(masked(amounts, over)) for amounts in (wanted, used, hard))
    return "exceeded quota: {}, requested: {}, used: {}, limited: {}".format(quota.metadata.name, *parts)


def _limits(quota: ResourceQuota, wanted: Usage) -> dict[str, str]:
    return {name: quota.status.hard[name] for name in wanted}


_QOS_RESOURCES: Final = ("cpu", "memory")


def scopes_of(quota: ResourceQuota) -> tuple[ScopedResourceSelectorRequirement, ...]:
    """Return all scope requirements of the quota, plain scopes included."""
    plain = tuple(ScopedResourceSelectorRequirement(scope_name=scope, operator="Exists") for scope in quota.spec.scopes)
    selector = quota.spec.scope_selector
    return plain if selector is None else plain + selector.match_expressions


def in_scopes(scopes: Iterable[ScopedResourceSelectorRequirement], pod: Pod | None) -> bool:
    """Report whether all scopes match; `pod` is None for other kinds."""
    return all(pod is not None and _in_scope(scope, pod) for scope in scopes)


def is_terminating(pod: Pod) -> bool:
    """Report whether the Pod has an active deadline."""
    deadline = pod.spec.active_deadline_seconds
    return deadline is not None and deadline >= 0


def is_best_effort(pod: Pod) -> bool:
    """Report whether the Pod requests neither cpu nor memory."""
    if pod.status.qos_class:
        return pod.status.qos_class == "BestEffort"
    if pod.spec.resources is not None:
        return not _has_amounts(pod.spec.resources)
    return not any(_has_amounts(item.resources) for item in (*pod.spec.containers, *pod.spec.init_containers))


def _has_amounts(resources: ResourceRequirements) -> bool:
    amounts = (resources.requests, resources.limits)
    return any(Quantity.parse(item[name]) for item in amounts for name in _QOS_RESOURCES if name in item)


def _in_scope(scope: ScopedResourceSelectorRequirement, pod: Pod) -> bool:
    if scope.scope_name == "PriorityClass":
        return _has_priority(scope, pod.spec.priority_class_name or "")
    test = _TESTS.get(scope.scope_name)
    return test is not None and test(pod)


def _has_priority(scope: ScopedResourceSelectorRequirement, name: str) -> bool:
    match scope.operator:
        case "Exists":
            return bool(name)
        case "DoesNotExist":
            return not name
        case "In":
            return bool(name) and name in scope.values
        case "NotIn":
            return name not in scope.values
        case _:
            return False


def _has_cross_namespace_affinity(pod: Pod) -> bool:
    affinity = pod.spec.affinity
    if affinity is None:
        return False
    terms: list[PodAffinityTerm] = []
    for rules in (affinity.pod_affinity, affinity.pod_anti_affinity):
        if rules is not None:
            terms += rules.required_during_scheduling_ignored_during_execution
            terms += (item.pod_affinity_term for item in rules.preferred_during_scheduling_ignored_during_execution)
    return any(term.namespaces or term.namespace_selector is not None for term in terms)


# Boolean scopes; a scope of other kinds (VolumeAttributesClass) matches no Pod.
_TESTS: Final[Mapping[str, Callable[[Pod], bool]]] = {
    "Terminating": is_terminating,
    "NotTerminating": lambda pod: not is_terminating(pod),
    "BestEffort": is_best_effort,
    "NotBestEffort": lambda pod: not is_best_effort(pod),
    "CrossNamespacePodAffinity": _has_cross_namespace_affinity,
}
