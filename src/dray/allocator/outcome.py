"""The outcome of an allocation on a node, and its score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from dray.api.types.resource_v1 import AllocationResult, ResourceClaim


class Outcome(msgspec.Struct, frozen=True):
    """The allocations of all claims, in order; None if they do not fit."""

    allocations: tuple[AllocationResult, ...] | None
    # The number of devices that were tried.
    steps: int = 0

    @property
    def fits(self) -> bool:
        """Return whether the claims fit on the node."""
        return self.allocations is not None


# FirstAvailableDeviceRequestMaxSize of resource.k8s.io/v1: the first alternative scores 8, the eighth 1.
ALTERNATIVES_MAX: Final = 8
# MaxNodeScore of the scheduler framework.
_SCORE_MAX: Final = 100


def allocation_score(claims: Sequence[ResourceClaim], allocations: Sequence[AllocationResult]) -> int:
    """Return the sum over the prioritized lists of the allocated claims."""
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
    """Return scores scaled from 0 for the worst to 100 for the best; equal scores are all 100."""
    if not scores:
        return {}
    least, most = min(scores.values()), max(scores.values())
    if least == most:
        return dict.fromkeys(scores, _SCORE_MAX)
    return {name: (score - least) * _SCORE_MAX // (most - least) for name, score in scores.items()}
