"""Starts real `dray` processes for tests, and waits for them to say that they are ready."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.fork_server import ForkedPopen

READY_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 120.0
TOKENS = 'admin-token,admin,admin-uid,"system:masters"\nalice-token,alice,alice-uid,"devs"\nbob-token,bob,bob-uid\n'


@dataclass(slots=True)
class Server:
    """A running server; `kubeconfig` is an administrator's."""

    process: subprocess.Popen[str]
    url: str
    kubeconfig: Path
    data_dir: Path
    log: Path

    @property
    def environment(self) -> dict[str, str]:
        """For programs that are to talk to this server; their caches go to the data directory."""
        return os.environ | {
            "KUBECONFIG": str(self.kubeconfig),
            "HOME": str(self.data_dir),
            "KUBECACHEDIR": str(self.data_dir / "kube-cache"),
        }

    def stop(self) -> int:
        """End it politely and give its exit code."""
        self.process.terminate()
        return self.process.wait(STOP_SECONDS_MAX)

    def kill(self) -> None:
        """End it at once, as a power cut would."""
        self.process.kill()
        self.process.wait(STOP_SECONDS_MAX)


def start_server(
    data_dir: Path, *flags: str, command: str = "up", port: int = 0, new_interpreter: bool = False
) -> Server:
    """Start `dray up` (or another command that says `ready`) and wait until it serves."""
    data_dir.mkdir(parents=True, exist_ok=True)
    tokens = data_dir / "tokens.csv"
    tokens.touch(mode=0o600)
    tokens.write_text(TOKENS)
    log = data_dir / "log.txt"
    arguments: Sequence[str] = (
        sys.executable,
        "-m",
        "dray",
        command,
        f"--data-dir={data_dir}",
        f"--port={port}",
        f"--token-auth-file={tokens}",
        *flags,
    )
    with log.open("a") as errors:
        process: subprocess.Popen[str]
        if new_interpreter:
            process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=errors, text=True)
        else:
            process = ForkedPopen(arguments, stdout=subprocess.PIPE, stderr=errors)
    line = _ready_line(process, log)
    _, url, _, kubeconfig = line.split()
    return Server(process, url, Path(kubeconfig), data_dir, log)


def _ready_line(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    deadline = time.monotonic() + READY_SECONDS_MAX
    while time.monotonic() < deadline:
        readable, _, _ = select.select([process.stdout], [], [], 0.1)
        line = process.stdout.readline() if readable else ""
        if line.startswith("ready"):
            return line
        if process.poll() is not None:
            break
    process.kill()
    process.wait()
    process.stdout.close()
    raise AssertionError(f"the server did not become ready:\n{log.read_text()}")


@contextmanager
def running_server(data_dir: Path, *flags: str, command: str = "up", port: int = 0) -> Iterator[Server]:
    """A server for the time of a `with` block."""
    server = start_server(data_dir, *flags, command=command, port=port)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()
        if server.process.stdout is not None:
            server.process.stdout.close()
