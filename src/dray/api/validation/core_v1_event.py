"""Events of both groups: the core form of `v1` and the form of `events.k8s.io/v1`."""

from __future__ import annotations

from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, invalid, required
from dray.api.names import qualified_name
from dray.api.validation.meta_v1 import validate_immutable

_TEXT_LENGTH_MAX: Final = 128
_NOTE_LENGTH_MAX: Final = 1024
_TYPES: Final = ("Normal", "Warning")
_CLUSTER_NAMESPACES: Final = ("default", "kube-system")
_INVOLVED_NAMESPACE: Final = Path("involvedObject").child("namespace")


def _validate_namespace(event: Document, field: str) -> FieldErrors:
    """Validate the namespace: that of the object, or a fixed one for cluster-scoped objects.

    One with `eventTime` may regard an object in any namespace. Both groups report the core group's field.
    """
    namespace = (event.get("metadata") or {}).get("namespace") or ""
    involved = (event.get(field) or {}).get("namespace") or ""
    if event.get("eventTime"):
        fits = bool(involved) or namespace in _CLUSTER_NAMESPACES
    else:
        fits = namespace == (involved or "default")
    return [] if fits else [invalid(_INVOLVED_NAMESPACE, involved, "does not match event.namespace")]


def validate_event(event: Document) -> FieldErrors:
    """Validate an Event of the core group; one with `eventTime` must have all fields of the newer form."""
    errors = _validate_namespace(event, "involvedObject")
    if event.get("eventTime"):
        errors += _validate_new_fields(event, controller="reportingComponent", note="message")
    return errors


def validate_new_event(event: Document) -> FieldErrors:
    """Validate an Event of `events.k8s.io`."""
    errors = _validate_namespace(event, "regarding")
    if not event.get("eventTime"):
        errors.append(required(Path("eventTime")))
    if event.get("type") not in _TYPES:
        errors.append(invalid(Path("type"), "", f"has invalid value: {event.get('type') or ''}"))
    for field in ("deprecatedFirstTimestamp", "deprecatedLastTimestamp"):
        if event.get(field):
            errors.append(invalid(Path(_OLD_NAMES[field]), "", "needs to be unset"))
    if event.get("deprecatedCount"):
        errors.append(invalid(Path("count"), "", "needs to be unset"))
    return errors + _validate_new_fields(event, controller="reportingController", note="note")


_OLD_NAMES: Final = {"deprecatedFirstTimestamp": "firstTimestamp", "deprecatedLastTimestamp": "lastTimestamp"}


def _validate_new_fields(event: Document, *, controller: str, note: str) -> FieldErrors:
    errors: FieldErrors = []
    name = event.get(controller) or ""
    if not name:
        errors.append(required(Path(controller)))
    else:
        errors += [invalid(Path(controller), name, problem) for problem in qualified_name(name)]
    for field in ("reportingInstance", "action", "reason"):
        value = event.get(field) or ""
        if not value:
            errors.append(required(Path(field)))
        if len(value) > _TEXT_LENGTH_MAX:
            errors.append(invalid(Path(field), "", f"can have at most {_TEXT_LENGTH_MAX} characters"))
    if len(event.get(note) or "") > _NOTE_LENGTH_MAX:
        errors.append(invalid(Path("message"), "", f"can have at most {_NOTE_LENGTH_MAX} characters"))
    return errors


_FIXED: Final = (
    "regarding",
    "related",
    "reportingController",
    "reportingInstance",
    "action",
    "reason",
    "note",
    "type",
    "eventTime",
)


def validate_new_event_update(new: Document, old: Document) -> FieldErrors:
    """Validate a changed Event of `events.k8s.io`; only its series is mutable."""
    errors: FieldErrors = []
    for field in _FIXED:
        errors += validate_immutable(new.get(field), old.get(field), Path(field))
    return errors
