"""Runs `dray` without what Windows does not have: modules, functions, signals and handlers of event loops."""

from __future__ import annotations

import asyncio
import builtins
import os
import runpy
import signal
import sys
from typing import Any, NoReturn

# The standard library on Linux uses some of them itself, so only Dray's own imports fail.
MODULES = frozenset({"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty", "uvloop"})
# Not needed by tools for what they do, and slow to import.
UNNEEDED = frozenset({"grpc", "google.protobuf"})
OS_NAMES = (
    "O_DIRECTORY",
    "O_NOFOLLOW",
    "chown",
    "fchmod",
    "fchown",
    "fork",
    "getegid",
    "geteuid",
    "getgid",
    "getuid",
    "killpg",
    "mkfifo",
    "sched_getaffinity",
    "setsid",
    "statvfs",
    "uname",
)
SIGNALS = ("SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGUSR1", "SIGUSR2")


def main() -> None:
    """Run the command in the arguments."""
    original = builtins.__import__

    def import_module(name: str, *arguments: Any, **options: Any) -> Any:
        module = arguments[0] if arguments else options.get("globals")
        importer = str((module or {}).get("__name__", ""))
        if importer.partition(".")[0] == "dray" and {name.partition(".")[0], name} & (MODULES | UNNEEDED):
            raise ModuleNotFoundError(f"{importer} imports {name}")
        return original(name, *arguments, **options)

    def refuse(*_arguments: Any) -> NoReturn:
        raise NotImplementedError

    # Imported before the names go: asyncio of Linux uses them.
    loop = asyncio.new_event_loop()
    type(loop).add_signal_handler = refuse  # type: ignore[method-assign,assignment]
    loop.close()
    builtins.__import__ = import_module
    for name in OS_NAMES:
        delattr(os, name)
    for name in SIGNALS:
        delattr(signal, name)
    sys.argv = ["dray", *sys.argv[1:]]
    runpy.run_module("dray", run_name="__main__")


if __name__ == "__main__":
    main()
