"""Users who leave streams in the middle, or open too many: nothing stays open or runs on, and others have theirs."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from dray.api.errors import TooManyRequestsError
from dray.apiserver.upgrades import USERS_SHARE, StreamLimiter
from dray.lib.ports import parse_port
from dray.node.agent.pod_manager import PodManager
from dray.node.runtimes.shim import exec_process
from dray.node.runtimes.shim.exec_process import Command, ExecProcess
from dray.node.streams.handlers import StreamHandlers
from dray.rpc.remote_command.messages import StreamOptions
from dray.runtime import descriptors
from dray.runtime.http import byte_stream
from dray.runtime.http.byte_stream import ByteStream
from dray.runtime.http.connection import Connection, ResponseBody
from dray.runtime.http.requests import Request

SECONDS_MAX = 120.0
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
SCRIPTS = [
    "sleep 1000",
    "trap '' HUP TERM; sleep 1000",
    "sleep 1000 | cat",
    "yes",
    # The shell ends, and what it has started ignores the signal.
    "(trap '' HUP; sleep 1000) & wait",
]
OPTIONS = [
    StreamOptions(stdout=True),
    StreamOptions(stdin=True, stdout=True, stderr=True),
    StreamOptions(stdin=True, stdout=True, tty=True),
]


class Transport:
    """A connection whose other side never reads."""

    def __init__(self) -> None:
        self.closed = False

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close


def node_connection() -> tuple[Connection, Transport]:
    transport = Transport()
    connection = Connection(asyncio.get_running_loop())
    connection.connection_made(transport)  # type: ignore[arg-type]
    return connection, transport


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_a_stream_that_a_node_has_accepted_is_closed_if_nobody_takes_it() -> None:
    connection, transport = node_connection()
    with connection.send("POST", b"", upgrade=True) as response:
        connection.data_received(SWITCHED)
        assert response.stream is not None
        assert not transport.closed
    assert transport.closed


@pytest.mark.parametrize("reads", [False, True])
async def test_a_log_of_a_node_is_closed_also_if_it_was_not_read(reads: bool) -> None:
    connection, transport = node_connection()
    response = connection.send("GET", b"")
    connection.data_received(b"HTTP/1.1 200 OK\r\n\r\nfirst")
    body: AsyncGenerator[bytes, None] = ResponseBody(response)
    if reads:
        assert await anext(body) == b"first"
    await body.aclose()
    assert transport.closed
    assert [piece async for piece in body] == []


async def test_a_peer_that_does_not_read_is_disconnected_after_the_end_of_a_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(byte_stream, "CLOSE_SECONDS_MAX", 0.05)
    mine, theirs = socket.socketpair()
    lost = asyncio.Event()

    class Protocol(asyncio.Protocol):
        def connection_lost(self, error: Exception | None) -> None:
            lost.set()

    with theirs:
        transport, _ = await asyncio.get_running_loop().create_connection(Protocol, sock=mine)
        stream = ByteStream(transport)
        await stream.write(b"x" * (8 << 20))
        stream.close()
        async with asyncio.timeout(SECONDS_MAX):
            await lost.wait()


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("script", SCRIPTS)
async def test_a_command_ends_when_its_client_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: StreamOptions, script: str
) -> None:
    monkeypatch.setattr(exec_process, "HANG_UP_SECONDS", 0.05)
    before = open_files()
    process = ExecProcess(Command(["sh", "-c", script], tmp_path), options)
    process.close()
    async with asyncio.timeout(SECONDS_MAX):
        code = (await process.wait()).code
    # A write to a terminal that is gone can fail before its signal arrives.
    assert code in {128 + signal.SIGHUP, 128 + signal.SIGKILL, 128 + signal.SIGPIPE, *([1] if options.tty else [])}
    assert open_files() == before


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("name", "nth"), [("dup", 1), ("dup", 2), ("pidfd_open", 1)])
async def test_a_command_fails_alone_if_no_descriptor_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: StreamOptions, name: str, nth: int
) -> None:
    real, calls = getattr(os, name), 0

    def exhausted(argument: int) -> int:
        nonlocal calls
        calls += 1
        if calls == nth:
            raise OSError(errno.EMFILE, "too many open files")
        return int(real(argument))

    before, pids = open_files(), []
    start = ExecProcess._start

    def started(self: ExecProcess, *arguments: Any) -> Any:
        pids.append(process := start(self, *arguments))
        return process

    monkeypatch.setattr(os, name, exhausted)
    monkeypatch.setattr(ExecProcess, "_start", started)
    # Without a second descriptor to copy, the command runs.
    is_started = (name, nth) == ("dup", 2) and options != OPTIONS[1]
    with contextlib.nullcontext() if is_started else pytest.raises(OSError, match="too many open files"):
        process = ExecProcess(Command(["sleep", "1000"], tmp_path), options)
        process.close()
        await process.wait()
    assert all(process.poll() is not None for process in pids)
    assert open_files() == before


def test_one_user_cannot_take_the_streams_of_the_others() -> None:
    streams = StreamLimiter(20)
    with ExitStack() as held:
        for _ in range(20 // USERS_SHARE):
            held.enter_context(streams.counted("mallory"))
        with (
            pytest.raises(TooManyRequestsError, match="too many streams of user 'mallory'"),
            streams.counted("mallory"),
        ):
            pass
        for number in range(20 - 20 // USERS_SHARE):
            held.enter_context(streams.counted(f"user-{number}"))
        with pytest.raises(TooManyRequestsError, match=r"^too many streams, please"), streams.counted("alice"):
            pass
    with streams.counted("mallory"), streams.counted("alice"):
        pass


@pytest.mark.parametrize("limit", [1024, 4096, 20_000, 1 << 20])
def test_streams_and_connections_leave_descriptors_for_the_process(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(descriptors, "limit", lambda: limit)
    taken = descriptors.streams_max() * descriptors.DESCRIPTORS_PER_STREAM + descriptors.connections_max(20_000)
    assert taken + descriptors.OWN_DESCRIPTORS <= limit
    assert descriptors.streams_max() >= 64
    assert descriptors.connections_max(20_000) >= 256


@pytest.mark.parametrize(("query", "why"), [("command=a%00b", "a NUL byte"), ("stdout=1", "is empty")])
async def test_a_command_that_cannot_be_started_is_refused(query: str, why: str) -> None:
    handlers = StreamHandlers(PodManager(), cast("Any", None), streams_max=1)
    handler = handlers.routes["/exec/{namespace}/{pod}/{container}"]
    reply = await handler(Request("GET", f"/exec/default/p/c?{query}"))
    assert (reply.status, why in reply.body.decode()) == (400, True)


@pytest.mark.parametrize("text", ["", "0", "-1", "65536", "9" * 5000, "8\u0660", "80 "])
def test_what_is_no_port_is_refused(text: str) -> None:
    assert parse_port(text) is None
    assert parse_port("0" * 5000 + "80") == 80
