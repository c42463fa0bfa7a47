"""Stored values that cannot be shown: each is logged once, and left out where many are shown.

The server stores none. A disk or another program may have damaged a value, and then all others are shown as ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import orjson

from dray.api.document import Document
from dray.api.object_form import FormError, formed
from dray.apiserver import shown_values
from dray.apiserver.endpoint import Endpoint
from dray.lib.lru import LRUSet
from dray.store.interface import Entry

_LOG: Final = logging.getLogger("dray.apiserver.malformed")
# The values that were logged last.
_LOGGED: Final[LRUSet[tuple[str, int]]] = LRUSet(1024)

T = TypeVar("T")


def log_malformed(entry: Entry, error: Exception) -> None:
    """Log that a value is left out, once."""
    place = (entry.key, entry.revision)
    if place in _LOGGED:
        return
    _LOGGED.add(place)
    _LOG.error("%s cannot be shown and is left out: %s: %s", entry.key, type(error).__name__, error)


def load_object(entry: Entry) -> Document:
    """Return the document of an entry, without its revision; raises for what is no object with metadata."""
    document = orjson.loads(entry.value)
    if not isinstance(document, dict) or not isinstance(document.get("metadata"), dict):
        raise FormError("it is not an object with metadata")
    return document


def unless_malformed(show: Callable[[Entry], T], entry: Entry) -> T | None:
    """Return what a function makes of an entry, None if it fails because of the stored value."""
    return shown_values.unless_malformed(show, entry, log_malformed)


def each_shown(show: Callable[[Entry], T], entries: Sequence[Entry]) -> list[T]:
    """Return what a function makes of the entries, without those that fail because of the stored value."""
    return shown_values.each_shown(show, entries, log_malformed)


def is_formed(document: Document, endpoint: Endpoint) -> bool:
    """Return whether a hub document has the form of its kind."""
    try:
        formed(document, endpoint.stored_struct)
    except FormError:
        return False
    return True
