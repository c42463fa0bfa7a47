"""The documents of values that were written or read a moment ago, so that a thousand watchers parse an event once.

Its documents are shared: whoever gets one must not change it, nor anything in it.
"""

from __future__ import annotations

from typing import Final

import msgspec
import orjson

from dray.api.document import Document
from dray.store.interface import Entry

# A burst of events; older ones are parsed again, which is only slower.
SIZE_MAX: Final = 512
# Of values together, the newest excepted; their documents take several times as much.
BYTES_MAX: Final = 2 * 1024 * 1024


class _Known(msgspec.Struct):
    # Kept, so that no other value can have its identity.
    value: bytes
    document: Document
    # None while nobody has asked: then the document has no resourceVersion yet, and is nobody else's.
    revision: int | None


class DocumentCache:
    """Remembers hub documents by the stored value they are the content of; one for the whole server."""

    def __init__(self, size_max: int = SIZE_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._size_max = size_max
        self._bytes_max = bytes_max
        self._bytes = 0
        # By the value's identity, oldest first.
        self._known: dict[int, _Known] = {}

    def document(self, entry: Entry) -> Document:
        """The entry's hub document, with its resourceVersion."""
        value, revision = entry.value, entry.revision
        known = self._known.get(id(value))
        if known is None:
            known = _Known(value, orjson.loads(value), None)
            self._remember(known)
        if known.revision != revision:
            _show_at(known, revision)
        return known.document

    def written(self, value: bytes, document: Document) -> None:
        """Note the content of a value that is about to be stored; from now on it is nobody else's to change."""
        self._remember(_Known(value, document, None))

    def _remember(self, known: _Known) -> None:
        self._bytes += len(known.value)
        while self._known and (len(self._known) >= self._size_max or self._bytes > self._bytes_max):
            self._bytes -= len(self._known.pop(next(iter(self._known))).value)
        self._known[id(known.value)] = known


def _show_at(known: _Known, revision: int) -> None:
    if known.revision is not None:
        # A deletion shows the last value at a revision of its own.
        known.document = known.document | {"metadata": dict(known.document["metadata"])}
    known.document["metadata"]["resourceVersion"] = str(revision)
    known.revision = revision
