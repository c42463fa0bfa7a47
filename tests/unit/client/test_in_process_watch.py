"""Watches of a server in the same process: when they are open, what they bring, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from dray.api.document import Document
from dray.api.errors import ForbiddenError, InternalError
from dray.client.in_process import InProcessTransport, LocalWatch, in_process_client
from dray.client.interface import LocalRequest, WatchBatch
from dray.client.resources import PODS
from dray.client.rest import Call

BATCHES: list[WatchBatch] = [[("ADDED", {"metadata": {"name": "a"}})], [("DELETED", {"metadata": {"name": "a"}})]]


class Server:
    """Implements `LocalServer`; counts the watches that it has opened and closed."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.opened = self.closed = 0
        self._refuses = refuses

    async def handle(self, request: LocalRequest) -> Document:
        raise AssertionError(request)

    async def watch(self, request: LocalRequest) -> AsyncIterator[WatchBatch]:
        assert (request.verb, request.resource) == ("watch", "pods")
        if self._refuses:
            raise ForbiddenError(PODS.group_resource, "", "no")
        self.opened += 1
        return self._events()

    async def _events(self) -> AsyncIterator[WatchBatch]:
        try:
            for batch in BATCHES:
                yield batch
        finally:
            self.closed += 1


def stream(server: Server) -> LocalWatch:
    transport = InProcessTransport(server, user="u", groups=(), user_agent="test")
    return transport.stream(Call("watch", PODS))


async def test_an_empty_batch_says_that_it_is_open() -> None:
    server = Server()
    watch = stream(server)
    assert server.opened == 0
    assert not await anext(watch)
    assert server.opened == 1
    assert [batch async for batch in watch] == BATCHES
    assert server.closed == 1
    with pytest.raises(StopAsyncIteration):
        await anext(watch)


async def test_the_servers_watch_is_closed_with_it() -> None:
    server = Server()
    watch = stream(server)
    await anext(watch)
    assert await anext(watch) == BATCHES[0]
    await watch.aclose()
    assert server.closed == 1
    with pytest.raises(StopAsyncIteration):
        await anext(watch)


async def test_a_watch_that_was_closed_is_not_opened() -> None:
    server = Server()
    watch = stream(server)
    await watch.aclose()
    assert [batch async for batch in watch] == []
    assert server.opened == 0


async def test_a_refusal_is_raised() -> None:
    watch = stream(Server(refuses=True))
    with pytest.raises(ForbiddenError):
        await anext(watch)


class QuietServer(Server):
    """Its watches bring nothing after the first batch, or fail."""

    def __init__(self, failure: Exception | None = None) -> None:
        super().__init__()
        self._failure = failure

    async def _events(self) -> AsyncIterator[WatchBatch]:
        try:
            yield BATCHES[0]
            if self._failure is not None:
                raise self._failure
            await asyncio.Event().wait()
        finally:
            self.closed += 1


async def follow(server: Server) -> int:
    """Follow a watch to its end; return the number of events."""
    events = 0
    async with aclosing(in_process_client(server, user="u").watch_batches(PODS)) as batches:
        async for batch in batches:
            events += len(batch)
    return events


async def test_the_servers_watch_is_closed_when_its_reader_is_cancelled() -> None:
    server = QuietServer()
    reading = asyncio.create_task(follow(server))
    await asyncio.sleep(0.01)
    assert (server.opened, server.closed) == (1, 0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert server.closed == 1


async def test_a_failure_of_the_servers_watch_is_raised() -> None:
    server = QuietServer(InternalError("broken"))
    with pytest.raises(InternalError):
        await follow(server)
    assert server.closed == 1
