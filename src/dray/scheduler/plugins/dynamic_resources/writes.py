"""The contents of claim writes, and checks before a retry. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dray.api.errors import APIError, InvalidError
from dray.api.field_errors import Path, too_many
from dray.api.pod_claims import FINALIZER, RESERVED_FOR_MAX
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import (
    AllocationResult,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimStatus,
)
from dray.api.types.scheduling_v1beta1 import PodGroup


class ClaimChangedError(Exception):
    """The claim has changed since the decision."""


class DevicesTakenError(Exception):
    """Another claim holds what was chosen; nothing was written, and another device may do."""


class InDoubtError(Exception):
    """The result of a write is unknown; `claim` has the version that it is conditional on."""

    def __init__(self, claim: ResourceClaim, failure: APIError) -> None:
        super().__init__(failure.message)
        self.claim = claim


def taken_by(claim: ResourceClaim, others: Sequence[str]) -> DevicesTakenError:
    """Return the error that names the claims that hold the devices."""
    label = f"{claim.metadata.namespace}/{claim.metadata.name}"
    return DevicesTakenError(f"devices for claim {label} were allocated to {', '.join(others)} at the same time")


def check_unchanged(planned: ResourceClaim, now: ResourceClaim, allocation: AllocationResult | None) -> None:
    """Raise if the claim has changed so that the write must not be retried."""
    label = f"{planned.metadata.namespace}/{planned.metadata.name}"
    if now.metadata.uid != planned.metadata.uid or now.metadata.deletion_timestamp is not None:
        raise ClaimChangedError(f"claim {label} got deleted in the meantime")
    if allocation is None:
        if not same_devices(now.status.allocation, planned.status.allocation):
            raise ClaimChangedError(f"claim {label} got deallocated elsewhere in the meantime")
    elif now.status.allocation is not None and not same_devices(now.status.allocation, allocation):
        raise ClaimChangedError(f"claim {label} got allocated elsewhere in the meantime")


def same_devices(one: AllocationResult | None, other: AllocationResult | None) -> bool:
    """Return whether two allocations have the same devices for the same requests."""
    if one is None or other is None:
        return one is other
    return _devices(one) == _devices(other)


def _devices(allocation: AllocationResult) -> list[tuple[str, str, str, str, str | None]]:
    return [(r.request, r.driver, r.pool, r.device, r.share_id) for r in allocation.devices.results]


def is_reserved_by(claim: ResourceClaim, user: ResourceClaimConsumerReference) -> bool:
    """Return whether the claim is reserved for the consumer, a Pod or a PodGroup."""
    return any(other.uid == user.uid for other in claim.status.reserved_for)


def is_done(claim: ResourceClaim, user: ResourceClaimConsumerReference) -> bool:
    """Return whether the claim is allocated and reserved for the consumer."""
    return claim.status.allocation is not None and is_reserved_by(claim, user)


def protected(claim: ResourceClaim) -> ResourceClaim:
    """Return the claim with the finalizer of allocated claims."""
    return _with_finalizers(claim, (*claim.metadata.finalizers, FINALIZER))


def unprotected(claim: ResourceClaim) -> ResourceClaim:
    """Return the claim without the finalizer."""
    return _with_finalizers(claim, tuple(name for name in claim.metadata.finalizers if name != FINALIZER))


def _with_finalizers(claim: ResourceClaim, finalizers: tuple[str, ...]) -> ResourceClaim:
    return msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, finalizers=finalizers))


def taken(
    claim: ResourceClaim, allocation: AllocationResult | None, user: ResourceClaimConsumerReference
) -> ResourceClaim:
    """Return the claim with the allocation, if it has none yet, and reserved for the consumer."""
    users = claim.status.reserved_for
    if not is_reserved_by(claim, user):
        users = (*users, user)
    status = msgspec.structs.replace(claim.status, allocation=claim.status.allocation or allocation, reserved_for=users)
    return msgspec.structs.replace(claim, status=status)


def reserved(
    claim: ResourceClaim, planned: ResourceClaim, user: ResourceClaimConsumerReference
) -> ResourceClaim | None:
    """Return the allocated claim reserved for the consumer; None if it is.

    Raises `ClaimChangedError` if it has changed.
    """
    check_unchanged(planned, claim, None)
    if is_reserved_by(claim, user):
        return None
    users = len(claim.status.reserved_for) + 1
    if users > RESERVED_FOR_MAX:
        # The server's answer to this Pod; with it, the write would fail for the others too.
        invalid = [too_many(Path("status").child("reservedFor"), users, RESERVED_FOR_MAX)]
        refusal = InvalidError("resource.k8s.io", "ResourceClaim", claim.metadata.name or "", invalid)
        raise ClaimChangedError(refusal.message)
    return taken(claim, None, user)


def unreserved(claim: ResourceClaim, uid: str) -> ResourceClaim | None:
    """Return the claim without the consumer in reservedFor; None if it is not there."""
    users = tuple(user for user in claim.status.reserved_for if user.uid != uid)
    if len(users) == len(claim.status.reserved_for):
        return None
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, reserved_for=users))


def freed(claim: ResourceClaim) -> ResourceClaim:
    """Return the claim without allocation, reservations and device status."""
    return msgspec.structs.replace(claim, status=ResourceClaimStatus())


def may_free(claim: ResourceClaim, user: Pod | PodGroup) -> bool:
    """Return whether only the Pod, or the PodGroup, uses the allocated claim."""
    if claim.status.allocation is None:
        return False
    return all(other.uid == user.metadata.uid for other in claim.status.reserved_for)
