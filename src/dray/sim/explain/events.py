"""The warnings about an object of a snapshot, from its Events. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dray.api.document import Document
from dray.sim.snapshot import Snapshot

WARNING: Final = "Warning"


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    """An Event, as far as it is explained."""

    reason: str
    message: str
    # The last time it was observed, in RFC 3339; comparable as text.
    last: str
    type: str = WARNING
    # The kind and name of the other object that it is about; empty if there is none.
    related: str = ""


def events_of(snapshot: Snapshot, kind: str, namespace: str, name: str, uid: str = "") -> list[ObjectEvent]:
    """Return the Events about an object, the newest first; those of a former object of that name are left out."""
    found = [
        ObjectEvent(
            item.get("reason") or "", item.get("message") or "", _last(item), item.get("type") or "", _other(item)
        )
        for item in snapshot.events_by_object.get((kind, namespace, name), ())
        if not uid or (item["involvedObject"].get("uid") or uid) == uid
    ]
    return sorted(found, key=lambda event: event.last, reverse=True)


def newest(events: Iterable[ObjectEvent], *reasons: str) -> ObjectEvent | None:
    """Return the newest of the events with one of the reasons; they are ordered, the newest first."""
    return next((event for event in events if event.reason in reasons), None)


def _other(event: Document) -> str:
    other = event.get("related") or {}
    return f"{other.get('kind')} {other.get('namespace')}/{other.get('name')}" if other else ""


def _last(event: Document) -> str:
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    metadata = event.get("metadata") or {}
    return next((time for time in times if time), None) or metadata.get("creationTimestamp") or ""
