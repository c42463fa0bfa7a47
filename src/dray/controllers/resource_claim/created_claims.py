"""Claims that were just created and that the informer has not told of yet."""

from __future__ import annotations

from typing import Final, NamedTuple

from dray.api.document import NamespacedName
from dray.api.types.resource_v1 import ResourceClaim
from dray.client.objects import key_of

# An informer is never this far behind; what it has not told of by then was deleted before it looked.
REMEMBERED_SECONDS: Final = 60.0
REMEMBERED_MAX: Final = 10_000


class _Entry(NamedTuple):
    claim: ResourceClaim
    until: float


class CreatedClaims:
    """Bounded by number and age; losing an entry costs at most a second look at the server."""

    def __init__(self) -> None:
        # Oldest first.
        self._entries: dict[NamespacedName, _Entry] = {}
        # Owner uid -> keys of its entries.
        self._by_owner: dict[str, dict[NamespacedName, None]] = {}

    def remember(self, claim: ResourceClaim, now: float) -> None:
        """Note a claim that the server has answered with."""
        key = key_of(claim)
        self._forget(key)
        self._entries[key] = _Entry(claim, now + REMEMBERED_SECONDS)
        for owner in claim.metadata.owner_references:
            self._by_owner.setdefault(owner.uid, {})[key] = None
        if len(self._entries) > REMEMBERED_MAX:
            self._forget(next(iter(self._entries)))

    def seen(self, key: NamespacedName) -> None:
        """The informer has told of the claim, as there or as deleted: it knows better from now on."""
        self._forget(key)

    def get(self, key: NamespacedName, now: float) -> ResourceClaim | None:
        """The remembered claim of that name."""
        entry = self._entries.get(key)
        if entry is None or entry.until < now:
            return None
        return entry.claim

    def owned_by(self, uid: str, now: float) -> tuple[ResourceClaim, ...]:
        """The remembered claims with that owner."""
        entries = (self._entries[key] for key in self._by_owner.get(uid, ()))
        return tuple(entry.claim for entry in entries if entry.until >= now)

    def _forget(self, key: NamespacedName) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        for owner in entry.claim.metadata.owner_references:
            keys = self._by_owner[owner.uid]
            keys.pop(key, None)
            if not keys:
                del self._by_owner[owner.uid]
