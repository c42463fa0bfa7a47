"""Ends the process as a power cut would, at a chosen step: the file `crash` names it.

`call N` is before the Nth write that reaches the disk (a sync or a change of names) from the moment the file appears;
other words are places that a script passes by calling `reached`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Crashes:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._calls = 0

    def install(self) -> None:
        for name in ("fsync", "fdatasync", "link", "replace", "remove"):
            setattr(os, name, self._counting(getattr(os, name)))

    def reached(self, place: str) -> None:
        if self._file.exists() and self._file.read_text() == place:
            self._file.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    def _counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **keywords: Any) -> Any:
            if self._file.exists() and self._file.read_text().startswith("call "):
                self._calls += 1
                self.reached(f"call {self._calls}")
            return function(*arguments, **keywords)

        return counted
