"""A client connection, and the response received on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import Any, Final, cast

from dray.runtime.http.bodies import Gunzip
from dray.runtime.http.byte_stream import ByteStream
from dray.runtime.http.errors import (
    ClientClosedError,
    HttpError,
    ResponseTimeoutError,
    reason_of,
)
from dray.runtime.http.responses import ResponseParser

# Reading from the network pauses when this much of a body is buffered.
BUFFERED_BYTES_MAX: Final = 256 * 1024


def _ignore(_connection: Connection) -> None:
    return


class Connection(asyncio.Protocol):
    """A connection with one request in flight at a time."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_free: Callable[[Connection], None] = _ignore,
        on_lost: Callable[[Connection], None] = _ignore,
    ) -> None:
        self.loop = loop
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._on_free = on_free
        self._on_lost = on_lost
        self._response: ClientResponse | None = None
        # Fires at the deadline of a response, or earlier; shared, since a timer per request is a tenth of its cost.
        self._timer: asyncio.TimerHandle | None = None
        # False after an EOF or unexpected data from the server.
        self._open = True
        # Takes the bytes after an upgrade.
        self._stream: ByteStream | None = None

    @property
    def is_usable(self) -> bool:
        """Whether another request can be sent."""
        return self._open and self._response is None and not self.transport.is_closing()

    def send(
        self, method: str, request: bytes, deadline: float | None = None, *, upgrade: bool = False
    ) -> ClientResponse:
        """Send a request and return its response, which is filled as data arrives until the deadline (loop time)."""
        response = ClientResponse(self, method, deadline, upgrade=upgrade)
        if not self.is_usable:
            response.lost(None)
            return response
        self._response = response
        if deadline is not None and (self._timer is None or self._timer.when() > deadline):
            self._watch(deadline)
        self.transport.write(request)
        return response

    def _watch(self, deadline: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_at(deadline, self._time_out)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        """Fail the response if its deadline has passed, otherwise restart the timer."""
        self._timer = None
        deadline = self._response.deadline if self._response is not None else None
        if self._response is None or deadline is None:
            return
        if self.loop.time() < deadline:
            self._watch(deadline)
        else:
            self._response.fail(ResponseTimeoutError("the response timed out"))

    def done(self) -> None:
        """Handle the end of a response: the connection becomes idle, or is closed if it cannot be reused."""
        response, self._response = self._response, None
        assert response is not None
        if not response.reader.reusable or self.transport.get_write_buffer_size():
            # The server responded before it had read the whole request, and will not read the rest.
            self.abort()
        self._on_free(self)

    def switch(self, rest: bytes) -> ByteStream:
        """Handle the end of a response that switches protocols: the connection is no longer HTTP."""
        self._response = None
        self._stop_timer()
        self._stream = ByteStream(self.transport, rest)
        return self._stream

    def abort(self) -> None:
        """Close the connection at once; a pending response stays incomplete."""
        self._open = False
        self._response = None
        self._stop_timer()
        if self.transport is not None:
            self.transport.abort()

    def close(self) -> None:
        """Close the connection at once and fail a pending response."""
        response = self._response
        self.abort()
        if response is not None:
            response.fail(ClientClosedError("the client is closed"))

    # --- Callbacks of asyncio. ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Pass data to the pending response; close the connection if there is none."""
        if self._stream is not None:
            self._stream.feed(data)
        elif self._response is not None:
            self._response.received(data)
        else:
            self.abort()

    def eof_received(self) -> None:
        """Mark the connection as unusable; returning None closes it."""
        self._open = False

    def pause_writing(self) -> None:
        """Let the writer of an upgraded connection wait; requests are written at once."""
        if self._stream is not None:
            self._stream.pause_writing()

    def resume_writing(self) -> None:
        """Let it continue."""
        if self._stream is not None:
            self._stream.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """Fail a pending response."""
        self._open = False
        self._stop_timer()
        if self._stream is not None:
            self._stream.feed_end()
        response, self._response = self._response, None
        if response is not None:
            response.lost(error)
        self._on_lost(self)


class ClientResponse:
    """A status, headers and a streamed body; leaving `with` releases the connection.

    It has one reader. When the response is complete, read or not, the connection becomes idle. Closing the response
    before that closes the connection.
    """

    __slots__ = ("_connection", "_error", "_gunzip", "_paused", "_waiter", "deadline", "reader", "stream")

    def __init__(self, connection: Connection, method: str, deadline: float | None, *, upgrade: bool = False) -> None:
        self.reader = ResponseParser(method, upgrade=upgrade)
        # The connection, if the response has switched protocols; closed with the response.
        self.stream: ByteStream | None = None
        # Deadline in loop time.
        self.deadline = deadline
        # None after the connection was released.
        self._connection: Connection | None = connection
        self._error: HttpError | None = None
        self._gunzip: Gunzip | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._paused = False

    @property
    def status(self) -> int:
        """The status code."""
        return self.reader.status

    def header(self, name: str) -> str:
        """Return the first header of a name, or an empty string."""
        return next(iter(self.headers(name)), "")

    def headers(self, name: str) -> list[str]:
        """Return all headers of a name."""
        wanted = name.lower().encode()
        return [value.decode("latin-1") for key, value in self.reader.headers if key == wanted]

    async def head(self) -> None:
        """Wait for status and headers."""
        while not self.reader.has_head:
            if self._error is not None:
                raise self._error
            await self._next_change()
        for name, value in self.reader.headers:
            if name == b"content-encoding" and value.lower() in (b"gzip", b"x-gzip"):
                self._gunzip = Gunzip()

    async def more(self) -> bytes:
        """Wait for and return the next decompressed chunk of the body, empty at its end.

        Chunks received before a failure are returned before it is raised.
        """
        while True:
            piece = self._next()
            if piece:
                return piece
            if self.reader.complete:
                if self._gunzip is not None:
                    self._gunzip.end()
                return b""
            if self._error is not None:
                raise self._error
            await self._next_change()

    async def read(self, bytes_max: int | None = None) -> bytes:
        """Return the body, or its first `bytes_max` bytes."""
        if self.reader.complete and self._gunzip is None and bytes_max is None:
            return self._take()
        found, size = [], 0
        while piece := await self.more():
            found.append(piece)
            size += len(piece)
            if bytes_max is not None and size >= bytes_max:
                break
        return (found[0] if len(found) == 1 else b"".join(found))[:bytes_max]

    def close(self) -> None:
        """Release the connection; idempotent."""
        self.reader.stop()
        connection = self._release()
        if connection is not None:
            connection.abort()
        if self.stream is not None:
            self.stream.close()

    def __enter__(self) -> ClientResponse:
        """Return the response."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the connection."""
        self.close()

    # --- Called by the connection. ---

    def received(self, data: bytes) -> None:
        """Process received bytes."""
        try:
            self.reader.feed(data)
        except HttpError as error:
            self.fail(error)
            return
        if self.reader.complete:
            connection = self._release()
            assert connection is not None
            if self.reader.rest is not None:
                self.stream = connection.switch(self.reader.rest)
            else:
                connection.done()
        elif self.reader.buffered > BUFFERED_BYTES_MAX and not self._paused and self._connection is not None:
            self._paused = True
            self._connection.transport.pause_reading()
        self._wake()

    def lost(self, error: Exception | None) -> None:
        """Handle the loss of the connection."""
        try:
            self.reader.end("" if error is None else reason_of(error))
        except HttpError as end:
            self.fail(end)
            return
        self._release()
        self._wake()

    def fail(self, error: HttpError) -> None:
        """Fail the response."""
        self._error = error
        self.close()
        self._wake()

    def _release(self) -> Connection | None:
        connection, self._connection = self._connection, None
        return connection

    def _next(self) -> bytes:
        if self._gunzip is None:
            return self._take()
        piece = self._gunzip.take()
        if not piece:
            self._gunzip.feed(self._take())
            piece = self._gunzip.take()
        return piece

    def _take(self) -> bytes:
        pieces = self.reader.take()
        if self._paused and self._connection is not None:
            self._paused = False
            if not self._connection.transport.is_closing():
                self._connection.transport.resume_reading()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _next_change(self) -> asyncio.Future[None]:
        assert self._connection is not None, "the response was closed"
        self._waiter = self._connection.loop.create_future()
        return self._waiter

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class ResponseBody(AsyncGenerator[bytes, None]):
    """The rest of a response's body, which ends early if the server disconnects.

    Closing it closes the response, also before the first piece was read: a generator would not run for that.
    """

    def __init__(
        self, response: ClientResponse, begin: bytes = b"", on_close: Callable[[], None] = lambda: None
    ) -> None:
        self._response = response
        # What was read of it already.
        self._begin = begin
        self._on_close = on_close
        self._closed = False

    async def asend(self, _value: None) -> bytes:
        """Return the next piece."""
        piece, self._begin = self._begin, b""
        if not piece and not self._closed:
            try:
                piece = await self._response.more()
            except HttpError:
                piece = b""
        if not piece:
            await self.aclose()
            raise StopAsyncIteration
        return piece

    async def athrow(self, kind: Any, value: Any = None, traceback: Any = None) -> bytes:
        """Close the response, and raise."""
        await self.aclose()
        return await super().athrow(kind, value, traceback)

    async def aclose(self) -> None:
        """Close the response; idempotent."""
        self._closed = True
        self._response.close()
        self._on_close()
