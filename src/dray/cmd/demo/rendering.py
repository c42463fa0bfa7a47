"""Turns what there is to see into lines of text that fit a terminal. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from dray.cli.output import COLOURS, RESET
from dray.cmd.demo.scene import Card, Chapter, Fact, NodeRow, State

# A piece of a line and its colour.
Span = tuple[str, str]
Line = tuple[Span, ...]

WIDTH_MIN: Final = 20
LABEL_WIDTH: Final = 6
_BOLD: Final = "\033[1m"
_SPINNER: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PLAIN_SPINNER: Final = "|/-\\"


@dataclass(frozen=True, slots=True)
class Style:
    """What the reader's terminal can show; width 0 means lines of any length."""

    width: int = 0
    colour: bool = False
    unicode: bool = True

    @property
    def mark(self) -> dict[State, Span]:
        """How a chapter's state looks."""
        done, failed = ("✓", "✗") if self.unicode else ("ok", "!!")
        return {State.DONE: (done, "green"), State.FAILED: (failed, "red"), State.WORKING: ("", "")}


def text_of(line: Line, style: Style) -> str:
    """The line as it is printed; never longer than the terminal is wide."""
    left, pieces = style.width or sum(len(text) for text, _ in line), []
    for text, colour in line:
        shown = text[:left]
        left -= len(shown)
        pieces.append(f"{_code(colour)}{shown}{RESET}" if style.colour and colour and shown.strip() else shown)
    return "".join(pieces).rstrip()


def _code(colour: str) -> str:
    return _BOLD if colour == "bold" else COLOURS[colour]


def length_of(line: Line) -> int:
    """How many columns the whole line takes."""
    return sum(len(text) for text, _ in line)


def heading(chapter: Chapter, style: Style) -> list[Line]:
    """A chapter's title; where it does not fit beside its source, both get lines."""
    mark, colour = style.mark[chapter.state]
    seconds = f"{chapter.seconds:.1f} s" if chapter.state is not State.WORKING else ""
    tail = "  ".join(part for part in (chapter.source, seconds) if part)
    head: Line = ((f"{chapter.number}  ", "cyan"), (chapter.title, "bold"))
    end: Line = ((f"  {tail}", "dim"), (f" {mark}" if mark else "", colour))
    space = style.width - length_of(head) - length_of(end)
    if not style.width:
        return [(*head, *end)]
    if space >= 0:
        return [(*head, (" " * space, ""), *end)]
    width = max(style.width - 3, WIDTH_MIN)
    first, *rest = textwrap.wrap(chapter.title, width) or [""]
    more: list[Line] = [(("   ", ""), (text, "bold")) for text in rest]
    return [(head[0], (first, "bold")), *more, ((" ", ""), *end)]


def facts_lines(facts: Sequence[Fact], style: Style, before: str = "") -> Iterator[Line]:
    """Labelled lines; on a terminal a label is not repeated, and long texts go on below."""
    column = max([LABEL_WIDTH, *(len(fact.label) for fact in facts)])
    for fact in facts:
        label = "" if style.width and fact.label == before else fact.label
        before = fact.label
        for number, text in enumerate(_wrapped(fact.text, column + 5, style)):
            shown = label if number == 0 else ""
            yield (("   ", ""), (shown.ljust(column), "dim"), ("  ", ""), (text, fact.colour))


def _wrapped(text: str, indent: int, style: Style) -> list[str]:
    if not style.width:
        return [text]
    return textwrap.wrap(text, max(style.width - indent, WIDTH_MIN), break_on_hyphens=False) or [""]


def chapter_lines(chapter: Chapter, style: Style) -> list[Line]:
    """A whole chapter."""
    return [*heading(chapter, style), *facts_lines(chapter.facts, style)]


def doing_line(chapter: Chapter, style: Style, tick: int) -> Line:
    """What is waited for, with something that moves."""
    frames = _SPINNER if style.unicode else _PLAIN_SPINNER
    return (("   ", ""), (frames[tick % len(frames)], "cyan"), (f" {chapter.doing}", "dim"))


def board_lines(rows: Iterable[NodeRow], style: Style) -> Iterator[Line]:
    """Nodes, their hardware and their Pods."""
    table = [(row, _cards(row.cards, style)) for row in rows]
    names = max((len(row.name) for row, _ in table), default=0)
    kinds = max((len(row.served_by) for row, _ in table), default=0)
    cards = max((len(text) for _, text in table), default=0)
    for row, text in table:
        yield (
            ("   ", ""),
            (row.name.ljust(names), "bold" if row.ready else "dim"),
            ("  ", ""),
            (row.served_by.ljust(kinds) if row.ready else "starts".ljust(kinds), "dim"),
            ("  ", ""),
            (text.ljust(cards), "yellow" if any(card.held for card in row.cards) else "green"),
            ("  ", ""),
            (" ".join(row.pods), "cyan"),
        )


def _cards(cards: Sequence[Card], style: Style) -> str:
    full, free = ("■", "□") if style.unicode else ("#", ".")
    return " ".join(f"{card.label} {full * card.held}{free * (card.of - card.held)}" for card in cards)


def live_lines(chapter: Chapter, rows: Sequence[NodeRow], style: Style, tick: int, height: int) -> list[Line]:
    """The part of the screen that changes: the chapter being told, and the board; at most `height` lines."""
    told = [*chapter_lines(chapter, style), doing_line(chapter, style, tick)]
    shown: list[Line] = [*told, (), *board_lines(rows, style)]
    # A low terminal has room for what is being waited for.
    return shown if len(shown) <= height else told[-height:]
