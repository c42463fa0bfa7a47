"""A command that runs in a container for a client, with pipes or a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dray.rpc.remote_command.messages import CHUNK_BYTES, STDERR, STDOUT, StreamEnd, StreamOptions

# How long a command may take to end after its client has left.
HANG_UP_SECONDS: Final = 2.0
_END_OF_INPUT: Final = b"\x04"


@dataclass(frozen=True, slots=True)
class Command:
    """A command: `prepare` runs in the new process before the program.

    Without it the process is created by vfork, which the threads of gRPC do not notice.
    """

    argv: Sequence[str]
    directory: str | Path
    env: Mapping[str, str] | None = None
    prepare: Callable[[], None] | None = None


class ExecProcess:
    """Implements `ContainerStreams` for a child process of the agent."""

    def __init__(self, command: Command, options: StreamOptions) -> None:
        """Start the process; raises OSError."""
        self._command = command
        self._master = -1
        self._stdin = -1
        # By descriptor.
        self._outputs: dict[int, int] = {}
        # Whether the client has left before the end.
        self._is_left = False
        self._end: StreamEnd | None = None
        self._ended = asyncio.Event()
        self._process = self._start_with_terminal(options) if options.tty else self._start_with_pipes(options)
        try:
            self._open_pipes()
            # Opened with the rest: for want of a descriptor the command fails, and not the agent later.
            self._pidfd = os.pidfd_open(self._process.pid)
        except BaseException:
            self.kill()
            self._process.wait()
            self._close_descriptors()
            raise
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)

    # --- Starting. ---

    def _start_with_pipes(self, options: StreamOptions) -> subprocess.Popen[bytes]:
        return self._start(
            subprocess.PIPE if options.stdin else subprocess.DEVNULL,
            subprocess.PIPE if options.stdout else subprocess.DEVNULL,
            subprocess.PIPE if options.stderr else subprocess.DEVNULL,
            self._command.prepare,
        )

    def _open_pipes(self) -> None:
        """Copy the descriptors of the pipes of the process, which are closed."""
        process = self._process
        with contextlib.ExitStack() as pipes:
            for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
                pipes.push(pipe)
            if process.stdin is not None:
                self._stdin = _own(process.stdin.fileno())
            for output, channel in ((process.stdout, STDOUT), (process.stderr, STDERR)):
                if output is not None:
                    self._outputs[_own(output.fileno())] = channel

    def _start_with_terminal(self, options: StreamOptions) -> subprocess.Popen[bytes]:
        self._master, slave = pty.openpty()
        try:
            os.set_blocking(self._master, False)
            if options.stdout:
                self._outputs[os.dup(self._master)] = STDOUT
            return self._start(slave, slave, slave, self._prepare_terminal)
        except BaseException:
            self._close_descriptors()
            raise
        finally:
            os.close(slave)

    def _prepare_terminal(self) -> None:
        _take_terminal()
        if self._command.prepare is not None:
            self._command.prepare()

    def _start(
        self, stdin: int, stdout: int, stderr: int, prepare: Callable[[], None] | None
    ) -> subprocess.Popen[bytes]:
        command = self._command
        return subprocess.Popen(  # noqa: S603 - the command is what the user asks for
            command.argv,
            cwd=command.directory,
            env=command.env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            preexec_fn=prepare,  # noqa: PLW1509 - only system calls
        )

    # --- `ContainerStreams`. ---

    async def read(self) -> tuple[int, bytes] | None:
        """Return the next output."""
        while self._outputs:
            for descriptor, channel in tuple(self._outputs.items()):
                try:
                    data = os.read(descriptor, CHUNK_BYTES)
                except BlockingIOError:
                    continue
                except OSError as error:
                    # The other side of a terminal is closed.
                    if error.errno != errno.EIO:
                        raise
                    data = b""
                if data:
                    # The other output is next.
                    self._outputs[descriptor] = self._outputs.pop(descriptor)
                    return channel, data
                del self._outputs[descriptor]
                os.close(descriptor)
            if self._outputs:
                await _ready(tuple(self._outputs), asyncio.get_running_loop().add_reader, _remove_reader)
        return None

    async def write(self, data: bytes) -> None:
        """Write to the standard input or the terminal."""
        descriptor = self._master if self._master >= 0 else self._stdin
        left = memoryview(data)
        while left and descriptor >= 0:
            try:
                left = left[os.write(descriptor, left) :]
            except BlockingIOError:
                await _ready((descriptor,), asyncio.get_running_loop().add_writer, _remove_writer)
            except OSError:
                return

    async def end_input(self) -> None:
        """Close the standard input; for a terminal this is a character."""
        if self._master >= 0:
            await self.write(_END_OF_INPUT)
        self._close_stdin()

    async def resize(self, columns: int, rows: int) -> None:
        """Set the size of the terminal, which tells the process."""
        if self._master >= 0:
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def wait(self) -> StreamEnd:
        """Wait for the process; may be called by several."""
        await self._ended.wait()
        if self._end is None:
            # Negative for a signal.
            code = self._process.wait()
            self._end = StreamEnd(code if code >= 0 else 128 - code)
        return self._end

    def _reap(self) -> None:
        _remove_reader(self._pidfd)
        os.close(self._pidfd)
        if self._is_left:
            # What the command has started may ignore the hang-up. Until now the number of the group is not reused.
            self.kill()
        self._process.wait()
        self._ended.set()

    def close(self) -> None:
        """Close all descriptors; a command that still runs is hung up on, and killed if it stays."""
        self._close_descriptors()
        if not self._ended.is_set():
            self._is_left = True
            self._signal(signal.SIGHUP)
            asyncio.get_running_loop().call_later(HANG_UP_SECONDS, self.kill)

    def _close_descriptors(self) -> None:
        self._close_stdin()
        for descriptor in self._outputs:
            os.close(descriptor)
        self._outputs.clear()
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    def kill(self) -> None:
        """Kill the process and its group."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        # The number of a process that was waited for may be that of another one.
        if not self._ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _close_stdin(self) -> None:
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1


@dataclass(slots=True)
class FailedCommand:
    """Implements `ContainerStreams` for a command that could not start: its output is the reason."""

    end: StreamEnd
    _pending: list[tuple[int, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._pending.append((STDERR, f"{self.end.message}\n".encode()))

    async def read(self) -> tuple[int, bytes] | None:
        """Return the reason, once."""
        return self._pending.pop() if self._pending else None

    async def write(self, data: bytes) -> None:
        """Do nothing."""

    async def end_input(self) -> None:
        """Do nothing."""

    async def resize(self, columns: int, rows: int) -> None:
        """Do nothing."""

    async def wait(self) -> StreamEnd:
        """Return the failure."""
        return self.end

    def close(self) -> None:
        """Do nothing."""


def _own(descriptor: int) -> int:
    """Return a copy of a descriptor that does not block."""
    copy = os.dup(descriptor)
    os.set_blocking(copy, False)
    return copy


def _take_terminal() -> None:
    """Make the standard input the terminal of the new session."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


async def _ready(
    descriptors: Sequence[int],
    add: Callable[[int, Callable[[], None]], object],
    remove: Callable[[int], object],
) -> None:
    """Wait until one of the descriptors is ready."""
    ready = asyncio.Event()
    try:
        for descriptor in descriptors:
            add(descriptor, ready.set)
        await ready.wait()
    finally:
        for descriptor in descriptors:
            remove(descriptor)


def _remove_reader(descriptor: int) -> None:
    asyncio.get_running_loop().remove_reader(descriptor)


def _remove_writer(descriptor: int) -> None:
    asyncio.get_running_loop().remove_writer(descriptor)
