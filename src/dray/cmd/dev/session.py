"""Runs the driver of `dray dev` next to its cluster: watches its file, restarts it, and draws the live view."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from dray.cli.cluster import watch
from dray.cmd.dev.reload import Action, Output, Phase, Reload, Say, Start, problem_of
from dray.cmd.dev.view import KINDS, screen, tables
from dray.cmd.local_clusters import LocalCluster, LocalClusterError
from dray.runtime.logs import wants_colour
from dray.runtime.system import SystemClock
from dray.runtime.tasks import TaskGroup
from dray.sim.snapshot import Snapshot

POLL_SECONDS: Final = 0.2
DRAW_SECONDS: Final = 0.2
STOP_SECONDS_MAX: Final = 5.0
# Python files next to the driver that are watched with it.
FILES_MAX: Final = 200
SAID_MAX: Final = 3
SHOWN_LINES: Final = 12
_CHUNK_BYTES: Final = 65536
_CLEAR: Final = "\033[H\033[2J\033[3J"

# Time of change and size by path.
_Versions: TypeAlias = dict[Path, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class DriverProgram:
    """The driver's file, and how it is started."""

    file: Path
    arguments: Sequence[str]
    # In addition to that of this process.
    environment: Mapping[str, str]


class DevSession:
    """The driver, its file and the view. On a terminal the view is drawn in place, else what changes is printed."""

    def __init__(self, program: DriverProgram, cluster: LocalCluster) -> None:
        self._program = program
        self._cluster = cluster
        self._reload = Reload(program.file.name)
        self._output = Output()
        self._process: asyncio.subprocess.Process | None = None
        # Wakes the task that starts and follows the driver's process.
        self._start = asyncio.Event()
        self._is_terminal = sys.stdout.isatty()
        self._said: list[str] = []
        self._tables = ""
        self._changed = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Run until stopped; the driver has ended then."""
        async with TaskGroup("dev") as group:
            for work, name in (
                (self._watch_files(), "files"),
                (self._run_driver(), "driver"),
                (watch(self._cluster.kubeconfig, "", KINDS, self._on_snapshot), "view"),
                (self._draw(), "screen"),
            ):
                group.spawn(work, name)
            await group.wait(stop)
            await group.cancel()

    # --- The file. ---

    async def _watch_files(self) -> None:
        before: _Versions = {}
        while True:
            found = _versions(self._program.file)
            # Editors replace a file: for a moment there is none.
            if found != before and self._program.file in found:
                before = found
                await self._perform(self._reload.saved(_problem(self._program.file)))
            if not self._cluster.is_running:
                raise LocalClusterError("the cluster has ended by itself")
            await asyncio.sleep(POLL_SECONDS)

    async def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Say):
                self._say(action.text)
            elif isinstance(action, Start):
                self._start.set()
            elif self._process is not None:
                await _end(self._process)

    # --- The process. ---

    async def _run_driver(self) -> None:
        program = self._program
        while True:
            await self._start.wait()
            self._start.clear()
            self._output.clear()
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-u",
                str(program.file),
                *program.arguments,
                env={**os.environ, **program.environment},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                # Ctrl-C is for this process, which ends the driver.
                start_new_session=True,
            )
            self._process = process
            try:
                if self._reload.phase is Phase.REPLACING:
                    # The file was saved while the process started.
                    await _end(process)
                await self._read(process)
                code = await process.wait()
            finally:
                if process.returncode is None:
                    await _end(process)
            self._process = None
            await self._perform(self._reload.ended(code))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while data := await process.stdout.read(_CHUNK_BYTES):
            for line in self._output.add(data):
                if not self._is_terminal:
                    _write(f"driver | {line}\n")
            self._changed.set()

    # --- The view. ---

    def _say(self, text: str) -> None:
        self._said = [*self._said, text][-SAID_MAX:]
        if not self._is_terminal:
            _write(f"dray dev: {text}\n")
        self._changed.set()

    def _on_snapshot(self, snapshot: Snapshot) -> None:
        text = tables(snapshot, SystemClock().now(), colour=wants_colour(sys.stdout, os.environ))
        if text != self._tables:
            self._tables = text
            if not self._is_terminal:
                _write(f"\n{text}\n")
            self._changed.set()

    async def _draw(self) -> None:
        while self._is_terminal:
            await self._changed.wait()
            self._changed.clear()
            state = "runs" if self._reload.phase is Phase.RUNNING else "does not run"
            head = f"{self._program.file.name} {state}; export KUBECONFIG={self._cluster.kubeconfig}"
            status = "\n".join((head, *(f"dray dev: {text}" for text in self._said)))
            height = shutil.get_terminal_size().lines
            _write(_CLEAR + screen(status, self._tables, self._output.last(SHOWN_LINES), height))
            await asyncio.sleep(DRAW_SECONDS)


def _versions(file: Path) -> _Versions:
    """Return the versions of the driver's file and of the Python files next to it, which it may import."""
    found: _Versions = {}
    for path in (file, *sorted(file.parent.glob("*.py"))[:FILES_MAX]):
        with contextlib.suppress(OSError):
            status = path.stat()
            found[path] = (status.st_mtime_ns, status.st_size)
    return found


def _problem(file: Path) -> str:
    try:
        return problem_of(file.read_bytes(), file.name)
    except OSError as error:
        return f"{file.name} cannot be read: {error.strerror}"


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the driver and the processes that it has started, with SIGKILL after some seconds."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            # It leads a session, and with it a group.
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await process.wait()
                return


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
