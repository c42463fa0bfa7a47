"""The state that the plugins of all profiles share: classic claims and classes, and what is kept for nominated Pods."""

from __future__ import annotations

from typing import Final

from dray.api import classic_claims as classic
from dray.api.document import NamespacedName
from dray.api.types.cdi_v1alpha1 import ResourceClaim
from dray.api.types.meta_v1 import OwnerReference
from dray.client.objects import key_of
from dray.client.resources import CLASSIC_CLAIMS, CLASSIC_CLASSES, PODS, RESOURCE_CLAIMS
from dray.framework.events import CLASSIC_CLAIM, Action, ClusterEvent
from dray.scheduler.cluster_events import UNFINISHED
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.classic_resources.claim_writer import ClassicWriter
from dray.scheduler.plugins.classic_resources.nominated_places import PlaceKeeper
from dray.scheduler.plugins.classic_resources.refusals import Refusals
from dray.scheduler.plugins.classic_resources.tracker import ClassicTracker

NAME: Final = "ClassicResources"
ABANDONED: Final = ClusterEvent(CLASSIC_CLAIM, Action.UPDATE, "ClassicClaimAbandoned")
# Stands for a user of a claim that does not use it after all.
_NOBODY: Final = OwnerReference(api_version="v1", kind="Pod", name="", uid="")


class ClassicState:
    """The state that the plugins of all profiles share."""

    def __init__(self, handle: Handle) -> None:
        claims = handle.informers.informer(CLASSIC_CLAIMS)
        self.tracker = ClassicTracker(claims.lister.get_key)
        self.writer = ClassicWriter(handle.client, handle.clock, self.tracker)
        self.classes = handle.informers.informer(CLASSIC_CLASSES).lister
        self._structured = handle.informers.informer(RESOURCE_CLAIMS).lister
        self._pods = handle.informers.informer(PODS, UNFINISHED).lister
        self._notify = handle.notify
        self.places = PlaceKeeper(self.tracker.get, self._is_alive)
        handle.nominations.on_end(self._nomination_ended)
        self.refusals = Refusals()
        self._clock, self._spawn = handle.clock, handle.spawn
        claims.add_handler(self.tracker.changed)
        claims.add_handler(self._note_refusal)

    def has_structured(self, key: NamespacedName) -> bool:
        """Return whether resource.k8s.io has a claim with the name."""
        return self._structured.get_key(key) is not None

    def _is_alive(self, key: NamespacedName, uid: str) -> bool:
        """Return whether a Pod exists and is not being deleted."""
        pod = self._pods.get_key(key)
        return pod is not None and pod.metadata.uid == uid and pod.metadata.deletion_timestamp is None

    def _note_refusal(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        for seconds in self.refusals.changed(old, new, self._clock.monotonic()):
            assert new is not None
            self._spawn(self._try_again(key_of(new), seconds), "try a refused node again")

    async def _try_again(self, key: NamespacedName, seconds: float) -> None:
        """Requeue the Pods of the claim after a time, if no node is selected by then."""
        await self._clock.sleep(seconds)
        claim = self.tracker.get(key)
        if claim is not None and not classic.is_allocated(claim) and not classic.selected_node(claim):
            self._requeue(claim)

    def _requeue(self, claim: ResourceClaim) -> None:
        """Requeue the Pods of the claim, as if a user had left it: there is no event that says so."""
        before = classic.with_users(claim, (*classic.status_of(claim).reserved_for, _NOBODY))
        self._notify(ABANDONED, before, claim)

    def _nomination_ended(self, pod_uid: str, node_name: str, placed: bool) -> None:  # noqa: FBT001 - a callback
        """Drop the places that were kept; without the Pod others may have them, and no other event says so."""
        kept = self.places.end(pod_uid, node_name)
        if kept is None or placed:
            return
        for key in kept.claims.values():
            claim = self.tracker.get(key)
            if claim is not None:
                self._requeue(claim)


def classic_state_of(handle: Handle) -> ClassicState:
    """Return the state that all profiles of the scheduler share."""
    shared = handle.shared.get(NAME)
    if shared is None:
        shared = handle.shared[NAME] = ClassicState(handle)
    assert isinstance(shared, ClassicState)
    return shared
