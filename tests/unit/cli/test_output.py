from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
import yaml

from dray.api.timestamps import age
from dray.cli.output import Column, bar, render

NOW = datetime(2026, 1, 10, tzinfo=UTC)


@dataclass(frozen=True)
class Row:
    pool_name: str
    count: int
    attributes: dict[str, str]


ROWS = [Row("a", 1, {"snake_case": "x"}), Row("long name", 20, {})]
COLUMNS: list[Column[Row]] = [
    Column("POOL", lambda row: row.pool_name, colour=lambda row: "green" if row.count > 1 else ""),
    Column("COUNT", lambda row: str(row.count)),
    Column("ATTRIBUTES", lambda row: ",".join(row.attributes), wide=True),
]


def test_a_table_is_aligned_and_shows_empty_values_as_dash() -> None:
    assert render(ROWS, COLUMNS) == "POOL        COUNT\na           1\nlong name   20\n"
    assert render(ROWS, COLUMNS, "wide").splitlines()[2] == "long name   20      -"


def test_colour_does_not_change_the_alignment() -> None:
    assert render(ROWS, COLUMNS, colour=True).splitlines()[2] == "\033[32mlong name\033[0m   20"


def test_json_yaml_and_csv() -> None:
    items = [
        {"poolName": "a", "count": 1, "attributes": {"snake_case": "x"}},
        {"poolName": "long name", "count": 20, "attributes": {}},
    ]
    wanted = {"apiVersion": "tools.dray.dev/v1", "kind": "PoolList", "items": items}
    assert json.loads(render(ROWS, COLUMNS, "json", kind="PoolList")) == wanted
    assert yaml.safe_load(render(ROWS, COLUMNS, "yaml", kind="PoolList")) == wanted
    assert list(csv.reader(io.StringIO(render(ROWS, COLUMNS, "csv"))))[1] == ["a", "1", "snake_case"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (86400, "1d")]
)
def test_age(seconds: int, text: str) -> None:
    assert age(NOW - timedelta(seconds=seconds), NOW) == text


def test_a_bar_never_leaves_its_width() -> None:
    assert [bar(share, 4) for share in (-1.0, 0.0, 0.5, 1.0, 2.0)] == ["░░░░", "░░░░", "██░░", "████", "████"]
