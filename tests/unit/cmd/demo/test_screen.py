"""A live view on a terminal, which is restored at the end; plain lines elsewhere."""

from __future__ import annotations

import io

import pytest

from dray.cmd.demo.screen import Fact, LiveScreen, NodeRow, PlainScreen, StepState, StepView, screen_for
from tests.e2e.demo.terminal import screen_text

RUNNING = StepView(1, "First", "KEP-1", StepState.RUNNING, (Fact("request", "something"),), status="waits")
DONE = StepView(1, "First", "KEP-1", StepState.DONE, (Fact("request", "something"), Fact("result", "it")), seconds=1)
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
def test_screen_for_a_terminal(environment: dict[str, str], kind: type, colour: bool) -> None:
    screen = screen_for(Terminal(), environment)
    assert isinstance(screen, kind)
    assert screen.style.colour is colour


def test_a_file_gets_plain_lines() -> None:
    assert isinstance(screen_for(io.StringIO(), {"TERM": "xterm"}), PlainScreen)


def test_plain_lines_are_written_once() -> None:
    stream = Terminal()
    screen = screen_for(stream, {"TERM": "dumb"})
    for step in (RUNNING, RUNNING, DONE):
        screen.show(step, ROWS)
    screen.close()
    assert stream.written == ("\n1  First  KEP-1\n   request  something\n   result   it\n   done after 1.0 s\n")


@pytest.mark.parametrize("columns", ["24", "80"])
def test_the_live_view_is_redrawn_in_place(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("LINES", "24")
    stream = Terminal()
    screen = screen_for(stream, {"TERM": "xterm"})
    for step in (RUNNING, RUNNING, RUNNING, DONE):
        screen.show(step, ROWS)
    screen.write([(("farewell", ""),)])
    screen.close()
    lines = screen_text(stream.written, int(columns))
    assert [line for line in lines if "request" in line] == ["   request  something"]
    assert lines[-1] == "farewell"
    assert not any("waits" in line for line in lines)
    # The cursor is hidden while the view changes, and shown at the end.
    assert stream.written.rindex("\033[?25h") > stream.written.rindex("\033[?25l")
