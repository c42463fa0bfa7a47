"""Structured device allocation: finds devices for claims on a node. Writes nothing, no I/O."""

from dray.allocator.allocation_cache import AllocationQuery
from dray.allocator.allocations import Allocations, claim_label, device_keys
from dray.allocator.allocator import Allocator
from dray.allocator.device_reasons import DeviceReason, Reason
from dray.allocator.errors import (
    AllocationError,
    AllocatorError,
    NodeAllocationError,
    SearchStoppedError,
    StopReason,
)
from dray.allocator.explain import Explanation, RequestExplanation
from dray.allocator.inventory import Inventory
from dray.allocator.outcome import Outcome, allocation_score, normalized_scores
from dray.allocator.overlay import AllocationOverlay
from dray.allocator.result import with_share_ids

__all__ = [
    "AllocationError",
    "AllocationOverlay",
    "AllocationQuery",
    "Allocations",
    "Allocator",
    "AllocatorError",
    "DeviceReason",
    "Explanation",
    "Inventory",
    "NodeAllocationError",
    "Outcome",
    "Reason",
    "RequestExplanation",
    "SearchStoppedError",
    "StopReason",
    "allocation_score",
    "claim_label",
    "device_keys",
    "normalized_scores",
    "with_share_ids",
]
