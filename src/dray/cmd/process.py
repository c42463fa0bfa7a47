"""Runs a process: reads the settings, sets up logging and runs until a signal stops it."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dray.runtime import logs
from dray.runtime.descriptors import raise_limit
from dray.runtime.settings import HelpRequested, SettingsError, flag_value, load

EXIT_USAGE: Final = 2
EXIT_FAILURE: Final = 1


def run_process(name: str, argv: Sequence[str], *, module: str, settings_class: str) -> int:
    """Read the settings and run the module's `run(settings, stop)` until stopped."""
    spec: Any = getattr(importlib.import_module("dray.cmd.settings"), settings_class)
    try:
        settings = read_settings(spec, argv)
    except HelpRequested as request:
        from dray.cli.examples import examples_text

        sys.stdout.write(f"usage: dray {name} [--flag=value ...]\n\n{request.text}\n{examples_text(name)}\n")
        return 0
    except SettingsError as error:
        sys.stderr.write(f"dray {name}: {error}\n")
        return EXIT_USAGE
    logs.configure(format_name=settings.logging_format, verbosity=settings.verbosity)
    # gRPC's fork handlers only log warnings when a program is started; Dray never forks without exec.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    raise_limit()
    return run_until_stopped(name, importlib.import_module(module).run, settings)


def read_settings(spec: Any, argv: Sequence[str]) -> Any:
    """Read flags, environment and file, in that order of precedence."""
    path = flag_value(spec, argv, os.environ, "config")
    text = ""
    if path:
        try:
            text = Path(path).read_text()
        except OSError as error:
            raise SettingsError(f"--config: cannot read {path}: {error.strerror}") from error
    return load(spec, argv, os.environ, text, file_name=path)


def run_until_stopped(name: str, run: Any, settings: Any) -> int:
    """Run a process's coroutine on uvloop until a signal stops it."""
    # Imported on use: --help and invalid settings need no event loop.
    import asyncio

    import uvloop

    from dray.runtime import garbage, huge_pages
    from dray.runtime.tasks import TaskGroup, stop_on_signals

    gc.set_threshold(*garbage.THRESHOLDS)

    async def body() -> None:
        stop = asyncio.Event()
        stop_on_signals(stop)
        async with TaskGroup(name) as group:
            group.spawn(huge_pages.run(), "huge pages")
            group.spawn(garbage.run(), "garbage")
            await run(settings, stop)

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(body())
    except Exception as error:  # the outermost edge: one line instead of a traceback
        sys.stderr.write(f"dray {name}: {error}\n")
        if os.environ.get("DRAY_TRACEBACK"):
            raise
        return EXIT_FAILURE
    return 0
