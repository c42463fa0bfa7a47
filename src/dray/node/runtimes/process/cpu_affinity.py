"""Sets the CPU affinity of the processes of a container without a cgroup."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path

import orjson

from dray.node.runtimes.runtime import RuntimeFailure


def move_processes(folder: Path, cpus: Collection[int]) -> None:
    """Set the CPUs of all processes of a container; raises `RuntimeFailure`."""
    try:
        first = int(orjson.loads((folder / "record.json").read_bytes())["pid"])
        shim = int(Path(f"/proc/{first}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])
    except (OSError, KeyError, ValueError) as error:
        raise RuntimeFailure(f"the container's process is not known: {error}") from error
    # A process created in the meantime inherits old or new CPUs: the second pass finds it.
    for _look in range(2):
        for thread in _threads_below(shim):
            # The thread may have ended.
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cpus)


def _threads_below(pid: int) -> Iterator[int]:
    """Yield the threads of all descendants; orphaned processes become children of the shim."""
    for thread in _numbers(Path(f"/proc/{pid}/task")):
        try:
            children = Path(f"/proc/{pid}/task/{thread}/children").read_text(encoding="ascii").split()
        except OSError:
            continue
        for child in children:
            yield from _numbers(Path(f"/proc/{child}/task"))
            yield from _threads_below(int(child))


def _numbers(folder: Path) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder)]
    except OSError:
        return []
