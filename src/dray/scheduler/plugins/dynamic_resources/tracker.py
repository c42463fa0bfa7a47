"""What is known about claims: what the informer says, what was written and is not told of yet, what is in flight.

Pure. Keeps `Allocations` in step, so that a device given away is in use for everybody from that moment on:
in flight until its write has ended, then assumed until the informer has told of that write or a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dray.allocator import Allocations, claim_label
from dray.allocator.pools import pool_key
from dray.api.document import NamespacedName
from dray.api.types.resource_v1 import AllocationResult, ResourceClaim
from dray.client.objects import key_of
from dray.scheduler.plugins.claim_watch import ClaimWatchers, is_older

# Told of a claim as it is now; None when it is gone.
Watcher = Callable[[ResourceClaim | None], None]
# Told a Pod's uid, its special claims.
FindExtendedClaims = Callable[[str], Iterable[ResourceClaim]]


def _no_claims(_uid: str) -> Iterable[ResourceClaim]:
    return ()


class ClaimTracker:
    """One for all profiles of a scheduler; `find` and `find_special` read the informer's cache."""

    def __init__(
        self,
        allocations: Allocations,
        find: Callable[[NamespacedName], ResourceClaim | None],
        find_extended: FindExtendedClaims = _no_claims,
    ) -> None:
        self.allocations = allocations
        self._find = find
        self._find_extended = find_extended
        # Uids of special claims that were deleted here, until the informer has told of it.
        self._removed: dict[str, None] = {}
        # Claims as the server answered to a write, until the informer has caught up with it.
        self._assumed: dict[NamespacedName, ResourceClaim] = {}
        # Uid of a claim -> uid of the Pod whose attempt is allocating it.
        self._in_flight: dict[str, str] = {}
        self._watchers: ClaimWatchers[ResourceClaim] = ClaimWatchers()

    # --- What the informer says. ---

    def changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """Handler of the informer of claims."""
        if new is None:
            assert old is not None
            if self._is_awaited(old):
                # One of the same name may have been made since.
                del self._assumed[key_of(old)]
            self._removed.pop(old.metadata.uid or "", None)
            self.allocations.remove_claim(old)
            self._watchers.tell(old.metadata.uid or "", None)
            return
        self.allocations.apply_claim(new)
        if self._assumed:
            self._caught_up(new)
        self._watchers.tell(new.metadata.uid or "", new)

    def _caught_up(self, claim: ResourceClaim) -> None:
        """Let go of an assumption of which the informer has told, or of which it knows better."""
        key = key_of(claim)
        assumed = self._assumed.get(key)
        if assumed is not None and not is_older(claim, assumed):
            del self._assumed[key]
            self.allocations.forget(assumed)

    # --- What this scheduler does. ---

    def assume(self, claim: ResourceClaim) -> None:
        """The server answered a write with this claim; skipped when the informer already knows better."""
        key = key_of(claim)
        observed = self._find(key)
        if observed is None or observed.metadata.uid != claim.metadata.uid:
            if not self._is_awaited(claim):
                return
        elif not is_older(observed, claim):
            return
        self._assumed[key] = claim
        self.allocations.assume(claim)

    def created(self, claim: ResourceClaim) -> None:
        """The server answered a creation with this claim, of which the informer may be yet to tell."""
        observed = self._find(key_of(claim))
        if observed is None or observed.metadata.uid != claim.metadata.uid:
            self._assumed[key_of(claim)] = claim

    def removed(self, claim: ResourceClaim) -> None:
        """The claim was deleted; its devices count as used until the informer says so too."""
        uid = claim.metadata.uid or ""
        if self._is_awaited(claim):
            self.allocations.forget(self._assumed.pop(key_of(claim)))
        observed = self._find(key_of(claim))
        if observed is not None and observed.metadata.uid == uid:
            self._removed[uid] = None

    def _is_awaited(self, claim: ResourceClaim) -> bool:
        assumed = self._assumed.get(key_of(claim)) if self._assumed else None
        return assumed is not None and assumed.metadata.uid == claim.metadata.uid

    def start_in_flight(self, claim: ResourceClaim, allocation: AllocationResult, pod_uid: str) -> None:
        """The Pod's attempt is about to write the allocation."""
        self._in_flight[claim.metadata.uid or ""] = pod_uid
        self.allocations.start_in_flight(claim, allocation)

    def end_in_flight(self, claim: ResourceClaim, pod_uid: str) -> bool:
        """The attempt's write has ended; says whether there was one."""
        uid = claim.metadata.uid or ""
        if self._in_flight.get(uid) != pod_uid:
            return False
        del self._in_flight[uid]
        self.allocations.end_in_flight(claim)
        return True

    # --- Questions. ---

    def get(self, key: NamespacedName) -> ResourceClaim | None:
        """The claim as last written or last told of, whichever is newer."""
        assumed = self._assumed.get(key)
        return assumed if assumed is not None else self._find(key)

    def extended_resource_claim_of(self, pod_uid: str) -> ResourceClaim | None:
        """The special claim of a Pod; when there are several, one with devices."""
        found = [claim for claim in self._find_extended(pod_uid) if claim.metadata.uid not in self._removed]
        found.sort(key=lambda claim: (claim.status.allocation is None, claim.metadata.name or ""))
        return self.get(key_of(found[0])) if found else None

    def observed(self, claim: ResourceClaim) -> bool:
        """Whether the informer has told of this version of the claim or a later one, or of its end."""
        current = self._find(key_of(claim))
        if current is None or current.metadata.uid != claim.metadata.uid:
            return not self._is_awaited(claim)
        return not is_older(current, claim)

    def is_in_flight(self, claim: ResourceClaim) -> bool:
        """Whether somebody is allocating the claim right now."""
        return (claim.metadata.uid or "") in self._in_flight

    def conflicting_claims(self, claim: ResourceClaim, allocation: AllocationResult | None) -> tuple[str, ...]:
        """Other claims that hold a device of the allocation for themselves; none, unless two schedulers raced.

        Shares of a device and administrative access are meant for several.
        """
        if allocation is None:
            return ()
        label = claim_label(claim)
        found: dict[str, None] = {}
        for result in allocation.devices.results:
            if result.admin_access or result.share_id is not None:
                continue
            key = f"{pool_key(result.driver, result.pool)}/{result.device}"
            found |= dict.fromkeys(holder for holder in self.allocations.holders(key) if holder != label)
        return tuple(found)

    # --- Waiting. ---

    def watch(self, claim: ResourceClaim, watcher: Watcher) -> Callable[[], None]:
        """Tell the watcher of every change from now on; returns what ends it."""
        return self._watchers.add(claim, watcher)
