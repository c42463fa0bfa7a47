"""Decoded documents of recently written or read values, so that an event is parsed once for all watchers.

The documents are shared: callers must not modify them.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgspec

from dray.api.document import Document
from dray.api.raw_numbers import load_stored
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
            known = _Known(value, load_stored(value), None)
            self._remember(known)
        if known.revision != revision:
            _show_at(known, revision)
        return known.document

    def written(self, value: bytes, document: Document) -> None:
        """Cache the content of a value that is about to be stored; it must not be changed any more."""
        self._remember(_Known(value, document, None))

    def _remember(self, known: _Known) -> None:
        self._bytes += len(known.value)
        while self._known and (len(self._known) >= self._size_max or self._bytes > self._bytes_max):
            _, oldest = self._known.popitem(last=False)
            self._bytes -= len(oldest.value)
        self._known[id(known.value)] = known


def _show_at(known: _Known, revision: int) -> None:
    if known.revision is not None:
        # A deletion shows the last value at a revision of its own.
        known.document = known.document | {"metadata": dict(known.document["metadata"])}
    known.document["metadata"]["resourceVersion"] = str(revision)
    known.revision = revision
