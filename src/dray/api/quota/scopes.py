"""The scopes of a quota: which Pods it is for. Other kinds have none, and only quotas without scopes count them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from dray.api.quantity import Quantity
from dray.api.types.core_v1 import (
    Pod,
    PodAffinityTerm,
    ResourceQuota,
    ResourceRequirements,
    ScopedResourceSelectorRequirement,
)

_QUALITY_RESOURCES: Final = ("cpu", "memory")


def scopes_of(quota: ResourceQuota) -> tuple[ScopedResourceSelectorRequirement, ...]:
    """All conditions of the quota, the plain scopes too."""
    plain = tuple(ScopedResourceSelectorRequirement(scope_name=scope, operator="Exists") for scope in quota.spec.scopes)
    selector = quota.spec.scope_selector
    return plain if selector is None else plain + selector.match_expressions


def in_scopes(scopes: Iterable[ScopedResourceSelectorRequirement], pod: Pod | None) -> bool:
    """Whether all conditions hold; `pod` is None for other kinds."""
    return all(pod is not None and _in_scope(scope, pod) for scope in scopes)


def is_terminating(pod: Pod) -> bool:
    """Whether the Pod is meant to end by itself."""
    deadline = pod.spec.active_deadline_seconds
    return deadline is not None and deadline >= 0


def is_best_effort(pod: Pod) -> bool:
    """Whether the Pod asks for no cpu and no memory."""
    if pod.status.qos_class:
        return pod.status.qos_class == "BestEffort"
    if pod.spec.resources is not None:
        return not _asks(pod.spec.resources)
    return not any(_asks(item.resources) for item in (*pod.spec.containers, *pod.spec.init_containers))


def _asks(resources: ResourceRequirements) -> bool:
    amounts = (resources.requests, resources.limits)
    return any(Quantity.parse(item[name]) for item in amounts for name in _QUALITY_RESOURCES if name in item)


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


def _reaches_other_namespaces(pod: Pod) -> bool:
    affinity = pod.spec.affinity
    if affinity is None:
        return False
    terms: list[PodAffinityTerm] = []
    for rules in (affinity.pod_affinity, affinity.pod_anti_affinity):
        if rules is not None:
            terms += rules.required_during_scheduling_ignored_during_execution
            terms += (item.pod_affinity_term for item in rules.preferred_during_scheduling_ignored_during_execution)
    return any(term.namespaces or term.namespace_selector is not None for term in terms)


# Scopes that are there or not; a scope of other kinds (VolumeAttributesClass) holds no Pod.
_TESTS: Final[Mapping[str, Callable[[Pod], bool]]] = {
    "Terminating": is_terminating,
    "NotTerminating": lambda pod: not is_terminating(pod),
    "BestEffort": is_best_effort,
    "NotBestEffort": lambda pod: not is_best_effort(pod),
    "CrossNamespacePodAffinity": _reaches_other_namespaces,
}
