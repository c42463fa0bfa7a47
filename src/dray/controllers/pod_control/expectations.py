"""What a controller has done to Pods and its informer has not told of yet; pure, time is an argument.

A cache is always a little late. Counting on it alone, a controller would create or delete twice; so what was asked
for is kept here until the informer tells of it, and is laid over what the cache says. A creation whose answer was
lost is kept too: it is asked for again under the same name, so that it cannot succeed twice.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from dray.api.document import NamespacedName
from dray.api.types.core_v1 import Pod
from dray.client.objects import key_of

# An informer is never this far behind.
REMEMBERED_SECONDS: Final = 300.0
# What an informer has not told of by then may have come and gone while it did not look: the server is asked.
CONFIRMED_SECONDS: Final = 15.0


@dataclass(slots=True)
class _Creation:
    owner_uid: str
    # What the Pod is for: a node, an index, or nothing in particular.
    slot: Hashable
    until: float
    # None while the answer is awaited, and when it was lost.
    pod: Pod | None = None


class UnseenPods:
    """Changed by the controller's own writes and by its informer's news; lost with the process, and that is safe."""

    def __init__(self) -> None:
        self._creations: dict[NamespacedName, _Creation] = {}
        # Owner uid -> keys of its creations.
        self._by_owner: dict[str, dict[NamespacedName, None]] = {}
        # Pod uid -> until when it is remembered.
        self._deletions: dict[str, float] = {}

    def creating(self, owner_uid: str, key: NamespacedName, slot: Hashable, now: float) -> None:
        """A Pod is about to be created."""
        self._creations[key] = _Creation(owner_uid, slot, now + REMEMBERED_SECONDS)
        self._by_owner.setdefault(owner_uid, {})[key] = None

    def created(self, pod: Pod) -> None:
        """The server has answered; nothing to remember when the informer was faster."""
        creation = self._creations.get(key_of(pod))
        if creation is not None:
            creation.pod = pod

    def not_created(self, key: NamespacedName) -> None:
        """The server has refused."""
        self._drop(key)

    def deleting(self, uid: str, now: float) -> None:
        """A Pod is about to be deleted."""
        self._deletions[uid] = now + REMEMBERED_SECONDS

    def not_deleted(self, uid: str) -> None:
        """The deletion is not known to have been taken in."""
        self._deletions.pop(uid, None)

    def told(self, old: Pod | None, new: Pod | None) -> None:
        """The informer has told of a Pod."""
        pod = new if new is not None else old
        assert pod is not None
        if self._creations:
            self._drop(key_of(pod))
        if not self._deletions:
            return
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._deletions.pop(old.metadata.uid or "", None)
        if new is not None and new.metadata.deletion_timestamp is not None:
            self._deletions.pop(new.metadata.uid or "", None)

    def lost(self, owner_uid: str) -> list[tuple[NamespacedName, Hashable]]:
        """Creations whose answer was lost, with what they are for."""
        return [
            (key, self._creations[key].slot)
            for key in self._by_owner.get(owner_uid, ())
            if self._creations[key].pod is None
        ]

    def to_confirm(self, owner_uid: str, now: float) -> list[NamespacedName]:
        """Creations that the informer should have told of by now."""
        return [
            key
            for key in self._by_owner.get(owner_uid, ())
            if self._creations[key].pod is not None
            and self._creations[key].until <= now + REMEMBERED_SECONDS - CONFIRMED_SECONDS
        ]

    def awaits(self, owner_uid: str) -> bool:
        """Whether the informer has yet to tell of a creation."""
        return owner_uid in self._by_owner

    def over(self, owner_uid: str, cached: Iterable[Pod], now: float, time: datetime) -> tuple[Pod, ...]:
        """The owner's Pods: those cached, with what the informer has not told of yet."""
        pods = list(cached)
        known = {pod.metadata.uid for pod in pods}
        for key in tuple(self._by_owner.get(owner_uid, ())):
            creation = self._creations[key]
            if creation.until < now:
                self._drop(key)
            elif creation.pod is not None and creation.pod.metadata.uid not in known:
                pods.append(creation.pod)
        if not self._deletions:
            return tuple(pods)
        return tuple(self._as_deleted(pod, now, time) for pod in pods)

    def forget(self, owner_uid: str) -> None:
        """The owner is gone."""
        for key in tuple(self._by_owner.get(owner_uid, ())):
            self._drop(key)

    def _as_deleted(self, pod: Pod, now: float, time: datetime) -> Pod:
        until = self._deletions.get(pod.metadata.uid or "")
        if until is None or pod.metadata.deletion_timestamp is not None:
            return pod
        if until < now:
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
