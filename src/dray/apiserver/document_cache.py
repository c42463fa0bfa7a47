"""Decoded documents of recently written or read values, so that an event is parsed once for all watchers.

The documents are shared: callers must not modify them.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgspec

from dray.api.document import Document
from dray.api.raw_numbers import MARK, load_stored
from dray.store.interface import Entry

# A burst of events; older ones are parsed again, which is only slower. More documents do not stay in the processor's
# cache, so that each write takes longer.
SIZE_MAX: Final = 512
# Total size of the values, without the newest; their documents take several times as much.
BYTES_MAX: Final = 2 * 1024 * 1024


class _Known(msgspec.Struct):
    # Referenced, so that no other value can get its identity.
    value: bytes
    document: Document
    # None until first use: the document has no resourceVersion yet and is not shared.
    revision: int | None
    # Recorded, so that the value, which is no longer in a processor cache when it is shown, need not be read.
    has_raw_numbers: bool


class DocumentCache:
    """Caches hub documents by the identity of their stored value."""

    def __init__(self, size_max: int = SIZE_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._size_max = size_max
        self._bytes_max = bytes_max
        self._bytes = 0
        # By the value's identity, oldest first. Finding the first entry of a plain dict is slow after many deletions.
        self._known: OrderedDict[int, _Known] = OrderedDict()

    def document(self, entry: Entry) -> Document:
        """Return the hub document of an entry, with its resourceVersion."""
        value, revision = entry.value, entry.revision
        known = self._known.get(id(value))
        if known is None:
            known = self.add(value, load_stored(value))
        if known.revision != revision:
            _show_at(known, revision)
        return known.document

    def plain_document(self, entry: Entry) -> Document | None:
        """Return the hub document of an entry as `document` does; None if it has raw numbers."""
        value, revision = entry.value, entry.revision
        known = self._known.get(id(value))
        if known is None:
            return None if value.endswith(MARK) else self.document(entry)
        if known.has_raw_numbers:
            return None
        if known.revision != revision:
            _show_at(known, revision)
        return known.document

    def add(self, value: bytes, document: Document) -> _Known:
        """Cache the content of a value that is stored, or about to be; it must not be changed any more."""
        cached, size = self._known, self._bytes + len(value)
        while cached and (len(cached) >= self._size_max or size > self._bytes_max):
            _, oldest = cached.popitem(last=False)
            size -= len(oldest.value)
        self._bytes = size
        known = cached[id(value)] = _Known(value, document, None, value.endswith(MARK))
        return known


def _show_at(known: _Known, revision: int) -> None:
    if known.revision is not None:
        # A deletion shows the last value at a revision of its own.
        known.document = known.document | {"metadata": dict(known.document["metadata"])}
    known.document["metadata"]["resourceVersion"] = str(revision)
    known.revision = revision
