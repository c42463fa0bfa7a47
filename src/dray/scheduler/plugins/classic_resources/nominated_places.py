"""Places in classic claims that are kept for nominated Pods. Pure.

A claim whose `userLimit` is used up has a place again when one of its users is gone: this needs no driver. The user's
entry in `reservedFor` stays until the node or the claim controller removes it. Until then the place is neither free nor
in use by anybody who needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from dray.api.classic_claims import status_of
from dray.api.document import NamespacedName
from dray.scheduler.plugins.classic_resources.pod_state import FindClaim, PodState

# Returns whether a Pod (key, uid) exists and is not being deleted.
IsAlive = Callable[[NamespacedName, str], bool]


class NominatedPlaces(msgspec.Struct, frozen=True):
    """The claims in which a nominated Pod gets a place on its node, and the victims whose places they are."""

    node_name: str
    # By uid of the claim.
    claims: Mapping[str, NamespacedName]
    # By uid of the Pod.
    victims: Mapping[str, NamespacedName]


class PlaceKeeper:
    """The places of all nominated Pods; each is kept as long as the nomination. One per scheduler."""

    def __init__(self, find: FindClaim, is_alive: IsAlive) -> None:
        self._find = find
        self._is_alive = is_alive
        # By uid of the Pod.
        self._places: dict[str, NominatedPlaces] = {}

    def keep(self, pod_uid: str, places: NominatedPlaces) -> None:
        """Keep places for a Pod."""
        self._places[pod_uid] = places

    def end(self, pod_uid: str, node_name: str) -> NominatedPlaces | None:
        """Forget the places of a Pod that is not nominated to the node any more."""
        places = self._places.get(pod_uid)
        if places is None or places.node_name != node_name:
            return None
        return self._places.pop(pod_uid)

    def hold(self, own: PodState, pod_uid: str, node_name: str) -> None:
        """Change the state of another Pod as if the nominated Pod had its places, and its victims none."""
        places = self._places.get(pod_uid)
        if places is None or places.node_name != node_name:
            return
        own.leaving.update(places.victims)
        for claim_uid in places.claims:
            own.holders.setdefault(claim_uid, set()).add(pod_uid)

    def is_settling(self, pod_uid: str, node_name: str) -> bool:
        """Return whether a victim of the Pod is gone, or going, and still in `reservedFor` of a claim."""
        places = self._places.get(pod_uid)
        if places is None or places.node_name != node_name:
            return False
        leaving = {uid for uid, key in places.victims.items() if not self._is_alive(key, uid)}
        return any(not leaving.isdisjoint(self._users(uid, key)) for uid, key in places.claims.items())

    def _users(self, claim_uid: str, key: NamespacedName) -> set[str]:
        claim = self._find(key)
        if claim is None or claim.metadata.uid != claim_uid:
            return set()
        return {user.uid for user in status_of(claim).reserved_for}
