"""A live view draws over itself and leaves the terminal as it was; everything else gets plain lines."""

from __future__ import annotations

import io

import pytest

from dray.cmd.demo.scene import Chapter, Fact, NodeRow, State
from dray.cmd.demo.screen import LiveScreen, PlainScreen, screen_for
from tests.e2e.demo.terminal import screen_text

WORKING = Chapter(1, "First", "KEP-1", State.WORKING, (Fact("asked", "something"),), doing="waits")
DONE = Chapter(1, "First", "KEP-1", State.DONE, (Fact("asked", "something"), Fact("given", "it")), seconds=1)
ROWS = (NodeRow("node-a", "DRA driver", ready=True),)


class Terminal(io.TextIOWrapper):
    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    def isatty(self) -> bool:
        return True

    @property
    def written(self) -> str:
        buffer = self.buffer
        assert isinstance(buffer, io.BytesIO)
        return buffer.getvalue().decode()


@pytest.mark.parametrize(
    ("environment", "kind", "colour"),
    [
        ({"TERM": "xterm"}, LiveScreen, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, LiveScreen, False),
        ({"TERM": "dumb"}, PlainScreen, False),
        ({}, PlainScreen, False),
    ],
)
def test_what_the_terminal_can_show(environment: dict[str, str], kind: type, colour: bool) -> None:
    screen = screen_for(Terminal(), environment)
    assert isinstance(screen, kind)
    assert screen.style.colour is colour


def test_a_file_gets_plain_lines() -> None:
    assert isinstance(screen_for(io.StringIO(), {"TERM": "xterm"}), PlainScreen)


def test_plain_lines_come_once() -> None:
    stream = Terminal()
    screen = screen_for(stream, {"TERM": "dumb"})
    for chapter in (WORKING, WORKING, DONE):
        screen.show(chapter, ROWS)
    screen.close()
    assert stream.written == ("\n1  First  KEP-1\n   asked   something\n   given   it\n   done after 1.0 s\n")


@pytest.mark.parametrize("columns", ["20", "80"])
def test_the_live_view_is_drawn_over(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("LINES", "24")
    stream = Terminal()
    screen = screen_for(stream, {"TERM": "xterm"})
    for chapter in (WORKING, WORKING, WORKING, DONE):
        screen.show(chapter, ROWS)
    screen.say([(("farewell", ""),)])
    screen.close()
    lines = screen_text(stream.written, int(columns))
    assert [line for line in lines if "asked" in line] == ["   asked   something"]
    assert lines[-1] == "farewell"
    assert not any("waits" in line for line in lines)
    # The cursor is hidden while the view changes, and seen in the end.
    assert stream.written.rindex("\033[?25h") > stream.written.rindex("\033[?25l")
