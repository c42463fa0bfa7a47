"""Logging for every process: one line per event for people, or one JSON object per line for machines.

Fields are given as `logger.info("message", extra=fields(pod="default/a"))`, so that both formats know them.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import orjson

_FIELDS: Final = "dray_fields"
# Lines of `-v N` detail are below INFO: V(1) is 19, V(10) is 10.
_VERBOSITY_MAX: Final = 10
_LETTERS: Final = {logging.WARNING: "W", logging.ERROR: "E", logging.CRITICAL: "F"}
_COLOURS: Final = {"W": "\x1b[33m", "E": "\x1b[31m", "F": "\x1b[1;31m", "D": "\x1b[2m"}
_RESET: Final = "\x1b[0m"

FORMATS: Final = ("text", "json")


def fields(**values: Any) -> dict[str, Any]:
    """Return the `extra` of a log call, which contains the message's fields."""
    return {_FIELDS: values}


def level_of(verbosity: int) -> int:
    """Return the logging level of a `-v` verbosity: 0 is INFO, each step one lower, down to DEBUG."""
    return logging.INFO - min(max(verbosity, 0), _VERBOSITY_MAX)


def _letter(level: int) -> str:
    if level >= logging.INFO:
        return _LETTERS.get(level, "I")
    return "D"


def _component(name: str) -> str:
    return name.removeprefix("dray.")


def _quoted(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    return orjson.dumps(str(value)).decode()


class TextFormatter(logging.Formatter):
    """`I1115 23:18:54.123456 apiserver.http] message key="value"`."""

    def __init__(self, *, colour: bool = False) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """Render one line; tracebacks follow on lines of their own."""
        letter = _letter(record.levelno)
        time = datetime.fromtimestamp(record.created, UTC)
        pairs = "".join(f" {key}={_quoted(value)}" for key, value in getattr(record, _FIELDS, {}).items())
        head = f"{letter}{time:%m%d %H:%M:%S.%f} {_component(record.name)}]"
        if self._colour and letter in _COLOURS:
            head = f"{_COLOURS[letter]}{head}{_RESET}"
        line = f"{head} {record.getMessage()}{pairs}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


class JSONFormatter(logging.Formatter):
    """One object per line: ts, level, logger, msg, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Render one line; a traceback is the field `stacktrace`."""
        line: dict[str, Any] = {
            "ts": round(record.created * 1000, 3),
            "level": {"W": "warn", "E": "error", "F": "fatal", "D": "debug"}.get(_letter(record.levelno), "info"),
            "logger": _component(record.name),
            "msg": record.getMessage(),
        }
        line.update(getattr(record, _FIELDS, {}))
        if record.exc_info:
            line["stacktrace"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def wants_colour(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Return whether to use colours: on terminals, unless NO_COLOR is set (no-color.org)."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def configure(
    *,
    format_name: str = "text",
    verbosity: int = 0,
    stream: TextIO | None = None,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Log to `stream` (stderr by default), replacing the previous configuration."""
    target = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(target)
    if format_name == "json":
        handler.setFormatter(JSONFormatter())
    else:
        handler.setFormatter(TextFormatter(colour=wants_colour(target, environ)))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Libraries log only at a high verbosity.
    root.setLevel(logging.WARNING if verbosity < _VERBOSITY_MAX else logging.DEBUG)
    logging.getLogger("dray").setLevel(level_of(verbosity))
