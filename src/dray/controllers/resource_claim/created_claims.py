"""Claims that were just created and that the informer has not delivered yet. Pure, time is an argument."""

from __future__ import annotations

from typing import Final

import msgspec

from dray.api.document import NamespacedName
from dray.api.types.resource_v1 import ResourceClaim
from dray.client.objects import key_of

# An informer is never this far behind; a claim it has not delivered by then was deleted before it saw it.
EXPIRY_SECONDS: Final = 60.0
ENTRIES_MAX: Final = 10_000


class _Entry(msgspec.Struct, frozen=True):
    claim: ResourceClaim
    expires: float


class CreatedClaims:
    """A cache bounded by size and age; a lost entry costs at most one live read."""

    def __init__(self) -> None:
        # Oldest first.
        self._entries: dict[NamespacedName, _Entry] = {}
        # Owner uid -> keys of its entries.
        self._by_owner: dict[str, dict[NamespacedName, None]] = {}

    def add(self, claim: ResourceClaim, now: float) -> None:
        """Add a claim as the API server returned it."""
        key = key_of(claim)
        if key in self._entries:
            self.discard(key)
        self._entries[key] = _Entry(claim, now + EXPIRY_SECONDS)
        for owner in claim.metadata.owner_references:
            self._by_owner.setdefault(owner.uid, {})[key] = None
        if len(self._entries) > ENTRIES_MAX:
            self.discard(next(iter(self._entries)))

    def discard(self, key: NamespacedName) -> None:
        """Drop a claim, for example because the informer has delivered it, created or deleted."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        for owner in entry.claim.metadata.owner_references:
            keys = self._by_owner[owner.uid]
            keys.pop(key, None)
            if not keys:
                del self._by_owner[owner.uid]

    def get(self, key: NamespacedName, now: float) -> ResourceClaim | None:
        """Return the claim of that name."""
        entry = self._entries.get(key)
        if entry is None or entry.expires < now:
            return None
        return entry.claim

    def owned_by(self, uid: str, now: float) -> tuple[ResourceClaim, ...]:
        """Return the claims with that owner."""
        keys = self._by_owner.get(uid)
        if keys is None:
            return ()
        return tuple(entry.claim for entry in map(self._entries.__getitem__, keys) if entry.expires >= now)
