"""The processes of a demo: started in their own sessions, recorded in a file, and stopped by their ids.

The record survives the demo: the next one stops what a kept or killed demo left running.
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

from dray.cmd.containers import running_containers, send_signal
from dray.node.runtimes.process.runtime import PROGRAM as SHIM

READY_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 15.0
POLL_SECONDS: Final = 0.02
LOG_LINES: Final = 12
RECORD: Final = "demo.json"


class ProcessError(Exception):
    """A process failed; the message contains the end of its log."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """A recorded process; process ids are reused, but not with the same start time."""

    name: str
    pid: int
    started: str

    @property
    def is_alive(self) -> bool:
        """Return whether the process is running."""
        return bool(self.started) and start_time(self.pid) == self.started


def start_time(pid: int) -> str:
    """Return the start time of a process in clock ticks; empty if it has exited."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The name in parentheses may contain spaces.
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]


class Processes:
    """The processes started by a demo; the directory has the record and the logs."""

    def __init__(self, folder: Path, nodes: Path) -> None:
        self._folder = folder
        self._nodes = nodes
        self._started: list[subprocess.Popen[bytes]] = []
        self.records: list[ProcessRecord] = []

    def start(self, program: Program) -> subprocess.Popen[bytes]:
        """Start a program; its output goes to its log."""
        with self.log_of(program.name).open("ab") as log:
            # In a new session, the process survives this command's terminal, and Ctrl-C does not reach it.
            process = subprocess.Popen(  # noqa: S603 - Dray's own commands
                program.arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **program.environment},
                start_new_session=True,
            )
        self._started.append(process)
        self.records.append(ProcessRecord(program.name, process.pid, start_time(process.pid)))
        self._write()
        return process

    async def start_ready(self, program: Program) -> str:
        """Start a program and wait for its line that begins with `ready`; return the rest of the line."""
        process = self.start(program)
        log = self.log_of(program.name)

        def ready() -> str:
            return next((line for line in _lines(log) if line.startswith("ready ")), "")

        line: str = await wait_until(ready, READY_SECONDS_MAX, lambda: process.poll() is not None)
        if not line:
            raise ProcessError(f"{program.name} did not become ready; the end of {log}:\n{self.log_tail(program.name)}")
        return line.removeprefix("ready ")

    def log_of(self, name: str) -> Path:
        """Return the path of a program's log."""
        return self._folder / f"{name}.log"

    def log_tail(self, name: str) -> str:
        """Return the end of a program's log."""
        return "\n".join(f"  {line}" for line in _lines(self.log_of(name))[-LOG_LINES:])

    def exited(self) -> list[str]:
        """Return the names of programs that exited by themselves."""
        dead = {process.pid for process in self._started if process.poll() is not None}
        return [item.name for item in self.records if item.pid in dead]

    async def stop(self) -> None:
        """Stop all processes; the record stays, so that the next demo can remove the files."""
        await stop_processes(self.records, self._nodes)
        for process in self._started:
            process.wait()

    def _write(self) -> None:
        content = {
            "nodes": str(self._nodes),
            "processes": [{"name": item.name, "pid": item.pid, "started": item.started} for item in self.records],
        }
        temporary = self._folder / f"{RECORD}.new"
        temporary.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
        temporary.rename(self._folder / RECORD)


def _lines(log: Path) -> list[str]:
    """Return the lines of a log; none if it was removed."""
    try:
        return log.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []


def read_record(folder: Path) -> tuple[list[ProcessRecord], Path] | None:
    """Return the processes of an earlier demo and the directory of its nodes; None if there was none."""
    try:
        content: dict[str, Any] = orjson.loads((folder / RECORD).read_bytes())
        records = [ProcessRecord(item["name"], item["pid"], item["started"]) for item in content["processes"]]
        return records, Path(content["nodes"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


async def stop_processes(records: Sequence[ProcessRecord], nodes: Path) -> None:
    """Stop the processes and the containers of their nodes; the server, which was started first, is stopped last."""
    server, others = records[:1], records[1:]
    await _stop(others)
    await _stop_containers(nodes)
    await _stop(server)


async def _stop(records: Iterable[ProcessRecord]) -> None:
    every = tuple(records)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for item in every:
            if item.is_alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(item.pid, number)
        await wait_until(lambda: not any(item.is_alive for item in every), STOP_SECONDS_MAX)


async def _stop_containers(nodes: Path) -> None:
    """Stop containers, which survive their node agent."""
    _kill_containers(nodes)
    await wait_until(lambda: not containers_of(nodes), STOP_SECONDS_MAX)


def _kill_containers(nodes: Path) -> None:
    for root in nodes.glob("*"):
        for folder in running_containers(root):
            send_signal(folder, "SIGKILL")


def containers_of(nodes: Path) -> list[int]:
    """Return the shim processes of the nodes' containers."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                if os.fsencode(SHIM) in command and os.fsencode(f"{nodes}/") in command:
                    found.append(int(entry.name))
    return found


async def wait_until(
    poll: Callable[[], Any], seconds_max: float, is_cancelled: Callable[[], bool] = lambda: False
) -> Any:
    """Poll until the result is true, and return it; return the last result on timeout or if cancelled."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds_max
    while True:
        is_over = is_cancelled() or loop.time() > deadline
        result = poll()
        if result or is_over:
            return result
        await asyncio.sleep(POLL_SECONDS)
