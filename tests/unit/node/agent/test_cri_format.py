"""Lines of logs in the CRI format."""

from __future__ import annotations

from typing import Any

import pytest

from dray.node.agent.logs.cri_format import LogOptions, LogOptionsError, cut, last_lines, read_options, render
from tests.unit.node.agent.builders import START, at

RAW = [
    b"2026-01-01T00:00:01.000000001Z stdout F one",
    b"2026-01-01T00:00:02.000000001Z stderr F two",
    b"2026-01-01T00:00:03.000000001Z stdout P thr",
    b"2026-01-01T00:00:03.000000002Z stdout F ee",
    b"2026-01-01T00:00:04.000000001Z stdout F ",
    b"garbage",
]


def shown(**options: Any) -> bytes:
    return b"".join(render(RAW, LogOptions(**options)))


def test_lines_are_shown_without_what_the_format_adds() -> None:
    assert shown() == b"one\ntwo\nthree\n\n"
    assert shown(stream="stderr") == b"two\n"
    assert shown(since=at(3)) == b"three\n\n"
    assert shown(timestamps=True).splitlines()[2] == b"2026-01-01T00:00:03.000000001Z three"


def test_the_last_lines_count_parts_as_one() -> None:
    assert last_lines(RAW[:4], 1) == RAW[2:4]
    assert last_lines(RAW, 0) == []
    assert b"".join(cut([b"abc", b"def"], 4)) == b"abcd"
    assert b"".join(cut([b"abc"], None)) == b"abc"


def test_options_are_read_from_the_query() -> None:
    query = {"follow": "true", "tailLines": "5", "sinceSeconds": "10", "limitBytes": "9", "previous": "1"}
    found = read_options(query, at(60))
    assert found == LogOptions(follow=True, previous=True, tail_lines=5, since=at(50), limit_bytes=9)
    assert read_options({"sinceTime": "2026-01-01T00:00:07Z"}, START).since == at(7)
    with pytest.raises(LogOptionsError):
        read_options({"tailLines": "x"}, START)
