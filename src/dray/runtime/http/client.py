"""An HTTP client for one server, with persistent connections and no limit on their number."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from dray.runtime.http.connection import ClientResponse, Connection
from dray.runtime.http.dialing import Route, dial
from dray.runtime.http.errors import ClientClosedError, ConnectError, NoResponseError, ResponseTimeoutError
from dray.runtime.http.heads import request_head

CONNECT_SECONDS_MAX: Final = 10.0
# Shorter than the timeouts of servers and middleboxes, so that they rarely close a connection that is about to be used.
IDLE_SECONDS_MAX: Final = 30.0
# Idle connections beyond this number are closed.
IDLE_CONNECTIONS_MAX: Final = 1024
_CLOSE_SECONDS_MAX: Final = 1.0
# Idempotent methods (RFC 9110, 9.2.2).
IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
_BODILESS: Final = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})

Headers = Sequence[tuple[str, str]]


class HttpClient:
    """Sends requests to one server."""

    def __init__(self, route: Route, *, keep: bool = True, host: str = "") -> None:
        self._route = route
        self._keep = keep
        self._connections: set[Connection] = set()
        # Idle connections and since when; the most recently used one is reused first, so that surplus ones expire.
        self._idle: list[tuple[float, Connection]] = []
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False
        self._emptied: asyncio.Event | None = None
        always = [("Host", host or route.origin.authority)]
        # Prepended to targets: an HTTP proxy needs absolute URLs.
        self._prefix = ""
        if route.proxy is not None and not route.origin.is_secure:
            self._prefix = route.origin.url
            always += route.proxy.headers
        if not keep:
            always.append(("Connection", "close"))
        self._always = tuple(always)

    async def send(
        self,
        method: str,
        target: str,
        headers: Headers = (),
        body: bytes | None = None,
        timeout_seconds: float | None = None,
    ) -> ClientResponse:
        """Send a request and return its response with status and headers; raise HttpError.

        The timeout includes the body. An idempotent request that failed on a reused connection is retried on a new one.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout_seconds is None else loop.time() + timeout_seconds
        request = self._request(method, target, headers, body)
        connection = self._take_idle(loop)
        if connection is not None:
            try:
                return await _exchange(connection, method, request, deadline)
            except NoResponseError:
                if method not in IDEMPOTENT:
                    raise
        connection = await self._connect(loop, deadline)
        return await _exchange(connection, method, request, deadline)

    async def upgrade(self, method: str, target: str, headers: Headers, timeout_seconds: float) -> ClientResponse:
        """Ask for another protocol on a connection of its own; raise HttpError.

        If the response has a `stream`, the connection is closed with it or with the response.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        connection = await self._connect(loop, deadline)
        return await _exchange(connection, method, self._request(method, target, headers, None), deadline, upgrade=True)

    def abort(self) -> None:
        """Close all connections without waiting for that; pending requests fail with ClientClosedError."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        self._idle.clear()
        for connection in tuple(self._connections):
            connection.close()

    async def close(self) -> None:
        """Close all connections; pending requests fail with ClientClosedError."""
        self._emptied = asyncio.Event() if self._connections else None
        self.abort()
        if self._emptied is None:
            return
        try:
            async with asyncio.timeout(_CLOSE_SECONDS_MAX):
                await self._emptied.wait()
        except TimeoutError:
            return

    def _request(self, method: str, target: str, headers: Headers, body: bytes | None) -> bytes:
        size = None if body is None and method in _BODILESS else len(body or b"")
        head = request_head(method, self._prefix + target, (*self._always, *headers), size)
        return head + body if body else head

    async def _connect(self, loop: asyncio.AbstractEventLoop, deadline: float | None) -> Connection:
        self._check_open()
        connection = Connection(loop, self._freed, self._lost)
        left = CONNECT_SECONDS_MAX if deadline is None else deadline - loop.time()
        try:
            await dial(self._route, connection, min(left, CONNECT_SECONDS_MAX))
        except ConnectError as error:
            if left < CONNECT_SECONDS_MAX and isinstance(error.__cause__, TimeoutError):
                raise ResponseTimeoutError("the response timed out") from error
            raise
        if connection.is_usable:
            self._connections.add(connection)
        try:
            self._check_open()
        except ClientClosedError:
            connection.abort()
            raise
        return connection

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosedError("the client is closed")

    def _take_idle(self, loop: asyncio.AbstractEventLoop) -> Connection | None:
        oldest = loop.time() - IDLE_SECONDS_MAX
        while self._idle:
            since, connection = self._idle.pop()
            if connection.is_usable:
                if since >= oldest:
                    return connection
                connection.abort()
        return None

    def _freed(self, connection: Connection) -> None:
        if not connection.is_usable:
            return
        if not self._keep or self._closed or len(self._idle) >= IDLE_CONNECTIONS_MAX:
            connection.abort()
            return
        self._idle.append((connection.loop.time(), connection))
        if self._sweep is None:
            self._sweep = connection.loop.call_later(IDLE_SECONDS_MAX, self._drop_old, connection.loop)

    def _drop_old(self, loop: asyncio.AbstractEventLoop) -> None:
        oldest = loop.time() - IDLE_SECONDS_MAX
        for since, connection in self._idle:
            if since <= oldest:
                connection.abort()
        self._idle = [entry for entry in self._idle if entry[1].is_usable]
        left = self._idle[0][0] - oldest if self._idle else 0.0
        self._sweep = loop.call_later(left, self._drop_old, loop) if self._idle else None

    def _lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if self._emptied is not None and not self._connections:
            self._emptied.set()


async def _exchange(
    connection: Connection, method: str, request: bytes, deadline: float | None, *, upgrade: bool = False
) -> ClientResponse:
    response = connection.send(method, request, deadline, upgrade=upgrade)
    try:
        await response.head()
    except BaseException:
        response.close()
        raise
    return response
