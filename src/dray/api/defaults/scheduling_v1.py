"""Defaults of priority classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from dray.api.document import Document, GroupVersion, GroupVersionKind


def _default_priority_class(obj: Document, _now: datetime) -> None:
    if not obj.get("preemptionPolicy"):
        obj["preemptionPolicy"] = "PreemptLowerPriority"
    obj.setdefault("value", 0)


DEFAULTERS: Final[Mapping[GroupVersionKind, Callable[[Document, datetime], None]]] = {
    GroupVersion("scheduling.k8s.io", "v1").kind("PriorityClass"): _default_priority_class,
}
