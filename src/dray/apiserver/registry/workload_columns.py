"""The cells that tables of workloads share."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.selectors import LabelSelector, SelectorError
from dray.apiserver.registry.strategy import Column

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
    Column("Selector", "string", "Which pods belong to it.", _selector, priority=1),
)


def status_number(workload: Document, field: str) -> int:
    """A count of the status, zero when it is not reported yet."""
    number: int = (workload.get("status") or {}).get(field) or 0
    return number
