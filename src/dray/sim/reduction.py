"""Finds the fewest objects of a snapshot from which the same follows, by leaving others out. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from dray.api.document import Document
from dray.sim.explain.answers import Verdict
from dray.sim.snapshot import Snapshot

T = TypeVar("T")

# Called with the number of objects that are left.
Progress = Callable[[int], None]

_NAME_OR_NUMBER: Final = re.compile(r"[\w./:-]*\d[\w./:-]*")


def shape_of(verdict: Verdict) -> tuple[str, ...]:
    """Return what a verdict says, whichever and however many the nodes, Pods and devices are."""
    return verdict.stage, *(_NAME_OR_NUMBER.sub("#", text) for text in (verdict.text, verdict.action))


def reduced(snapshot: Snapshot, holds: Callable[[Snapshot], bool], progress: Progress) -> Snapshot:
    """Return the snapshot with so few objects that none can be left out without losing what holds."""
    items = [(kind, item) for kind, items in snapshot.documents.items() for item in items]

    def holds_for(chosen: Sequence[tuple[str, Document]]) -> bool:
        return holds(_with(snapshot, chosen))

    return _with(snapshot, fewest(items, holds_for, progress))


def _with(snapshot: Snapshot, items: Sequence[tuple[str, Document]]) -> Snapshot:
    documents: dict[str, list[Document]] = {}
    for kind, item in items:
        documents.setdefault(kind, []).append(item)
    return replace(snapshot, documents=documents)


def fewest(items: Sequence[T], holds: Callable[[Sequence[T]], bool], progress: Progress) -> Sequence[T]:
    """Return some of the items, for which it still holds, and of which none can be left out.

    Tries to leave out half of them, then quarters, down to single ones, until no single one can go.
    """
    size = max(len(items) // 2, 1)
    while True:
        position, before = 0, len(items)
        while position < len(items):
            rest = [*items[:position], *items[position + size :]]
            if holds(rest):
                items = rest
                progress(len(items))
            else:
                position += size
        if size == 1 and len(items) == before:
            return items
        size = max(size // 2, 1)
