"""The watch of every store: reads older events first, then takes events from the hub."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Self

from dray.store.interface import Event, StoreError
from dray.store.watch_hub import WatchBuffer, WatchHub

# Reads events of a prefix after a revision that is too old for the hub; returns them with the revision up to which
# they are complete, which is always greater than the one passed.
ReadPast = Callable[[str, int], Awaitable[tuple[tuple[Event, ...], int]]]


class BufferedWatch:
    """Implements `dray.store.interface.Watch` on a hub and a function that reads older events."""

    def __init__(self, hub: WatchHub, prefix: str, *, after_revision: int, read_past: ReadPast) -> None:
        self._hub = hub
        self._prefix = prefix
        self._read_past = read_past
        self._cursor = after_revision
        self._buffer: WatchBuffer | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        # Events read by `prepare`, not delivered yet.
        self._prepared: tuple[Event, ...] = ()
        # `wake` was called: yield a batch even if it is empty.
        self._wake_requested = False
        self._join_hub()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[tuple[Event, ...]]:
        return self

    async def __anext__(self) -> tuple[Event, ...]:
        while not self._closed:
            buffer = self._buffer
            batch = await self._read_older() if buffer is None or self._prepared else buffer.take()
            if not batch and buffer is not None and buffer.ended:
                self._end(buffer)
            if batch or self._wake_requested:
                self._wake_requested = False
                return batch
            # Subscribing to the hub may just have filled the buffer, before there was a waiter to wake.
            if buffer is not None and not self._closed:
                await self._woken()
        raise StopAsyncIteration

    @property
    def progress(self) -> int:
        """The revision up to which all events of this watch have been delivered."""
        if self._prepared:
            return self._prepared[0].revision - 1
        return self._cursor if self._buffer is None else self._buffer.progress(self._hub.revision)

    def wake(self) -> None:
        """Make the iteration yield at once, with an empty batch if there is no event."""
        self._wake_requested = True
        self._wake()

    async def prepare(self) -> None:
        """Start to read older events, so that a compacted revision fails now."""
        if self._buffer is None:
            self._prepared = await self._catch_up()

    async def aclose(self) -> None:
        """End the watch; iteration stops."""
        self._closed = True
        if self._buffer is not None:
            self._hub.unsubscribe(self._buffer)
        self._wake()

    def _join_hub(self) -> None:
        if self._hub.can_join(self._cursor):
            self._buffer = self._hub.subscribe(self._prefix, after_revision=self._cursor, wake=self._wake)

    async def _read_older(self) -> tuple[Event, ...]:
        if self._prepared:
            batch, self._prepared = self._prepared, ()
            return batch
        return await self._catch_up()

    async def _catch_up(self) -> tuple[Event, ...]:
        try:
            batch, self._cursor = await self._read_past(self._prefix, self._cursor)
        except StoreError:
            # A store that was closed meanwhile ends the watch without an error.
            batch = ()
            if not (self._hub.ended or self._closed):
                self._closed = True
                raise
        self._join_hub()
        return batch

    def _end(self, buffer: WatchBuffer) -> None:
        """End the watch with the buffer, all of whose events have been delivered."""
        self._closed = True
        if buffer.error is not None:
            raise buffer.error

    def _woken(self) -> asyncio.Future[None]:
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
