"""One line that says how far a long run is, for people who wait; programs see nothing of it."""

from __future__ import annotations

import sys
from typing import Final

from dray.cli.output import bar

_CLEAR: Final = "\r\033[K"


class ProgressLine:
    """Writes to stderr, and only to a terminal."""

    def __init__(self) -> None:
        self._on = sys.stderr.isatty()
        self._shown = ""

    def __call__(self, done: int, of: int, what: str) -> None:
        """Say how far it is; `of` 0 means that nobody knows."""
        if not self._on:
            return
        text = f"{bar(done / of, 30)} {done}/{of} {what}" if of else f"{done} {what}"
        if text != self._shown:
            self._shown = text
            sys.stderr.write(_CLEAR + text)
            sys.stderr.flush()

    def close(self) -> None:
        """Leave a clean line."""
        if self._shown:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
