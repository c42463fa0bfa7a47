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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Final, TypeAlias, cast

from dray.runtime.http.heads import date, response_head
from dray.runtime.http.requests import Limits, Request, RequestError, RequestParser
from dray.runtime.http.router import TEXT, Handler, Reply, Router, text
from dray.runtime.metrics import CONTENT_TYPE
from dray.runtime.tasks import ChildTasks, TaskGroup

_log = logging.getLogger(__name__)

_NO_BODY: Final = frozenset({204, 304})
_CLOSE: Final = ("Connection", "close")
_BACKLOG: Final = 1024

Headers: TypeAlias = Sequence[tuple[str, str]]


class Response:
    """Writes the response to one request; exactly one of `send` and `stream` is called."""

    __slots__ = ("_connection", "_request")

    def __init__(self, connection: ServerConnection, request: Request) -> None:
        self._connection = connection
        self._request = request

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

    async def stream(self, status: int, headers: Headers, chunks: AsyncIterator[bytes]) -> None:
        """Write a response of unknown length, no faster than the client reads."""
        connection, chunked = self._connection, self._request.accepts_chunks
        connection.write(self._head(status, (*headers, ("Transfer-Encoding", "chunked")) if chunked else headers))
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

    def abort(self) -> None:
        """Close the connection at once: the only way to signal a failure in the middle of a response."""
        self._connection.transport.abort()

    def _head(self, status: int, headers: Headers) -> bytes:
        server = self._connection.server
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
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        chosen = sockets[0].getsockname()[1] if sockets else port
        sockets.append(bound)
        try:
            bound.bind((address[0], chosen, *address[2:]))
        except OSError as error:
            raise OSError(error.errno, f"cannot listen on {address[0]}:{chosen}: {error.strerror}") from error
    return sockets


class HttpServer:
    """Accepts connections and serves their requests.

    `on_head` is called with each request before its body is read and may refuse it with RequestError.
    """

    def __init__(
        self,
        serve: Serve,
        limits: Limits | None = None,
        *,
        now_seconds: Callable[[], float] = time.time,
        on_head: Callable[[Request], None] | None = None,
    ) -> None:
        self.serve = serve
        self.limits = limits or Limits()
        self.on_head = on_head
        self.closing = False
        self.connections: set[ServerConnection] = set()
        self.tasks = ChildTasks("http connections")
        self._now_seconds = now_seconds
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

    def date(self) -> str:
        """Return the value of the Date header."""
        second = int(self._now_seconds())
        if self._date[0] != second:
            self._date = (second, date(second))
        return self._date[1]


class ServerConnection(asyncio.Protocol):
    """One client connection; its requests are served one after the other, in order."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self._parser = RequestParser(server.limits, server.on_head)
        self._timer: asyncio.TimerHandle | None = None
        self.writable = asyncio.Event()
        self.writable.set()
        self._certificate: dict[str, Any] = {}
        self._certificate_der: bytes | None = None
        # Further bytes are discarded.
        self._refused = False
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

    def connection_lost(self, _error: Exception | None) -> None:
        """Cancel the work for a client that is gone."""
        self.server.connections.discard(self)
        self._clear_deadline()
        self.writable.set()
        if self.task is not None:
            self.task.cancel()

    def pause_writing(self) -> None:
        """Stop streams: the client reads too slowly."""
        self.writable.clear()

    def resume_writing(self) -> None:
        """Continue streams."""
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        """Parse the bytes and serve the requests that are complete."""
        if self._refused or self.transport.is_closing():
            return
        parser = self._parser
        was_idle, was_in_body = parser.is_idle, parser.is_in_body
        try:
            parser.feed(data)
        except RequestError as error:
            self._refuse(error)
            return
        if len(parser.ready) > self.server.limits.pipelined_max:
            self._refuse(RequestError(429, "too many pipelined requests"))
        elif self.task is not None:
            return
        elif parser.ready:
            self._clear_deadline()
            self.task = self.server.tasks.spawn(self._serve_ready(), "http connection")
        else:
            self._await_rest(restart=was_idle or was_in_body != parser.is_in_body)

    # --- Serving. ---

    async def _serve_ready(self) -> None:
        ready, serve = self._parser.ready, self.server.serve
        try:
            while ready:
                request = ready.popleft()
                request.certificate, request.certificate_der = self._certificate, self._certificate_der
                await serve(request, Response(self, request))
                if not request.keep_alive or self.server.closing:
                    self.transport.close()
                    return
        except Exception:  # noqa: BLE001 - a bug in serving one request must not stop the server
            _log.exception("%s %s", request.method, request.target)
            self.transport.abort()
            return
        finally:
            self.task = None
        if self._parser.is_idle:
            self._set_deadline(self.server.limits.idle_seconds)
        else:
            self._await_rest(restart=True)

    def write(self, data: bytes) -> None:
        """Write bytes of a response."""
        self.transport.write(data)

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

    def _refuse(self, error: RequestError) -> None:
        """Respond to a request that cannot be parsed, unless another response is in progress, and close."""
        self._refused = True
        if self.task is not None:
            self.transport.close()
            return
        Response(self, Request()).send(error.status, (("Content-Type", TEXT),), str(error).encode())
        # Closing with unread bytes resets the connection, and the client might not read the response.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._set_deadline(self.server.limits.linger_seconds)

    # --- Deadlines. ---

    def _set_deadline(self, seconds: float | None) -> None:
        self._clear_deadline()
        if seconds is not None and not self.transport.is_closing():
            self._timer = asyncio.get_running_loop().call_later(seconds, self.close_if_idle)

    def _clear_deadline(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


# --- Small servers. ---


def page_server(handler: Handler, limits: Limits | None = None) -> HttpServer:
    """Return a server that writes the replies of a handler."""

    async def serve(request: Request, response: Response) -> None:
        try:
            reply = await handler(request)
        except Exception:  # noqa: BLE001 - a bug ends this request only
            _log.exception("%s %s", request.method, request.target)
            reply = text("500: Internal Server Error", 500)
        headers = (("Content-Type", reply.content_type), *reply.headers)
        if reply.stream is None:
            response.send(reply.status, headers, reply.body)
            return
        async with aclosing(reply.stream):
            await response.stream(reply.status, headers, _with_body(reply))

    return HttpServer(serve, limits)


async def _with_body(reply: Reply) -> AsyncIterator[bytes]:
    assert reply.stream is not None
    yield reply.body
    async for chunk in reply.stream:
        yield chunk


async def serve_health(group: TaskGroup, host: str, port: int, metrics: Callable[[], bytes]) -> int:
    """Serve /healthz, /livez, /readyz and /metrics on plain HTTP while the group runs; return the port."""

    async def healthy(_request: Request) -> Reply:
        return text("ok")

    async def exposed(_request: Request) -> Reply:
        return Reply(metrics(), content_type=CONTENT_TYPE)

    server = page_server(Router({"/healthz": healthy, "/livez": healthy, "/readyz": healthy, "/metrics": exposed}))
    bound = await server.start(host, port)
    group.spawn(_stop_at_end(server), "health")
    return bound


async def _stop_at_end(server: HttpServer) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await server.stop()
