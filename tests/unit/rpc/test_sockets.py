"""Listening on and connecting to unix sockets."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import grpc
import grpc.aio
import pytest

from dray.rpc.sockets import PATH_LENGTH_MAX, SocketError, code_name, listen, remove_socket


@pytest.mark.behaviour("SP-134")
async def test_a_stale_socket_is_replaced_and_only_the_owner_may_connect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind("s.sock")
    before = os.stat("s.sock").st_mtime_ns
    server = grpc.aio.server()
    await listen(server, "s.sock")
    status = os.stat("s.sock")
    assert status.st_mtime_ns != before
    assert status.st_mode & 0o777 == 0o600
    await server.stop(None)


async def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("precious")
    with pytest.raises(SocketError, match="exists and is no socket"):
        await listen(grpc.aio.server(), str(path))
    assert path.read_text() == "precious"


async def test_a_path_that_is_too_long_is_an_error() -> None:
    with pytest.raises(SocketError, match=f"at most {PATH_LENGTH_MAX} bytes"):
        await listen(grpc.aio.server(), "/tmp/" + "x" * PATH_LENGTH_MAX)


async def test_a_missing_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SocketError, match=r"none/s\.sock"):
        await listen(grpc.aio.server(), "none/s.sock")


def test_removing_what_is_not_there_is_fine(tmp_path: Path) -> None:
    remove_socket(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (grpc.StatusCode.OK, "OK"),
        (grpc.StatusCode.CANCELLED, "Canceled"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "DeadlineExceeded"),
        (grpc.StatusCode.UNAVAILABLE, "Unavailable"),
    ],
)
def test_codes_are_spelt_as_go_does(code: grpc.StatusCode, name: str) -> None:
    assert code_name(code) == name
