"""The output of the demo fits any terminal."""

from __future__ import annotations

import re

import pytest

from dray.cmd.demo.screen import (
    Card,
    Fact,
    NodeRow,
    StepState,
    StepView,
    Style,
    fact_lines,
    length_of,
    live_lines,
    node_lines,
    step_lines,
    text_of,
)

FACTS = (
    Fact("request", "pod trainer: 1 gpu.example.com where memory is large and everything else is as it should be"),
    Fact("filter", "node-a: no, 13 devices: 12 do not match class selector", "yellow"),
    Fact("filter", "node-b: yes, fits: gpu: gpu-0", "green"),
)
STEP = StepView(3, "Prioritized alternatives: the first choice is taken", "KEP-4816", StepState.DONE, FACTS, "", 1.25)
ROWS = (
    NodeRow("node-a", "DRA driver", ready=True, cards=(Card("H100", 2, 7), Card("H100", 0, 7)), pods=("notebook",)),
    NodeRow("node-b", "device plugin", ready=False),
)


def shown(lines: object, style: Style) -> list[str]:
    return [text_of(line, style) for line in lines]  # type: ignore[attr-defined]


def test_without_a_width_every_fact_is_one_line_with_its_label() -> None:
    assert shown(step_lines(STEP, Style()), Style()) == [
        "3  Prioritized alternatives: the first choice is taken  KEP-4816  1.2 s ✓",
        *(f"   {fact.label:<7}  {fact.text}" for fact in FACTS),
    ]


def test_on_a_terminal_labels_are_not_repeated_and_texts_go_on_below() -> None:
    style = Style(60)
    assert shown(step_lines(STEP, style), style) == [
        "3  Prioritized alternatives: the first choice is taken",
        "   KEP-4816  1.2 s ✓",
        "   request  pod trainer: 1 gpu.example.com where memory is",
        "            large and everything else is as it should be",
        "   filter   node-a: no, 13 devices: 12 do not match class",
        "            selector",
        "            node-b: yes, fits: gpu: gpu-0",
    ]


@pytest.mark.parametrize("width", [1, 20, 32, 40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for unicode in (True, False):
        style = Style(width, unicode=unicode)
        for line in live_lines(STEP, ROWS, style, tick=5, height=100):
            assert len(text_of(line, style)) <= width
        for line in fact_lines(FACTS, style):
            assert length_of(line) <= max(width, 32)


@pytest.mark.parametrize("height", [1, 3, 5, 8, 50])
def test_no_more_lines_than_the_terminal_has(height: int) -> None:
    style = Style(60)
    working = StepView(3, "Title", "KEP-1", StepState.RUNNING, FACTS, status="waits for something")
    lines = shown(live_lines(working, ROWS, style, tick=0, height=height), style)
    assert len(lines) <= height
    assert any("waits for something" in line for line in lines)


def test_hardware_is_drawn() -> None:
    assert shown(node_lines(ROWS, Style()), Style()) == [
        "   node-a  DRA driver     H100 ■■□□□□□ H100 □□□□□□□  notebook",
        "   node-b  starting",
    ]


def test_plain_terminals_get_plain_characters() -> None:
    style = Style(80, unicode=False)
    lines = shown([*step_lines(STEP, style), *node_lines(ROWS, style)], style)
    assert all(line.isascii() for line in lines)


def test_colours_change_nothing_else() -> None:
    plain, painted = Style(60), Style(60, colour=True)
    with_colours = shown([*step_lines(STEP, painted), *node_lines(ROWS, painted)], painted)
    without = shown([*step_lines(STEP, plain), *node_lines(ROWS, plain)], plain)
    assert "\033[32m" in "".join(with_colours)
    assert [re.sub(r"\033\[\d+m", "", line).rstrip() for line in with_colours] == without
