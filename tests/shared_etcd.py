"""Starts etcd, and API servers that share it."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.servers import Server, running_server

START_SECONDS_MAX = 120


@contextlib.contextmanager
def running_etcd(folder: Path) -> Iterator[str]:
    """An etcd of one member; gives its URL."""
    binary = shutil.which("etcd", path=str(Path(sys.executable).parent)) or shutil.which("etcd")
    assert binary, "etcd is not installed"
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        port, peer = (each.getsockname()[1] for each in sockets)
    url, peer_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
    command = [binary, "--data-dir", str(folder), "--name", "one", "--log-level", "error"]
    command += ["--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peer_url]
    command += ["--initial-advertise-peer-urls", peer_url, "--initial-cluster", f"one={peer_url}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert time.monotonic() < deadline, "etcd does not listen"
        yield url
    finally:
        process.kill()
        process.wait()


def etcd_flags(etcd: str) -> tuple[str, ...]:
    return "--store=etcd", f"--etcd-servers={etcd}"


@contextlib.contextmanager
def running_pair(etcd: str, first: Path, second: Path) -> Iterator[tuple[Server, Server]]:
    """Two API servers; both share the keys, as replicas of one control plane do, and nothing else on disk."""
    with running_server(first, *etcd_flags(etcd), command="apiserver") as one:
        shutil.copytree(first / "pki", second / "pki")
        with running_server(second, *etcd_flags(etcd), command="apiserver") as other:
            yield one, other
