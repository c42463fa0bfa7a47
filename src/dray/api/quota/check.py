"""Whether an object fits the quotas of its namespace; the messages are Kubernetes'."""

from __future__ import annotations

from dataclasses import dataclass

from dray.api.document import GroupResource
from dray.api.quantity import Quantity
from dray.api.quota.amounts import ZERO, Usage, describe, masked, parse_amounts, subtract_to_zero
from dray.api.quota.names import measured_names
from dray.api.quota.pods import missing_amounts
from dray.api.quota.scopes import in_scopes, scopes_of
from dray.api.types.core_v1 import Pod, ResourceQuota


@dataclass(frozen=True, slots=True)
class Subject:
    """An object as quotas see it; `pod` is set for Pods, which alone have scopes."""

    resource: GroupResource
    usage: Usage
    pod: Pod | None = None
    # The object before a change; None for a new one.
    previous: Subject | None = None
    # Whether devices and extended resources are one.
    extended: bool = True


def applies(quota: ResourceQuota, subject: Subject) -> bool:
    """Whether the quota, as far as its usage is known, limits the object."""
    names = measured_names(quota.status.hard, subject.resource, extended=subject.extended)
    return bool(names) and in_scopes(scopes_of(quota), subject.pod)


def requested(quota: ResourceQuota, subject: Subject) -> dict[str, Quantity]:
    """What the object would add to the quota's usage; empty when the quota does not care."""
    if not applies(quota, subject):
        return {}
    usage: Usage = subject.usage
    if subject.previous is not None and applies(quota, subject.previous):
        usage = subtract_to_zero(usage, subject.previous.usage)
    return {name: amount for name, amount in masked(usage, quota.status.hard).items() if amount}


def objection(quota: ResourceQuota, subject: Subject) -> str | None:
    """Why the quota cannot even judge the object; None when it can."""
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
    """Why the wanted amounts are too much on top of the used ones; None when they fit."""
    hard = parse_amounts(_limits(quota, wanted))
    over = [name for name, amount in wanted.items() if used.get(name, ZERO) + amount > hard[name]]
    if not over:
        return None
    parts = (describe(masked(amounts, over)) for amounts in (wanted, used, hard))
    return "exceeded quota: {}, requested: {}, used: {}, limited: {}".format(quota.metadata.name, *parts)


def _limits(quota: ResourceQuota, wanted: Usage) -> dict[str, str]:
    return {name: quota.status.hard[name] for name in wanted}
