"""Which processes listen on a port."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dray.node.streams.listening_ports import connect_to_pod, descendants, listens


@pytest.mark.behaviour("EX-37")
async def test_only_listeners_of_the_processes_are_reached() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert not listens(port, [os.getpid()])
        listener.listen()
        assert listens(port, [os.getpid()])
        assert not listens(port, [1])
        (await connect_to_pod(port, [os.getpid()])).close()
        with pytest.raises(ConnectionRefusedError, match=f"localhost:{port}"):
            await connect_to_pod(port, [])


def test_a_process_that_is_gone_listens_nowhere(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    line = "0: 0100007F:1F90 00000000:0000 0A 0:0 0:0 0 0 0 4242 1"
    (tmp_path / "net/tcp").write_text(f"head\n{line}\n")
    assert not listens(8080, [77], tmp_path)
    (tmp_path / "77/fd").mkdir(parents=True)
    (tmp_path / "77/fd/3").symlink_to("socket:[4242]")
    assert listens(8080, [77], tmp_path)
    assert not listens(8081, [77], tmp_path)


def test_descendants() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert {os.getpid(), child.pid} <= descendants([os.getpid()])
        child.communicate(b"\n")
