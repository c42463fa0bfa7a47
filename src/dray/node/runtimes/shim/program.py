"""The shim process: starts one container, writes its log, forwards signals, and records its exit.

Runs as a separate program (`python -I -S program.py job.json`) that survives the agent. To start within milliseconds it
imports only a few modules of the standard library. It prints one line of JSON to its standard output when the
container has started or failed to start. From then on the agent communicates with it through files in its folder:

    alive      a FIFO that the shim holds open while it runs
    control    a FIFO from which the shim reads signal names, one per line
    attach     a socket for clients that want to see the container's output or to write to its standard input
    exit.json  how the container ended, written last

It is one file, since an isolated interpreter finds no other modules beside it.
"""

from __future__ import annotations

import _socket
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import select
import signal
import struct
import sys
import termios
import time
import warnings  # noqa: F401 - os.execvpe imports it, which the container's user may not be allowed to read
from typing import Any, Final

CHUNK_BYTES: Final = 65536
# A line longer than this is split, as containerd does.
LINE_BYTES_MAX: Final = 16 * 1024
LOG_BYTES_MAX: Final = 10 * 1024 * 1024
LOG_FILES_MAX: Final = 5
# How long to wait for output of processes that outlive the container's process.
DRAIN_SECONDS: Final = 0.5
REAP_ROUNDS_MAX: Final = 100
NOT_FOUND_CODE: Final = 127
# The kinds of frames on the attach socket: a byte, the length in four bytes, and the data.
ATTACH_START: Final = 0
ATTACH_STDOUT: Final = 1
ATTACH_STDERR: Final = 2
ATTACH_STDIN: Final = 3
ATTACH_STDIN_END: Final = 4
ATTACH_RESIZE: Final = 5
ATTACH_ENDED: Final = 6
ATTACH_HEAD_BYTES: Final = 5
ATTACH_FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
# Output that waits for one attached client; a slower one is dropped.
ATTACH_BACKLOG_MAX: Final = 1024 * 1024
ATTACHED_MAX: Final = 64
# Input that waits for the container; clients are not read from while there is more.
STDIN_BACKLOG_MAX: Final = 256 * 1024
# How long attached clients may take to read the rest after the end.
FLUSH_SECONDS: Final = 5.0

_SET_CHILD_SUBREAPER: Final = 36
_LOG_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
_Job = dict[str, Any]
_libc: Final = ctypes.CDLL(None, use_errno=True)


class StartError(Exception):
    """The container's program could not be started."""


def main(path: str) -> None:
    """Run the job in the file."""
    # Pipes inherited from the agent's event loop would keep their readers waiting.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    with open(path, "rb") as file:
        job: _Job = json.load(file)
    os.chdir(job["folder"])
    # The agent waits for this process to exit; the child continues.
    if os.fork():
        os._exit(0)
    os.setsid()
    _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.open("alive", os.O_RDWR | os.O_NONBLOCK)
    control = os.open("control", os.O_RDWR | os.O_NONBLOCK)
    wakeup = _wake_on_child()
    log = Log(job["log"])
    attach = _listen("attach")
    try:
        pid, streams = start(job)
    except StartError as error:
        _say({"error": str(error)})
        return
    _say({"pid": pid, "startedAt": time.time_ns()})
    status = ContainerMonitor(pid, streams, control, wakeup, log, attach).run()
    _end_descendants()
    _record_end(status)


def _say(message: _Job) -> None:
    """Send a message to the agent, which may be gone."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(message).encode() + b"\n")
    empty = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(empty, number)


def _wake_on_child() -> int:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    os.set_blocking(reading, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    # Only signals from the control FIFO are forwarded, not those of a terminal.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return reading


# --- Starting. ---


class Streams:
    """The container's standard streams: the shim's ends by descriptor, and what the container gets."""

    def __init__(self, job: _Job) -> None:
        # Output descriptors with the names of their streams.
        self.outputs: dict[int, str] = {}
        # -1 if the container reads nothing.
        self.stdin = -1
        self.is_terminal = bool(job.get("tty"))
        self.once = bool(job.get("stdinOnce"))
        # For the container; -1 stands for the null device.
        self.ends: list[int] = [-1, -1, -1]
        if self.is_terminal:
            return
        if job.get("stdin"):
            self.ends[0], self.stdin = os.pipe()
            os.set_blocking(self.stdin, False)
        for number, name in ((1, "stdout"), (2, "stderr")):
            reading, self.ends[number] = os.pipe()
            self.outputs[reading] = name

    def take_terminal(self, master: int, job: _Job) -> None:
        """Use a terminal, which carries everything."""
        os.set_blocking(master, False)
        self.outputs = {master: "stdout"}
        self.stdin = os.dup(master) if job.get("stdin") else -1

    def close_ends(self) -> None:
        """Close the container's ends after its start."""
        for descriptor in set(self.ends) - {-1}:
            os.close(descriptor)
        self.ends = [-1, -1, -1]


def start(job: _Job) -> tuple[int, Streams]:
    """Start the container; return its process ID and its streams."""
    streams = Streams(job)
    try:
        pid = _start_process(job, streams)
    finally:
        streams.close_ends()
    return pid, streams


def _listen(path: str) -> _socket.socket | None:
    """Return a socket for clients; without one nobody can attach, which must not keep the container from running."""
    try:
        listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        listener.settimeout(0)
        # Relative: the path of a socket must be short.
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen(ATTACHED_MAX)
    except OSError:
        return None
    return listener


def _start_process(job: _Job, streams: Streams) -> int:
    if streams.is_terminal:
        master, slave = os.openpty()
        streams.take_terminal(master, job)
        streams.ends = [slave, slave, slave]
    failed_read, failed_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _become(job, streams)
        except BaseException as caught:  # noqa: BLE001 - a fork must never return to its parent's code
            os.write(failed_write, _exec_message(job, caught).encode())
        finally:
            os._exit(NOT_FOUND_CODE)
    os.close(failed_write)
    with os.fdopen(failed_read, "rb") as failed:
        problem = failed.read()
    if problem:
        os.waitpid(pid, 0)
        raise StartError(problem.decode())
    return pid


def set_identity(job: _Job) -> None:
    """Take on the container's user and groups; the user goes last, because only root may change the others."""
    if job.get("groups") is not None:
        os.setgroups(job["groups"])
    if job.get("gid") is not None:
        os.setgid(job["gid"])
    if job.get("uid") is not None:
        os.setuid(job["uid"])


def _become(job: _Job, streams: Streams) -> None:
    os.setsid()
    _standard_streams(streams.ends)
    if streams.is_terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(job["directory"])
    if job.get("cpus"):
        # A machine described in a file may have other CPUs than this one.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, job["cpus"])
    set_identity(job)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(job["argv"][0], job["argv"], dict(job["env"]))  # noqa: S606 - no shell is meant


def _standard_streams(ends: list[int]) -> None:
    for number, descriptor in enumerate(ends):
        os.dup2(descriptor if descriptor >= 0 else os.open(os.devnull, os.O_RDWR), number)


def _exec_message(job: _Job, problem: BaseException) -> str:
    name = job["argv"][0] if job.get("argv") else ""
    if isinstance(problem, FileNotFoundError) and problem.filename not in (None, job.get("directory")):
        where = "executable file not found in $PATH" if "/" not in name else "no such file or directory"
        return f'exec: "{name}": {where}: unknown'
    if isinstance(problem, OSError):
        return f'exec: "{name}": {(problem.strerror or str(problem)).lower()}: unknown'
    return f'exec: "{name}": {problem}'


def _accept(listener: _socket.socket) -> _socket.socket:
    """Accept a connection, as `socket.accept` does."""
    number, _ = listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001
    return _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, number)


# --- Running. ---


class ContainerMonitor:
    """Reads the output of a container, forwards signals, serves attached clients, and waits for its exit."""

    def __init__(
        self, pid: int, streams: Streams, control: int, wakeup: int, log: Log, listener: _socket.socket | None
    ) -> None:
        self._pid = pid
        self._outputs = streams.outputs
        self._control = control
        self._wakeup = wakeup
        self._log = log
        self._poll = select.poll()
        for descriptor in (*streams.outputs, control, wakeup):
            self._poll.register(descriptor, select.POLLIN)
        self._attachments = Attachments(streams, self._poll, listener)
        self._status: int | None = None

    def run(self) -> int:
        """Return the wait status of the container's process."""
        self._reap()
        while self._status is None:
            self._turn(None)
        deadline = time.monotonic() + DRAIN_SECONDS
        while self._outputs and time.monotonic() < deadline:
            if not self._turn(DRAIN_SECONDS * 1000):
                break
        self._log.close()
        self._attachments.finish()
        return self._status

    def _turn(self, timeout_milliseconds: float | None) -> bool:
        ready = self._poll.poll(timeout_milliseconds)
        for descriptor, events in ready:
            if descriptor in self._outputs:
                self._read_output(descriptor)
            elif descriptor == self._control:
                self._obey()
            elif descriptor == self._wakeup:
                os.read(self._wakeup, CHUNK_BYTES)
                self._reap()
            else:
                self._attachments.handle(descriptor, events)
        return bool(ready)

    def _read_output(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            # All processes have closed the terminal.
            if error.errno != errno.EIO:
                raise
            data = b""
        stream = self._outputs[descriptor]
        self._log.take(stream, data)
        if data:
            self._attachments.send(ATTACH_STDOUT if stream == "stdout" else ATTACH_STDERR, data)
        else:
            self._poll.unregister(descriptor)
            del self._outputs[descriptor]
            os.close(descriptor)

    def _obey(self) -> None:
        for word in os.read(self._control, CHUNK_BYTES).decode().split():
            number = getattr(signal, word, None)
            if number is not None and self._status is None:
                # Not reaped yet, so that the process ID cannot have been reused.
                os.kill(self._pid, number)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._pid:
                self._status = status


class Client:
    """An attached client."""

    def __init__(self, connection: _socket.socket) -> None:
        self.connection = connection
        self.received = b""
        self.unsent = b""
        # Whether it writes to the standard input.
        self.writes = False


class Attachments:
    """The attached clients of a container: all get its output, and may write to its standard input."""

    def __init__(self, streams: Streams, poll: select.poll, listener: _socket.socket | None) -> None:
        self._streams = streams
        self._poll = poll
        self._listener = listener
        self._clients: dict[int, Client] = {}
        # Input that the container has not read.
        self._input = b""
        # The input ends when this is written.
        self._ends = False
        if listener is not None:
            poll.register(listener.fileno(), select.POLLIN)

    def send(self, kind: int, data: bytes) -> None:
        """Send output to all clients; one that reads too slowly is dropped."""
        for number, client in tuple(self._clients.items()):
            client.unsent += struct.pack(">BI", kind, len(data)) + data
            self._flush(number, client)
            if len(client.unsent) > ATTACH_BACKLOG_MAX:
                self._drop(number)

    def handle(self, descriptor: int, events: int) -> None:
        """Accept a client, read from one, write to one, or write to the standard input."""
        if self._listener is not None and descriptor == self._listener.fileno():
            self._accept(self._listener)
        elif descriptor == self._streams.stdin:
            self._write_input()
        elif descriptor in self._clients:
            client = self._clients[descriptor]
            if events & select.POLLOUT:
                self._flush(descriptor, client)
            if events & (select.POLLIN | select.POLLHUP | select.POLLERR) and descriptor in self._clients:
                self._read(descriptor, client)

    def finish(self) -> None:
        """Tell the clients that the container has ended, when they have read its output."""
        for number, client in tuple(self._clients.items()):
            client.unsent += struct.pack(">BI", ATTACH_ENDED, 0)
            self._flush(number, client)
        deadline = time.monotonic() + FLUSH_SECONDS
        waiting = select.poll()
        while time.monotonic() < deadline and any(client.unsent for client in self._clients.values()):
            for number, client in tuple(self._clients.items()):
                if client.unsent:
                    waiting.register(number, select.POLLOUT)
            for number, _events in waiting.poll(100):
                waiting.unregister(number)
                if number in self._clients:
                    self._flush(number, self._clients[number])
        for client in self._clients.values():
            client.connection.close()

    def _accept(self, listener: _socket.socket) -> None:
        try:
            connection = _accept(listener)
        except OSError:
            return
        if len(self._clients) >= ATTACHED_MAX:
            connection.close()
            return
        connection.settimeout(0)
        self._clients[connection.fileno()] = Client(connection)
        self._update(connection.fileno())

    def _update(self, number: int) -> None:
        """Read from a client unless the container is slow, and write to it if there is something to write."""
        client = self._clients[number]
        reads = len(self._input) <= STDIN_BACKLOG_MAX
        self._poll.register(number, (select.POLLIN if reads else 0) | (select.POLLOUT if client.unsent else 0))

    def _flush(self, number: int, client: Client) -> None:
        try:
            while client.unsent:
                client.unsent = client.unsent[client.connection.send(client.unsent[:ATTACH_BACKLOG_MAX]) :]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(number)
            return
        self._update(number)

    def _read(self, number: int, client: Client) -> None:
        try:
            data = client.connection.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(number)
            return
        client.received += data
        while len(client.received) >= ATTACH_HEAD_BYTES:
            kind, size = struct.unpack(">BI", client.received[:ATTACH_HEAD_BYTES])
            if size > ATTACH_FRAME_BYTES_MAX:
                self._drop(number)
                return
            end = ATTACH_HEAD_BYTES + size
            if len(client.received) < end:
                return
            payload, client.received = client.received[ATTACH_HEAD_BYTES:end], client.received[end:]
            self._obey(client, kind, payload)

    def _obey(self, client: Client, kind: int, payload: bytes) -> None:
        if kind == ATTACH_START:
            client.writes = payload == b"\x01"
        elif kind == ATTACH_STDIN and client.writes and self._streams.stdin >= 0 and not self._ends:
            self._input += payload
            self._write_input()
        elif kind == ATTACH_STDIN_END:
            self._end_input(client)
        elif kind == ATTACH_RESIZE and self._streams.is_terminal:
            columns, rows = struct.unpack(">HH", payload)
            for descriptor in self._streams.outputs:
                with contextlib.suppress(OSError):
                    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _end_input(self, client: Client) -> None:
        """Close the container's standard input for good after the first client's, if it is to be closed then."""
        if client.writes and self._streams.once:
            self._ends = True
            self._write_input()
        client.writes = False

    def _write_input(self) -> None:
        descriptor = self._streams.stdin
        if descriptor < 0:
            return
        was_full = len(self._input) > STDIN_BACKLOG_MAX
        try:
            while self._input:
                self._input = self._input[os.write(descriptor, self._input[:CHUNK_BYTES]) :]
        except BlockingIOError:
            self._poll.register(descriptor, select.POLLOUT)
        except OSError:
            # Nobody reads it any more.
            self._input, self._ends = b"", True
        if not self._input:
            with contextlib.suppress(KeyError):
                self._poll.unregister(descriptor)
            if self._ends:
                os.close(descriptor)
                self._streams.stdin = -1
        if was_full != (len(self._input) > STDIN_BACKLOG_MAX) or was_full:
            for number in tuple(self._clients):
                self._update(number)

    def _drop(self, number: int) -> None:
        client = self._clients.pop(number)
        self._poll.unregister(number)
        client.connection.close()
        self._end_input(client)


def _end_descendants() -> None:
    """Kill the orphaned processes of the container, which are children of this process."""
    for _ in range(REAP_ROUNDS_MAX):
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            children = [int(word) for word in file.read().split()]
        if not children:
            return
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _record_end(status: int) -> None:
    ended: _Job = {"finishedAt": time.time_ns()}
    if os.WIFSIGNALED(status):
        ended["signal"] = os.WTERMSIG(status)
        ended["code"] = 128 + ended["signal"]
    else:
        ended["code"] = os.WEXITSTATUS(status)
    with open("exit.json.new", "w", encoding="utf-8") as file:
        json.dump(ended, file)
    os.rename("exit.json.new", "exit.json")


# --- The log. ---


class Log:
    """The container's log in the CRI format, with rotation."""

    def __init__(self, path: str) -> None:
        self._path = path
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._file = os.open(path, _LOG_FLAGS, 0o640)
        self._size = os.fstat(self._file).st_size
        self._rest = {"stdout": b"", "stderr": b""}

    def take(self, stream: str, data: bytes) -> None:
        """Write output; no data means that the stream has ended."""
        stamp = _stamp(time.time_ns()) + f" {stream} ".encode()
        *lines, rest = (self._rest[stream] + data).split(b"\n")
        out = [piece for line in lines for piece in _pieces(stamp, line, b"F")]
        while len(rest) > LINE_BYTES_MAX:
            out.append(stamp + b"P " + rest[:LINE_BYTES_MAX] + b"\n")
            rest = rest[LINE_BYTES_MAX:]
        if not data and rest:
            out.append(stamp + b"F " + rest + b"\n")
            rest = b""
        self._rest[stream] = rest
        self._write(b"".join(out))

    def close(self) -> None:
        """Write incomplete lines, and close the file."""
        for stream in self._rest:
            self.take(stream, b"")
        os.close(self._file)

    def _write(self, data: bytes) -> None:
        if not data:
            return
        if self._size + len(data) > LOG_BYTES_MAX and self._size:
            self._rotate()
        # A full disk loses output, but must not end the container.
        with contextlib.suppress(OSError):
            self._size += os.write(self._file, data)

    def _rotate(self) -> None:
        os.close(self._file)
        os.rename(self._path, f"{self._path}.{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.{time.time_ns()}")
        folder, name = os.path.split(self._path)
        older = sorted(entry for entry in os.listdir(folder) if entry.startswith(f"{name}."))
        for entry in older[: max(len(older) - (LOG_FILES_MAX - 1), 0)]:
            os.unlink(os.path.join(folder, entry))
        self._file = os.open(self._path, _LOG_FLAGS, 0o640)
        self._size = 0


def _pieces(stamp: bytes, line: bytes, last: bytes) -> list[bytes]:
    found = []
    while len(line) > LINE_BYTES_MAX:
        found.append(stamp + b"P " + line[:LINE_BYTES_MAX] + b"\n")
        line = line[LINE_BYTES_MAX:]
    found.append(stamp + last + b" " + line + b"\n")
    return found


def _stamp(nanoseconds: int) -> bytes:
    seconds, fraction = divmod(nanoseconds, 1_000_000_000)
    return (time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{fraction:09d}Z").encode()


if __name__ == "__main__":
    main(sys.argv[1])
