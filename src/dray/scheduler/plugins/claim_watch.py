"""News of claims for those who wait for one: whichever group the claims are of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from dray.api.types.meta_v1 import ObjectMeta


class HasMetadata(Protocol):
    """Any object of the API."""

    @property
    def metadata(self) -> ObjectMeta:
        """Its metadata."""


C = TypeVar("C", bound=HasMetadata)


class ClaimWatchers(Generic[C]):
    """Who wants to hear of which claim, by its uid; None tells of its end."""

    def __init__(self) -> None:
        self._watchers: dict[str, list[Callable[[C | None], None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._watchers)

    def add(self, claim: C, watcher: Callable[[C | None], None]) -> Callable[[], None]:
        """Tell the watcher of every change from now on; returns what ends it."""
        uid = claim.metadata.uid or ""
        self._watchers.setdefault(uid, []).append(watcher)

        def stop() -> None:
            watchers = self._watchers.get(uid, [])
            if watcher in watchers:
                watchers.remove(watcher)
            if not watchers:
                self._watchers.pop(uid, None)

        return stop

    def tell(self, uid: str, claim: C | None) -> None:
        """The claim has changed, or is gone."""
        for watcher in tuple(self._watchers.get(uid, ())):
            watcher(claim)


def is_older(one: HasMetadata, other: HasMetadata) -> bool:
    """Whether `one` was written before `other`; versions that are not numbers cannot be older."""
    try:
        return int(one.metadata.resource_version or "") < int(other.metadata.resource_version or "")
    except ValueError:
        return False
