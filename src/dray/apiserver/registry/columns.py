"""Common table columns and cells, and the format of ages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from dray.api.document import Document
from dray.api.selectors import LabelSelector, SelectorError
from dray.apiserver.registry.strategy import Column

UNKNOWN: Final = "<unknown>"

_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_YEAR: Final = 365 * _DAY

# Upper bound (seconds): the unit, and the finer unit that is appended when it is not zero.
_STEPS: Final[tuple[tuple[int, tuple[str, int], tuple[str, int] | None], ...]] = (
    (2 * _MINUTE, ("s", 1), None),
    (10 * _MINUTE, ("m", _MINUTE), ("s", 1)),
    (3 * _HOUR, ("m", _MINUTE), None),
    (8 * _HOUR, ("h", _HOUR), ("m", _MINUTE)),
    (2 * _DAY, ("h", _HOUR), None),
    (8 * _DAY, ("d", _DAY), ("h", _HOUR)),
    (2 * _YEAR, ("d", _DAY), None),
    (8 * _YEAR, ("y", _YEAR), ("d", _DAY)),
)


def human_duration(duration: timedelta) -> str:
    """Return a duration as kubectl prints ages: at most two units, coarser the longer it is."""
    # A clock skew of one second is tolerated; a time further in the future is not an age.
    seconds = int(duration.total_seconds())
    if seconds < 0:
        return "<invalid>" if seconds < -1 else "0s"
    for limit, (unit, size), finer in _STEPS:
        if seconds < limit:
            whole, rest = divmod(seconds, size)
            part = rest // finer[1] if finer else 0
            return f"{whole}{unit}{part}{finer[0]}" if finer and part else f"{whole}{unit}"
    return f"{seconds // _YEAR}y"


def since(timestamp: str | None, now: datetime) -> str:
    """Return the time since an RFC 3339 time."""
    if not timestamp:
        return UNKNOWN
    return human_duration(now - datetime.fromisoformat(timestamp))


def age_cell(document: Document, now: datetime) -> str:
    """Return the object's age."""
    return since((document.get("metadata") or {}).get("creationTimestamp"), now)


def name_cell(document: Document, now: datetime) -> str:
    """Return the object's name."""
    name: str = (document.get("metadata") or {}).get("name", "")
    return name


def text_cell(*path: str) -> Callable[[Document, datetime], str]:
    """Return a cell with the text at a field path, empty when it is not set."""

    def cell(document: Document, now: datetime) -> str:
        value: object = document
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        return "" if value is None else str(value)

    return cell


NAME: Final = Column("Name", "string", "The object's name, unique within its kind and namespace.", name_cell, "name")
AGE: Final = Column("Age", "string", "The time since the object was created.", age_cell)


_NONE: Final = "<none>"


def _containers_of(workload: Document) -> Sequence[Document]:
    template = (workload.get("spec") or {}).get("template") or {}
    containers: Sequence[Document] = (template.get("spec") or {}).get("containers") or ()
    return containers


def _names(workload: Document, now: datetime) -> str:
    return ",".join(item.get("name") or "" for item in _containers_of(workload))


def _images(workload: Document, now: datetime) -> str:
    return ",".join(item.get("image") or "" for item in _containers_of(workload))


def _selector(workload: Document, now: datetime) -> str:
    selector = (workload.get("spec") or {}).get("selector")
    if selector is None:
        return _NONE
    try:
        return str(LabelSelector.from_document(selector)) or _NONE
    except SelectorError:
        return "<error>"


TEMPLATE_COLUMNS: Final = (
    Column("Containers", "string", "The names of the template's containers.", _names, priority=1),
    Column("Images", "string", "The images of the template's containers.", _images, priority=1),
    Column("Selector", "string", "The label selector of its pods.", _selector, priority=1),
)


def status_number(workload: Document, field: str) -> int:
    """Return a count of the status, zero when it is not reported."""
    number: int = (workload.get("status") or {}).get(field) or 0
    return number
