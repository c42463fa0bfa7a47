"""Watches of single claims, of either API group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from dray.api.types.meta_v1 import ObjectMeta


class HasMetadata(Protocol):
    """An API object."""

    @property
    def metadata(self) -> ObjectMeta:
        """Return its metadata."""


C = TypeVar("C", bound=HasMetadata)


class ClaimWatchers(Generic[C]):
    """Watchers by uid of the claim; a watcher gets None when the claim is deleted."""

    def __init__(self) -> None:
        self._watchers: dict[str, list[Callable[[C | None], None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._watchers)

    def add(self, claim: C, watcher: Callable[[C | None], None]) -> Callable[[], None]:
        """Call the watcher for every change from now on; return a function that removes it."""
        uid = claim.metadata.uid or ""
        self._watchers.setdefault(uid, []).append(watcher)

        def stop() -> None:
            watchers = self._watchers.get(uid, [])
            if watcher in watchers:
                watchers.remove(watcher)
            if not watchers:
                self._watchers.pop(uid, None)

        return stop

    def notify(self, uid: str, claim: C | None) -> None:
        """Notify the watchers of a changed or deleted claim."""
        for watcher in tuple(self._watchers.get(uid, ())):
            watcher(claim)
