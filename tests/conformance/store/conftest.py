"""Each test runs on every store: in memory, on SQLite with and without asynchronous commit, and on a real etcd."""

from __future__ import annotations

import atexit
import fcntl
import itertools
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from dray.store.etcd import EtcdStore
from dray.store.interface import Store
from dray.store.memory import MemoryStore
from dray.store.sqlite import SQLiteStore

START_SECONDS = 120
_prefix_numbers = itertools.count()


# Below the ports that the system gives to connections and to listeners that ask for any: a server of another test does
# not get the port of one that is stopped for a while.
_PORTS = range(20_000, 32_000)


def reserved_ports(count: int) -> list[int]:
    """Ports that no one listens on; no other test process gets them as long as this one runs."""
    ports: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        if _reserve(port):
            ports.append(port)
        if len(ports) == count:
            return ports
    raise AssertionError("no port is free")


def _reserve(port: int) -> bool:
    held = (Path(tempfile.gettempdir()) / f"dray-test-port-{port}.lock").open("ab")
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
    except OSError:
        held.close()
        return False
    atexit.register(held.close)
    return True


def etcd_binary() -> str:
    """The etcd that the test dependencies bring."""
    found = shutil.which("etcd", path=str(Path(sys.executable).parent)) or shutil.which("etcd")
    assert found, "etcd is not installed"
    return found


class EtcdProcess:
    """One etcd on loopback that can be stopped and started again on the same data."""

    def __init__(self, directory: Path, *, scheme: str = "http", options: Sequence[str] = ()) -> None:
        self._directory = directory
        self._scheme = scheme
        self._options = options
        client, peer = reserved_ports(2)
        self.endpoint = f"127.0.0.1:{client}"
        self._port = client
        self._peer = f"http://127.0.0.1:{peer}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        url = f"{self._scheme}://{self.endpoint}"
        command = [etcd_binary(), "--data-dir", str(self._directory), "--name", "one", "--log-level", "error"]
        command += ["--listen-client-urls", url, "--advertise-client-urls", url]
        command += ["--listen-peer-urls", self._peer, "--initial-advertise-peer-urls", self._peer]
        command += ["--initial-cluster", f"one={self._peer}", *self._options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
            except OSError:
                assert self._process.poll() is None, "etcd ended"
                assert time.monotonic() < deadline, "etcd does not listen"
                time.sleep(0.05)
            else:
                return

    def freeze(self) -> None:
        """Suspend the process: its connections stay open, and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    process = EtcdProcess(tmp_path_factory.mktemp("etcd") / "data")
    process.start()
    yield process
    process.stop()


@pytest.fixture(params=["memory", "sqlite", "asynchronous", "etcd"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def store(backend: str, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    made: Store
    if backend == "memory":
        made = MemoryStore()
    elif backend == "sqlite":
        made = await SQLiteStore.open(tmp_path / "store.db")
    elif backend == "asynchronous":
        made = (await SQLiteStore.open(tmp_path / "store.db")).with_asynchronous_commit()
    else:
        process: EtcdProcess = request.getfixturevalue("etcd")
        made = await EtcdStore.connect([process.endpoint], prefix=f"/test-{next(_prefix_numbers)}")
    yield made
    await made.close()
