"""One connection to a server, and the answer that comes on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final, cast

from dray.runtime.http.bodies import Gunzip
from dray.runtime.http.errors import (
    AnswerTimeoutError,
    ClientClosedError,
    HttpError,
    reason_of,
)
from dray.runtime.http.responses import AnswerReader

# A body is read from the network until this much of it waits for its reader.
BUFFERED_BYTES_MAX: Final = 256 * 1024


def _ignore(_connection: Connection) -> None:
    return


class Connection(asyncio.Protocol):
    """One request and its answer at a time."""

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
        self._answer: Answer | None = None
        # Fires at the deadline of an answer, or earlier: made anew for each request, it would be a tenth of its cost.
        self._timer: asyncio.TimerHandle | None = None
        # False from the first sign that the other side leaves, or speaks when it was not asked.
        self._open = True

    @property
    def is_usable(self) -> bool:
        """Whether another request can be sent."""
        return self._open and self._answer is None and not self.transport.is_closing()

    def send(self, method: str, request: bytes, deadline: float | None = None) -> Answer:
        """Send a whole request; the answer fills as it comes, until the loop's time is the deadline."""
        answer = Answer(self, method, deadline)
        if not self.is_usable:
            answer.lost(None)
            return answer
        self._answer = answer
        if deadline is not None and (self._timer is None or self._timer.when() > deadline):
            self._watch(deadline)
        self.transport.write(request)
        return answer

    def _watch(self, deadline: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_at(deadline, self._time_out)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        """End an answer whose time has come; a later one's is waited for."""
        self._timer = None
        deadline = self._answer.deadline if self._answer is not None else None
        if self._answer is None or deadline is None:
            return
        if self.loop.time() < deadline:
            self._watch(deadline)
        else:
            self._answer.fail(AnswerTimeoutError("the answer took too long"))

    def done(self) -> None:
        """The answer is complete, so the connection is free, or of no more use."""
        answer, self._answer = self._answer, None
        assert answer is not None
        if not answer.reader.reusable or self.transport.get_write_buffer_size():
            # With something unsent the server answered before it had read the request: it will not read the rest.
            self.abort()
        self._on_free(self)

    def abort(self) -> None:
        """Close at once; an answer that is not complete yet will not become so."""
        self._open = False
        self._answer = None
        self._stop_timer()
        if self.transport is not None:
            self.transport.abort()

    def close(self) -> None:
        """Close at once and tell whoever waits."""
        answer = self._answer
        self.abort()
        if answer is not None:
            answer.fail(ClientClosedError("the client is closed"))

    # --- asyncio's callbacks ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way to write."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Pass it to the answer, if one is due."""
        if self._answer is not None:
            self._answer.received(data)
        else:
            self.abort()

    def eof_received(self) -> None:
        """The other side will say no more; returning None closes the connection."""
        self._open = False

    def connection_lost(self, error: Exception | None) -> None:
        """Tell whoever waits."""
        self._open = False
        self._stop_timer()
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.lost(error)
        self._on_lost(self)


class Answer:
    """A status, headers and a body that is read as it comes; leaving `with` lets go of the connection.

    It belongs to one reader. Once all of it has come, the connection is free, read or not; left before that, the
    connection is closed.
    """

    __slots__ = ("_connection", "_error", "_gunzip", "_paused", "_waiter", "deadline", "reader")

    def __init__(self, connection: Connection, method: str, deadline: float | None) -> None:
        self.reader = AnswerReader(method)
        # The loop's time when it must be complete.
        self.deadline = deadline
        # None when the connection is no more ours.
        self._connection: Connection | None = connection
        self._error: HttpError | None = None
        self._gunzip: Gunzip | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._paused = False

    @property
    def status(self) -> int:
        """The number."""
        return self.reader.status

    def header(self, name: str) -> str:
        """The first header of a name, or nothing."""
        return next(iter(self.headers(name)), "")

    def headers(self, name: str) -> list[str]:
        """All headers of a name."""
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
        """What else came of the body, unpacked, when something has come; nothing at its end.

        What came before a failure is given before that is raised.
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
        """The whole body, or as much of its beginning."""
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
        """Let go; may be called again."""
        self.reader.stop()
        connection = self._release()
        if connection is not None:
            connection.abort()

    def __enter__(self) -> Answer:
        """Read within."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let go of the connection."""
        self.close()

    # --- what the connection says ---

    def received(self, data: bytes) -> None:
        """Some bytes."""
        try:
            self.reader.feed(data)
        except HttpError as error:
            self.fail(error)
            return
        if self.reader.complete:
            connection = self._release()
            assert connection is not None
            connection.done()
        elif self.reader.buffered > BUFFERED_BYTES_MAX and not self._paused and self._connection is not None:
            self._paused = True
            self._connection.transport.pause_reading()
        self._wake()

    def lost(self, error: Exception | None) -> None:
        """The connection has ended."""
        try:
            self.reader.end("" if error is None else reason_of(error))
        except HttpError as end:
            self.fail(end)
            return
        self._release()
        self._wake()

    def fail(self, error: HttpError) -> None:
        """End the answer as broken."""
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
        assert self._connection is not None, "the answer was closed"
        self._waiter = self._connection.loop.create_future()
        return self._waiter

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
