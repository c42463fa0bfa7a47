"""The picture of how costs grow: equal slopes mean equal growth in every panel."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from bench.cluster_scale import component
from bench.scale import COSTS, PANELS
from bench.scale_plot import Panel, axis_start, draw, ticks

SVG = "{http://www.w3.org/2000/svg}"
NODES = (500, 2000, 15_000)


def points_of(picture: str) -> list[list[tuple[float, float]]]:
    """Return the points of the lines, the dashes of a panel before its own."""
    lines = ET.fromstring(picture).iter(f"{SVG}polyline")
    return [
        [(float(x), float(y)) for x, y in (pair.split(",") for pair in line.get("points", "").split())]
        for line in lines
    ]


@pytest.mark.parametrize(
    ("lowest", "start"), [(1.0, 1.0), (1.99, 1.0), (2.9, 2.0), (6.2, 5.0), (184.6, 100.0), (0.7, 0.5)]
)
def test_an_axis_starts_at_a_round_value(lowest: float, start: float) -> None:
    assert axis_start(lowest) == pytest.approx(start)


def test_an_axis_has_two_decades() -> None:
    assert ticks(2.0) == [2.0, 20.0, 200.0]


def test_a_constant_cost_is_horizontal_and_a_proportional_one_parallel_to_the_dashes() -> None:
    constant = [(nodes, 3.0) for nodes in NODES]
    proportional = [(nodes, nodes / 100) for nodes in NODES]
    dashes, flat, rising = points_of(
        draw("a & b", NODES, [Panel("ms", {"scheduler": constant, "agent": proportional})])
    )
    assert len({y for _, y in flat}) == 1
    assert rising[0][1] - rising[-1][1] == pytest.approx(dashes[0][1] - dashes[-1][1], abs=0.2)
    assert [x for x, _ in rising] == [x for x, _ in flat]


def test_panels_have_the_same_scale() -> None:
    growing = [(nodes, nodes / 10) for nodes in NODES]
    larger = [(nodes, nodes * 7.0) for nodes in NODES]
    _, first, _, second = points_of(draw("", NODES, [Panel("MB", {"": growing}), Panel("kB", {"": larger})]))
    assert first[0][1] - first[-1][1] == pytest.approx(second[0][1] - second[-1][1], abs=0.2)


def test_panels_show_rows_of_the_table() -> None:
    assert {name for names in PANELS.values() for name in names.values()} <= COSTS.keys()


def test_agents_count_as_one_component() -> None:
    assert component("system:node:node-7") == component("system:node:node-8") == "system:node"
    assert component("system:kube-scheduler") == "system:kube-scheduler"
