"""The outcome of an allocation on a node, and its score."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from dray.api.prioritized_lists import choices
from dray.api.types.resource_v1 import AllocationResult, ResourceClaim

Results: TypeAlias = tuple[AllocationResult, ...]


class Outcome:
    """Whether the claims fit on a node; their allocations, in order, are computed when they are asked for.

    Of many nodes on which claims fit, one is chosen: only there the devices and the results matter.
    """

    __slots__ = ("_allocations", "_find", "fits", "steps")

    def __init__(
        self, allocations: Results | None, steps: int = 0, *, find: Callable[[], Results | None] | None = None
    ) -> None:
        self.fits = allocations is not None or find is not None
        # The number of devices that were tried to find out.
        self.steps = steps
        self._allocations = allocations
        self._find = find

    @property
    def allocations(self) -> Results | None:
        """Return the allocations of all claims; None if they do not fit. Valid while no device changes."""
        if self._allocations is None and self._find is not None:
            return self._find()
        return self._allocations

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Outcome) and self.fits == other.fits and self.allocations == other.allocations

    __hash__ = None  # type: ignore[assignment]


# FirstAvailableDeviceRequestMaxSize of resource.k8s.io/v1: the first alternative scores 8, the eighth 1.
ALTERNATIVES_MAX: Final = 8
# MaxNodeScore of the scheduler framework.
_SCORE_MAX: Final = 100


def allocation_score(claims: Sequence[ResourceClaim], allocations: Sequence[AllocationResult]) -> int:
    """Return the sum over the prioritized lists of the allocated claims."""
    total = 0
    for claim, allocation in zip(claims, allocations, strict=True):
        total += sum(ALTERNATIVES_MAX - choice.rank for choice in choices(claim, allocation))
    return total


def normalized_scores(scores: Mapping[str, int]) -> dict[str, int]:
    """Return scores scaled from 0 for the worst to 100 for the best; equal scores are all 100."""
    if not scores:
        return {}
    least, most = min(scores.values()), max(scores.values())
    if least == most:
        return dict.fromkeys(scores, _SCORE_MAX)
    return {name: (score - least) * _SCORE_MAX // (most - least) for name, score in scores.items()}
