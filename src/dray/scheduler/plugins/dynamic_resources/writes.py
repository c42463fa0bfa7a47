"""Which versions of a claim to write, and what a claim read again means for a write that was planned; pure."""

from __future__ import annotations

from typing import Final

import msgspec

from dray.api.document import Document
from dray.api.errors import APIError
from dray.api.pod_claims import FINALIZER, is_reserved_for, reservation_of
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import AllocationResult, ResourceClaim, ResourceClaimStatus

# Answers of a server that did not do what it was asked; after any other failure it may have done it, or may still.
_REFUSALS: Final = frozenset({400, 401, 403, 404, 405, 409, 410, 413, 415, 422, 429})


class ClaimChangedError(Exception):
    """The claim is no longer what the attempt was decided on."""


class InDoubtError(Exception):
    """Nobody knows whether a claim was written; `claim` has the version that the write is bound to."""

    def __init__(self, claim: ResourceClaim, failure: APIError) -> None:
        super().__init__(failure.message)
        self.claim = claim


def is_refusal(failure: APIError) -> bool:
    """Whether the server certainly did not write."""
    return failure.code in _REFUSALS


def check_unchanged(planned: ResourceClaim, now: ResourceClaim, allocation: AllocationResult | None) -> None:
    """A write that met a conflict may be tried again only if the claim is still there and still to be had."""
    label = f"{planned.metadata.namespace}/{planned.metadata.name}"
    if now.metadata.uid != planned.metadata.uid or now.metadata.deletion_timestamp is not None:
        raise ClaimChangedError(f"claim {label} got deleted in the meantime")
    if allocation is None:
        if not same_devices(now.status.allocation, planned.status.allocation):
            raise ClaimChangedError(f"claim {label} got deallocated elsewhere in the meantime")
    elif now.status.allocation is not None and not same_devices(now.status.allocation, allocation):
        raise ClaimChangedError(f"claim {label} got allocated elsewhere in the meantime")


def same_devices(one: AllocationResult | None, other: AllocationResult | None) -> bool:
    """Whether two allocations give the same devices to the same requests."""
    if one is None or other is None:
        return one is other
    return _devices(one) == _devices(other)


def _devices(allocation: AllocationResult) -> list[tuple[str, str, str, str, str | None]]:
    return [(r.request, r.driver, r.pool, r.device, r.share_id) for r in allocation.devices.results]


def is_done(claim: ResourceClaim, pod: Pod) -> bool:
    """Whether nothing is left to write."""
    return claim.status.allocation is not None and is_reserved_for(claim, pod)


def protected(claim: ResourceClaim) -> ResourceClaim:
    """The claim with the finalizer of allocated claims."""
    return _with_finalizers(claim, (*claim.metadata.finalizers, FINALIZER))


def unprotected(claim: ResourceClaim) -> ResourceClaim:
    """The claim without it."""
    return _with_finalizers(claim, tuple(name for name in claim.metadata.finalizers if name != FINALIZER))


def _with_finalizers(claim: ResourceClaim, finalizers: tuple[str, ...]) -> ResourceClaim:
    return msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, finalizers=finalizers))


def taken(claim: ResourceClaim, allocation: AllocationResult | None, pod: Pod) -> ResourceClaim:
    """The claim with the allocation, if it has none yet, and the Pod among its users."""
    users = claim.status.reserved_for
    if not is_reserved_for(claim, pod):
        users = (*users, reservation_of(pod))
    status = msgspec.structs.replace(claim.status, allocation=claim.status.allocation or allocation, reserved_for=users)
    return msgspec.structs.replace(claim, status=status)


def freed(claim: ResourceClaim) -> ResourceClaim:
    """The claim without allocation, users and device status."""
    return msgspec.structs.replace(claim, status=ResourceClaimStatus())


def may_free(claim: ResourceClaim, pod: Pod) -> bool:
    """Whether nobody but the Pod uses the allocated claim."""
    if claim.status.allocation is None:
        return False
    return all(user.uid == pod.metadata.uid for user in claim.status.reserved_for)


def unreserve_patch(claim: ResourceClaim, pod: Pod) -> Document:
    """Takes the Pod from the claim's users, if it is this very claim and nobody has changed it since."""
    return {
        "metadata": {"uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version},
        "status": {"reservedFor": [{"$patch": "delete", "uid": pod.metadata.uid}]},
    }
