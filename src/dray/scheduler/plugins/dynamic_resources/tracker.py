"""Tracks claims: observed by the informer, assumed after a write, or in flight.

Pure. Updates `Allocations`, so that a device is in use from the moment it is allocated:
in flight until its write has ended, then assumed until the informer observes that write or a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dray.allocator import Allocations, claim_label
from dray.allocator.pools import pool_key
from dray.api.document import NamespacedName
from dray.api.types.resource_v1 import AllocationResult, ResourceClaim
from dray.client.objects import is_older, key_of
from dray.scheduler.plugins.claim_watch import ClaimWatchers

# Called with the changed claim; None if it was deleted.
Watcher = Callable[[ResourceClaim | None], None]
# Returns the extended-resource claims of a Pod, by uid.
FindExtendedClaims = Callable[[str], Iterable[ResourceClaim]]


def _no_claims(_uid: str) -> Iterable[ResourceClaim]:
    return ()


class ClaimTracker:
    """One per scheduler; `find` and `find_extended` read the informer's cache."""

    def __init__(
        self,
        allocations: Allocations,
        find: Callable[[NamespacedName], ResourceClaim | None],
        find_extended: FindExtendedClaims = _no_claims,
    ) -> None:
        self.allocations = allocations
        self._find = find
        self._find_extended = find_extended
        # Uids of deleted extended-resource claims, until the informer observes the deletion.
        self._removed: dict[str, None] = {}
        # Written claims, until the informer observes the write.
        self._assumed: dict[NamespacedName, ResourceClaim] = {}
        # Uid of a claim -> uid of the Pod whose attempt is allocating it. Changed only here, and read by dry runs.
        self.in_flight_pods: dict[str, str] = {}
        # Uid of a claim -> what it is being allocated, and uids of further Pods, of the same group, that use that.
        self._in_flight_allocations: dict[str, AllocationResult] = {}
        self._sharers: dict[str, set[str]] = {}
        self._watchers: ClaimWatchers[ResourceClaim] = ClaimWatchers()

    # --- Observed changes. ---

    def changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """Handle a change observed by the informer."""
        if new is None:
            assert old is not None
            if self._is_assumed(old):
                # A claim with the same name may have been created since.
                del self._assumed[key_of(old)]
            self._removed.pop(old.metadata.uid or "", None)
            self.allocations.remove_claim(old)
            self._watchers.notify(old.metadata.uid or "", None)
            return
        self.allocations.apply_claim(new)
        if self._assumed:
            self._caught_up(new)
        self._watchers.notify(new.metadata.uid or "", new)

    def _caught_up(self, claim: ResourceClaim) -> None:
        """Drop an assumption that the informer has caught up with."""
        key = key_of(claim)
        assumed = self._assumed.get(key)
        if assumed is not None and not is_older(claim, assumed):
            del self._assumed[key]
            self.allocations.forget(assumed)

    # --- Changes made by this scheduler. ---

    def assume(self, claim: ResourceClaim) -> bool:
        """Assume a written claim, unless `observed`, which is returned."""
        if self.observed(claim):
            return True
        self._assumed[key_of(claim)] = claim
        self.allocations.assume(claim)
        return False

    def created(self, claim: ResourceClaim) -> None:
        """Assume a created claim, unless the informer has observed it."""
        observed = self._find(key_of(claim))
        if observed is None or observed.metadata.uid != claim.metadata.uid:
            self._assumed[key_of(claim)] = claim

    def removed(self, claim: ResourceClaim) -> None:
        """Record a deletion; the devices count as used until the informer observes it."""
        uid = claim.metadata.uid or ""
        if self._is_assumed(claim):
            self.allocations.forget(self._assumed.pop(key_of(claim)))
        observed = self._find(key_of(claim))
        if observed is not None and observed.metadata.uid == uid:
            self._removed[uid] = None

    def _is_assumed(self, claim: ResourceClaim) -> bool:
        assumed = self._assumed.get(key_of(claim)) if self._assumed else None
        return assumed is not None and assumed.metadata.uid == claim.metadata.uid

    def start_in_flight(self, claim: ResourceClaim, allocation: AllocationResult, pod_uid: str) -> None:
        """Mark an allocation that the Pod's attempt is about to write."""
        self.in_flight_pods[claim.metadata.uid or ""] = pod_uid
        self._in_flight_allocations[claim.metadata.uid or ""] = allocation
        self.allocations.start_in_flight(claim, allocation)

    def share_in_flight(self, claim: ResourceClaim, pod_uid: str) -> None:
        """Add a Pod that uses the allocation in flight; it ends with the last of its Pods."""
        self._sharers.setdefault(claim.metadata.uid or "", set()).add(pod_uid)

    def end_in_flight(self, claim: ResourceClaim, pod_uid: str) -> bool:
        """End the in-flight state for one Pod; return whether there was one, and no other Pod shares it."""
        uid = claim.metadata.uid or ""
        sharers = self._sharers.get(uid) if self._sharers else None
        if sharers:
            if self.in_flight_pods.get(uid) == pod_uid:
                self.in_flight_pods[uid] = sharers.pop()
            sharers.discard(pod_uid)
            if not sharers:
                del self._sharers[uid]
            return False
        if self.in_flight_pods.get(uid) != pod_uid:
            return False
        del self.in_flight_pods[uid]
        del self._in_flight_allocations[uid]
        self.allocations.end_in_flight(claim)
        return True

    # --- Lookups. ---

    def get(self, key: NamespacedName) -> ResourceClaim | None:
        """Return the claim as last written or observed, whichever is newer."""
        assumed = self._assumed.get(key)
        return assumed if assumed is not None else self._find(key)

    def extended_resource_claims_of(self, pod_uid: str) -> tuple[ResourceClaim, ...]:
        """Return the Pod's extended-resource claims: what an interrupted attempt has left."""
        found = sorted(
            key_of(claim) for claim in self._find_extended(pod_uid) if claim.metadata.uid not in self._removed
        )
        return tuple(claim for claim in map(self.get, found) if claim is not None)

    def observed(self, claim: ResourceClaim) -> bool:
        """Return whether the informer has observed this version, a later one, or the deletion."""
        current = self._find(key_of(claim))
        if current is None or current.metadata.uid != claim.metadata.uid:
            return not self._is_assumed(claim)
        return not is_older(current, claim)

    def is_in_flight(self, claim: ResourceClaim) -> bool:
        """Return whether the claim is being allocated."""
        return (claim.metadata.uid or "") in self.in_flight_pods

    def is_shared_in_flight(self, claim: ResourceClaim) -> bool:
        """Return whether several Pods use the allocation in flight."""
        return (claim.metadata.uid or "") in self._sharers

    def in_flight_allocation(self, claim: ResourceClaim) -> AllocationResult | None:
        """Return what the claim is being allocated."""
        return self._in_flight_allocations.get(claim.metadata.uid or "")

    def conflicting_claims(self, claim: ResourceClaim, allocation: AllocationResult | None) -> tuple[str, ...]:
        """Return other claims with exclusive use of a device of the allocation; only after a race of two schedulers.

        Shares and admin access do not conflict.
        """
        if allocation is None:
            return ()
        label = claim_label(claim)
        found: dict[str, None] = {}
        for result in allocation.devices.results:
            if result.admin_access or result.share_id is not None:
                continue
            key = f"{pool_key(result.driver, result.pool)}/{result.device}"
            for holder in self.allocations.holders(key):
                if holder != label:
                    found[holder] = None
        return tuple(found)

    # --- Waiting. ---

    def watch(self, claim: ResourceClaim, watcher: Watcher) -> Callable[[], None]:
        """Call the watcher for every change from now on; return a function that removes it."""
        return self._watchers.add(claim, watcher)
