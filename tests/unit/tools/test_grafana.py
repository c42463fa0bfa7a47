"""The Grafana dashboard can be imported and queries only existing metrics."""

from __future__ import annotations

import asyncio
import json
import re
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from tools.reference import metrics

DASHBOARD: dict[str, Any] = json.loads((Path(__file__).parents[3] / "deploy" / "grafana" / "dray.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [
    pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}")
    for panel in PANELS
    for target in panel["targets"]
]
FUNCTIONS = {"sum", "max", "rate", "histogram_quantile", "by"}
# Added by Prometheus and by histograms.
EXTRA_LABELS = {"le", "job", "instance"}
_SERIES = re.compile(r"\b([a-z_]+)(?:\{([^}]*)\})?")


@cache
def _known() -> dict[str, metrics.Described]:
    found: dict[str, metrics.Described] = {}
    for registry in asyncio.run(metrics.collected()).values():
        for item in metrics.described(registry):
            names = (f"{item.name}{end}" for end in ("_bucket", "_count", "_sum"))
            found |= dict.fromkeys(names if item.type == "histogram" else (item.name,), item)
    return found


def _series(query: str) -> list[tuple[str, list[str]]]:
    """The names of metrics with the labels of their selectors."""
    rest = re.sub(r"by \([^)]*\)|\[[^]]*\]", "", query)
    found = _SERIES.findall(re.sub(r'(?<==|~)"[^"]*"', '""', rest))
    return [(name, re.findall(r"(\w+)[=!]", chosen)) for name, chosen in found if name not in FUNCTIONS]


@pytest.mark.parametrize("query", QUERIES)
def test_queried_metrics_exist(query: str) -> None:
    series = _series(query)
    assert series
    grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(",")}
    for name, chosen in series:
        assert name in _known(), query
        assert {*chosen, *grouped} <= {*_known()[name].labels, *EXTRA_LABELS}, query


@pytest.mark.parametrize("query", QUERIES)
def test_counters_are_queried_as_rates(query: str) -> None:
    for name, _ in _series(query):
        if _known()[name].type in ("counter", "histogram"):
            assert re.search(rf"rate\({name}\b", query), query
    assert query.count("(") == query.count(")")


def test_queries_are_parsed_completely() -> None:
    query = 'sum by (a, le) (rate(x_total{b="c(d)", e!~"f"}[5m])) / max(y)'
    assert _series(query) == [("x_total", ["b", "e"]), ("y", [])]


@pytest.mark.parametrize(
    "field", ["title", "uid", "schemaVersion", "panels", "templating", "time", "annotations", "refresh", "editable"]
)
def test_fields_required_for_an_import(field: str) -> None:
    assert DASHBOARD[field] not in (None, "", [])
    assert "id" not in DASHBOARD, "a number of the Grafana it came from"


def test_panels_are_complete_and_do_not_overlap() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in PANELS:
        assert panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    for one, other in combinations((panel["gridPos"] for panel in DASHBOARD["panels"]), 2):
        assert not (_meet(one, other, "x", "w") and _meet(one, other, "y", "h")), (one, other)
        assert one["x"] + one["w"] <= 24


def _meet(one: dict[str, int], other: dict[str, int], start: str, size: str) -> bool:
    return one[start] < other[start] + other[size] and other[start] < one[start] + one[size]


def test_variables_are_used_and_defined() -> None:
    defined = {item["name"] for item in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(PANELS))) - {"__rate_interval"}
    assert used == defined
    for item in DASHBOARD["templating"]["list"]:
        if item["type"] == "query":
            name, label = re.findall(r"\w+", item["definition"])[1:]
            assert label in _known()[name].labels
