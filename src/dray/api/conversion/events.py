"""Conversion of Events between `v1`, the storage version, and `events.k8s.io/v1`."""

from __future__ import annotations

from typing import Final

from dray.api.document import Document

NEW_API_VERSION: Final = "events.k8s.io/v1"
CORE_API_VERSION: Final = "v1"

# Name in `v1` -> name in `events.k8s.io/v1`; unlisted fields have the same name in both.
_NAMES: Final = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_REVERSED: Final = {new: old for old, new in _NAMES.items()}


def to_core(event: Document) -> Document:
    """Return the `v1` form of an `events.k8s.io` Event; the argument is not changed."""
    return {**{_REVERSED.get(name, name): value for name, value in event.items()}, "apiVersion": CORE_API_VERSION}


def from_core(event: Document) -> Document:
    """Return the `events.k8s.io` form of a `v1` Event; the argument is not changed."""
    return {**{_NAMES.get(name, name): value for name, value in event.items()}, "apiVersion": NEW_API_VERSION}


def to_hub(_version: str, _kind: str, document: Document) -> Document:
    """Convert to the storage version from either group."""
    return to_core(document) if document.get("apiVersion") == NEW_API_VERSION else document


def from_hub(_version: str, _kind: str, document: Document) -> Document:
    """Convert from the storage version to `events.k8s.io`."""
    return from_core(document)
