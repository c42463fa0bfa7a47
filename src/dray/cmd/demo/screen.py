"""Shows the story: a live view on a terminal, plain lines everywhere else."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol, TextIO

from dray.cmd.demo.rendering import (
    Line,
    Style,
    chapter_lines,
    facts_lines,
    heading,
    length_of,
    live_lines,
    text_of,
)
from dray.cmd.demo.scene import Chapter, NodeRow, State
from dray.runtime.logs import wants_colour

# Lines longer than this are hard to read.
WIDTH_MAX: Final = 120
_HIDE, _SHOW = "\033[?25l", "\033[?25h"
_CLEAR_BELOW: Final = "\033[J"


class Screen(Protocol):
    """Where the story is told."""

    style: Style

    def show(self, chapter: Chapter, rows: Sequence[NodeRow]) -> None:
        """A chapter as far as it has come; the same one comes again and again."""

    def say(self, lines: Iterable[Line]) -> None:
        """Lines that stay."""

    def close(self) -> None:
        """Leave the terminal as it was."""


def screen_for(stream: TextIO, environ: Mapping[str, str]) -> Screen:
    """The best that the stream can show."""
    unicode = (stream.encoding or "").lower().replace("-", "") == "utf8"
    if not stream.isatty() or environ.get("TERM", "dumb") == "dumb":
        return PlainScreen(stream, Style(unicode=unicode))
    return LiveScreen(stream, Style(colour=wants_colour(stream, environ), unicode=unicode))


class PlainScreen:
    """Every line once, as soon as it is known; never a control character."""

    def __init__(self, stream: TextIO, style: Style) -> None:
        self._stream = stream
        self.style = style
        self._number = 0
        self._facts = 0

    def show(self, chapter: Chapter, rows: Sequence[NodeRow]) -> None:
        """What is new of the chapter."""
        if chapter.number != self._number:
            self._number, self._facts = chapter.number, 0
            self.say([(), *heading(chapter, self.style)])
        new = chapter.facts[self._facts :]
        self._facts = len(chapter.facts)
        self.say(facts_lines(new, self.style))
        if chapter.state is not State.WORKING:
            self.say([(("   ", ""), (f"{chapter.state} after {chapter.seconds:.1f} s", ""))])

    def say(self, lines: Iterable[Line]) -> None:
        """Lines that stay."""
        for line in lines:
            self._stream.write(text_of(line, self.style) + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Nothing was changed."""


class LiveScreen:
    """Draws the chapter being told again and again in the same place; told ones scroll away above it."""

    def __init__(self, stream: TextIO, style: Style) -> None:
        self._stream = stream
        self.style = style
        # The lines on the screen that are to be drawn over.
        self._drawn: list[Line] = []
        self._tick = 0

    def show(self, chapter: Chapter, rows: Sequence[NodeRow]) -> None:
        """Draw it in place of what was there; a chapter that is told stays."""
        width, height = self._size()
        style = Style(width, self.style.colour, self.style.unicode)
        if chapter.state is not State.WORKING:
            self._draw([], style)
            self.say([*chapter_lines(chapter, style), ()])
            return
        self._tick += 1
        self._draw(live_lines(chapter, rows, style, self._tick, height - 1), style)

    def say(self, lines: Iterable[Line]) -> None:
        """Lines that stay; they may be longer than the terminal is wide."""
        style = Style(0, self.style.colour, self.style.unicode)
        self._draw([], style)
        self._stream.write("".join(text_of(line, style) + "\n" for line in lines))
        self._stream.flush()

    def close(self) -> None:
        """The cursor is seen again, below everything."""
        self._draw([], self.style)
        self._stream.write(_SHOW)
        self._stream.flush()

    def _size(self) -> tuple[int, int]:
        size = shutil.get_terminal_size()
        return min(size.columns, WIDTH_MAX), size.lines

    def _draw(self, lines: list[Line], style: Style) -> None:
        up = self._rows_drawn()
        erase = (f"\033[{up}A" if up else "") + "\r" + _CLEAR_BELOW
        text = "".join(text_of(line, style) + "\n" for line in lines)
        self._stream.write((_HIDE if lines else "") + (erase if self._drawn else "") + text)
        self._stream.flush()
        self._drawn = lines

    def _rows_drawn(self) -> int:
        """How many rows they take by now: the terminal may have become narrower."""
        columns = max(shutil.get_terminal_size().columns, 1)
        width = min(columns, WIDTH_MAX)
        return sum(max(-(-min(length_of(line), width) // columns), 1) for line in self._drawn)
