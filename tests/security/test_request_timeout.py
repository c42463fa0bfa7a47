"""A request that takes too long is answered and frees its seat."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import orjson
import pytest

from dray.apiserver import http
from dray.apiserver.fairness import FairQueue, Limits
from dray.apiserver.metrics import RequestMetrics
from dray.apiserver.request_limiter import RequestLimiter
from dray.runtime.metrics import Metrics
from dray.runtime.system import SystemClock
from tests.security.attacker import TrustingListener, attacked_server

WAIT_SECONDS = 120.0


@pytest.mark.parametrize(("query", "seconds"), [("?timeout=50ms", "0.05"), ("", "0.06")])
async def test_a_request_that_takes_too_long_is_answered(
    query: str, seconds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "REQUEST_TIMEOUT_SECONDS", 0.06)
    ended = 0

    async def execute(_call: Any) -> None:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            ended += 1

    async with attacked_server() as attacker, asyncio.timeout(WAIT_SECONDS):
        monkeypatch.setattr(attacker._server, "execute", execute)
        limiter = RequestLimiter(FairQueue(Limits(seats=1)), SystemClock())
        listener = TrustingListener(attacker._server, limiter, RequestMetrics(Metrics()))
        bound = socket.create_server(("127.0.0.1", 0))
        await listener.start([bound], None)
        reader, writer = await asyncio.open_connection("127.0.0.1", bound.getsockname()[1])
        # The second has the seat of the first.
        for number in (1, 2):
            writer.write(f"GET /version{query} HTTP/1.1\r\nAuthorization: alice\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 504 ")
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            status = orjson.loads(await reader.readexactly(size))
            assert status["message"] == f"Timeout: request did not complete within {seconds}s"
            assert ended == number
        writer.transport.abort()
        await listener.stop()
