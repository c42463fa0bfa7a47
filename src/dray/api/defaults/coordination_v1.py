"""Defaults of leases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from dray.api.document import Document, GroupVersion, GroupVersionKind


def _default_lease(obj: Document, _now: datetime) -> None:
    obj.setdefault("spec", {})


DEFAULTERS: Final[Mapping[GroupVersionKind, Callable[[Document, datetime], None]]] = {
    GroupVersion("coordination.k8s.io", "v1").kind("Lease"): _default_lease,
}
