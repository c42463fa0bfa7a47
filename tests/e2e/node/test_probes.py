"""Probes by HTTP, against small servers: what is healthy, where redirects lead, and kubelet's words for failures."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from dray.api.types.core_v1 import Container, ContainerPort, HTTPGetAction, HTTPHeader, Probe
from dray.node.agent.probes.prober import BODY_BYTES_MAX, Prober, ProbeResult
from dray.node.runtimes.runtime import Runtime
from dray.runtime.http.requests import Request
from dray.runtime.http.router import Handler, Reply, text
from dray.runtime.http.server import page_server

WAIT_SECONDS = 120.0
ASKER = Prober(cast("Runtime", None))


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[int]:
    server = page_server(handler)
    try:
        yield await server.start("127.0.0.1", 0)
    finally:
        await server.stop()


async def probe(port: int, path: str = "/", *headers: tuple[str, str], seconds: float = WAIT_SECONDS) -> ProbeResult:
    container = Container(name="a", ports=(ContainerPort(container_port=port, name="web"),))
    http_headers = tuple(HTTPHeader(name=name, value=value) for name, value in headers)
    action = HTTPGetAction(port="web", path=path, http_headers=http_headers)
    return await ASKER.probe(Probe(http_get=action), container, "id", "127.0.0.1", seconds)


def leading_to(*places: str) -> Handler:
    async def handler(request: Request) -> Reply:
        step = int(request.path[1:] or 0)
        return text("", 302, (("Location", places[step]),)) if step < len(places) else text("here")

    return handler


@pytest.mark.parametrize("status", [200, 204, 299, 300, 304, 399, 400, 404, 500, 503])
async def test_which_answers_are_healthy(status: int) -> None:
    async def handler(_request: Request) -> Reply:
        return text("words" if status not in (204, 304) else "", status)

    async with serving(handler) as port:
        answer = await probe(port)
    if status < 400:
        assert answer.healthy
    else:
        assert answer == ProbeResult(healthy=False, text=f"HTTP probe failed with statuscode: {status}")


async def test_what_is_asked_and_how() -> None:
    seen: list[Request] = []

    async def handler(request: Request) -> Reply:
        seen.append(request)
        return text("well")

    async with serving(handler) as port:
        assert await probe(port, "a b?c=d") == ProbeResult(healthy=True, text="well")
        await probe(port, "/", ("Host", "app.example"), ("user-agent", "mine"), ("Accept", ""), ("X-A", "b"))
    assert (seen[0].target, seen[0].headers["user-agent"]) == ("/a%20b?c=d", "kube-probe/1.37")
    assert (seen[0].headers["accept"], seen[0].headers["host"]) == ("*/*", f"127.0.0.1:{port}")
    assert seen[1].headers == {"host": "app.example", "connection": "close", "user-agent": "mine", "x-a": "b"}


async def test_redirects_are_followed_at_the_same_host_and_not_for_ever() -> None:
    async with serving(leading_to("/1", "2", "/3")) as port:
        assert await probe(port) == ProbeResult(healthy=True, text="here")
    async with serving(leading_to("http://elsewhere.invalid/")) as port:
        assert (await probe(port)).healthy, "somebody answered, and others are not asked"
    async with serving(leading_to("/0")) as port:
        answer = await probe(port)
        assert answer.text == f'Get "http://127.0.0.1:{port}/": stopped after 10 redirects'


async def test_a_body_is_read_up_to_a_bound() -> None:
    async def endless() -> AsyncGenerator[bytes, None]:
        while True:
            yield b"x" * 1000
            await asyncio.sleep(0)

    async def handler(_request: Request) -> Reply:
        return Reply(stream=endless())

    async with serving(handler) as port:
        assert await probe(port) == ProbeResult(healthy=True, text="x" * BODY_BYTES_MAX)


async def test_failures_are_in_kubelets_words() -> None:
    async def hang(_request: Request) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError

    async with serving(hang) as port:
        answer = await probe(port, seconds=0.1)
    words = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
    assert answer == ProbeResult(healthy=False, text=f'Get "http://127.0.0.1:{port}/": {words}')
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        answer = await probe(port)
    assert answer.text == f'Get "http://127.0.0.1:{port}/": dial tcp 127.0.0.1:{port}: connect: connection refused'

    async def close(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert (await probe(port)).text == f'Get "http://127.0.0.1:{port}/": EOF'
    server.close()
    await server.wait_closed()
