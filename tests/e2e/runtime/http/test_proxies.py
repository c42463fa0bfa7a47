"""The client through proxies: tunnels for HTTPS, whole addresses for HTTP, credentials."""

from __future__ import annotations

import asyncio

import pytest

from dray.runtime.http.client import HttpClient
from dray.runtime.http.connection import Connection
from dray.runtime.http.dialing import Route
from dray.runtime.http.errors import ConnectError
from dray.runtime.http.proxy import parse_proxy
from dray.runtime.http.urls import Origin
from tests.e2e.runtime.http.harness import (
    WAIT_SECONDS,
    Certificates,
    Reader,
    Script,
    Writer,
    answer_all,
    proxying,
    scripted,
    until,
)


async def ask(client: HttpClient) -> bytes:
    with await client.send("GET", "/a?b=c", timeout_seconds=WAIT_SECONDS) as answer:
        return await answer.read()


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_https_goes_through_a_tunnel_and_is_checked_at_its_far_end(tls: Certificates, scheme: str) -> None:
    near = tls.server() if scheme == "https" else None
    async with scripted(answer_all, tls=tls.server()) as server, scripted(proxying("bob:x y"), tls=near) as proxy:
        through = parse_proxy(f"{scheme}://bob:x%20y@127.0.0.1:{proxy.port}")
        here = Origin("https", "127.0.0.1", server.port)
        client = HttpClient(Route(here, tls.client(), fingerprint=tls.fingerprint, proxy=through))
        assert [await ask(client), await ask(client)] == [b"ok"] * 2
        await client.close()
        assert (server.connections, proxy.connections) == (1, 1)
        assert proxy.requests[0].startswith(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n" % server.port)
        assert server.requests[0].startswith(b"GET /a?b=c HTTP/1.1\r\n")
        assert b"roxy-" not in server.requests[0], "the proxy's credentials are for the proxy"
        if scheme == "http":
            with pytest.raises(ConnectError, match="certificate verify failed"):
                await ask(HttpClient(Route(here, tls.client(trusts=tls.other), proxy=through)))


async def test_http_goes_to_the_proxy_with_its_whole_address() -> None:
    async with scripted(proxying("bob:x")) as proxy:
        through = parse_proxy(f"http://bob:x@127.0.0.1:{proxy.port}")
        client = HttpClient(Route(Origin("http", "server.example", 8080), proxy=through))
        assert await ask(client) == b"ok"
        await client.close()
    assert proxy.requests[0].startswith(
        b"GET http://server.example:8080/a?b=c HTTP/1.1\r\nHost: server.example:8080\r\n"
    )


async def test_a_proxy_that_refuses_or_is_not_there_is_named(tls: Certificates) -> None:
    here = Origin("https", "127.0.0.1", 1)
    async with scripted(proxying("bob:x")) as proxy:
        through = parse_proxy(f"http://127.0.0.1:{proxy.port}")
        with pytest.raises(
            ConnectError, match=rf"^proxy 127\.0\.0\.1:{proxy.port}: 407 Proxy Authentication Required$"
        ):
            await ask(HttpClient(Route(here, tls.client(), proxy=through)))
    with pytest.raises(ConnectError, match=rf"^proxy 127\.0\.0\.1:{proxy.port}: connection refused$"):
        await ask(HttpClient(Route(here, tls.client(), proxy=through)))


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (b"", "without a response"),
        (b"SSH-2.0-x\r\n", "malformed"),
        (b"HTTP/1.1 200 OK\r\n\r\nSSH-2.0-x", "unexpected data"),
    ],
)
async def test_what_is_no_proxy_is_seen(tls: Certificates, response: bytes, words: str) -> None:
    async def act(script: Script, reader: Reader, writer: Writer) -> None:
        await script.read(reader)
        writer.write(response)
        await writer.drain()

    async with scripted(act) as proxy:
        through = parse_proxy(f"http://127.0.0.1:{proxy.port}")
        with pytest.raises(ConnectError, match=words):
            await ask(HttpClient(Route(Origin("https", "h", 1), tls.client(), proxy=through)))


@pytest.mark.parametrize("response", [b"", b"HTTP/1.1 200 OK\r\n\r\n"])
async def test_leaving_a_tunnel_half_built_leaves_nothing(tls: Certificates, response: bytes) -> None:
    async def act(script: Script, reader: Reader, writer: Writer) -> None:
        await script.read(reader)
        writer.write(response)
        await reader.read()

    async with scripted(act) as proxy:
        through = parse_proxy(f"http://127.0.0.1:{proxy.port}")
        client = HttpClient(Route(Origin("https", "h", 1), tls.client(), proxy=through))
        task = asyncio.create_task(client.send("GET", "/"))
        await until(lambda: bool(proxy.requests))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.wait_for(proxy.ended.get(), WAIT_SECONDS) == 1


async def test_leaving_when_a_tunnel_has_just_been_granted_leaves_nothing(
    tls: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = Connection.done

    def done_and_cancelled(connection: Connection) -> None:
        done(connection)
        task.cancel()

    monkeypatch.setattr(Connection, "done", done_and_cancelled)
    async with scripted(proxying()) as proxy, scripted(answer_all, tls=tls.server()) as server:
        through = parse_proxy(f"http://127.0.0.1:{proxy.port}")
        client = HttpClient(Route(Origin("https", "127.0.0.1", server.port), tls.client(), proxy=through))
        task = asyncio.create_task(client.send("GET", "/"))
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.wait_for(proxy.ended.get(), WAIT_SECONDS) == 1
        assert not server.requests
