"""Terminal output of the demo: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import enum
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TextIO

from dray.cli.output import COLOURS, RESET
from dray.runtime.logs import wants_colour

# A piece of a line and its colour.
Span = tuple[str, str]
Line = tuple[Span, ...]

# Longer lines are hard to read.
WIDTH_MAX: Final = 120
WIDTH_MIN: Final = 20
LABEL_WIDTH: Final = 7
_BOLD: Final = "\033[1m"
_SPINNER: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ASCII_SPINNER: Final = "|/-\\"
_HIDE_CURSOR, _SHOW_CURSOR = "\033[?25l", "\033[?25h"
_CLEAR_BELOW: Final = "\033[J"


class StepState(enum.StrEnum):
    """The state of a step."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Fact:
    """A labelled line of a step, such as `request`, `filter`, `result`, `reason`, `env`."""

    label: str
    text: str
    # A key of `dray.cli.output.COLOURS`, or nothing.
    colour: str = ""


@dataclass(frozen=True, slots=True)
class StepView:
    """A step as shown so far."""

    number: int
    title: str
    # Where the behaviour is described, such as KEP-4816.
    source: str
    state: StepState = StepState.RUNNING
    facts: tuple[Fact, ...] = ()
    # What the step is waiting for.
    status: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Card:
    """A device, and how many of its partitions are allocated."""

    label: str
    held: int
    total: int


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node with its devices and Pods."""

    name: str
    served_by: str
    ready: bool
    cards: tuple[Card, ...] = ()
    pods: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Style:
    """The capabilities of the terminal; width 0 means lines of any length."""

    width: int = 0
    colour: bool = False
    unicode: bool = True

    @property
    def mark(self) -> dict[StepState, Span]:
        """Return the symbols of step states."""
        done, failed = ("✓", "✗") if self.unicode else ("ok", "!!")
        return {StepState.DONE: (done, "green"), StepState.FAILED: (failed, "red"), StepState.RUNNING: ("", "")}


# --- Lines. ---


def text_of(line: Line, style: Style) -> str:
    """Return the text of a line, cut off at the width of the terminal."""
    left, pieces = style.width or sum(len(text) for text, _ in line), []
    for text, colour in line:
        shown = text[:left]
        left -= len(shown)
        pieces.append(f"{_code(colour)}{shown}{RESET}" if style.colour and colour and shown.strip() else shown)
    return "".join(pieces).rstrip()


def _code(colour: str) -> str:
    return _BOLD if colour == "bold" else COLOURS[colour]


def length_of(line: Line) -> int:
    """Return the number of columns of the whole line."""
    return sum(len(text) for text, _ in line)


def heading(view: StepView, style: Style) -> list[Line]:
    """Return the title and source of a step, on one line if they fit."""
    mark, colour = style.mark[view.state]
    seconds = f"{view.seconds:.1f} s" if view.state is not StepState.RUNNING else ""
    tail = "  ".join(part for part in (view.source, seconds) if part)
    head: Line = ((f"{view.number}  ", "cyan"), (view.title, "bold"))
    end: Line = ((f"  {tail}", "dim"), (f" {mark}" if mark else "", colour))
    space = style.width - length_of(head) - length_of(end)
    if not style.width:
        return [(*head, *end)]
    if space >= 0:
        return [(*head, (" " * space, ""), *end)]
    width = max(style.width - 3, WIDTH_MIN)
    first, *rest = textwrap.wrap(view.title, width) or [""]
    more: list[Line] = [(("   ", ""), (text, "bold")) for text in rest]
    return [(head[0], (first, "bold")), *more, ((" ", ""), *end)]


def fact_lines(facts: Sequence[Fact], style: Style, previous_label: str = "") -> Iterator[Line]:
    """Return labelled lines; on a terminal repeated labels are left out, and long texts are wrapped."""
    column = max([LABEL_WIDTH, *(len(fact.label) for fact in facts)])
    for fact in facts:
        label = "" if style.width and fact.label == previous_label else fact.label
        previous_label = fact.label
        for number, text in enumerate(_wrapped(fact.text, column + 5, style)):
            shown = label if number == 0 else ""
            yield (("   ", ""), (shown.ljust(column), "dim"), ("  ", ""), (text, fact.colour))


def _wrapped(text: str, indent: int, style: Style) -> list[str]:
    if not style.width:
        return [text]
    return textwrap.wrap(text, max(style.width - indent, WIDTH_MIN), break_on_hyphens=False) or [""]


def step_lines(view: StepView, style: Style) -> list[Line]:
    """Return all lines of a step."""
    return [*heading(view, style), *fact_lines(view.facts, style)]


def status_line(view: StepView, style: Style, tick: int) -> Line:
    """Return the status with a spinner."""
    frames = _SPINNER if style.unicode else _ASCII_SPINNER
    return (("   ", ""), (frames[tick % len(frames)], "cyan"), (f" {view.status}", "dim"))


def node_lines(rows: Iterable[NodeRow], style: Style) -> Iterator[Line]:
    """Return the table of nodes with their devices and Pods."""
    table = [(row, _cards(row.cards, style)) for row in rows]
    names = max((len(row.name) for row, _ in table), default=0)
    kinds = max((len(row.served_by) for row, _ in table), default=0)
    cards = max((len(text) for _, text in table), default=0)
    for row, text in table:
        yield (
            ("   ", ""),
            (row.name.ljust(names), "bold" if row.ready else "dim"),
            ("  ", ""),
            (row.served_by.ljust(kinds) if row.ready else "starting".ljust(kinds), "dim"),
            ("  ", ""),
            (text.ljust(cards), "yellow" if any(card.held for card in row.cards) else "green"),
            ("  ", ""),
            (" ".join(row.pods), "cyan"),
        )


def _cards(cards: Sequence[Card], style: Style) -> str:
    held, free = ("■", "□") if style.unicode else ("#", ".")
    return " ".join(f"{card.label} {held * card.held}{free * (card.total - card.held)}" for card in cards)


def live_lines(view: StepView, rows: Sequence[NodeRow], style: Style, tick: int, height: int) -> list[Line]:
    """Return the part of the screen that changes, the current step and the nodes; at most `height` lines."""
    step = [*step_lines(view, style), status_line(view, style, tick)]
    shown: list[Line] = [*step, (), *node_lines(rows, style)]
    # The end of the step is the most important part on a small terminal.
    return shown if len(shown) <= height else step[-height:]


# --- Screens. ---


class Screen(Protocol):
    """Where the demo prints."""

    style: Style

    def show(self, view: StepView, rows: Sequence[NodeRow]) -> None:
        """Show the current state of a step; called repeatedly."""

    def write(self, lines: Iterable[Line]) -> None:
        """Write lines permanently."""

    def close(self) -> None:
        """Restore the terminal."""


def screen_for(stream: TextIO, environ: Mapping[str, str]) -> Screen:
    """Return the screen that suits the stream."""
    unicode = (stream.encoding or "").lower().replace("-", "") == "utf8"
    if not stream.isatty() or environ.get("TERM", "dumb") == "dumb":
        return PlainScreen(stream, Style(unicode=unicode))
    return LiveScreen(stream, Style(colour=wants_colour(stream, environ), unicode=unicode))


class PlainScreen:
    """Writes every line once, without control characters."""

    def __init__(self, stream: TextIO, style: Style) -> None:
        self._stream = stream
        self.style = style
        self._number = 0
        self._facts = 0

    def show(self, view: StepView, rows: Sequence[NodeRow]) -> None:
        """Write what is new in the step."""
        if view.number != self._number:
            self._number, self._facts = view.number, 0
            self.write([(), *heading(view, self.style)])
        new = view.facts[self._facts :]
        self._facts = len(view.facts)
        self.write(fact_lines(new, self.style))
        if view.state is not StepState.RUNNING:
            self.write([(("   ", ""), (f"{view.state} after {view.seconds:.1f} s", ""))])

    def write(self, lines: Iterable[Line]) -> None:
        """Write lines."""
        for line in lines:
            self._stream.write(text_of(line, self.style) + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Do nothing: the terminal was not changed."""


class LiveScreen:
    """Redraws the current step in place; finished steps scroll up above it."""

    def __init__(self, stream: TextIO, style: Style) -> None:
        self._stream = stream
        self.style = style
        # The lines on the screen that the next drawing replaces.
        self._drawn: list[Line] = []
        self._tick = 0

    def show(self, view: StepView, rows: Sequence[NodeRow]) -> None:
        """Redraw the step; a finished step stays on the screen."""
        width, height = self._size()
        style = Style(width, self.style.colour, self.style.unicode)
        if view.state is not StepState.RUNNING:
            self._draw([], style)
            self.write([*step_lines(view, style), ()])
            return
        self._tick += 1
        self._draw(live_lines(view, rows, style, self._tick, height - 1), style)

    def write(self, lines: Iterable[Line]) -> None:
        """Write lines permanently, without cutting them off at the terminal's width."""
        style = Style(0, self.style.colour, self.style.unicode)
        self._draw([], style)
        self._stream.write("".join(text_of(line, style) + "\n" for line in lines))
        self._stream.flush()

    def close(self) -> None:
        """Clear the live part and show the cursor."""
        self._draw([], self.style)
        self._stream.write(_SHOW_CURSOR)
        self._stream.flush()

    def _size(self) -> tuple[int, int]:
        size = shutil.get_terminal_size()
        return min(size.columns, WIDTH_MAX), size.lines

    def _draw(self, lines: list[Line], style: Style) -> None:
        up = self._rows_drawn()
        erase = (f"\033[{up}A" if up else "") + "\r" + _CLEAR_BELOW
        text = "".join(text_of(line, style) + "\n" for line in lines)
        self._stream.write((_HIDE_CURSOR if lines else "") + (erase if self._drawn else "") + text)
        self._stream.flush()
        self._drawn = lines

    def _rows_drawn(self) -> int:
        """Return how many rows the drawn lines occupy now: the terminal may have become narrower."""
        columns = max(shutil.get_terminal_size().columns, 1)
        width = min(columns, WIDTH_MAX)
        return sum(max(-(-min(length_of(line), width) // columns), 1) for line in self._drawn)
