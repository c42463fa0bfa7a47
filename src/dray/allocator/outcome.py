"""What an attempt on a node came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from dray.api.types.resource_v1 import AllocationResult, ResourceClaim


class Outcome(msgspec.Struct, frozen=True):
    """An allocation for each claim in order, or none at all."""

    allocations: tuple[AllocationResult, ...] | None
    # Devices that were tried; a measure of the work.
    steps: int = 0

    @property
    def fits(self) -> bool:
        """Whether the claims can be allocated on the node."""
        return self.allocations is not None


# FirstAvailableDeviceRequestMaxSize of resource.k8s.io/v1: the first alternative scores 8, the eighth 1.
ALTERNATIVES_MAX: Final = 8
# MaxNodeScore of the scheduler framework.
_SCORE_MAX: Final = 100


def allocation_score(claims: Sequence[ResourceClaim], allocations: Sequence[AllocationResult]) -> int:
    """Sum over the prioritized lists of the claims that were just allocated."""
    total = 0
    for claim, allocation in zip(claims, allocations, strict=True):
        chosen = {result.request for result in allocation.devices.results}
        for request in claim.spec.devices.requests:
            for position, alternative in enumerate(request.first_available):
                if f"{request.name}/{alternative.name}" in chosen:
                    total += ALTERNATIVES_MAX - position
                    break
    return total


def normalized_scores(scores: Mapping[str, int]) -> dict[str, int]:
    """Spread scores from 0 for the worst to 100 for the best; when all are the same, each is the best."""
    if not scores:
        return {}
    least, most = min(scores.values()), max(scores.values())
    if least == most:
        return dict.fromkeys(scores, _SCORE_MAX)
    return {name: (score - least) * _SCORE_MAX // (most - least) for name, score in scores.items()}
