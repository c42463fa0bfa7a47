"""Components as processes whose health is read from outside, ready or not."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.fork_server import ForkedPopen
from tests.servers import STOP_SECONDS_MAX, Server, start_server

SECONDS_MAX = 120.0
LOOK_SECONDS = 0.05


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        port: int = made.getsockname()[1]
        return port


@dataclass(slots=True)
class Component:
    """A running process with health checks on a port."""

    process: subprocess.Popen[str]
    port: int
    log: Path

    def read(self, path: str) -> tuple[int, str]:
        """Status and text; no status before it listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=SECONDS_MAX) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def check(self, name: str) -> str:
        """The line of one check in /readyz?verbose."""
        _, text = self.read("/readyz?verbose")
        return next((line for line in text.splitlines() if line[3:].startswith(f"{name} ")), "")

    def until(self, path: str, condition: Callable[[int, str], bool]) -> str:
        """What a page says as soon as the condition holds."""
        deadline = time.monotonic() + SECONDS_MAX
        while not condition(*(found := self.read(path))):
            assert time.monotonic() < deadline, f"{path} still says {found}\n{self.log.read_text()}"
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(LOOK_SECONDS)
        return found[1]

    def until_check(self, name: str, *parts: str) -> str:
        """The line of one check as soon as it has all the parts."""
        self.until("/readyz?verbose", lambda _, text: any(_has(line, name, parts) for line in text.splitlines()))
        return self.check(name)

    @property
    def has_announced(self) -> bool:
        """Whether it has printed that it is ready."""
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], 0)[0])


def _has(line: str, name: str, parts: tuple[str, ...]) -> bool:
    return line[3:].startswith(f"{name} ") and all(part in line for part in parts)


@contextmanager
def component(log: Path, port_flag: str, *arguments: str) -> Iterator[Component]:
    """`dray` with these arguments, its health on a free port; not waited for."""
    port = free_port()
    command = [sys.executable, "-m", "dray", *arguments, f"--{port_flag}={port}"]
    with log.open("a") as errors:
        process = ForkedPopen(command, stdout=subprocess.PIPE, stderr=errors)
    assert process.stdout is not None
    try:
        yield Component(process, port, log)
    finally:
        process.terminate()
        process.wait(STOP_SECONDS_MAX)
        process.stdout.close()


@contextmanager
def restarted(server: Server) -> Iterator[None]:
    """An API server that has ended runs again, at its address, for the time of the block."""
    port = int(server.url.rpartition(":")[2])
    running = start_server(server.data_dir, command="apiserver", port=port)
    try:
        yield
    finally:
        running.stop()
        assert running.process.stdout is not None
        running.process.stdout.close()


def kubeconfig(server: Server, path: Path, token: str) -> Path:
    """A kubeconfig with a static token (see `tests.servers.TOKENS`)."""
    path.write_text(
        f"""apiVersion: v1
kind: Config
current-context: it
contexts: [{{name: it, context: {{cluster: it, user: it}}}}]
users: [{{name: it, user: {{token: {token}}}}}]
clusters: [{{name: it, cluster: {{server: "{server.url}", certificate-authority: "{server.data_dir}/pki/ca.crt"}}}}]
"""
    )
    return path
