"""Events, which two groups serve: `v1` and `events.k8s.io/v1`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from dray.api.conversion.events import CORE_API_VERSION, from_core
from dray.api.document import Document
from dray.api.field_errors import FieldErrors
from dray.api.validation.core_v1_event import validate_event, validate_new_event, validate_new_event_update
from dray.apiserver.registry.columns import NAME, since
from dray.apiserver.registry.strategy import Column, ResourceDefinition, Strategy, WriteContext


class EventStrategy(Strategy):
    """Strategy of core Events; recorders update them without a resourceVersion."""

    allow_create_on_update = True

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Validate the namespace of the event."""
        return validate_event(obj)

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate the namespace of the event."""
        return validate_event(obj)


class NewEventStrategy(Strategy):
    """Strategy of `events.k8s.io`; Events are validated in that form, even though they are stored as core Events."""

    allow_create_on_update = True

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Validate all fields that the newer form requires."""
        return validate_new_event(_new_form(obj))

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate that only the series changed."""
        return validate_new_event_update(_new_form(obj), _new_form(old))


def _new_form(event: Document) -> Document:
    return from_core(event) if event.get("apiVersion") == CORE_API_VERSION else event


# --- Table cells; fields are named in both forms, the core form first.


def _field(event: Document, old: str, new: str) -> Any:
    value = event.get(old)
    return event.get(new) if value is None else value


def _involved(event: Document) -> Document:
    return _field(event, "involvedObject", "regarding") or {}


def _first_time(event: Document) -> str | None:
    return _field(event, "firstTimestamp", "deprecatedFirstTimestamp") or event.get("eventTime")


def _last_time(event: Document) -> str | None:
    series = event.get("series")
    if series:
        time: str | None = series.get("lastObservedTime")
        return time
    return _field(event, "lastTimestamp", "deprecatedLastTimestamp") or _first_time(event)


def _last_seen(event: Document, now: datetime) -> str:
    return since(_last_time(event), now)


def _first_seen(event: Document, now: datetime) -> str:
    return since(_first_time(event), now)


def _text(*names: str) -> Callable[[Document, datetime], str]:
    def cell(event: Document, now: datetime) -> str:
        for name in names:
            if event.get(name):
                return str(event[name]).strip()
        return ""

    return cell


def _object(event: Document, now: datetime) -> str:
    involved = _involved(event)
    kind = (involved.get("kind") or "").lower()
    return f"{kind}/{involved['name']}" if involved.get("name") else kind


def _subobject(event: Document, now: datetime) -> str:
    return _involved(event).get("fieldPath") or ""


def _source_component(event: Document) -> str:
    source = _field(event, "source", "deprecatedSource") or {}
    return source.get("component") or _field(event, "reportingComponent", "reportingController") or ""


def _source(event: Document, now: datetime) -> str:
    source = _field(event, "source", "deprecatedSource") or {}
    component = _source_component(event)
    host = source.get("host") or ("" if source.get("component") else event.get("reportingInstance"))
    return f"{component}, {host}" if host else component


def _count(event: Document, now: datetime) -> int:
    series = event.get("series")
    count = series.get("count") if series else _field(event, "count", "deprecatedCount")
    # A single event of the newer form has no count.
    return count or 1


COLUMNS: Final = (
    Column("Last Seen", "string", "The time of the last occurrence.", _last_seen),
    Column("Type", "string", "Normal or Warning.", _text("type")),
    Column("Reason", "string", "The machine-readable reason.", _text("reason")),
    Column("Object", "string", "The object of the event.", _object),
    Column("Subobject", "string", "The part of the object.", _subobject, priority=1),
    Column("Source", "string", "The reporting component and its host.", _source, priority=1),
    Column("Message", "string", "The human-readable message.", _text("message", "note")),
    Column("First Seen", "string", "The time of the first occurrence.", _first_seen, priority=1),
    Column("Count", "string", "The number of occurrences.", _count, priority=1),
    Column(NAME.name, NAME.type, NAME.description, NAME.cell, NAME.format, priority=1),
)

_REFERENCE_FIELDS: Final = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")


def _reference_getters(label: str) -> Mapping[str, Callable[[Document], str]]:
    def getter(field: str) -> Callable[[Document], str]:
        return lambda event: _involved(event).get(field) or ""

    return {f"{label}.{field}": getter(field) for field in _REFERENCE_FIELDS}


_SHARED_FIELDS: Final[Mapping[str, Callable[[Document], str]]] = {
    "reason": lambda event: event.get("reason") or "",
    "type": lambda event: event.get("type") or "",
}

EVENTS: Final = ResourceDefinition(
    group="",
    resource="events",
    singular="event",
    kind="Event",
    namespaced=True,
    versions=("v1",),
    storage_version="v1",
    strategy=EventStrategy(),
    short_names=("ev",),
    columns=COLUMNS,
    selectable_fields={
        **_reference_getters("involvedObject"),
        **_SHARED_FIELDS,
        "reportingComponent": lambda event: event.get("reportingComponent") or "",
        "source": _source_component,
    },
)
NEW_EVENTS: Final = ResourceDefinition(
    group="events.k8s.io",
    resource="events",
    singular="event",
    kind="Event",
    namespaced=True,
    versions=("v1",),
    storage_version="v1",
    strategy=NewEventStrategy(),
    short_names=("ev",),
    columns=COLUMNS,
    selectable_fields={
        **_reference_getters("regarding"),
        **_SHARED_FIELDS,
        "reportingController": lambda event: _field(event, "reportingComponent", "reportingController") or "",
    },
)

DEFINITIONS: Final = (EVENTS, NEW_EVENTS)
