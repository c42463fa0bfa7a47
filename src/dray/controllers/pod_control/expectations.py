"""Writes of a controller that its Pod informer has not delivered yet. Pure, time is an argument.

A cache lags behind. A controller that relied on it alone would create or delete Pods twice. So its own writes are
recorded here until the informer delivers them, and are applied on top of the cache. A creation whose response was lost
is recorded too and repeated under the same name, so that it cannot succeed twice. Unlike the expectations of client-go,
which are counters, these are the Pods themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from dray.api.document import NamespacedName
from dray.api.types.core_v1 import Pod
from dray.client.objects import is_older, key_of

# An informer is never this far behind.
EXPIRY_SECONDS: Final = 300.0
# A Pod that the informer has not delivered by then may have been deleted in the meantime: a live read decides.
CONFIRM_SECONDS: Final = 15.0


@dataclass(slots=True)
class _Creation:
    owner_uid: str
    # What the Pod is for: a node, an index, or None.
    slot: Hashable
    expires: float
    # Whether the result of an earlier request with this name is unknown: it may still create the Pod.
    in_doubt: bool
    # None until the response arrives, and if it was lost.
    pod: Pod | None = None


class PodExpectations:
    """Updated by the controller's writes and by informer events; not persistent, which is safe."""

    def __init__(self) -> None:
        self._creations: Final[dict[NamespacedName, _Creation]] = {}
        # Owner uid -> keys of its creations.
        self._by_owner: dict[str, dict[NamespacedName, None]] = {}
        # Pod uid -> expiry.
        self._deletions: Final[dict[str, float]] = {}

    @property
    def creations(self) -> Collection[NamespacedName]:
        """The creations that the informer has not delivered, as a collection that follows them."""
        return self._creations

    @property
    def deletions(self) -> Collection[str]:
        """The uids of Pods whose deletion the informer has not delivered, as a collection that follows them."""
        return self._deletions

    def expect_creation(self, owner_uid: str, key: NamespacedName, slot: Hashable, now: float) -> None:
        """Record that a Pod is about to be created, perhaps again."""
        earlier = self._creations.get(key)
        in_doubt = earlier is not None and earlier.pod is None
        self._creations[key] = _Creation(owner_uid, slot, now + EXPIRY_SECONDS, in_doubt)
        self._by_owner.setdefault(owner_uid, {})[key] = None

    def created(self, pod: Pod) -> None:
        """Record the response to a creation, unless the informer delivered the Pod before it."""
        creation = self._creations.get(key_of(pod))
        if creation is not None:
            creation.pod = pod

    def creation_failed(self, key: NamespacedName) -> None:
        """Drop a creation that cannot succeed any more."""
        self._drop(key)

    def creation_rejected(self, key: NamespacedName) -> None:
        """Drop a rejected creation, unless an earlier request can still succeed: the rejection says nothing of that."""
        creation = self._creations.get(key)
        if creation is not None and not creation.in_doubt:
            self._drop(key)

    def expect_deletion(self, uid: str, now: float) -> None:
        """Record that a Pod is about to be deleted."""
        self._deletions[uid] = now + EXPIRY_SECONDS

    def deletion_failed(self, uid: str) -> None:
        """Drop a deletion whose outcome is unknown."""
        self._deletions.pop(uid, None)

    def observe_deletion(self, old: Pod | None, new: Pod | None) -> None:
        """Handle an informer event: drop the deletion that it shows. Needed only while there are `deletions`."""
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._deletions.pop(old.metadata.uid or "", None)
        if new is not None and new.metadata.deletion_timestamp is not None:
            self._deletions.pop(new.metadata.uid or "", None)

    def observe_creation(self, old: Pod | None, new: Pod | None) -> None:
        """Handle an informer event: drop the creation that it shows. Needed only while there are `creations`."""
        pod = new if new is not None else old
        assert pod is not None
        if not self._is_overtaken(old, new):
            self._drop(key_of(pod))

    def unanswered(self, owner_uid: str) -> list[tuple[NamespacedName, Hashable]]:
        """Return the creations without a response, with their slots."""
        return [
            (key, self._creations[key].slot)
            for key in self._by_owner.get(owner_uid, ())
            if self._creations[key].pod is None
        ]

    def to_confirm(self, owner_uid: str, now: float) -> list[NamespacedName]:
        """Return the creations that the informer should have delivered by now."""
        return [
            key
            for key in self._by_owner.get(owner_uid, ())
            if self._creations[key].pod is not None
            and self._creations[key].expires <= now + EXPIRY_SECONDS - CONFIRM_SECONDS
        ]

    def pending(self, owner_uid: str) -> bool:
        """Return whether the informer has not delivered all creations."""
        return owner_uid in self._by_owner

    def apply(self, owner_uid: str, cached: Iterable[Pod], now: float, time: datetime) -> tuple[Pod, ...]:
        """Return the owner's Pods: the cached ones with the recorded writes applied."""
        pods = {pod.metadata.uid: pod for pod in cached}
        for key in tuple(self._by_owner.get(owner_uid, ())):
            creation = self._creations[key]
            if creation.expires < now:
                self._drop(key)
            elif creation.pod is not None:
                pods[creation.pod.metadata.uid] = creation.pod
        if not self._deletions:
            return tuple(pods.values())
        return tuple(self._as_deleted(pod, now, time) for pod in pods.values())

    def delete(self, owner_uid: str) -> None:
        """Drop everything about a deleted owner."""
        for key in tuple(self._by_owner.get(owner_uid, ())):
            self._drop(key)

    def _is_overtaken(self, old: Pod | None, new: Pod | None) -> bool:
        """Return whether a later version is known than the observed one, or a later Pod of that name.

        A repeated creation found the Pod, or created another one after the first was deleted unobserved.
        """
        observed = new if new is not None else old
        creation = None if observed is None else self._creations.get(key_of(observed))
        if creation is None or creation.pod is None or observed is None:
            return False
        if new is None and observed.metadata.uid == creation.pod.metadata.uid:
            return False
        return is_older(observed, creation.pod)

    def _as_deleted(self, pod: Pod, now: float, time: datetime) -> Pod:
        expires = self._deletions.get(pod.metadata.uid or "")
        if expires is None or pod.metadata.deletion_timestamp is not None:
            return pod
        if expires < now:
            del self._deletions[pod.metadata.uid or ""]
            return pod
        metadata = msgspec.structs.replace(pod.metadata, deletion_timestamp=time)
        return msgspec.structs.replace(pod, metadata=metadata)

    def _drop(self, key: NamespacedName) -> None:
        creation = self._creations.pop(key, None)
        if creation is None:
            return
        keys = self._by_owner[creation.owner_uid]
        del keys[key]
        if not keys:
            del self._by_owner[creation.owner_uid]
