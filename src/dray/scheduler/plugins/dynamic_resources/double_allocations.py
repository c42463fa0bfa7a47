"""Detects devices in the allocations of two claims, which kube-apiserver does not refuse. Pure.

It happens when two schedulers that do not share a Lease allocate the same devices. Allocations of this scheduler count
once they are observed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from dray.allocator import Allocations, claim_label
from dray.allocator.allocations import device_keys
from dray.api.document import NamespacedName
from dray.api.types.resource_v1 import ResourceClaim

ALLOCATED_TWICE: Final = "DeviceAllocatedTwice"


@dataclass(frozen=True, slots=True)
class DoubleAllocation:
    """One device of one of its claims."""

    claim: ResourceClaim
    message: str


class DoubleAllocations:
    """Reports each case to all of its claims once, and again after it was resolved."""

    def __init__(self, allocations: Allocations, find: Callable[[NamespacedName], ResourceClaim | None]) -> None:
        self._allocations = allocations
        self._find = find
        # By device: the claims that were reported.
        self._reported: dict[str, frozenset[str]] = {}

    def claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> Iterator[DoubleAllocation]:
        """Yield the new cases after a change of a claim that the allocations have."""
        if self._reported and old is not None:
            for key in _devices(old):
                if key in self._reported and len(self._allocations.holders(key)) <= 1:
                    del self._reported[key]
        if new is None or new.status.allocation is None:
            return
        dedicated = self._allocations.dedicated
        for key in device_keys(new.status.allocation):
            # Shares alone are no conflict.
            alone = dedicated.get(key)
            if alone is not None and (len(alone) > 1 or self._allocations.is_shared(key)):
                yield from self._conflict(key)

    def _conflict(self, key: str) -> Iterator[DoubleAllocation]:
        labels = sorted(set(self._allocations.holders(key)))
        claims = [claim for label in labels if (claim := self._observed(label, key)) is not None]
        names = frozenset(claim_label(claim) for claim in claims)
        if len(claims) < 2 or self._reported.get(key) == names:  # noqa: PLR2004 - two claims are a conflict
            return
        self._reported[key] = names
        for claim in claims:
            others = ", ".join(sorted(names - {claim_label(claim)}))
            yield DoubleAllocation(claim, f"device {key} is also allocated to claim {others}")

    def _observed(self, label: str, key: str) -> ResourceClaim | None:
        namespace, _, name = label.rpartition("/")
        claim = self._find(NamespacedName(namespace, name))
        return claim if claim is not None and key in _devices(claim) else None


def _devices(claim: ResourceClaim) -> list[str]:
    return [] if claim.status.allocation is None else device_keys(claim.status.allocation)
