"""The HTTP/1.1 server of every process: connections, limits, deadlines, back-pressure and graceful stop.

A server calls one `Serve` function per request, which writes its response. Small servers give `page_server` a handler
that returns a `Reply` instead.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Final, NoReturn, TypeAlias, cast

from dray.runtime.http.byte_stream import RECEIVED_BYTES_MAX, ByteStream, detect_dead_peers
from dray.runtime.http.heads import date, response_head
from dray.runtime.http.requests import TOO_MANY_REQUESTS, Limits, Request, RequestError, RequestParser
from dray.runtime.http.router import TEXT, Handler, Reply, text
from dray.runtime.tasks import ChildTasks

_log = logging.getLogger(__name__)

_NO_BODY: Final = frozenset({204, 304})
_CLOSE: Final = ("Connection", "close")
_BACKLOG: Final = 1024
# Connections that are refused with an answer at the same time; the others are closed without one.
_REFUSED_MAX: Final = 256
_RETRY_LATER: Final = (("Content-Type", TEXT), ("Retry-After", "1"))

Headers: TypeAlias = Sequence[tuple[str, str]]


class Response:
    """Writes the response to one request; exactly one of `send`, `write_parts`, `stream` and `upgrade` is called."""

    __slots__ = ("_connection", "_request", "is_started")

    def __init__(self, connection: ServerConnection, request: Request) -> None:
        self._connection = connection
        self._request = request
        # Whether the head has been written.
        self.is_started = False

    @property
    def peer(self) -> str:
        """Return the address of the client; empty if it is not known."""
        name = self._connection.transport.get_extra_info("peername")
        return str(name[0]) if isinstance(name, tuple) and name else ""

    @property
    def is_closing(self) -> bool:
        """Whether the client is gone or the connection is being closed."""
        return self._connection.transport.is_closing()

    def send(self, status: int, headers: Headers, body: bytes) -> None:
        """Write a complete response."""
        if status in _NO_BODY:
            self._connection.write(self._head(status, headers))
            return
        head = self._head(status, (*headers, ("Content-Length", str(len(body)))))
        self._connection.write(head if self._request.method == "HEAD" else head + body)

    def write_parts(self, status: int, headers: Headers, body: bytes, size: int) -> Iterator[None]:
        """Write a complete response in parts of some size, one in each step; an unfinished one must be aborted."""
        self._connection.write(self._head(status, (*headers, ("Content-Length", str(len(body))))))
        for start in range(0, 0 if self._request.method == "HEAD" else len(body), size):
            if self.is_closing:
                return
            self._connection.write(body[start : start + size])
            yield

    async def stream(self, status: int, headers: Headers, chunks: AsyncGenerator[bytes, None]) -> None:
        """Write a response of unknown length, no faster than the client reads, and close the generator."""
        connection, chunked = self._connection, self._request.accepts_chunks
        connection.write(self._head(status, (*headers, ("Transfer-Encoding", "chunked")) if chunked else headers))
        # Closed also when the client disconnects.
        async with aclosing(chunks):
            if self._request.method == "HEAD":
                return
            async for chunk in chunks:
                if connection.transport.is_closing():
                    return
                if chunk:
                    connection.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunked else chunk)
                if not connection.writable.is_set():
                    await connection.writable.wait()
        if chunked:
            connection.write(b"0\r\n\r\n")

    def upgrade(self, headers: Headers) -> ByteStream:
        """Accept an upgrade request, and return the connection; it is closed when the request has been served."""
        assert self._request.is_upgrade, "the request asks for no upgrade"
        self.is_started = True
        connection = self._connection
        connection.write(response_head(101, headers, connection.server.date()))
        return connection.switch()

    def abort(self) -> None:
        """Close the connection at once: the only way to signal a failure in the middle of a response."""
        self._connection.transport.abort()

    def _head(self, status: int, headers: Headers) -> bytes:
        server = self._connection.server
        self.is_started = True
        if not self._request.keep_alive or server.closing:
            headers = (*headers, _CLOSE)
        return response_head(status, headers, server.date())


# Serves one request. An exception is a bug: it is logged and closes the connection.
Serve: TypeAlias = Callable[[Request, Response], Awaitable[None]]


def bind(host: str, port: int) -> list[socket.socket]:
    """Bind every address of the host to the port; port 0 picks a free one."""
    sockets: list[socket.socket] = []
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, kind, protocol, _, address in dict.fromkeys(found):
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        detect_dead_peers(bound)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        chosen = sockets[0].getsockname()[1] if sockets else port
        sockets.append(bound)
        try:
            bound.bind((address[0], chosen, *address[2:]))
        except OSError as error:
            for each in sockets:
                each.close()
            raise OSError(error.errno, f"cannot listen on {address[0]}:{chosen}: {error.strerror}") from error
    return sockets


class HttpServer:
    """Accepts connections and serves their requests.

    `on_head` is called with each request before its body is read and may refuse it with RequestError. It may leave
    what it found out in the request's `context`.
    """

    def __init__(
        self,
        serve: Serve,
        limits: Limits | None = None,
        *,
        on_head: Callable[[Request], None] | None = None,
    ) -> None:
        self.serve = serve
        self.limits = limits or Limits()
        self.on_head = on_head
        self.closing = False
        self.connections: set[ServerConnection] = set()
        # Their supervisor runs `supervise`.
        self.tasks = ChildTasks("http connections")
        # Of all connections: the bytes of requests that were received and not answered.
        self.received_bytes = 0
        self._date = (0, "")
        self._servers: list[asyncio.Server] = []

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen and return the port, which the system chooses for 0."""
        sockets = bind(host, port)
        await self.listen(sockets, tls)
        return int(sockets[0].getsockname()[1])

    async def listen(self, sockets: Iterable[socket.socket], tls: ssl.SSLContext | None = None) -> None:
        """Listen on bound sockets, which then belong to the server."""
        loop = asyncio.get_running_loop()
        for bound in sockets:
            server = await loop.create_server(
                lambda: ServerConnection(self),
                sock=bound,
                ssl=tls,
                ssl_handshake_timeout=self.limits.handshake_seconds if tls is not None else None,
                backlog=_BACKLOG,
            )
            self._servers.append(server)

    async def supervise(self) -> NoReturn:
        """Raise the failure of a connection, which is a bug of the server. To be spawned in the supervisor's group."""
        await self.tasks.supervise()

    async def stop(self) -> None:
        """Stop listening, close idle connections, let requests complete for a short time, and close the rest."""
        self.closing = True
        for server in self._servers:
            server.close()
        for connection in tuple(self.connections):
            connection.close_if_idle()
        busy = [connection.task for connection in self.connections if connection.task is not None]
        if busy:
            await asyncio.wait(busy, timeout=self.limits.stop_seconds)
        await self.tasks.aclose()
        for connection in tuple(self.connections):
            connection.transport.abort()

    @property
    def is_full(self) -> bool:
        """Whether the unanswered requests of all connections exceed their limit."""
        return self.received_bytes > self.limits.total_received_bytes_max

    def shed(self) -> None:
        """Refuse the largest incomplete requests until the rest is within the limit of all connections."""
        while self.is_full:
            largest = max(self.connections, key=_incomplete_bytes)
            if not largest.incomplete_bytes:
                return
            largest.refuse(too_busy())

    def date(self) -> str:
        """Return the value of the Date header."""
        second = int(time.time())
        if self._date[0] != second:
            self._date = (second, date(second))
        return self._date[1]


class ServerConnection(asyncio.Protocol):
    """One client connection; its requests are served one after the other, in order."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self._parser = RequestParser(server.limits, None if server.on_head is None else self._check_head)
        # What the server has counted for this connection.
        self._counted_bytes = 0
        self._is_reading = True
        # When to close the connection unless something happens before; None while a request is served.
        self._deadline: float | None = None
        # Fires at the deadline or earlier. To set it again for every request would cost more than its routing.
        self._timer: asyncio.TimerHandle | None = None
        # Runs while the client reads too slowly.
        self._stall_timer: asyncio.TimerHandle | None = None
        self.writable = asyncio.Event()
        self.writable.set()
        self._certificate: dict[str, Any] = {}
        self._certificate_der: bytes | None = None
        # Takes the bytes after an accepted upgrade.
        self._stream: ByteStream | None = None
        # Further bytes are discarded, and this is the last response.
        self._refusal: RequestError | None = None
        # Serves requests while there are any.
        self.task: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)

    # --- Callbacks of asyncio. ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection and keep the client's certificate."""
        self.transport = cast("asyncio.Transport", transport)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None:
            self._certificate = transport.get_extra_info("peercert") or {}
            self._certificate_der = tls.getpeercert(binary_form=True)
        self.server.connections.add(self)
        self._set_deadline(self.server.limits.idle_seconds)
        surplus = len(self.server.connections) - self.server.limits.connections_max
        if surplus > _REFUSED_MAX:
            self.transport.abort()
        elif surplus > 0:
            self.refuse(RequestError(503, "too many connections", _RETRY_LATER))

    def connection_lost(self, _error: Exception | None) -> None:
        """Cancel the work for a client that is gone, and free the memory."""
        self.server.connections.discard(self)
        self._stop_timer()
        self.resume_writing()
        if self._stream is not None:
            # Its task reads the rest, and finds the end.
            self._stream.feed_end()
        elif self.task is not None:
            self.task.cancel()
            self.task = None
        self._parser.drop_ready()
        self._parser.close()
        self.server.received_bytes -= self._counted_bytes
        self._counted_bytes = 0

    def pause_writing(self) -> None:
        """Stop responding: the client reads too slowly."""
        if self._stream is not None:
            # People may stop the output of a terminal for as long as they like.
            self._stream.pause_writing()
            return
        self.writable.clear()
        self._await_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Continue."""
        if self._stream is not None:
            self._stream.resume_writing()
        self.writable.set()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def data_received(self, data: bytes) -> None:
        """Parse the bytes and serve the requests that are complete."""
        parser = self._parser
        if parser.rest is not None:
            self._take_rest(data)
        elif self._refusal is None and not self.transport.is_closing():
            self._parse(parser, data)

    def _parse(self, parser: RequestParser, data: bytes) -> None:
        was_idle, was_in_body = parser.is_idle, parser.is_in_body
        try:
            parser.feed(data)
        except RequestError as error:
            self.refuse(error)
            return
        if parser.received_bytes != self._counted_bytes:
            self._count()
            if self._is_refused:
                return
            if parser.ready and self.server.is_full:
                parser.drop_ready()
                self.refuse(too_busy())
                return
        if len(parser.ready) > self.server.limits.pipelined_max:
            parser.drop_ready(self.server.limits.pipelined_max)
            self.refuse(RequestError(429, "too many pipelined requests"))
        elif self.task is not None:
            return
        elif parser.ready:
            self._start_serving()
        else:
            self._await_rest(restart=was_idle or was_in_body != parser.is_in_body)

    # --- Serving. ---

    def _start_serving(self) -> None:
        self._deadline = None
        self.task = self.server.tasks.spawn(self._serve_ready(), "http connection")

    async def _serve_ready(self) -> None:
        ready, serve = self._parser.ready, self.server.serve
        try:
            while ready:
                request = ready.popleft()
                request.certificate, request.certificate_der = self._certificate, self._certificate_der
                await serve(request, Response(self, request))
                if not request.keep_alive or self.server.closing:
                    self._close()
                    return
                self._parser.release(request)
                self._count()
                if not self.writable.is_set():
                    await self.writable.wait()
        except Exception:  # noqa: BLE001 - a bug in serving one request must not stop the server
            _log.exception("%s %s", request.method, request.target)
            self.transport.abort()
            return
        finally:
            self.task = None
        if self._refusal is not None:
            self._send_refusal(self._refusal)
        elif self._parser.is_idle:
            self._set_deadline(self.server.limits.idle_seconds)
        else:
            self._await_rest(restart=True)

    def write(self, data: bytes) -> None:
        """Write bytes of a response."""
        self.transport.write(data)

    def switch(self) -> ByteStream:
        """Give the connection to the protocol of an accepted upgrade."""
        rest, self._parser.rest = self._parser.rest or b"", b""
        self._stop_timer()
        stream = self._stream = ByteStream(self.transport, rest)
        self._resume_reading()
        if not self.writable.is_set():
            stream.pause_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        return stream

    def _take_rest(self, data: bytes) -> None:
        """Take bytes after an upgrade request; when many come before it is accepted, the client waits."""
        if self._stream is not None:
            self._stream.feed(data)
            return
        assert self._parser.rest is not None
        self._parser.rest += data
        if len(self._parser.rest) > RECEIVED_BYTES_MAX and self._is_reading:
            self._is_reading = False
            self.transport.pause_reading()

    def close_if_idle(self) -> None:
        """Close the connection unless a request is being served."""
        if self.task is None:
            self.transport.close()

    def _await_rest(self, *, restart: bool) -> None:
        """Ask for the rest of an incomplete request, and set its deadline when it begins or its head is complete."""
        if self._parser.expects_continue:
            self._parser.expects_continue = False
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if restart:
            limits = self.server.limits
            self._set_deadline(limits.body_seconds if self._parser.is_in_body else limits.head_seconds)

    @property
    def incomplete_bytes(self) -> int:
        """The bytes received of a request that is not complete."""
        return 0 if self._is_refused else self._parser.incomplete_bytes

    @property
    def _is_refused(self) -> bool:
        return self._refusal is not None

    def refuse(self, error: RequestError) -> None:
        """Refuse the request being received, and close after the responses to those before it."""
        # Without its traceback, whose frames refer to the connection.
        error.__context__ = error.__cause__ = None
        self._refusal = error.with_traceback(None)
        self._parser.close()
        self._count()
        if self.task is None and self._parser.ready:
            self._start_serving()
        elif self.task is None:
            self._send_refusal(self._refusal)

    def _send_refusal(self, error: RequestError) -> None:
        headers = error.headers or (("Content-Type", TEXT),)
        Response(self, Request()).send(error.status, headers, str(error).encode() if error.body is None else error.body)
        # Closing with unread bytes resets the connection, and the client might not read the response.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._resume_reading()
        self._set_deadline(self.server.limits.linger_seconds)

    def _check_head(self, request: Request) -> None:
        request.certificate, request.certificate_der = self._certificate, self._certificate_der
        assert self.server.on_head is not None
        self.server.on_head(request)

    # --- Back-pressure. ---

    def _count(self) -> None:
        """Count the bytes of unanswered requests, and read on only within the limits."""
        received, limits, server = self._parser.received_bytes, self.server.limits, self.server
        server.received_bytes += received - self._counted_bytes
        self._counted_bytes = received
        if server.is_full:
            server.shed()
        if self._is_reading:
            if received > limits.received_bytes_max and not self.transport.is_closing():
                self._is_reading = False
                self.transport.pause_reading()
        elif received <= limits.received_bytes_max:
            self._resume_reading()

    def _resume_reading(self) -> None:
        if not self._is_reading and not self.transport.is_closing():
            self._is_reading = True
            self.transport.resume_reading()

    # --- Deadlines. ---

    def _close(self) -> None:
        """Close when the last response is written; a client that does not read it is disconnected."""
        if not self.transport.is_closing():
            self._stop_timer()
            self._timer = asyncio.get_running_loop().call_later(self.server.limits.write_seconds, self.transport.abort)
            self.transport.close()

    def _await_reader(self, unwritten: int) -> None:
        """Disconnect a client that reads none of the bytes for too long."""
        seconds = self.server.limits.write_seconds
        self._stall_timer = asyncio.get_running_loop().call_later(seconds, self._check_reader, unwritten)

    def _check_reader(self, unwritten: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left < unwritten:
            self._await_reader(left)
        else:
            self.transport.abort()

    def _set_deadline(self, seconds: float | None) -> None:
        if seconds is None or self.transport.is_closing():
            self._deadline = None
            return
        self._deadline = asyncio.get_running_loop().time() + seconds
        if self._timer is None or self._timer.when() > self._deadline:
            self._start_timer(self._deadline)

    def _start_timer(self, deadline: float) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_at(deadline, self._on_timer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        if self._deadline is None or self.transport.is_closing():
            return
        if asyncio.get_running_loop().time() < self._deadline:
            self._start_timer(self._deadline)
        else:
            self._on_deadline()

    def _on_deadline(self) -> None:
        """Close an idle connection; a client that sends or reads too slowly is disconnected without waiting for it."""
        if self.task is None:
            if self._refusal is None and self._parser.is_idle:
                self._close()
            else:
                self.transport.abort()


def too_busy() -> RequestError:
    """Return the refusal of a request for which there is no memory."""
    return RequestError(429, TOO_MANY_REQUESTS, _RETRY_LATER)


def _incomplete_bytes(connection: ServerConnection) -> int:
    return connection.incomplete_bytes


# --- Small servers. ---


def page_server(handler: Handler, limits: Limits | None = None) -> HttpServer:
    """Return a server that writes the replies of a handler."""

    async def serve(request: Request, response: Response) -> None:
        try:
            reply = await handler(request)
        except Exception:  # noqa: BLE001 - a bug ends this request only
            _log.exception("%s %s", request.method, request.target)
            reply = text("500: Internal Server Error", 500)
        if reply.upgrade is not None:
            stream = response.upgrade(reply.headers)
            try:
                await reply.upgrade(stream)
            finally:
                stream.close()
            return
        headers = (("Content-Type", reply.content_type), *reply.headers)
        if reply.stream is None:
            response.send(reply.status, headers, reply.body)
            return
        async with aclosing(reply.stream):
            await response.stream(reply.status, headers, _with_body(reply))

    return HttpServer(serve, limits)


async def _with_body(reply: Reply) -> AsyncGenerator[bytes, None]:
    assert reply.stream is not None
    yield reply.body
    async for chunk in reply.stream:
        yield chunk
