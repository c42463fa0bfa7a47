"""Log lines in both formats, verbosity, and when there are colours."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from dray.runtime import logs
from dray.runtime.logs import fields


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("dray")
    before = (root.handlers[:], root.level, ours.level)
    yield
    root.handlers[:], root.level, ours.level = before


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


def test_text() -> None:
    stream = io.StringIO()
    logs.configure(stream=stream, environ={})
    logging.getLogger("dray.apiserver.http").info("listening", extra=fields(port=6443, host="::1", secure=True))
    (line,) = lines(stream)
    assert line[0] == "I"
    assert line.endswith(' apiserver.http] listening port=6443 host="::1" secure=true')


def test_json() -> None:
    stream = io.StringIO()
    logs.configure(format_name="json", stream=stream, environ={})
    logging.getLogger("dray.x").error("broke", extra=fields(key="a/b"))
    line = json.loads(stream.getvalue())
    assert (line["level"], line["logger"], line["msg"], line["key"]) == ("error", "x", "broke", "a/b")
    assert line["ts"] > 0


def test_a_traceback_is_kept_in_both() -> None:
    for name in logs.FORMATS:
        stream = io.StringIO()
        logs.configure(format_name=name, stream=stream, environ={})
        try:
            int("here")
        except ValueError:
            logging.getLogger("dray.x").exception("crashed")
        assert "ValueError: invalid literal" in stream.getvalue()


@pytest.mark.parametrize(("verbosity", "seen"), [(0, ["0"]), (2, ["0", "1", "2"]), (10, ["0", "1", "2", "5"])])
def test_verbosity(verbosity: int, seen: list[str]) -> None:
    stream = io.StringIO()
    logs.configure(verbosity=verbosity, stream=stream, environ={})
    for level in (0, 1, 2, 5):
        logging.getLogger("dray.x").log(logs.level_of(level), str(level))
    assert [line.rsplit(" ", 1)[1] for line in lines(stream)] == seen


@pytest.mark.parametrize(
    ("stream", "environ", "coloured"),
    [
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_colours_are_for_willing_terminals(stream: io.StringIO, environ: dict[str, str], coloured: bool) -> None:
    logs.configure(stream=stream, environ=environ)
    logging.getLogger("dray.x").warning("careful")
    assert ("\x1b[" in stream.getvalue()) is coloured
