"""Runs a container as a process under a shim; its folder restores its state after a restart of the agent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import orjson

from dray.lib.clock import Clock
from dray.node.cdi.cache import CdiCache
from dray.node.runtimes.process.container_files import (
    end_group,
    from_file,
    moment,
    open_fifo,
    processes_of,
    read_exit,
    to_file,
    write,
)
from dray.node.runtimes.process.cpu_affinity import move_processes
from dray.node.runtimes.process.jobs import Jobs, command_of, execute
from dray.node.runtimes.runtime import (
    START_ERROR,
    START_ERROR_CODE,
    UNKNOWN_EXIT_CODE,
    ContainerRecord,
    ContainerSpec,
    ExecResult,
    Exit,
    ExitListener,
    Image,
    ImageRequest,
    NodeImage,
    RuntimeFailure,
    Sandbox,
    Started,
)
from dray.node.runtimes.shim import attachment
from dray.node.runtimes.shim import program as shim
from dray.node.runtimes.shim.exec_process import ExecProcess, FailedCommand
from dray.node.runtimes.streams import ContainerStreams, ForwardedPort
from dray.node.runtimes.usage import Usage
from dray.node.runtimes.usage_reader import read_processes
from dray.node.streams.listening_ports import connect_to_pod
from dray.node.topology.machine import parse_cpus
from dray.node.untrusted_files import remove_tree
from dray.rpc.remote_command.messages import StreamEnd, StreamOptions
from dray.runtime.logs import fields
from dray.runtime.tasks import ChildTasks, cancel_and_wait

_log = logging.getLogger(__name__)

PROGRAM: Final = Path(shim.__file__)
# Creating a container takes tens of milliseconds, on a loaded machine a few seconds.
START_SECONDS_MAX: Final = 60.0
# After SIGKILL only the kernel can be slow.
KILL_SECONDS_MAX: Final = 30.0
STARTS_AT_ONCE_MAX: Final = 8
# The remains of a container whose shim died could not be removed.
END_RETRY_SECONDS: Final = 2.0


@dataclass(slots=True)
class TrackedContainer:
    """A container whose shim is watched."""

    record: ContainerRecord
    folder: Path
    alive: int = -1
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    # Commands that run in it for clients.
    commands: set[ExecProcess] = field(default_factory=set)


class ProcessRuntime:
    """Implements `Runtime` without root."""

    def __init__(self, folder: Path, clock: Clock, cdi: CdiCache) -> None:
        self._folder = folder / "process"
        self._jobs = Jobs(folder, cdi)
        self._clock = clock
        self._followed: dict[str, TrackedContainer] = {}
        self._on_exit: ExitListener = lambda _record: None
        self._starts = asyncio.Semaphore(STARTS_AT_ONCE_MAX)
        # Set by `start`.
        self._tasks: ChildTasks | None = None
        self._reports: set[asyncio.Task[None]] = set()

    # --- `Runtime`. ---

    @property
    def name(self) -> str:
        """The scheme of container IDs."""
        return "process"

    @property
    def version(self) -> str:
        """The runtime's version."""
        return "1.0.0"

    async def images(self) -> Sequence[NodeImage]:
        """Return no images: the runtime has none of its own, or does not tell."""
        return ()

    async def collect_images(self, warn: Callable[[str, str], None]) -> None:
        """Do nothing."""

    async def ensure_image(self, request: ImageRequest) -> Image:
        """Return an image without an ID: programs are those of the host."""
        return Image(request.image, "")

    async def ensure_sandbox(self, sandbox: Sandbox) -> tuple[str, ...]:
        """Return no addresses: Pods use the node's network."""
        return ()

    async def start(self, on_exit: ExitListener, tasks: ChildTasks) -> Sequence[ContainerRecord]:
        """Find the existing containers and watch them."""
        self._on_exit, self._tasks = on_exit, tasks
        # The folders below contain the environment of containers, and with it Secrets.
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder.chmod(0o700)
        for folder in sorted(self._folder.iterdir()):
            await self._adopt(folder)
        return self.records()

    def records(self) -> list[ContainerRecord]:
        """Return all containers that were not removed."""
        return [item.record for item in self._followed.values()]

    async def stop(self) -> None:
        """Stop watching; the shims keep running, and commands of clients end."""
        for item in self._followed.values():
            self._unwatch(item)
        await cancel_and_wait(self._reports)

    async def run(self, spec: ContainerSpec) -> Started:
        """Start a container under its own shim."""
        if not spec.command and not spec.args:
            raise RuntimeFailure("the process runtime has no images: the container must say its command")
        warnings = self._jobs.warnings(spec)
        container_id = secrets.token_hex(32)
        folder = self._folder / container_id
        record = ContainerRecord(
            container_id,
            spec.sandbox.uid,
            spec.sandbox.namespace,
            spec.sandbox.name,
            spec.name,
            spec.attempt,
            spec.image,
            "",
            self._clock.now(),
            annotations=spec.annotations,
        )
        folder.mkdir(mode=0o700)
        item = TrackedContainer(record, folder)
        try:
            job = self._jobs.job(spec, container_id)
            for name in ("alive", "control"):
                os.mkfifo(folder / name, 0o600)
            # Before the start: with a container that runs, nothing may fail for want of a descriptor.
            item.alive = open_fifo(folder)
            streams = {"tty": spec.tty, "stdin": spec.stdin, "stdinOnce": spec.stdin_once}
            write(folder / "job.json", {**job, **streams, "folder": str(folder), "log": spec.log_path})
            write(folder / "record.json", to_file(record))
            answer = await self._launch(folder)
            if "error" not in answer:
                item.record = replace(record, started_at=moment(answer["startedAt"]))
                write(folder / "record.json", to_file(item.record) | {"pid": answer["pid"]})
        except BaseException:
            # A container that did start must not keep running untracked.
            self._send(item, "SIGKILL")
            self._unwatch(item)
            await asyncio.to_thread(self._remove_files, folder)
            raise
        if "error" in answer:
            self._unwatch(item)
            return self._could_not_start(record, folder, str(answer["error"]), warnings)
        self._follow(item)
        return Started(item.record, warnings)

    async def stop_container(self, container_id: str, grace_seconds: float) -> None:
        """Send SIGTERM, and SIGKILL after the grace period."""
        item = self._followed.get(container_id)
        if item is None or item.ended.is_set():
            return
        if grace_seconds > 0:
            self._send(item, "SIGTERM")
            if await _within(item.ended, grace_seconds):
                return
        self._send(item, "SIGKILL")
        if not await _within(item.ended, KILL_SECONDS_MAX):
            raise RuntimeFailure(f"container {container_id} does not end")

    async def remove_container(self, container_id: str) -> None:
        """Remove an exited container."""
        item = self._followed.pop(container_id, None)
        if item is not None:
            self._unwatch(item)
            await asyncio.to_thread(self._remove_files, item.folder)

    async def remove_sandbox(self, pod_uid: str) -> None:
        """Do nothing: there is no sandbox."""

    async def exec_stream(self, container_id: str, command: Sequence[str], options: StreamOptions) -> ContainerStreams:
        """Start a command; it ends with the container."""
        item = self._running(container_id)
        prepared = command_of(item.folder, command, options)
        try:
            process = ExecProcess(prepared, options)
        except OSError as error:
            return FailedCommand(_not_started(command, error))
        assert self._tasks is not None, "not started"
        item.commands.add(process)
        task = self._tasks.spawn(_await_command(item, process), f"command in container {container_id}")
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)
        return process

    async def execute(self, container_id: str, command: Sequence[str], timeout_seconds: float) -> ExecResult:
        """Run a command with the container's user, environment and working directory."""
        return await execute(self._running(container_id).folder, command, timeout_seconds)

    async def set_cpus(self, container_id: str, cpus: str) -> None:
        """Set the CPU affinity of each thread."""
        await asyncio.to_thread(move_processes, self._running(container_id).folder, parse_cpus(cpus))

    async def attach(self, container_id: str, options: StreamOptions) -> ContainerStreams:
        """Connect to the container's shim."""
        return await attachment.connect(self._running(container_id).folder, options)

    async def port_forward(self, pod_uid: str, container_ids: Sequence[str], port: int) -> ForwardedPort:
        """Connect to a port on which a process of the Pod listens, since Pods use the node's network."""
        folders = [self._running(container_id).folder for container_id in container_ids]
        processes = await asyncio.to_thread(processes_of, folders)
        return await connect_to_pod(port, processes)

    async def usages(self, records: Sequence[ContainerRecord]) -> Mapping[str, Usage]:
        """Read the usage of the containers' processes."""
        found = await asyncio.to_thread(lambda: {record.id: self._read_usage(record) for record in records})
        return {container_id: usage for container_id, usage in found.items() if usage is not None}

    def _read_usage(self, record: ContainerRecord) -> Usage | None:
        """Return the usage of the container's processes."""
        try:
            return read_processes(self._first_process(record.id))
        except RuntimeFailure:
            return None

    def _first_process(self, container_id: str) -> int:
        """Return the ID of a running container's own process; raises `RuntimeFailure`."""
        try:
            return int(orjson.loads((self._running(container_id).folder / "record.json").read_bytes())["pid"])
        except (OSError, ValueError, KeyError) as error:
            raise RuntimeFailure(f"the process of container {container_id} is not known") from error

    def _running(self, container_id: str) -> TrackedContainer:
        """Return a running container; raises `RuntimeFailure`."""
        item = self._followed.get(container_id)
        if item is None or item.ended.is_set():
            raise RuntimeFailure(f"container {container_id} is not running")
        return item

    def _remove_files(self, folder: Path) -> None:
        self._jobs.remove(folder.name)
        remove_tree(folder)

    # --- Starting. ---

    async def _launch(self, folder: Path) -> dict[str, Any]:
        async with self._starts:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                str(PROGRAM),
                str(folder / "job.json"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
            try:
                async with asyncio.timeout(START_SECONDS_MAX):
                    out, error = await process.communicate()
            except TimeoutError as late:
                raise RuntimeFailure(f"the container did not start in {START_SECONDS_MAX:.0f} s") from late
        try:
            answer: dict[str, Any] = orjson.loads(out)
        except orjson.JSONDecodeError as problem:
            raise RuntimeFailure(f"the shim failed: {error.decode(errors='replace').strip()[-500:]}") from problem
        return answer

    def _could_not_start(
        self, record: ContainerRecord, folder: Path, message: str, warnings: tuple[str, ...]
    ) -> Started:
        """Record a run that ended with `StartError`."""
        ended = Exit(START_ERROR_CODE, self._clock.now(), reason=START_ERROR, message=message)
        item = TrackedContainer(replace(record, exit=ended), folder)
        write(folder / "record.json", to_file(item.record))
        self._followed[record.id] = item
        item.ended.set()
        return Started(item.record, warnings)

    # --- Watching. ---

    async def _adopt(self, folder: Path) -> None:
        try:
            content = orjson.loads((folder / "record.json").read_bytes())
            record = from_file(content)
            if record.exit is None:
                job = orjson.loads((folder / "job.json").read_bytes())
                record = replace(record, environment=dict(job["env"]))
        except (OSError, ValueError, KeyError):
            # The start was interrupted before the record was written.
            end_group(folder)
            await asyncio.to_thread(self._remove_files, folder)
            return
        item = TrackedContainer(record, folder)
        if record.exit is not None:
            item.ended.set()
            self._followed[record.id] = item
            return
        item.alive = open_fifo(folder)
        self._follow(item)
        if not self._lives(item):
            # It exited while no agent was running; the exit is part of the record.
            self._unwatch(item)
            await self._note_end(item)
            return
        _log.info("found a container still running", extra=fields(container=record.name, pod=record.pod_name))

    def _follow(self, item: TrackedContainer) -> None:
        self._followed[item.record.id] = item
        asyncio.get_running_loop().add_reader(item.alive, self._alive_changed, item)
        # A shim that has already ended never makes the FIFO ready.
        asyncio.get_running_loop().call_soon(self._alive_changed, item)

    def _alive_changed(self, item: TrackedContainer) -> None:
        if item.alive < 0 or self._lives(item):
            return
        self._unwatch(item)
        assert self._tasks is not None, "not started"
        task = self._tasks.spawn(self._report_end(item), f"exit of container {item.record.id}")
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    def _lives(self, item: TrackedContainer) -> bool:
        """Whether the shim holds its FIFO open; it never writes to it."""
        try:
            return bool(os.read(item.alive, 1))
        except BlockingIOError:
            return True

    async def _report_end(self, item: TrackedContainer) -> None:
        while True:
            try:
                await self._note_end(item)
                break
            except (OSError, TimeoutError) as error:
                _log.warning("exit not recorded", extra=fields(container=item.record.name, error=str(error)))
                await self._clock.sleep(END_RETRY_SECONDS)
        self._on_exit(item.record)

    async def _note_end(self, item: TrackedContainer) -> None:
        ended = read_exit(item.folder)
        if ended is None:
            end_group(item.folder)
            ended = Exit(UNKNOWN_EXIT_CODE, self._clock.now(), reason="Unknown", message="the container's shim is gone")
        item.record = replace(item.record, exit=ended)
        for process in item.commands:
            process.kill()
        with contextlib.suppress(OSError):
            write(item.folder / "record.json", to_file(item.record))
        item.ended.set()

    def _unwatch(self, item: TrackedContainer) -> None:
        if item.alive >= 0:
            asyncio.get_running_loop().remove_reader(item.alive)
            os.close(item.alive)
            item.alive = -1

    def _send(self, item: TrackedContainer, name: str) -> None:
        # Without a reader the shim has ended, and its exit is being reported.
        with contextlib.suppress(OSError):
            descriptor = os.open(item.folder / "control", os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(descriptor, f"{name}\n".encode())
            finally:
                os.close(descriptor)


async def _await_command(item: TrackedContainer, process: ExecProcess) -> None:
    """Wait for a command, whose client may have left, so that no process is left unreaped."""
    try:
        await process.wait()
    finally:
        # If the agent ends before it does.
        process.kill()
        item.commands.discard(process)


def _not_started(command: Sequence[str], error: OSError) -> StreamEnd:
    """Return the end of a command that could not start, with the codes of shells."""
    name = command[0] if command else ""
    if isinstance(error, FileNotFoundError):
        where = "executable file not found in $PATH" if "/" not in name else "no such file or directory"
        return StreamEnd(127, f'exec: "{name}": {where}')
    return StreamEnd(126, f'exec: "{name}": {(error.strerror or str(error)).lower()}')


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
