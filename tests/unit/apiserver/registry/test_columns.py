"""The format of ages, as in kubectl."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dray.apiserver.registry.columns import AGE, NAME, age_cell, human_duration, text_cell

MINUTE, HOUR, DAY = 60, 3600, 86400
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-2, "<invalid>"),
        (-1, "0s"),
        (-0.5, "0s"),
        (0, "0s"),
        (119.9, "119s"),
        (120, "2m"),
        (123, "2m3s"),
        (10 * MINUTE - 1, "9m59s"),
        (10 * MINUTE + 5, "10m"),
        (3 * HOUR - 1, "179m"),
        (3 * HOUR, "3h"),
        (3 * HOUR + 4 * MINUTE + 9, "3h4m"),
        (8 * HOUR + 59 * MINUTE, "8h"),
        (47 * HOUR, "47h"),
        (2 * DAY + 5 * HOUR, "2d5h"),
        (3 * DAY, "3d"),
        (8 * DAY + 5 * HOUR, "8d"),
        (400 * DAY, "400d"),
        (2 * 365 * DAY, "2y"),
        (733 * DAY, "2y3d"),
        (9 * 365 * DAY + 3 * DAY, "9y"),
    ],
)
def test_human_duration(seconds: float, expected: str) -> None:
    assert human_duration(timedelta(seconds=seconds)) == expected


def test_cells() -> None:
    document = {"metadata": {"name": "c1", "creationTimestamp": "2025-12-31T23:59:53Z"}, "spec": {"driver": "d"}}
    assert (NAME.cell(document, NOW), AGE.cell(document, NOW)) == ("c1", "7s")
    assert age_cell({"metadata": {}}, NOW) == "<unknown>"
    assert text_cell("spec", "driver")(document, NOW) == "d"
    assert text_cell("spec", "pool", "name")(document, NOW) == ""
