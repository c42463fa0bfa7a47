"""Tracks classic claims: observed by the informer, assumed after a write, or announced.

Pure. Every write is guarded by the claim's version, so nothing here is needed for safety: it keeps Pods from trying
what another Pod of this scheduler is already doing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from dray.api.classic_claims import UNLIMITED, is_allocated, is_reserved_for, selected_node, status_of, user_limit
from dray.api.document import NamespacedName
from dray.api.types.cdi_v1alpha1 import ResourceClaim
from dray.api.types.core_v1 import Pod
from dray.client.objects import is_older, key_of
from dray.scheduler.plugins.claim_watch import ClaimWatchers

# Called with the changed claim; None if it was deleted.
Watcher = Callable[[ResourceClaim | None], None]


class ClassicTracker:
    """One per scheduler; `find` reads the informer's cache."""

    def __init__(self, find: Callable[[NamespacedName], ResourceClaim | None]) -> None:
        self._find = find
        # Written claims, until the informer observes the write.
        self._assumed: dict[NamespacedName, ResourceClaim] = {}
        # Uid of a claim -> uids of the Pods that are about to select a node for it or to use it.
        self._meant: dict[str, dict[str, None]] = {}
        # Uid of a claim -> its selected node, written or announced; and the number of such claims by node.
        self._selected: dict[str, str] = {}
        self._waiting: Counter[str] = Counter()
        self._watchers: ClaimWatchers[ResourceClaim] = ClaimWatchers()

    def changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """Handle a change observed by the informer."""
        claim = new if new is not None else old
        assert claim is not None
        assumed = self._assumed.get(key_of(claim))
        if assumed is not None and (new is None or not is_older(new, assumed)):
            del self._assumed[key_of(claim)]
        self._note_selected(claim, self.get(key_of(claim)))
        self._watchers.notify(claim.metadata.uid or "", new)

    def assume(self, claim: ResourceClaim) -> None:
        """Assume a written claim, unless the informer has already observed it or a later version."""
        observed = self._find(key_of(claim))
        if observed is not None and observed.metadata.uid == claim.metadata.uid and is_older(observed, claim):
            self._assumed[key_of(claim)] = claim
            self._note_selected(claim, claim)

    def get(self, key: NamespacedName) -> ResourceClaim | None:
        """Return the claim as last written or observed, whichever is newer."""
        assumed = self._assumed.get(key)
        return assumed if assumed is not None else self._find(key)

    # --- What Pods are about to do. ---

    def start(self, claim: ResourceClaim, pod_uid: str, node_name: str) -> None:
        """Announce that the Pod's attempt is about to write the claim for the node."""
        self._meant.setdefault(claim.metadata.uid or "", {})[pod_uid] = None
        if not is_allocated(claim):
            self._set_selected(claim.metadata.uid or "", node_name)

    def end(self, claim: ResourceClaim, pod_uid: str) -> bool:
        """Withdraw the announcement; return whether there was one."""
        uid = claim.metadata.uid or ""
        pods = self._meant.get(uid, {})
        if pod_uid not in pods:
            return False
        del pods[pod_uid]
        if not pods:
            del self._meant[uid]
        self._note_selected(claim, self.get(key_of(claim)))
        return True

    def is_meant_by_others(self, claim: ResourceClaim, pod: Pod) -> bool:
        """Return whether another Pod is about to write the claim."""
        return any(uid != pod.metadata.uid for uid in self._meant.get(claim.metadata.uid or "", ()))

    def users_besides(self, claim: ResourceClaim, pod: Pod) -> frozenset[str] | None:
        """Return the other users of a claim, written or announced; None if the Pod may use it whoever they are."""
        if is_reserved_for(claim, pod) or user_limit(claim) == UNLIMITED:
            return None
        announced = self._meant.get(claim.metadata.uid or "", {})
        users = {user.uid for user in status_of(claim).reserved_for} | announced.keys()
        return frozenset(users - {pod.metadata.uid})

    def waiting_on(self, node_name: str) -> int:
        """Return the number of unallocated claims with this selected node."""
        return self._waiting[node_name]

    def _note_selected(self, claim: ResourceClaim, now: ResourceClaim | None) -> None:
        uid = claim.metadata.uid or ""
        waits = now is not None and now.metadata.uid == uid and not is_allocated(now)
        self._set_selected(uid, selected_node(now) if waits and now is not None else "")

    def _set_selected(self, uid: str, node_name: str) -> None:
        before = self._selected.pop(uid, "")
        if before:
            self._waiting[before] -= 1
        if node_name:
            self._selected[uid] = node_name
            self._waiting[node_name] += 1

    # --- Waiting. ---

    def watch(self, claim: ResourceClaim, watcher: Watcher) -> Callable[[], None]:
        """Call the watcher for every change from now on; return a function that removes it."""
        return self._watchers.add(claim, watcher)
