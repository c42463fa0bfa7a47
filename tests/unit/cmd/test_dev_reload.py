"""When the driver of `dray dev` is started and stopped, and what is kept of its output."""

from __future__ import annotations

import pytest

from dray.cmd.dev.reload import LINE_LENGTH_MAX, LINES_KEPT_MAX, Output, Phase, Reload, Say, Start, Stop, problem_of


def started() -> Reload:
    reload = Reload("lamps.py")
    assert reload.saved() == (Say("lamps.py starts"), Start())
    return reload


def test_a_save_replaces_the_driver_that_runs() -> None:
    reload = started()
    assert reload.saved() == (Say("lamps.py was changed: the driver is restarted"), Stop())
    # Another save before the process has ended changes nothing: the next one reads it.
    assert reload.saved() == ()
    assert reload.ended(-15) == (Start(),)
    assert reload.phase is Phase.RUNNING


@pytest.mark.parametrize(("code", "how"), [(1, "ended with exit code 1"), (-9, "was ended by signal 9")])
def test_after_a_crash_the_next_save_starts_the_driver(code: int, how: str) -> None:
    reload = started()
    text = f"lamps.py {how}; the cluster goes on, and the next save starts the driver"
    assert reload.ended(code) == (Say(text),)
    assert reload.phase is Phase.WAITING
    assert reload.saved()[-1] == Start()


def test_a_text_that_is_no_program_stops_nothing() -> None:
    reload = started()
    assert reload.saved("lamps.py:3: invalid syntax") == (
        Say("lamps.py:3: invalid syntax; the driver of the last version goes on"),
    )
    assert reload.phase is Phase.RUNNING
    reload.ended(1)
    assert reload.saved("lamps.py:3: invalid syntax") == (Say("lamps.py:3: invalid syntax"),)
    assert reload.phase is Phase.WAITING


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (b"a = 1\n", ""),
        (b"a = 1\nb = (\n", "a.py:2: '(' was never closed"),
        (b"a\0", "a.py: source code string cannot contain null bytes"),
    ],
)
def test_problems_are_named_with_their_line(source: bytes, problem: str) -> None:
    found = problem_of(source, "a.py")
    assert found == problem or (b"\0" in source and found.endswith("null bytes"))


def test_the_last_lines_of_the_output_are_kept() -> None:
    output = Output()
    assert list(output.add(b"one\r\ntw")) == ["one"]
    assert list(output.add(b"o\nthree\n\xff")) == ["two", "three"]
    assert output.last(2) == ["two", "three"]
    output.clear()
    assert list(output.add(b"x" * (LINE_LENGTH_MAX + 10))) == []
    assert [len(line) for line in output.add(b"\n")] == [LINE_LENGTH_MAX]
    list(output.add(b"y\n" * (LINES_KEPT_MAX + 5)))
    assert len(output.last(LINES_KEPT_MAX + 5)) == LINES_KEPT_MAX
