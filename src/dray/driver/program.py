"""What the main function of every driver's program does, whatever the driver: flags, logging, and how it ends."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from dray.runtime import logs
from dray.runtime.settings import HelpRequested, SettingsError


class ProgramSettings(Protocol):
    """What every driver can be told about its log."""

    @property
    def log_format(self) -> str:
        """`text` or `json`."""

    @property
    def v(self) -> int:
        """How much to log."""


S = TypeVar("S", bound=ProgramSettings)


def run_program(
    read: Callable[[], S], work: Callable[[S], Coroutine[Any, Any, None]], failures: tuple[type[Exception], ...]
) -> int:
    """Read the settings and work until told to stop; returns the exit code, 1 for failures that say what to do."""
    try:
        settings = read()
    except HelpRequested as request:
        sys.stdout.write(request.text)
        return 0
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    logs.configure(format_name=settings.log_format, verbosity=settings.v)
    try:
        asyncio.run(work(settings))
    except failures as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0
