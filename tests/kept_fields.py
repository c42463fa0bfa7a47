"""Snapshots that have only the fields that `dray snapshot` keeps, for the tests of the tools that read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

import pytest

from dray.api.document import Document
from dray.sim.kept_fields import FieldFilter, Options
from dray.sim.snapshot import SCHEDULER_CONFIGURATION, Snapshot

FILTER: Final = FieldFilter(Options(b"key"))


def read_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the objects of every snapshot, for the time of a test."""
    read = Snapshot.of

    def reduced(
        documents: Iterable[Document], hidden: Iterable[str] = (), partial: Mapping[str, str | None] | None = None
    ) -> Snapshot:
        found = read(documents, hidden, partial)
        # The configuration of a scheduler comes from a file, and not from a snapshot.
        kept = {
            kind: items if kind == SCHEDULER_CONFIGURATION else [FILTER.reduced(item) for item in items]
            for kind, items in found.documents.items()
        }
        return replace(found, documents=kept)

    monkeypatch.setattr(Snapshot, "of", reduced)
