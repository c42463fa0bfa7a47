"""Binding conditions, which a driver must report before the Pod is bound. Pure."""

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
    """The state of a claim's devices; the values are labels of metrics."""

    READY = "success"
    WAITING = "waiting"
    FAILED = "failure"
    TIMED_OUT = "timeout"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The readiness of a claim, and the device that is not ready."""

    readiness: Readiness
    device: str = ""


_READY = Verdict(Readiness.READY)


def has_conditions(allocation: AllocationResult | None) -> bool:
    """Return whether any device has binding conditions."""
    if allocation is not None:
        for result in allocation.devices.results:
            if result.binding_conditions:
                return True
    return False


def evaluate(claim: ResourceClaim, now: datetime, timeout_seconds: float) -> Verdict:
    """Return the readiness; a failure precedes a timeout."""
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
    """Return the time left; measured from the allocation, so that a restart does not extend it."""
    since = allocation.allocation_timestamp or now
    return timeout_seconds - (now - since).total_seconds()


def _reported(
    claim: ResourceClaim, allocation: AllocationResult
) -> Iterator[tuple[DeviceRequestAllocationResult, set[str]]]:
    """Yield each device with binding conditions, and its true conditions."""
    statuses = {_device_id(status): status for status in claim.status.devices}
    for result in allocation.devices.results:
        if not result.binding_conditions:
            continue
        status = statuses.get(_device_id(result))
        yield result, {item.type for item in status.conditions if item.status == _TRUE} if status else set()


def _device_id(item: AllocatedDeviceStatus | DeviceRequestAllocationResult) -> tuple[str, str, str, str | None]:
    return item.driver, item.pool, item.device, item.share_id
