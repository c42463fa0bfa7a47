"""Which alternatives of a prioritized list can be tried, and which one a claim got."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from dray.api.types.resource_v1 import AllocationResult, DeviceRequest, DeviceSubRequest, ResourceClaim


class Choice(NamedTuple):
    """The alternative that a request got."""

    request: DeviceRequest
    alternative: DeviceSubRequest
    # From 0, which is the first choice.
    rank: int

    @property
    def is_fallback(self) -> bool:
        """Return whether there was a better choice."""
        return self.rank > 0

    def __str__(self) -> str:
        return f"{self.request.name}/{self.alternative.name} ({self.rank + 1} of {len(self.request.first_available)})"


def choices(claim: ResourceClaim, allocation: AllocationResult | None) -> Iterator[Choice]:
    """Yield the choice for each prioritized list of the claim that got one."""
    if allocation is None:
        return
    chosen = {result.request for result in allocation.devices.results}
    for request in claim.spec.devices.requests:
        for rank, alternative in enumerate(request.first_available):
            if f"{request.name}/{alternative.name}" in chosen:
                yield Choice(request, alternative, rank)
                break


def alternatives_to_try(
    request: DeviceRequest, is_known: Callable[[str], bool], *, skip_unknown: bool
) -> Sequence[DeviceSubRequest]:
    """Return the alternatives of a list: without those whose class does not exist, if they may be skipped.

    If that leaves none, all are returned: there is nothing to fall back to, and the first one tells what is missing.
    """
    known = [item for item in request.first_available if is_known(item.device_class_name)] if skip_unknown else []
    return known or request.first_available
