"""The client against scripted servers: kept connections, broken ones, timeouts, cancellation."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from dray.runtime.http import client as client_module
from dray.runtime.http.client import HttpClient
from dray.runtime.http.connection import BUFFERED_BYTES_MAX, Connection
from dray.runtime.http.dialing import Route, _race
from dray.runtime.http.errors import (
    BrokenResponseError,
    ClientClosedError,
    ConnectError,
    HttpError,
    NoResponseError,
    ResponseTimeoutError,
)
from dray.runtime.http.urls import Origin
from tests.e2e.runtime.http.harness import (
    OK,
    WAIT_SECONDS,
    Act,
    Certificates,
    Reader,
    Script,
    Writer,
    answer_all,
    scripted,
    until,
    until_gone,
)


@asynccontextmanager
async def client_of(script: Script, *, keep: bool = True) -> AsyncIterator[HttpClient]:
    client = HttpClient(Route(Origin("http", "127.0.0.1", script.port)), keep=keep)
    try:
        yield client
    finally:
        await client.close()


async def ask(client: HttpClient, method: str = "GET", body: bytes | None = None) -> bytes:
    with await client.send(method, "/", (), body, WAIT_SECONDS) as answer:
        return await answer.read()


def answering(*answers: bytes) -> Act:
    """One connection's answers; the connection ends after the last."""

    async def act(script: Script, reader: Reader, writer: Writer) -> None:
        for answer in answers:
            await script.read(reader)
            writer.write(answer)
            await writer.drain()

    return act


async def test_one_connection_serves_one_request_after_the_other_and_many_serve_many() -> None:
    async with scripted(answer_all) as script, client_of(script) as client:
        assert [await ask(client) for _ in range(3)] == [b"ok"] * 3
        assert script.connections == 1
        answers = [await client.send("GET", f"/{number}") for number in range(50)]
        assert [await answer.read() for answer in answers] == [b"ok"] * 50
        assert script.connections == 1, "an answer that has come frees its connection before it is read"
        assert await asyncio.gather(*(ask(client) for _ in range(50))) == [b"ok"] * 50
        assert 1 < script.connections <= 50


async def test_a_request_says_what_it_must() -> None:
    async with scripted(answer_all) as script, client_of(script) as client:
        for method, body in (("GET", None), ("DELETE", None), ("POST", None), ("POST", b"hello"), ("DELETE", b"x")):
            await ask(client, method, body)
    lengths = [dict(line.split(b": ") for line in head.split(b"\r\n")[1:]) for head in script.requests]
    assert [found.get(b"Content-Length") for found in lengths] == [None, None, b"0", b"5", b"1"]
    assert {found[b"Host"] for found in lengths} == {b"127.0.0.1:%d" % script.port}
    assert script.bodies == [b"", b"", b"", b"hello", b"x"]


async def test_without_keeping_each_request_has_a_connection() -> None:
    async with scripted(answer_all) as script, client_of(script, keep=False) as client:
        assert [await ask(client) for _ in range(3)] == [b"ok"] * 3
        assert sorted([await asyncio.wait_for(script.ended.get(), WAIT_SECONDS) for _ in range(3)]) == [1, 2, 3]
    assert all(b"Connection: close" in head for head in script.requests)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
async def test_what_a_kept_connection_did_not_survive_is_asked_again(method: str) -> None:
    """The second request reaches a server that closes the first connection instead of answering."""

    async def act(script: Script, reader: Reader, writer: Writer) -> None:
        first = script.connections == 1
        while True:
            await script.read(reader)
            if first and len(script.requests) == 2:
                return
            writer.write(OK[: -2 if method == "HEAD" and len(script.requests) > 2 else None])
            await writer.drain()

    async with scripted(act) as script, client_of(script) as client:
        await ask(client)
        assert await ask(client, method, b"x" if method == "PUT" else None) == (b"" if method == "HEAD" else b"ok")
        assert (script.connections, len(script.requests)) == (2, 3)


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_what_may_have_been_done_is_not_done_again(method: str) -> None:
    async def act(script: Script, reader: Reader, writer: Writer) -> None:
        await script.read(reader)
        writer.write(OK)
        await script.read(reader)

    async with scripted(act) as script, client_of(script) as client:
        await ask(client)
        with pytest.raises(NoResponseError):
            await ask(client, method, b"x")
        assert (script.connections, len(script.requests)) == (1, 2)
        await ask(client)
        assert script.connections == 2


async def test_a_connection_closed_while_idle_is_not_used_even_for_writes() -> None:
    async with scripted(answering(OK)) as script, client_of(script) as client:
        for number in range(3):
            await ask(client, "POST", b"x")
            await until(lambda: not any(connection.is_usable for _, connection in client._idle))
            assert script.connections == number + 1


async def test_a_new_connection_without_an_answer_is_not_tried_again() -> None:
    async with scripted(answering(b"")) as script, client_of(script) as client:
        with pytest.raises(NoResponseError, match="without a response"):
            await ask(client)
        assert script.connections == 1


async def test_connections_that_were_idle_for_long_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "IDLE_SECONDS_MAX", 0.05)
    async with scripted(answer_all) as script, client_of(script) as client:
        await ask(client)
        assert await asyncio.wait_for(script.ended.get(), WAIT_SECONDS) == 1
        await ask(client)
        assert script.connections == 2


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", b"ok"),
        (b"HTTP/1.1 102 Processing\r\n\r\n" + OK, b"ok"),
        (OK + b"and rubbish", b"ok"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b"
            % (len(gzip.compress(b"ok", mtime=0)), gzip.compress(b"ok", mtime=0)),
            b"ok",
        ),
    ],
)
async def test_bodies_come_in_every_form(answer: bytes, body: bytes) -> None:
    async with scripted(answering(answer)) as script, client_of(script) as client:
        assert await ask(client) == body
        assert await ask(client) == body


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"220 smtp.example ready\r\n",
    ],
)
async def test_broken_answers_are_errors_and_their_connections_end(answer: bytes) -> None:
    async with scripted(answering(answer)) as script, client_of(script) as client:
        for _ in range(2):
            with pytest.raises(BrokenResponseError):
                await ask(client)
        assert script.connections == 2


async def test_what_came_before_a_failure_can_be_read() -> None:
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello"
    async with scripted(answering(half)) as script, client_of(script) as client:
        with await client.send("GET", "/") as answer:
            assert await answer.more() == b"hello"
            with pytest.raises(BrokenResponseError, match="middle"):
                await answer.more()


@pytest.mark.parametrize("before", [b"", OK[:-1]])
async def test_an_answer_that_takes_too_long_is_given_up(before: bytes) -> None:
    async def act(script: Script, reader: Reader, writer: Writer) -> None:
        await script.read(reader)
        writer.write(before)
        await reader.read()

    async with scripted(act) as script, client_of(script) as client:
        with pytest.raises(ResponseTimeoutError), await client.send("GET", "/", timeout_seconds=0.1) as answer:
            await answer.read()
        assert await asyncio.wait_for(script.ended.get(), WAIT_SECONDS) == 1


async def test_every_answer_on_a_connection_has_a_time_of_its_own() -> None:
    """The second is answered long after the first one's time was up, and the third has less than the second."""
    go = asyncio.Event()

    async def act(script: Script, reader: Reader, writer: Writer) -> None:
        for number in range(3):
            await script.read(reader)
            if number == 1:
                await go.wait()
            if number < 2:
                writer.write(OK)
        await reader.read()

    async with scripted(act) as script, client_of(script) as client:
        with await client.send("GET", "/", timeout_seconds=2.0) as answer:
            await answer.read()
        (connection,) = client._connections
        assert connection._timer is not None
        first = connection._timer.when()
        second = asyncio.create_task(ask(client))
        await until(lambda: connection._timer is not None and connection._timer.when() > first)
        go.set()
        assert await second == b"ok"
        with pytest.raises(ResponseTimeoutError):
            await client.send("GET", "/", timeout_seconds=0.05)
        assert script.connections == 1


async def test_a_cancelled_request_ends_its_connection_and_no_other() -> None:
    async def act(script: Script, reader: Reader, writer: Writer) -> None:
        while True:
            head = await script.read(reader)
            if b"/hang" in head:
                writer.write(OK[:-1] if b"/hang-in-body" in head else b"")
                await reader.read()
                return
            writer.write(OK)

    async with scripted(act) as script, client_of(script) as client:

        async def hang(path: str) -> None:
            with await client.send("GET", path) as answer:
                await answer.read()

        def reads_more_than(count: int) -> Callable[[], bool]:
            return lambda: len(script.requests) > count

        for path in ("/hang", "/hang-in-body"):
            await ask(client)
            seen, connections = len(script.requests), script.connections
            task = asyncio.create_task(hang(path))
            await until(reads_more_than(seen))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.wait_for(script.ended.get(), WAIT_SECONDS) == connections
            assert not client._connections


async def test_a_request_cancelled_as_its_answer_comes_leaves_a_good_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = Connection.done

    def done_and_cancelled(connection: Connection) -> None:
        done(connection)
        task.cancel()

    async with scripted(answer_all) as script, client_of(script) as client:
        with monkeypatch.context() as patch:
            patch.setattr(Connection, "done", done_and_cancelled)
            task = asyncio.create_task(ask(client))
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await ask(client) == b"ok"
        assert script.connections == 1


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("with_tls", [False, True])
async def test_a_slow_reader_is_not_buried(tls: Certificates, *, with_tls: bool, leaves: bool) -> None:
    """More than all socket buffers hold: the server blocks until the client reads, or closes when all is sent."""
    size, sent = 64 * 1024 * 1024, 0

    async def act(script: Script, reader: Reader, writer: Writer) -> None:
        nonlocal sent
        await script.read(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" if leaves else b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        while sent < size:
            writer.write(bytes(65536))
            sent += 65536
            await writer.drain()
        if not leaves:
            await reader.read()

    async with scripted(act, tls=tls.server() if with_tls else None) as script:
        origin = Origin("https" if with_tls else "http", "127.0.0.1", script.port)
        client = HttpClient(Route(origin, tls.client() if with_tls else None))
        with await client.send("GET", "/") as answer:
            await until(lambda: answer._paused)
            held, read = 0, 0
            while piece := await answer.more():
                held = max(held, answer.reader.buffered, len(piece))
                read += len(piece)
        assert read == size
        assert held <= BUFFERED_BYTES_MAX + 1024 * 1024
        await client.close()


async def test_unread_data_stays_at_the_server() -> None:
    stuck = asyncio.Event()

    async def act(script: Script, reader: Reader, writer: Writer) -> None:
        await script.read(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not writer.transport.is_closing():
            writer.write(bytes(65536))
            try:
                async with asyncio.timeout(1.0):
                    await writer.drain()
            except TimeoutError:
                stuck.set()
                await reader.read()

    async with scripted(act) as script, client_of(script) as client:
        with await client.send("GET", "/") as answer:
            await asyncio.wait_for(stuck.wait(), WAIT_SECONDS)
            assert answer.reader.buffered <= BUFFERED_BYTES_MAX + 1024 * 1024
        assert await asyncio.wait_for(script.ended.get(), WAIT_SECONDS) == 1


async def test_an_answer_to_half_a_request_is_taken_and_the_connection_is_not() -> None:
    async def act(script: Script, reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK.replace(b"200 OK", b"413 Too large"))
        await writer.drain()
        await asyncio.Event().wait()

    async with scripted(act) as script, client_of(script) as client:
        for number in range(2):
            with await client.send("POST", "/", (), bytes(32 * 1024 * 1024), WAIT_SECONDS) as answer:
                assert (answer.status, await answer.read()) == (413, b"ok")
            assert script.connections == number + 1


async def test_closing_ends_everything() -> None:
    async with scripted(until_gone) as script, client_of(script) as client:
        waiting = [asyncio.create_task(ask(client)) for _ in range(3)]
        await until(lambda: len(script.requests) == 3)
        await client.close()
        assert not client._connections
        for error in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(error, ClientClosedError)
        with pytest.raises(ClientClosedError):
            await ask(client)
        assert sorted([await asyncio.wait_for(script.ended.get(), WAIT_SECONDS) for _ in range(3)]) == [1, 2, 3]


async def test_the_error_of_a_refused_connection_is_short() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(ConnectError, match=r"^connection refused$") as caught:
            await ask(HttpClient(Route(Origin("http", "127.0.0.1", port))))
        assert caught.value.address == f"127.0.0.1:{port}"
        with pytest.raises(ConnectError, match=r"not known|temporary failure|no address|try again|timed out"):
            await ask(HttpClient(Route(Origin("http", "nowhere.invalid", port))))
        with pytest.raises(ConnectError):
            await ask(HttpClient(Route(Origin("http", "a" * 70 + ".invalid", port))))


async def test_addresses_are_tried_in_turn() -> None:
    async with scripted(answer_all) as script:
        loop = asyncio.get_running_loop()
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            refused = (socket.AF_INET, taken.getsockname())
            good = (socket.AF_INET, ("127.0.0.1", script.port))
            # Nobody answers at an address for documentation, or the machine knows no way there.
            silent = (socket.AF_INET, ("192.0.2.1", 9))
            for addresses in ([refused, good], [silent, good], [good, refused], [refused, silent, good]):
                opened = await asyncio.wait_for(_race(loop, addresses), WAIT_SECONDS)
                assert opened.getpeername() == good[1]
                opened.close()
            with pytest.raises(ConnectionRefusedError):
                await _race(loop, [refused, refused])
        client = HttpClient(Route(Origin("http", "localhost", script.port)))
        assert await ask(client) == b"ok"
        await client.close()


async def test_version_six_of_the_internet() -> None:
    try:
        with socket.socket(socket.AF_INET6) as trial:
            trial.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    async with scripted(answer_all, host="::1") as script:
        client = HttpClient(Route(Origin("http", "::1", script.port)))
        assert await ask(client) == b"ok"
        await client.close()
    assert b"Host: [::1]:%d" % script.port in script.requests[0]


# --- TLS ---


async def test_tls_is_checked_as_asked(tls: Certificates) -> None:
    async with scripted(answer_all, tls=tls.server()) as script:
        here, foreign = Origin("https", "127.0.0.1", script.port), tls.client(trusts=tls.other)
        for route in (
            Route(here, tls.client()),
            Route(here, tls.client(), server_name="named.example"),
            Route(here, tls.client(trusts=b"")),
            Route(here, tls.client(trusts=b""), fingerprint=tls.fingerprint),
        ):
            client = HttpClient(route)
            assert await ask(client) == b"ok"
            assert await ask(client) == b"ok"
            await client.close()
        assert (script.connections, len(script.requests)) == (4, 8)
        for route, words in (
            (Route(here, foreign), "certificate verify failed"),
            (Route(here, tls.client(), server_name="other.example"), "certificate verify failed: Hostname mismatch"),
            (Route(here, tls.client(trusts=b""), fingerprint=bytes(32)), "another fingerprint"),
        ):
            with pytest.raises(ConnectError, match=words):
                await ask(HttpClient(route))
        assert len(script.requests) == 8, "nothing is sent to a server with the wrong certificate"


async def test_a_client_shows_its_certificate(tls: Certificates) -> None:
    async with scripted(answer_all, tls=tls.server(asks=True)) as script:
        here = Origin("https", "127.0.0.1", script.port)
        client = HttpClient(Route(here, tls.client(shows=True)))
        assert await ask(client) == b"ok"
        await client.close()
        with pytest.raises(HttpError):
            await ask(HttpClient(Route(here, tls.client())))


async def test_a_server_without_tls_is_distinguished_from_a_silent_one(tls: Certificates) -> None:
    async def speak(_script: Script, reader: Reader, writer: Writer) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        await reader.read()

    async with scripted(speak) as script:
        with pytest.raises(ConnectError, match=r"ssl|wrong version|record"):
            await ask(HttpClient(Route(Origin("https", "127.0.0.1", script.port), tls.client())))

    async def be_silent(_script: Script, reader: Reader, _writer: Writer) -> None:
        await reader.read()

    async with scripted(be_silent) as script:
        client = HttpClient(Route(Origin("https", "127.0.0.1", script.port), tls.client()))
        with pytest.raises(ResponseTimeoutError):
            await client.send("GET", "/", timeout_seconds=0.2)
        assert await asyncio.wait_for(script.ended.get(), WAIT_SECONDS) == 1
        task = asyncio.create_task(client.send("GET", "/"))
        await until(lambda: script.connections == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.wait_for(script.ended.get(), WAIT_SECONDS) == 2


async def test_connecting_has_a_bound_of_its_own(tls: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "CONNECT_SECONDS_MAX", 0.2)

    async def be_silent(_script: Script, reader: Reader, _writer: Writer) -> None:
        await reader.read()

    async with scripted(be_silent) as script:
        client = HttpClient(Route(Origin("https", "127.0.0.1", script.port), tls.client()))
        with pytest.raises(ConnectError, match="timed out while connecting"):
            await client.send("GET", "/")
