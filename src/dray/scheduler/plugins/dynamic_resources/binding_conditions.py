"""Binding conditions: what a device's driver must report before the Pod may be bound; pure."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from dray.api.types.resource_v1 import (
    AllocatedDeviceStatus,
    AllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
)

_TRUE = "True"


class Readiness(enum.Enum):
    """What the devices of a claim have come to; the values are the labels of metrics."""

    READY = "success"
    WAITING = "waiting"
    FAILED = "failure"
    TIMED_OUT = "timeout"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The readiness of a claim and, unless it is ready, the device that says so."""

    readiness: Readiness
    device: str = ""


_READY = Verdict(Readiness.READY)


def has_conditions(allocation: AllocationResult | None) -> bool:
    """Whether any device must be reported ready first."""
    return allocation is not None and any(result.binding_conditions for result in allocation.devices.results)


def judge(claim: ResourceClaim, now: datetime, timeout_seconds: float) -> Verdict:
    """A failure counts before everything else, then the deadline."""
    allocation = claim.status.allocation
    if allocation is None:
        return Verdict(Readiness.FAILED)
    waiting = ""
    for result, conditions in _reported(claim, allocation):
        name = f"{result.driver}/{result.pool}/{result.device}"
        if conditions & set(result.binding_failure_conditions):
            return Verdict(Readiness.FAILED, name)
        if not waiting and not conditions.issuperset(result.binding_conditions):
            waiting = name
    if not waiting:
        return _READY
    if seconds_left(allocation, now, timeout_seconds) <= 0:
        return Verdict(Readiness.TIMED_OUT, waiting)
    return Verdict(Readiness.WAITING, waiting)


def seconds_left(allocation: AllocationResult, now: datetime, timeout_seconds: float) -> float:
    """How long the devices may still take; counted from the allocation, so that a restart gains nothing."""
    since = allocation.allocation_timestamp or now
    return timeout_seconds - (now - since).total_seconds()


def _reported(
    claim: ResourceClaim, allocation: AllocationResult
) -> Iterator[tuple[DeviceRequestAllocationResult, set[str]]]:
    """Each device that has conditions, with those that are true."""
    statuses = {_place(status): status for status in claim.status.devices}
    for result in allocation.devices.results:
        if not result.binding_conditions:
            continue
        status = statuses.get(_place(result))
        yield result, {item.type for item in status.conditions if item.status == _TRUE} if status else set()


def _place(item: AllocatedDeviceStatus | DeviceRequestAllocationResult) -> tuple[str, str, str, str | None]:
    return item.driver, item.pool, item.device, item.share_id
