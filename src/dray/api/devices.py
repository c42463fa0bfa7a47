"""What slices publish and claims hold, read in one way by all components. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from dray.api.document import Document
from dray.api.types.resource_v1 import AllocationResult, DeviceRequestAllocationResult

T = TypeVar("T")


def results_of(allocation: AllocationResult | None) -> Sequence[DeviceRequestAllocationResult]:
    """Return the allocated devices; none without an allocation."""
    return () if allocation is None else allocation.devices.results


def results_in(claim: Document) -> Sequence[Document]:
    """Return the devices that a claim, as a document, has been allocated."""
    allocation: Document = (claim.get("status") or {}).get("allocation") or {}
    return (allocation.get("devices") or {}).get("results") or ()


def newest_generation(slices: Iterable[T], generation: Callable[[T], int]) -> list[T]:
    """Return the slices of the newest generation of a pool, of which all are given; older ones will be deleted."""
    found = [(generation(item), item) for item in slices]
    newest = max((number for number, _ in found), default=0)
    return [item for number, item in found if number == newest]
