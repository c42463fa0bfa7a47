"""The processes of a demo: started in sessions of their own, written down, and ended by their ids.

The record outlives the demo: one that was left running, or was killed, is ended by whoever reads it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from dray.node.runtimes.shim.runtime import PROGRAM as SHIM

READY_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 15.0
LOOK_SECONDS: Final = 0.02
LOG_LINES: Final = 12
RECORD: Final = "demo.json"


class ProcessError(Exception):
    """A process that did not do what it was started for; the text has the end of its log."""


@dataclass(frozen=True, slots=True)
class Program:
    """Something to run."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Known:
    """A process as the record has it: an id is used again, but not with the same start time."""

    name: str
    pid: int
    started: str

    @property
    def lives(self) -> bool:
        """Whether it still runs."""
        return bool(self.started) and start_time(self.pid) == self.started


def start_time(pid: int) -> str:
    """When a process was started, in the kernel's ticks; empty for one that has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The name, in brackets, may have spaces.
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]


class Processes:
    """What a demo has started; `folder` has the record and the logs."""

    def __init__(self, folder: Path, nodes: Path) -> None:
        self._folder = folder
        self._nodes = nodes
        self._started: list[subprocess.Popen[bytes]] = []
        self.known: list[Known] = []

    def start(self, program: Program) -> subprocess.Popen[bytes]:
        """Start a program; what it says goes to its log."""
        with self.log_of(program.name).open("ab") as log:
            # A session of its own: it outlives this command's terminal, and Ctrl-C is for this command alone.
            process = subprocess.Popen(  # noqa: S603 - our own commands
                program.arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **program.environment},
                start_new_session=True,
            )
        self._started.append(process)
        self.known.append(Known(program.name, process.pid, start_time(process.pid)))
        self._write()
        return process

    async def start_ready(self, program: Program) -> str:
        """Start a program and wait for its line that begins with `ready`; the rest of the line."""
        process = self.start(program)
        log = self.log_of(program.name)

        def ready() -> str:
            return next((line for line in _lines(log) if line.startswith("ready ")), "")

        line: str = await until(ready, READY_SECONDS_MAX, lambda: process.poll() is not None)
        if not line:
            raise ProcessError(
                f"{program.name} did not become ready; the end of {log}:\n{self.last_words(program.name)}"
            )
        return line.removeprefix("ready ")

    def log_of(self, name: str) -> Path:
        """Where a program's output is."""
        return self._folder / f"{name}.log"

    def last_words(self, name: str) -> str:
        """The end of a log."""
        return "\n".join(f"  {line}" for line in _lines(self.log_of(name))[-LOG_LINES:])

    def ended(self) -> list[str]:
        """The names of those that are not running although nobody ended them."""
        dead = {process.pid for process in self._started if process.poll() is not None}
        return [item.name for item in self.known if item.pid in dead]

    async def end(self) -> None:
        """End everything; the record stays, so that what is left of the demo can be removed by the next one."""
        await end_processes(self.known, self._nodes)
        for process in self._started:
            process.wait()

    def _write(self) -> None:
        content = {
            "nodes": str(self._nodes),
            "processes": [{"name": item.name, "pid": item.pid, "started": item.started} for item in self.known],
        }
        temporary = self._folder / f"{RECORD}.new"
        temporary.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
        temporary.rename(self._folder / RECORD)


def _lines(log: Path) -> list[str]:
    """What a log says; nothing when somebody has removed it."""
    try:
        return log.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []


def read_record(folder: Path) -> tuple[list[Known], Path] | None:
    """The processes of an earlier demo and its nodes' folder; None when there was none."""
    try:
        content: dict[str, Any] = orjson.loads((folder / RECORD).read_bytes())
        known = [Known(item["name"], item["pid"], item["started"]) for item in content["processes"]]
        return known, Path(content["nodes"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


async def end_processes(known: Sequence[Known], nodes: Path) -> None:
    """End the processes and the containers of their nodes; the server, which was the first, goes last."""
    server, others = known[:1], known[1:]
    await _end(others)
    await _end_containers(nodes)
    await _end(server)


async def _end(known: Iterable[Known]) -> None:
    every = tuple(known)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for item in every:
            if item.lives:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(item.pid, number)
        await until(lambda: not any(item.lives for item in every), STOP_SECONDS_MAX)


async def _end_containers(nodes: Path) -> None:
    """Containers outlive their node's agent."""
    _tell_containers_to_end(nodes)
    await until(lambda: not containers_of(nodes), STOP_SECONDS_MAX)


def _tell_containers_to_end(nodes: Path) -> None:
    for control in nodes.glob("*/containers/*/*/control"):
        # Nobody listens where the container has ended.
        with contextlib.suppress(OSError):
            descriptor = os.open(control, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(descriptor, b"SIGKILL\n")
            finally:
                os.close(descriptor)


def containers_of(nodes: Path) -> list[int]:
    """The processes that stay with containers of these nodes."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                if os.fsencode(SHIM) in command and os.fsencode(f"{nodes}/") in command:
                    found.append(int(entry.name))
    return found


async def until(look: Callable[[], Any], seconds_max: float, given_up: Callable[[], bool] = lambda: False) -> Any:
    """What `look` finds as soon as it finds something; its last answer when time is over or it is given up."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds_max
    while True:
        over = given_up() or loop.time() > deadline
        found = look()
        if found or over:
            return found
        await asyncio.sleep(LOOK_SECONDS)
