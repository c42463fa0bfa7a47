"""Clients that send without end, or not to the end: the memory of the HTTP server is bounded and freed at once."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Final

import pytest

from dray.runtime.http import server as http_server
from dray.runtime.http.requests import HEADERS_MAX, Limits, Request, RequestError, RequestParser
from dray.runtime.http.server import HttpServer, Response, ServerConnection

WAIT_SECONDS: Final = 120.0
KILOBYTE: Final = 1024
SMALL: Final = Limits(body_bytes_max=64 * KILOBYTE, received_bytes_max=256 * KILOBYTE, linger_seconds=0.05)
POST: Final = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n"


@asynccontextmanager
async def serving(
    serve: Callable[[Request, Response], object], limits: Limits = SMALL
) -> AsyncIterator[tuple[HttpServer, int]]:
    server = HttpServer(serve, limits)  # type: ignore[arg-type]
    port = await server.start("127.0.0.1", 0)
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            yield server, port
    finally:
        await server.stop()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0.001)


async def ok(_request: Request, response: Response) -> None:
    response.send(200, (), b"ok")


async def test_aborted_bodies_are_freed_without_the_garbage_collector() -> None:
    async with serving(ok) as (server, port):
        gc.disable()
        try:
            async with connected(port) as (_, writer):
                writer.write(POST % (60 * KILOBYTE) + b"x" * (50 * KILOBYTE))
                await until(lambda: server.received_bytes >= 50 * KILOBYTE)
                connection = weakref.ref(next(iter(server.connections)))
            await until(lambda: not server.connections)
            assert server.received_bytes == 0
            await until(lambda: connection() is None)
        finally:
            gc.enable()


async def test_a_refused_connection_is_freed_without_the_garbage_collector() -> None:
    async with serving(ok) as (server, port):
        gc.disable()
        try:
            async with connected(port) as (reader, writer):
                writer.write(b"rubbish\r\n\r\n")
                assert b" 400 " in await reader.readline()
                connection: weakref.ref[ServerConnection] = weakref.ref(next(iter(server.connections)))
            await until(lambda: connection() is None)
        finally:
            gc.enable()


async def test_the_largest_incomplete_body_is_refused_when_all_connections_hold_too_much() -> None:
    limits = Limits(body_bytes_max=64 * KILOBYTE, total_received_bytes_max=100 * KILOBYTE, linger_seconds=0.05)
    async with serving(ok, limits) as (server, port), AsyncExitStack() as stack:
        large, large_writer = await stack.enter_async_context(connected(port))
        large_writer.write(POST % (64 * KILOBYTE) + b"x" * (60 * KILOBYTE))
        await until(lambda: server.received_bytes >= 60 * KILOBYTE)
        small, small_writer = await stack.enter_async_context(connected(port))
        small_writer.write(POST % (50 * KILOBYTE) + b"x" * (45 * KILOBYTE))
        answer = await large.read()
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert b"Retry-After: 1" in answer
        assert b"Too many requests" in answer
        small_writer.write(b"x" * (5 * KILOBYTE))
        assert (await small.readline()).startswith(b"HTTP/1.1 200 ")


async def test_complete_requests_that_wait_are_bounded_too() -> None:
    limits = Limits(body_bytes_max=64 * KILOBYTE, total_received_bytes_max=100 * KILOBYTE, linger_seconds=0.05)
    finish = asyncio.Event()

    async def slow(request: Request, response: Response) -> None:
        await finish.wait()
        await ok(request, response)

    async with serving(slow, limits) as (server, port), AsyncExitStack() as stack:
        first, first_writer = await stack.enter_async_context(connected(port))
        first_writer.write(POST % (60 * KILOBYTE) + b"x" * (60 * KILOBYTE))
        await until(lambda: any(connection.task for connection in server.connections))
        second, second_writer = await stack.enter_async_context(connected(port))
        second_writer.write(POST % (60 * KILOBYTE) + b"x" * (60 * KILOBYTE))
        assert (await second.readline()).startswith(b"HTTP/1.1 429 ")
        finish.set()
        assert (await first.readline()).startswith(b"HTTP/1.1 200 ")


async def test_a_connection_with_enough_unanswered_requests_is_not_read() -> None:
    finish = asyncio.Event()

    async def slow(request: Request, response: Response) -> None:
        await finish.wait()
        await ok(request, response)

    one = POST % (60 * KILOBYTE) + b"x" * (60 * KILOBYTE)
    async with serving(slow) as (server, port), connected(port) as (reader, writer):
        writer.write(one * 15)
        await until(lambda: server.received_bytes > SMALL.received_bytes_max)
        for _ in range(20):
            await asyncio.sleep(0)
        # At most what one read brings more.
        assert server.received_bytes < SMALL.received_bytes_max + 300 * KILOBYTE
        finish.set()
        for _ in range(15):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            await reader.readexactly(2)
        await until(lambda: server.received_bytes == 0)


async def test_responses_that_are_not_read_stop_the_requests_behind_them() -> None:
    served = 0
    body = b"x" * (8 * 1024 * KILOBYTE)

    async def large(_request: Request, response: Response) -> None:
        nonlocal served
        served += 1
        response.send(200, (), body)

    async with serving(large) as (server, port), connected(port) as (_, writer):
        writer.write(b"GET / HTTP/1.1\r\n\r\n" * 10)
        await until(lambda: served > 0)
        (connection,) = server.connections
        for _ in range(50):
            await asyncio.sleep(0)
        # The first may fit into the buffers of the sockets.
        assert served <= 2
        assert connection.transport.get_write_buffer_size() < 2 * len(body)


async def test_a_client_that_reads_nothing_is_disconnected() -> None:
    closed = asyncio.Event()

    async def chunks() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"x" * (64 * KILOBYTE)
        finally:
            closed.set()

    async def endless(_request: Request, response: Response) -> None:
        await response.stream(200, (), chunks())

    async with serving(endless, Limits(write_seconds=0.1)) as (server, port), connected(port) as (_, writer):
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await closed.wait()
        await until(lambda: not server.connections)


async def test_slow_heads_and_bodies_end_with_their_deadline() -> None:
    limits = Limits(head_seconds=0.1, body_seconds=0.1)
    async with serving(ok, limits) as (server, port), AsyncExitStack() as stack:
        readers = []
        for data in (b"GET / HT", POST % 9 + b"x") * 65:
            reader, writer = await stack.enter_async_context(connected(port))
            writer.write(data)
            readers.append(reader)
        for reader in readers:
            with suppress(ConnectionError):
                assert await reader.read() == b""
        await until(lambda: not server.connections)
        assert server.received_bytes == 0


def test_many_small_headers_are_refused() -> None:
    head = b"GET / HTTP/1.1\r\n" + b"a:\r\n" * (HEADERS_MAX + 2)
    for data in (head, head + b"\r\n"):
        with pytest.raises(RequestError) as caught:
            RequestParser(Limits(head_bytes_max=1024 * KILOBYTE)).feed(data)
        assert caught.value.status == 431


def test_a_large_head_in_one_piece_is_refused() -> None:
    with pytest.raises(RequestError) as caught:
        RequestParser(Limits()).feed(b"GET / HTTP/1.1\r\nA: " + b"x" * (65 * KILOBYTE) + b"\r\n\r\n")
    assert caught.value.status == 431


def test_every_byte_that_is_received_is_counted_and_released() -> None:
    parser = RequestParser(Limits(body_bytes_max=100, discarded_bytes_max=1000))
    parser.feed(POST % 100 + b"x" * 60)
    assert parser.incomplete_bytes == 60
    parser.feed(b"x" * 40 + POST % 500 + b"x" * 300)
    assert parser.incomplete_bytes == 0
    parser.feed(b"x" * 200 + b"GET / HTTP")
    parser.feed(b"/1.1\r\n\r\n" + b"GET / HT")
    while parser.ready:
        parser.release(parser.ready.popleft())
    parser.close()
    assert parser.received_bytes == 0


async def test_connections_beyond_the_limit_are_answered_and_closed() -> None:
    async with serving(ok, replace(SMALL, connections_max=2)) as (server, port), AsyncExitStack() as stack:
        first = await stack.enter_async_context(connected(port))
        await stack.enter_async_context(connected(port))
        await until(lambda: len(server.connections) == 2)
        reader, _ = await stack.enter_async_context(connected(port))
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"Connection: close" in answer
        assert b"Retry-After: 1" in answer
        assert answer.endswith(b"too many connections")
        await until(lambda: len(server.connections) == 2)
        # The others are served, and a new one as soon as one has left.
        first[1].write(b"GET / HTTP/1.1\r\n\r\n")
        assert (await first[0].readline()).startswith(b"HTTP/1.1 200 ")
        first[1].transport.abort()
        await until(lambda: len(server.connections) == 1)
        reader, writer = await stack.enter_async_context(connected(port))
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")


async def test_a_flood_of_refused_connections_is_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_REFUSED_MAX", 2)
    limits = replace(SMALL, connections_max=1, linger_seconds=60.0)
    async with serving(ok, limits) as (server, port), AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(connected(port)) for _ in range(10)]
        for reader, _ in opened[3:]:
            with suppress(ConnectionError):
                assert await reader.read() == b""
        assert len(server.connections) == 3
