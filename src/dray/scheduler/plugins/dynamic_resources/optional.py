"""What a Pod can do without: which claims, and which of them are given up first. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, islice
from typing import Final

from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim

# Ways to do with less that are tried on a node; four optional claims have no more.
REDUCED_MAX: Final = 15


def optional_uids(pod: Pod, claims: Sequence[ResourceClaim]) -> frozenset[str]:
    """The uids of claims that no entry of the Pod insists on."""
    if not any(entry.optional for entry in pod.spec.resource_claims):
        return frozenset()
    needed: set[str | None] = set()
    statuses = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
    for entry in pod.spec.resource_claims:
        if not entry.optional:
            needed.add(entry.resource_claim_name or statuses.get(entry.name))
    return frozenset(claim.metadata.uid or "" for claim in claims if claim.metadata.name not in needed)


def reduced(claims: Sequence[ResourceClaim], optional: frozenset[str]) -> Iterator[list[ResourceClaim]]:
    """The claims with fewer and fewer of the optional ones; of equally many, the later entries go first."""
    return islice(_reduced(claims, optional), REDUCED_MAX)


def _reduced(claims: Sequence[ResourceClaim], optional: frozenset[str]) -> Iterator[list[ResourceClaim]]:
    given_up = [claim.metadata.uid for claim in claims if claim.metadata.uid in optional]
    for count in range(len(given_up) - 1, -1, -1):
        for kept in combinations(given_up, count):
            yield [claim for claim in claims if claim.metadata.uid not in optional or claim.metadata.uid in kept]
