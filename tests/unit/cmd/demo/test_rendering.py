"""What the demo shows fits the terminal, whatever it is like."""

from __future__ import annotations

import re

import pytest

from dray.cmd.demo.rendering import (
    Style,
    board_lines,
    chapter_lines,
    facts_lines,
    length_of,
    live_lines,
    text_of,
)
from dray.cmd.demo.scene import Card, Chapter, Fact, NodeRow, State

FACTS = (
    Fact("asked", "pod trainer: 1 gpu.example.com where memory is large and everything else is as it should be"),
    Fact("tried", "node-a: no, 13 devices: 12 do not match class selector", "yellow"),
    Fact("tried", "node-b: yes, fits: gpu: gpu-0", "green"),
)
CHAPTER = Chapter(3, "Prioritized alternatives: the first choice is taken", "KEP-4816", State.DONE, FACTS, "", 1.25)
ROWS = (
    NodeRow("node-a", "DRA driver", ready=True, cards=(Card("H100", 2, 7), Card("H100", 0, 7)), pods=("notebook",)),
    NodeRow("node-b", "device plugin", ready=False),
)


def shown(lines: object, style: Style) -> list[str]:
    return [text_of(line, style) for line in lines]  # type: ignore[attr-defined]


def test_without_a_width_every_fact_is_one_line_with_its_label() -> None:
    assert shown(chapter_lines(CHAPTER, Style()), Style()) == [
        "3  Prioritized alternatives: the first choice is taken  KEP-4816  1.2 s ✓",
        *(f"   {fact.label}   {fact.text}" for fact in FACTS),
    ]


def test_on_a_terminal_labels_are_not_repeated_and_texts_go_on_below() -> None:
    style = Style(60)
    assert shown(chapter_lines(CHAPTER, style), style) == [
        "3  Prioritized alternatives: the first choice is taken",
        "   KEP-4816  1.2 s ✓",
        "   asked   pod trainer: 1 gpu.example.com where memory is",
        "           large and everything else is as it should be",
        "   tried   node-a: no, 13 devices: 12 do not match class",
        "           selector",
        "           node-b: yes, fits: gpu: gpu-0",
    ]


@pytest.mark.parametrize("width", [1, 20, 31, 40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for unicode in (True, False):
        style = Style(width, unicode=unicode)
        for line in live_lines(CHAPTER, ROWS, style, tick=5, height=100):
            assert len(text_of(line, style)) <= width
        for line in facts_lines(FACTS, style):
            assert length_of(line) <= max(width, 31)


@pytest.mark.parametrize("height", [1, 3, 5, 8, 50])
def test_no_more_lines_than_the_terminal_has(height: int) -> None:
    style = Style(60)
    working = Chapter(3, "Title", "KEP-1", State.WORKING, FACTS, doing="waits for something")
    lines = shown(live_lines(working, ROWS, style, tick=0, height=height), style)
    assert len(lines) <= height
    assert any("waits for something" in line for line in lines)


def test_hardware_is_drawn() -> None:
    assert shown(board_lines(ROWS, Style()), Style()) == [
        "   node-a  DRA driver     H100 ■■□□□□□ H100 □□□□□□□  notebook",
        "   node-b  starts",
    ]


def test_plain_terminals_get_plain_characters() -> None:
    style = Style(80, unicode=False)
    lines = shown([*chapter_lines(CHAPTER, style), *board_lines(ROWS, style)], style)
    assert all(line.isascii() for line in lines)


def test_colours_change_nothing_else() -> None:
    plain, painted = Style(60), Style(60, colour=True)
    with_colours = shown([*chapter_lines(CHAPTER, painted), *board_lines(ROWS, painted)], painted)
    without = shown([*chapter_lines(CHAPTER, plain), *board_lines(ROWS, plain)], plain)
    assert "\033[32m" in "".join(with_colours)
    assert [re.sub(r"\033\[\d+m", "", line).rstrip() for line in with_colours] == without
