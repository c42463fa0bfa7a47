"""The small server against clients that are not ours: bytes on a socket, and the standard library's."""

from __future__ import annotations

import asyncio
import gc
import http.client
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, closing

import pytest

from dray.runtime.http.health import serve_health
from dray.runtime.http.requests import Limits, Request
from dray.runtime.http.router import Handler, Reply, Router, text
from dray.runtime.http.server import HttpServer, bind, page_server
from dray.runtime.tasks import TaskGroup
from tests.e2e.runtime.http.harness import WAIT_SECONDS, Certificates, Reader, Writer, until


@asynccontextmanager
async def serving(
    handler: Handler, tls: ssl.SSLContext | None = None, limits: Limits | None = None
) -> AsyncIterator[tuple[HttpServer, int]]:
    server = page_server(handler, limits)
    port = await server.start("127.0.0.1", 0, tls)
    try:
        yield server, port
    finally:
        await server.stop()


@asynccontextmanager
async def connected(port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[Reader, Writer]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def raw(port: int, data: bytes) -> bytes:
    """Everything a server says to some bytes, until it closes."""
    async with connected(port) as (reader, writer), asyncio.timeout(WAIT_SECONDS):
        writer.write(data)
        return await reader.read()


async def echo(request: Request) -> Reply:
    return text(f"{request.method} {request.path} {sorted(request.query.items())} {request.body.decode()}")


CLOSE = b"Connection: close\r\n\r\n"


def fetch(port: int, *paths: str, method: str = "GET") -> list[tuple[int, bytes, str | None]]:
    """The standard library's client: all on one connection."""
    found = []
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECONDS)) as connection:
        for path in paths:
            connection.request(method, path)
            answer = connection.getresponse()
            with closing(answer):
                found.append((answer.status, answer.read(), answer.getheader("Content-Length")))
    return found


async def test_pages_are_served_on_one_connection() -> None:
    async with serving(Router({"/a": echo, "/b": echo})) as (server, port):
        found = await asyncio.to_thread(fetch, port, "/a?x=%20", "/b", "/none", "/a")
        assert [(status, body) for status, body, _ in found] == [
            (200, b"GET /a [('x', ' ')] "),
            (200, b"GET /b [] "),
            (404, b"404: Not Found"),
            (200, b"GET /a [] "),
        ]
        assert await asyncio.to_thread(fetch, port, "/a", "/none", method="HEAD") == [
            (200, b"", str(len("HEAD /a [] "))),
            (404, b"", str(len("404: Not Found"))),
        ]
        assert (await asyncio.to_thread(fetch, port, "/a", method="POST"))[0][:2] == (405, b"405: Method Not Allowed")
        await until(lambda: not server.connections)


async def test_pipelined_requests_are_answered_in_order_and_not_without_end() -> None:
    async def slow_first(request: Request) -> Reply:
        if request.path == "/0":
            await asyncio.sleep(0.05)
        return text(request.path)

    async with serving(slow_first) as (_, port):
        data = b"".join(b"GET /%d HTTP/1.1\r\n\r\n" % number for number in range(5)) + b"GET /5 HTTP/1.1\r\n" + CLOSE
        answers = await raw(port, data)
        assert [part[:2] for part in answers.split(b"\r\n\r\n")[1:]] == [b"/%d" % number for number in range(6)]
        assert answers.count(b"Connection: close") == 1
        assert b"429" in await raw(port, b"GET / HTTP/1.1\r\n\r\n" * (Limits().pipelined_max + 1))


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"rubbish\r\n\r\n", b"400"),
        (b"GET /" + b"x" * 100_000, b"431"),
        (b"POST / HTTP/1.1\r\nContent-Length: 99999\r\n\r\n" + b"x" * 99_999, b"413"),
    ],
)
async def test_what_cannot_be_served_is_refused_and_the_connection_ends(data: bytes, status: bytes) -> None:
    async with serving(echo) as (server, port), connected(port) as (reader, writer), asyncio.timeout(WAIT_SECONDS):
        writer.write(data)
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 " + status)
        await until(lambda: not server.connections)


async def test_a_body_is_asked_for_where_the_client_waits() -> None:
    async with serving(echo) as (_, port), connected(port) as (reader, writer), asyncio.timeout(WAIT_SECONDS):
        writer.write(b"POST /p HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n" + CLOSE)
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hello")
        assert (await reader.read()).endswith(b"POST /p [] hello")


async def counted(pieces: int) -> AsyncGenerator[bytes, None]:
    for number in range(pieces):
        yield b"%d\n" % number
        yield b""


async def test_streams_are_chunks_or_last_until_the_end() -> None:
    async def stream(_request: Request) -> Reply:
        return Reply(b"first\n", stream=counted(3))

    async with serving(stream) as (_, port):
        found = await asyncio.to_thread(fetch, port, "/", "/")
        assert [(status, body) for status, body, _ in found] == [(200, b"first\n0\n1\n2\n")] * 2
        old = await raw(port, b"GET / HTTP/1.0\r\n\r\n")
        assert old.partition(b"\r\n\r\n")[2] == b"first\n0\n1\n2\n"
        assert b"chunked" not in old
        head = await raw(port, b"HEAD / HTTP/1.1\r\n" + CLOSE)
        assert head.endswith(b"\r\n\r\n")


async def test_a_client_that_leaves_ends_its_handler() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def forever() -> AsyncGenerator[bytes, None]:
        try:
            yield b"x"
            began.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def handler(request: Request) -> Reply:
        if request.path == "/stream":
            return Reply(stream=forever())
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    async with serving(handler) as (server, port):
        for path in (b"/stream", b"/"):
            async with connected(port) as (_, writer):
                writer.write(b"GET " + path + b" HTTP/1.1\r\n\r\n")
                await asyncio.wait_for(began.wait(), WAIT_SECONDS)
            await asyncio.wait_for(ended.wait(), WAIT_SECONDS)
            await until(lambda: not server.connections)
            began.clear()
            ended.clear()


async def test_a_slow_reader_holds_its_stream_back() -> None:
    made = 0

    async def much() -> AsyncGenerator[bytes, None]:
        nonlocal made
        while made < 1024:
            made += 1
            yield bytes(65536)

    async def handler(_request: Request) -> Reply:
        return Reply(stream=much())

    async with serving(handler) as (server, port), connected(port) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\n" + CLOSE)
        await until(lambda: any(not connection.writable.is_set() for connection in server.connections))
        assert made < 1024
        async with asyncio.timeout(WAIT_SECONDS):
            assert len(await reader.read()) > 1024 * 65536


async def test_a_failing_handler_fails_its_request_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def half() -> AsyncGenerator[bytes, None]:
        yield b"half"
        raise RuntimeError("in the stream")

    async def handler(request: Request) -> Reply:
        if request.path == "/stream":
            return Reply(stream=half())
        if request.path == "/bad":
            raise RuntimeError("in the handler")
        return text("ok")

    async with serving(handler) as (_, port):
        found = await asyncio.to_thread(fetch, port, "/bad", "/good")
        assert [(status, body) for status, body, _ in found] == [(500, b"500: Internal Server Error"), (200, b"ok")]
        with pytest.raises(http.client.IncompleteRead):
            await asyncio.to_thread(fetch, port, "/stream")
    assert [record.exc_info[1].args[0] for record in caplog.records if record.exc_info and record.exc_info[1]] == [
        "in the handler",
        "in the stream",
    ]


async def test_stopping_lets_what_is_nearly_done_end_and_nothing_else() -> None:
    began, go = asyncio.Event(), asyncio.Event()
    ended: list[str] = []

    async def handler(request: Request) -> Reply:
        began.set()
        try:
            await (go.wait() if request.path == "/short" else asyncio.Event().wait())
        finally:
            ended.append(request.path)
        return text("done")

    async with serving(handler) as (server, port):
        async with connected(port) as (idle, _), connected(port) as (short, asks), connected(port) as (long, waits):
            asks.write(b"GET /short HTTP/1.1\r\n\r\n")
            waits.write(b"GET /long HTTP/1.1\r\n\r\n")
            await until(lambda: sum(connection.task is not None for connection in server.connections) == 2)
            stop = asyncio.create_task(server.stop())
            async with asyncio.timeout(WAIT_SECONDS):
                assert await idle.read() == b""
                go.set()
                answer = await short.read()
                assert answer.endswith(b"done")
                assert b"Connection: close" in answer
                assert await long.read() == b""
                await stop
        assert ended == ["/short", "/long"]
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


async def test_idle_connections_and_incomplete_requests_have_deadlines() -> None:
    # Long enough for a busy machine to send and serve the one complete request.
    limits = Limits(idle_seconds=3.0, head_seconds=3.0, body_seconds=3.0)
    sent = (b"", b"GET / HT", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nx", b"GET / HTTP/1.1\r\n\r\n")
    async with serving(echo, limits=limits) as (_, port):
        *nothing, answer = await asyncio.gather(*(raw(port, data) for data in sent))
        assert nothing == [b"", b"", b""]
        assert answer.startswith(b"HTTP/1.1 200")


async def test_the_idle_time_begins_again_with_every_response() -> None:
    seconds = 0.2
    async with (
        serving(echo, limits=Limits(idle_seconds=seconds)) as (_, port),
        connected(port) as (reader, writer),
        asyncio.timeout(WAIT_SECONDS),
    ):
        for _ in range(2):
            await asyncio.sleep(seconds / 4)
            began = time.monotonic()
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await reader.readuntil(b"GET / [] ")
        assert await reader.read() == b""
        assert time.monotonic() - began >= seconds * 0.9


async def test_a_clients_certificate_is_known(tls: Certificates) -> None:
    async def who(request: Request) -> Reply:
        return text(str([pair for part in request.certificate.get("subject", ()) for pair in part]))

    async with (
        serving(who, tls.server(asks=True)) as (_, port),
        connected(port, tls.client(shows=True)) as (reader, writer),
        asyncio.timeout(WAIT_SECONDS),
    ):
        writer.write(b"GET / HTTP/1.1\r\n" + CLOSE)
        assert b"('organizationName', 'system:masters')" in await reader.read()


def test_an_address_in_use_is_named_and_its_socket_is_closed() -> None:
    (first,) = bind("127.0.0.1", 0)
    with first:
        port = first.getsockname()[1]
        first.listen()
        # An open socket would be a warning, and so an error.
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            bind("127.0.0.1", port)
        gc.collect()


async def test_health_and_metrics() -> None:
    async with TaskGroup("test") as group:
        port = await serve_health(group, "127.0.0.1", 0, lambda: b"a_total 1\n")
        found = await asyncio.to_thread(fetch, port, "/healthz", "/livez", "/readyz", "/metrics", "/other")
        assert [(status, body) for status, body, _ in found] == [
            *[(200, b"ok")] * 3,
            (200, b"a_total 1\n"),
            (404, b"404: Not Found"),
        ]
        answer = await raw(port, b"GET /metrics HTTP/1.1\r\n" + CLOSE)
        assert b"Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n" in answer
        began = time.monotonic()
    assert time.monotonic() - began < WAIT_SECONDS
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
