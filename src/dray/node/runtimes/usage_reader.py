"""Reads the CPU time and memory of processes, and of the machine."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from dray.node.runtimes.usage import (
    MachineUsage,
    Usage,
    machine_usage,
    parse_process,
    processes_usage,
)
from dray.node.streams.listening_ports import descendants

PROC: Final = Path("/proc")


def read_processes(first: int, proc: Path = PROC) -> Usage | None:
    """Return the usage of a container by its first process, whose parent is the shim; None if that has ended."""
    try:
        shim = int(_text(proc / str(first) / "stat").rpartition(")")[2].split()[1])
        # Without a shim, the parent is a process that waits for those of other containers too.
        has_shim = shim > 1
        ended = parse_process(_text(proc / str(shim) / "stat")).ended_children if has_shim else 0
    except (OSError, ValueError, IndexError):
        return None
    found = []
    for pid in descendants({shim if has_shim else first}, proc) - {shim}:
        # A process may have ended; its parent has its time.
        with contextlib.suppress(OSError, ValueError, IndexError):
            found.append(parse_process(_text(proc / str(pid) / "stat")))
    return processes_usage(
        found, ended, ticks_per_second=os.sysconf("SC_CLK_TCK"), page_bytes=os.sysconf("SC_PAGE_SIZE")
    )


def read_machine_usage(proc: Path = PROC) -> MachineUsage:
    """Return the usage of the machine; raises OSError or ValueError."""
    return machine_usage(_text(proc / "stat"), _text(proc / "meminfo"), ticks_per_second=os.sysconf("SC_CLK_TCK"))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
