"""Writes extended-resource claims, and the status of their Pods.

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
from dray.api.errors import AlreadyExistsError, APIError, ConflictError, is_not_executed, is_refusal
from dray.api.pod_claims import FINALIZER, extended_resource_claim_name
from dray.api.types.core_v1 import Pod, PodExtendedResourceClaimStatus
from dray.api.types.resource_v1 import ResourceClaim
from dray.client.claim_metrics import ClaimCreates
from dray.client.errors import ignore_not_found
from dray.client.event_recorder import WARNING
from dray.client.interface import DeleteOptions, Patch, PatchType, WriteOptions
from dray.client.resources import PODS, RESOURCE_CLAIMS
from dray.lib.lru import LRUSet
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.dynamic_resources import writes
from dray.scheduler.plugins.dynamic_resources.claim_writer import ATTEMPTS_MAX, RETRY_SECONDS, ClaimWriter
from dray.scheduler.plugins.dynamic_resources.extended_resources import (
    claim_name,
    is_extended_resource_claim_of,
    is_unused,
    is_used_by_others,
    same_requests,
)
from dray.scheduler.plugins.dynamic_resources.tracker import ClaimTracker
from dray.scheduler.plugins.dynamic_resources.writes import ClaimChangedError

T = TypeVar("T")

# Names to try if another claim has the generated name.
NAMES_MAX: Final = 3
# Pods whose status write has an unknown result: few, and evicting one costs a read.
UNCERTAIN_MAX: Final = 10_000
# The reason of the event of a claim that only poses as that of a Pod.
NOT_THE_PODS: Final = "ExtendedResourceClaimNotDeleted"

_STATUS: Final = WriteOptions(subresource="status")
_DROPPED: Final = (
    "the API server drops status.extendedResourceClaimStatus of Pods: its feature gate DRAExtendedResource is disabled"
)


class ExtendedClaimWriter:
    """One per scheduler."""

    def __init__(self, handle: Handle, tracker: ClaimTracker, writer: ClaimWriter) -> None:
        self._client = handle.client
        self._record = handle.record_claim
        self._clock = handle.clock
        self._tracker = tracker
        self._writer = writer
        # Uids of Pods whose status may still be overwritten by an earlier write.
        self._uncertain: LRUSet[str] = LRUSet(UNCERTAIN_MAX)
        self._creates = handle.metrics.counter(
            "scheduler_resourceclaim_creates_total", "Claims created for extended resources, by outcome.", ("status",)
        )
        self._all_creates = ClaimCreates(handle.metrics)

    # --- Making. ---

    async def create(self, pod: Pod, claim: ResourceClaim) -> ResourceClaim:
        """Create the claim and return it; raises `ClaimChangedError`, or `APIError` if the result is unknown."""
        try:
            created = await self._create(pod, claim)
        except (APIError, ClaimChangedError):
            self._creates.labels("failure").inc()
            self._all_creates.count(success=False)
            raise
        self._creates.labels("success").inc()
        self._all_creates.count(success=True)
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
                    return _usable(found, claim)
        raise ClaimChangedError(f"claim {claim_label(claim)}: its name is taken by others")

    async def _repeat(self, work: Callable[[], Awaitable[T]]) -> T:
        """Retry while the server does not respond; raise a rejection at once."""
        for _ in range(ATTEMPTS_MAX - 1):
            try:
                return await work()
            except APIError as failure:
                if is_refusal(failure) and not isinstance(failure, ConflictError):
                    raise
            await self._clock.sleep(RETRY_SECONDS)
        return await work()

    # --- The Pod's status. ---

    def needs_status(self, pod: Pod, wanted: PodExtendedResourceClaimStatus | None) -> bool:
        """Return whether the Pod's status must be written before it is bound."""
        if wanted is not None or pod.status.extended_resource_claim_status is not None:
            return True
        return (pod.metadata.uid or "") in self._uncertain

    async def declare(self, pod: Pod, wanted: PodExtendedResourceClaimStatus | None) -> str:
        """Set the claim in the Pod's status, or remove it; return the version at which the Pod must be bound.

        Raises `ClaimChangedError` when the Pod is not to be bound any more, else the last `APIError`.
        """
        uid = pod.metadata.uid or ""
        failure: APIError | None = None
        current: Pod | None = None if uid in self._uncertain else pod
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
                if not is_not_executed(error):
                    self._uncertain.add(uid)
                elif is_refusal(error) and not isinstance(error, ConflictError):
                    break
            else:
                if written.status.extended_resource_claim_status != wanted:
                    # The node would start the Pod without its devices.
                    raise ClaimChangedError(_DROPPED)
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

    # --- Deleting. ---

    async def remove(self, claim: ResourceClaim, pod: Pod) -> bool:
        """Delete the claim and its entry in the Pod's status; False if the Pod was bound with this claim.

        The status goes first: a binding that is still on its way is bound to the version before. Raises
        `ClaimChangedError` if another Pod uses the claim, whose devices it would lose.
        """
        live = await ignore_not_found(self._client.get(PODS, pod.metadata.name or "", pod.metadata.namespace or ""))
        if live is not None and live.metadata.uid == pod.metadata.uid:
            if live.spec.node_name:
                # A binding that seemed to fail may have succeeded, with or without the claim.
                if extended_resource_claim_name(live) == claim.metadata.name:
                    return False
            elif live.status.extended_resource_claim_status is not None:
                await self._set_status(live, None)
        current = await ignore_not_found(
            self._client.get(RESOURCE_CLAIMS, claim.metadata.name or "", claim.metadata.namespace or "")
        )
        if current is not None and is_extended_resource_claim_of(current, pod):
            if is_used_by_others(current, pod):
                name = f"{pod.metadata.namespace}/{pod.metadata.name}"
                told = (
                    f"annotated as the claim of pod {name}, which does not use it; it is not deleted, since others do"
                )
                self._record(current, WARNING, NOT_THE_PODS, told)
                raise ClaimChangedError(f"claim {claim_label(current)} is annotated as the pod's, and others use it")
            await self._delete(current)
        # The informer may have observed its creation and deletion before the response arrived.
        self._tracker.removed(claim)
        return True

    async def _delete(self, claim: ResourceClaim) -> None:
        current: ResourceClaim | None = claim
        if FINALIZER in claim.metadata.finalizers:
            current = await ignore_not_found(self._client.update(RESOURCE_CLAIMS, writes.unprotected(claim)))
        # A claim that is being deleted goes with its last finalizer.
        if current is not None and claim.metadata.deletion_timestamp is None:
            name, namespace = claim.metadata.name or "", claim.metadata.namespace or ""
            version = current.metadata.resource_version or ""
            options = DeleteOptions(uid=claim.metadata.uid or "", resource_version=version)
            await ignore_not_found(self._client.delete(RESOURCE_CLAIMS, name, namespace, options))
        self._tracker.removed(claim)

    async def remove_until_answered(self, claim: ResourceClaim, pod: Pod) -> bool:
        """Call `remove` until the server responds, without a limit; raise a rejection."""
        return await self._writer.until_answered(claim, lambda claim: self.remove(claim, pod))


def _usable(found: ResourceClaim, claim: ResourceClaim) -> ResourceClaim:
    """Return a claim that was created before, if it is still unused."""
    if is_unused(found) and same_requests(found, claim.spec.devices.requests):
        return found
    raise ClaimChangedError(f"claim {claim_label(found)} of an earlier attempt is in the way")
