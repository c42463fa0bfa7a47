"""The tools' tests run on what `dray snapshot` keeps: a tool that reads another field fails here."""

from __future__ import annotations

import pytest

from tests.kept_fields import read_reduced


@pytest.fixture(autouse=True)
def only_kept_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    read_reduced(monkeypatch)
