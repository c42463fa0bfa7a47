"""Starts Python programs by forking a process that has already imported Dray.

A new interpreter needs more than half a second of processor time for the imports of `dray up`; tests start hundreds of
programs. A forked program is a process like any other: it has its own pid, descriptors, environment and working
directory, and ends as it likes. It differs in `/proc/PID/cmdline`, and in its parent, which waits for it and reports
its exit status. Tests of the start itself, benchmarks, and the commands of the documentation use new interpreters.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MESSAGE_BYTES_MAX = 1 << 20
END_SECONDS_MAX = 120.0
# A pid, and an exit status as `waitpid` returns it.
NUMBER = struct.Struct("=i")
ROOT = Path(__file__).parents[1]


class ForkedPopen(subprocess.Popen[str]):
    """A `subprocess.Popen` of `[sys.executable, ...]` in text mode, forked instead of started anew."""

    def __init__(self, command: Sequence[str | Path], **options: Any) -> None:
        assert command[0] == sys.executable
        self._status: socket.socket
        super().__init__([str(word) for word in command], text=True, **options)

    # The arguments are those of CPython 3.8 and later, which has no public hook here.
    def _execute_child(self, args: list[str], *options: Any) -> None:
        _, _, _, pass_fds, cwd, env, _, _, _, *pipes = options[:15]
        assert not pass_fds
        child_ends = [pipes[0], pipes[3], pipes[5]]
        request = {
            "arguments": args[1:],
            "folder": str(cwd or Path.cwd()),
            "environment": dict(os.environ if env is None else env),
        }
        self._status, theirs = socket.socketpair()
        with theirs, open(os.devnull, "r+b") as null:
            standard = [null.fileno(), 1, 2]
            fds = [own if own != -1 else standard[number] for number, own in enumerate(child_ends)]
            socket.send_fds(_server(), [json.dumps(request).encode()], [*fds, theirs.fileno()])
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        self.pid = NUMBER.unpack(self._status.recv(NUMBER.size))[0]
        self._child_created = True

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end."""
        code = self._look(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def _look(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], seconds)[0]:
            data = self._status.recv(NUMBER.size)
            assert data, "the fork server was killed"
            self._status.close()
            self.returncode = os.waitstatus_to_exitcode(NUMBER.unpack(data)[0])
        return self.returncode


def run(command: Sequence[str | Path], timeout: float = 60.0, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, like `subprocess.run` with `capture_output`."""
    pipe = subprocess.PIPE
    with ForkedPopen(command, stdout=pipe, stderr=pipe, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@functools.cache
def _server() -> socket.socket:
    """Start the fork server of this process; it ends when this process does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "tests.fork_server", str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT, stdin=subprocess.DEVNULL)
    atexit.register(process.wait, END_SECONDS_MAX)
    atexit.register(ours.close)
    return ours


def _import_everything() -> None:
    import dray

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in pkgutil.walk_packages(dray.__path__, "dray."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    # The imported objects live as long as the programs do: no collection has to look at them.
    gc.collect()
    gc.freeze()


def _serve(requests: socket.socket) -> dict[str, Any]:
    """Serve requests; returns in each forked program, with its request."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        data, fds, _, _ = socket.recv_fds(requests, MESSAGE_BYTES_MAX, 4)
        if not data:
            os._exit(0)
        # The process between waits for the program, so that this one is free to serve.
        if not os.fork():
            requests.close()
            return _forked(json.loads(data), fds)
        for fd in fds:
            os.close(fd)
        _reap()


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _forked(request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    *standard, status = fds
    pid = os.fork()
    if pid:
        for fd in (0, 1, 2, *standard):
            os.close(fd)
        try:
            os.write(status, NUMBER.pack(pid))
            os.write(status, NUMBER.pack(os.waitpid(pid, 0)[1]))
        finally:
            os._exit(0)
    for target, fd in enumerate(standard):
        os.dup2(fd, target)
    os.closerange(3, max(fds) + 1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return request


def _run(request: dict[str, Any]) -> None:
    """Become the program; what it raises ends this interpreter."""
    code = 1
    # Registered first, so it runs last: to take all of Dray apart costs as much as the fork.
    atexit.register(lambda: _leave(code))
    try:
        _run_program(request)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1 if end.code else 0
        raise


def _leave(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run_program(request: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["folder"])
    arguments: list[str] = request["arguments"]
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = request["folder"]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = str(Path(arguments[0]).parent)
        sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    # As `dray.cmd.main` does, which comes too late here: gRPC reads it when it is imported.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    _import_everything()
    _run(_serve(socket.socket(fileno=int(sys.argv[1]))))
