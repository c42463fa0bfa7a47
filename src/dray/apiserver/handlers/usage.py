"""`/debug/usage`: the history of device usage that the same process records, with the rights of the caller.

What a namespace used is visible to those who may list its Pods. The totals by class are visible to those who may list
ResourceSlices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from dray.api.document import Document
from dray.api.errors import BadRequestError
from dray.apiserver.authorization.authorizer import Authorizer
from dray.apiserver.call import Call, DocumentResult
from dray.apiserver.handlers.debug_access import check_reader, may_list


class UsageSource(Protocol):
    """The history of usage."""

    async def documents(self, seconds: float) -> Sequence[Document]:
        """Return the points of the last seconds as JSON data, the oldest first; the last is of now."""


class UsageHandler:
    """Answers with the usage that the caller may see."""

    def __init__(self, authorizer: Authorizer, source: UsageSource | None) -> None:
        self._authorizer = authorizer
        self._source = source

    @property
    def is_served(self) -> bool:
        """Return whether usage is recorded in this process."""
        return self._source is not None

    async def serve(self, call: Call) -> DocumentResult:
        """Return the points of the last `seconds`, with the number of namespaces that are hidden."""
        check_reader(call)
        assert self._source is not None, "not served without a source"
        points = await self._source.documents(_seconds(call.query.get("seconds", "")))
        namespaces = {name for point in points for name in point["namespaces"]}
        visible = {name for name in namespaces if may_list(self._authorizer, call, "pods", namespace=name)}
        with_classes = may_list(self._authorizer, call, "resourceslices", group="resource.k8s.io")
        found = [_permitted(point, visible, with_classes=with_classes) for point in points]
        hidden = {"hiddenNamespaces": len(namespaces - visible), "hiddenClasses": not with_classes}
        return DocumentResult({"points": found, **hidden})


def _seconds(text: str) -> float:
    try:
        seconds = float(text or "inf")
    except ValueError:
        seconds = math.nan
    # Also refuses what is not a number.
    if not seconds > 0:
        raise BadRequestError(f"seconds: {text!r} is no positive number")
    return seconds


def _permitted(point: Document, visible: set[str], *, with_classes: bool) -> Document:
    namespaces = {name: parts for name, parts in point["namespaces"].items() if name in visible}
    return {**point, "namespaces": namespaces, "classes": point["classes"] if with_classes else {}}
