"""Writes changes of stored objects. Handlers know no resource; one whose writes need more has a writer of its own."""

from __future__ import annotations

from typing import Protocol

from dray.api.document import Document
from dray.store.interface import Entry, Store


class ObjectWriter(Protocol):
    """Writes changes of the objects of a resource; raises what the store raises, or why the change is refused."""

    async def check(self, old: Document, new: Document) -> None:
        """Refuse a change that `update` would refuse, without writing it."""

    async def update(self, entry: Entry, old: Document, new: Document, value: bytes) -> Entry:
        """Replace the entry, which has the old document, with the encoded new one."""

    async def delete(self, entry: Entry, old: Document) -> Entry:
        """Remove the entry; return it with the revision of the deletion."""


class PlainWriter:
    """The writer of nearly all resources."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def check(self, old: Document, new: Document) -> None:
        """Accept the change."""

    async def update(self, entry: Entry, old: Document, new: Document, value: bytes) -> Entry:
        """Replace the entry."""
        return await self._store.update(entry.key, value, expected_revision=entry.revision)

    async def delete(self, entry: Entry, old: Document) -> Entry:
        """Remove the entry."""
        return await self._store.delete(entry.key, expected_revision=entry.revision)
