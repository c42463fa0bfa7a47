"""Writes special claims and what Pods say of them.

Every write can be repeated, and none can do harm when it comes late: the claim's name follows from the Pod, the Pod's
status and its binding are bound to the version they were decided on, and so is the deletion.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from dray.allocator import claim_label
from dray.api.document import Document
from dray.api.errors import AlreadyExistsError, APIError, ConflictError
from dray.api.pod_claims import FINALIZER, extended_resource_claim_name
from dray.api.types.core_v1 import Pod, PodExtendedResourceClaimStatus
from dray.api.types.resource_v1 import ResourceClaim
from dray.client.interface import DeleteOptions, Patch, PatchType, WriteOptions, ignore_not_found
from dray.client.resources import PODS, RESOURCE_CLAIMS
from dray.lib.lru import LRUSet
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.dynamic_resources import writes
from dray.scheduler.plugins.dynamic_resources.claim_writer import ATTEMPTS_MAX, RETRY_SECONDS, ClaimWriter
from dray.scheduler.plugins.dynamic_resources.extended_resources import (
    claim_name,
    is_extended_resource_claim_of,
    is_reusable,
    same_requests,
)
from dray.scheduler.plugins.dynamic_resources.tracker import ClaimTracker
from dray.scheduler.plugins.dynamic_resources.writes import ClaimChangedError

T = TypeVar("T")

# Names to try when somebody else's claim has the Pod's; one in fourteen million has.
NAMES_MAX: Final = 3
# Pods with a status of unknown fate: few, and forgetting one costs a read.
DOUBTFUL_MAX: Final = 10_000

_STATUS: Final = WriteOptions(subresource="status")


class ExtendedClaimWriter:
    """One per scheduler."""

    def __init__(self, handle: Handle, tracker: ClaimTracker, writer: ClaimWriter) -> None:
        self._client = handle.client
        self._clock = handle.clock
        self._tracker = tracker
        self._writer = writer
        # Uids of Pods whose status may yet be overwritten by a write that nobody waits for.
        self._doubtful: LRUSet[str] = LRUSet(DOUBTFUL_MAX)
        self._creates = handle.metrics.counter(
            "scheduler_resourceclaim_creates_total", "Claims created for extended resources, by outcome.", ("status",)
        )

    # --- Making. ---

    async def create(self, pod: Pod, claim: ResourceClaim) -> ResourceClaim:
        """The claim as the server has it; raises `ClaimChangedError`, or `APIError` when it may come late."""
        try:
            created = await self._create(pod, claim)
        except (APIError, ClaimChangedError):
            self._creates.labels("failure").inc()
            raise
        self._creates.labels("success").inc()
        self._tracker.created(created)
        return created

    async def _create(self, pod: Pod, claim: ResourceClaim) -> ResourceClaim:
        for number in range(NAMES_MAX):
            name = claim_name(pod, number) if number else claim.metadata.name
            metadata = msgspec.structs.replace(claim.metadata, name=name, uid=None)
            wanted = msgspec.structs.replace(claim, metadata=metadata)
            try:
                return await self._repeat(partial(self._client.create, RESOURCE_CLAIMS, wanted))
            except AlreadyExistsError:
                found = await self._client.get(RESOURCE_CLAIMS, metadata.name or "", metadata.namespace or "")
                if is_extended_resource_claim_of(found, pod):
                    return _usable(found, claim, pod)
        raise ClaimChangedError(f"claim {claim_label(claim)}: its name is taken by others")

    async def _repeat(self, work: Callable[[], Awaitable[T]]) -> T:
        """Try again what the server did not answer; a refusal is raised at once."""
        for _ in range(ATTEMPTS_MAX - 1):
            try:
                return await work()
            except APIError as failure:
                if writes.is_refusal(failure) and not isinstance(failure, ConflictError):
                    raise
            await self._clock.sleep(RETRY_SECONDS)
        return await work()

    # --- What the Pod says of it. ---

    def needs_declaring(self, pod: Pod, wanted: PodExtendedResourceClaimStatus | None) -> bool:
        """Whether the Pod must not be bound before its status was looked after."""
        if wanted is not None or pod.status.extended_resource_claim_status is not None:
            return True
        return (pod.metadata.uid or "") in self._doubtful

    async def declare(self, pod: Pod, wanted: PodExtendedResourceClaimStatus | None) -> str:
        """Have the Pod's status name the claim, or none; returns the version that the Pod must be bound at.

        Raises `ClaimChangedError` when the Pod is not to be bound any more, else the last `APIError`.
        """
        uid = pod.metadata.uid or ""
        failure: APIError | None = None
        current: Pod | None = None if uid in self._doubtful else pod
        for attempt in range(ATTEMPTS_MAX):
            try:
                if attempt:
                    await self._clock.sleep(RETRY_SECONDS)
                if attempt or current is None:
                    current = await self._pending(pod)
                    if current.status.extended_resource_claim_status == wanted:
                        return current.metadata.resource_version or ""
                written = await self._set_status(current, wanted)
            except APIError as error:
                failure = error
                if not writes.is_refusal(error):
                    self._doubtful.add(uid)
                elif not isinstance(error, ConflictError):
                    break
            else:
                return written.metadata.resource_version or ""
        assert failure is not None
        raise failure

    async def _pending(self, pod: Pod) -> Pod:
        live = await ignore_not_found(self._client.get(PODS, pod.metadata.name or "", pod.metadata.namespace or ""))
        if live is None or live.metadata.uid != pod.metadata.uid or live.metadata.deletion_timestamp is not None:
            raise ClaimChangedError(f"pod {pod.metadata.namespace}/{pod.metadata.name} got deleted in the meantime")
        if live.spec.node_name:
            raise ClaimChangedError(f"pod {pod.metadata.namespace}/{pod.metadata.name} has a node already")
        return live

    async def _set_status(self, pod: Pod, wanted: PodExtendedResourceClaimStatus | None) -> Pod:
        value: Any = None if wanted is None else msgspec.to_builtins(wanted)
        body: Document = {
            "metadata": {"uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version},
            "status": {"extendedResourceClaimStatus": value},
        }
        name, namespace = pod.metadata.name or "", pod.metadata.namespace or ""
        return await self._client.patch(PODS, name, namespace, Patch(PatchType.MERGE, body), _STATUS)

    # --- Taking away. ---

    async def remove(self, claim: ResourceClaim, pod: Pod) -> bool:
        """Delete the claim, and what the Pod's status says of it; False when the Pod has its node with this claim.

        The status goes first: a binding that is still on its way is bound to the version before.
        """
        live = await ignore_not_found(self._client.get(PODS, pod.metadata.name or "", pod.metadata.namespace or ""))
        if live is not None and live.metadata.uid == pod.metadata.uid:
            if live.spec.node_name:
                # A binding that was taken for failed may have come through, with or without the claim.
                if extended_resource_claim_name(live) == claim.metadata.name:
                    return False
            elif live.status.extended_resource_claim_status is not None:
                await self._set_status(live, None)
        current = await ignore_not_found(
            self._client.get(RESOURCE_CLAIMS, claim.metadata.name or "", claim.metadata.namespace or "")
        )
        if current is not None and is_extended_resource_claim_of(current, pod):
            await self._delete(current)
        # The informer may have told of its beginning and end before anybody here knew of it.
        self._tracker.removed(claim)
        return True

    async def _delete(self, claim: ResourceClaim) -> None:
        current: ResourceClaim | None = claim
        if FINALIZER in claim.metadata.finalizers:
            current = await ignore_not_found(self._client.update(RESOURCE_CLAIMS, writes.unprotected(claim)))
        # One that was going already goes with its last finalizer.
        if current is not None and claim.metadata.deletion_timestamp is None:
            name, namespace = claim.metadata.name or "", claim.metadata.namespace or ""
            version = current.metadata.resource_version or ""
            options = DeleteOptions(uid=claim.metadata.uid or "", resource_version=version)
            await ignore_not_found(self._client.delete(RESOURCE_CLAIMS, name, namespace, options))
        self._tracker.removed(claim)

    async def remove_surely(self, claim: ResourceClaim, pod: Pod) -> bool:
        """The same until the server has answered, however long that takes; a refusal is raised."""
        return await self._writer.until_answered(claim, lambda claim: self.remove(claim, pod))


def _usable(found: ResourceClaim, claim: ResourceClaim, pod: Pod) -> ResourceClaim:
    """A claim that was created before, its answer lost, is as good as a new one."""
    is_new = found.status.allocation is None and is_reusable(found, pod)
    if is_new and same_requests(found, claim.spec.devices.requests):
        return found
    raise ClaimChangedError(f"claim {claim_label(found)} of an earlier attempt is in the way")
