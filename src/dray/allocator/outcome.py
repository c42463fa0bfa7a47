"""What an attempt on a node came to."""

from __future__ import annotations

import msgspec

from dray.api.types.resource_v1 import AllocationResult


class Outcome(msgspec.Struct, frozen=True):
    """An allocation for each claim in order, or none at all."""

    allocations: tuple[AllocationResult, ...] | None
    # Devices that were tried; a measure of the work.
    steps: int = 0

    @property
    def fits(self) -> bool:
        """Whether the claims can be allocated on the node."""
        return self.allocations is not None
