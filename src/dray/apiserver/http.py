"""HTTP/1.1 on TLS: parses requests, authenticates them, runs them through the flow and writes the answers.

Written on httptools rather than a web framework: a watch needs the connection itself (client gone, slow
reader), and a framework's routing costs more than the whole flow.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import ssl
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final, cast

import httptools
import orjson

from dray.api import errors
from dray.api.errors import APIError, InternalError, RequestEntityTooLargeError
from dray.apiserver.authentication.impersonation import impersonate, is_impersonating
from dray.apiserver.call import (
    Call,
    DocumentResult,
    ListResult,
    ObjectResult,
    Result,
    TextResult,
    WatchResult,
)
from dray.apiserver.encoding import (
    CONTENT_TYPES,
    WATCH_CONTENT_TYPES,
    FrameEncoder,
    dump,
    encode_document_result,
    encode_list,
    encode_object_result,
)
from dray.apiserver.handlers.nonresource import ROOT, STREAM, PageNotFoundError
from dray.apiserver.metrics import RequestMetrics
from dray.apiserver.negotiation import JSON, Media, Representation, UnavailableRepresentationError, negotiate
from dray.apiserver.request import UserInfo
from dray.apiserver.request_limiter import RequestLimiter
from dray.apiserver.routes import is_true, parse_query, parse_request
from dray.apiserver.server import APIServer
from dray.apiserver.tables import check_include_object

_LOG: Final = logging.getLogger("dray.apiserver.http")
# kube-apiserver's limit for one request body.
BODY_SIZE_MAX: Final = 3 * 1024 * 1024
HEADERS_SIZE_MAX: Final = 1024 * 1024
# Answers below this are not worth the time to compress.
GZIP_SIZE_MIN: Final = 128 * 1024
_GZIP_THREAD_SIZE_MIN: Final = 1024 * 1024
_GZIP_LEVEL: Final = 1
REQUEST_TIMEOUT_SECONDS: Final = 60.0
# A connection that says nothing for this long is closed.
IDLE_SECONDS_MAX: Final = 180.0
# Pipelined requests of one connection that may wait for the one before.
_PIPELINE_MAX: Final = 64
_SHUTDOWN_SECONDS: Final = 1.5
# A watch is written in pieces of about this size, so that a slow reader of large objects costs one of them.
_STREAM_PIECE_SIZE: Final = 256 * 1024
_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}
# Agents of people, who get indented answers without asking.
_PEOPLE: Final = frozenset({"curl", "Wget"})
_NO_CACHE: Final = ("Cache-Control", "no-cache, private")


class _Message:
    """One request as it arrives."""

    __slots__ = ("body", "headers", "keep_alive", "method", "raw_headers", "size", "target")

    def __init__(self) -> None:
        self.target = b""
        self.method = ""
        self.headers: dict[str, str] = {}
        self.raw_headers: list[tuple[str, str]] = []
        self.body: list[bytes] = []
        self.size = 0
        self.keep_alive = True


class Connection(asyncio.Protocol):
    """One client connection: requests are answered one after the other, in order."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._parser: Any = httptools.HttpRequestParser(self)
        self._message = _Message()
        self._headers_size = 0
        self._queue: deque[_Message] = deque()
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._idle: asyncio.TimerHandle | None = None
        self.peer_certificate: bytes | None = None
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)

    # --- asyncio's callbacks ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember who is calling."""
        self.transport = cast("asyncio.Transport", transport)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None:
            self.peer_certificate = tls.getpeercert(binary_form=True)
        self._listener.connections.add(self)
        self._wait_idle()

    def connection_lost(self, _exc: Exception | None) -> None:
        """Stop working for a client that is gone."""
        self._listener.connections.discard(self)
        self._stop_idle()
        self._writable.set()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """The client reads slower than we write."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The client caught up."""
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        """Feed the parser."""
        self._stop_idle()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # A WebSocket or HTTP/2 upgrade: answered as a plain request, which says that it is not served.
            pass
        except httptools.HttpParserError as error:
            self._refuse(400, f"malformed HTTP request: {error}")

    # --- httptools' callbacks ---

    def on_url(self, url: bytes) -> None:
        """The request line's target, possibly in pieces."""
        self._message.target += url
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._count_header(len(name) + len(value))
        key, text = name.decode("latin-1"), value.decode("latin-1")
        self._message.raw_headers.append((key, text))
        self._message.headers[key.lower()] = text

    def on_headers_complete(self) -> None:
        """Say that the body may come."""
        self._message.method = self._parser.get_method().decode("latin-1")
        if self._message.headers.get("expect", "").lower() == "100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """A piece of the body; what is over the limit is counted, not kept."""
        message = self._message
        message.size += len(body)
        if message.size <= BODY_SIZE_MAX:
            message.body.append(body)
        else:
            message.body.clear()

    def on_message_complete(self) -> None:
        """Answer, or wait for the request before."""
        message, self._message, self._headers_size = self._message, _Message(), 0
        message.keep_alive = self._parser.should_keep_alive()
        if self._task is None:
            self._task = asyncio.create_task(self._serve(message))
        elif len(self._queue) < _PIPELINE_MAX:
            self._queue.append(message)
        else:
            self._refuse(429, "too many pipelined requests")

    # --- answering ---

    async def _serve(self, message: _Message) -> None:
        try:
            while True:
                await self._listener.answer(self, message)
                if not message.keep_alive or self._listener.closing:
                    self.transport.close()
                    return
                if not self._queue:
                    break
                message = self._queue.popleft()
        finally:
            self._task = None
        self._wait_idle()

    def write_answer(
        self, status: int, headers: Sequence[tuple[str, str]], body: bytes, *, head_only: bool = False
    ) -> None:
        """Write a whole answer at once."""
        head = self._listener.head(status, (*headers, ("Content-Length", str(len(body)))))
        self.transport.write(head if head_only or status == 304 else head + body)  # noqa: PLR2004 - Not Modified

    async def write_stream(self, status: int, headers: Sequence[tuple[str, str]], chunks: AsyncIterator[bytes]) -> None:
        """Write an answer of unknown length, at the client's pace."""
        self.transport.write(self._listener.head(status, (*headers, ("Transfer-Encoding", "chunked"))))
        async for chunk in chunks:
            if self.transport.is_closing():
                return
            self.transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            if not self._writable.is_set():
                await self._writable.wait()
        self.transport.write(b"0\r\n\r\n")

    def close_when_idle(self) -> None:
        """Close now if nothing is being answered."""
        if self._task is None:
            self.transport.close()

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self._task is not None

    def _refuse(self, status: int, text: str) -> None:
        body = text.encode()
        self.write_answer(status, (("Content-Type", "text/plain; charset=utf-8"), ("Connection", "close")), body)
        self.transport.close()

    def _count_header(self, size: int) -> None:
        self._headers_size += size
        if self._headers_size > HEADERS_SIZE_MAX:
            self._refuse(431, "request header fields too large")

    def _wait_idle(self) -> None:
        self._stop_idle()
        self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS_MAX, self.close_when_idle)

    def _stop_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None


class Listener:
    """Accepts connections for one API server."""

    def __init__(self, server: APIServer, turnstile: RequestLimiter, metrics: RequestMetrics) -> None:
        self._server = server
        self._turnstile = turnstile
        self._metrics = metrics
        self._socket: asyncio.Server | None = None
        self._date = (0, "")
        self.connections: set[Connection] = set()
        self.closing = False

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Listen; returns the port, which matters when 0 was asked for."""
        loop = asyncio.get_running_loop()
        self._socket = await loop.create_server(lambda: Connection(self), host, port, ssl=tls, backlog=1024)
        return int(self._socket.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Take no more connections, end watches, let the rest finish, and close."""
        self.closing = True
        if self._socket is not None:
            self._socket.close()
        self._server.watcher.close()
        for connection in tuple(self.connections):
            connection.close_when_idle()
        deadline = asyncio.get_running_loop().time() + _SHUTDOWN_SECONDS
        while any(connection.busy for connection in self.connections):
            if asyncio.get_running_loop().time() >= deadline:
                break
            await asyncio.sleep(0.01)
        for connection in tuple(self.connections):
            connection.transport.abort()

    def head(self, status: int, headers: Sequence[tuple[str, str]]) -> bytes:
        """Status line and headers."""
        lines = [f"HTTP/1.1 {status} {_PHRASES.get(status, '')}", f"Date: {self._now()}"]
        lines.extend(f"{name}: {value}" for name, value in headers)
        if self.closing:
            lines.append("Connection: close")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")

    def _now(self) -> str:
        second = int(self._server.clock.now().timestamp())
        if self._date[0] != second:
            self._date = (second, formatdate(second, usegmt=True))
        return self._date[1]

    # --- one request ---

    async def answer(self, connection: Connection, message: _Message) -> None:
        """Answer one request, whatever happens."""
        target = message.target.decode("latin-1")
        path, _, query_text = target.partition("?")
        query = parse_query(query_text) if query_text else {}
        info = parse_request(message.method, path, query)
        headers = message.headers
        call = Call(
            info=info,
            query=query,
            user=cast("UserInfo", None),
            body=b"".join(message.body),
            content_type=headers.get("content-type", ""),
            user_agent=headers.get("user-agent", ""),
            accept=headers.get("accept", ""),
            if_none_match=headers.get("if-none-match", ""),
        )
        started = self._server.clock.monotonic()
        status = 500
        try:
            status = await self._run(connection, message, call)
        except APIError as error:
            status = error.code
            self._write_error(connection, call, error)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - the outer edge: a bug ends this request only
            _LOG.exception("%s %s", message.method, target)
            self._write_error(connection, call, InternalError(f"{type(error).__name__}: {error}"))
        finally:
            known = (
                bool(info.resource) and self._server.catalog.get(info.group, info.version, info.resource) is not None
            )
            self._metrics.observe(info, status, self._server.clock.monotonic() - started, known=known)

    async def _run(self, connection: Connection, message: _Message, call: Call) -> int:
        if message.size > BODY_SIZE_MAX:
            raise RequestEntityTooLargeError(f"Request entity too large: limit is {BODY_SIZE_MAX}")
        page = self._page(call)
        if page is not None:
            return await self._write_text(connection, message, page)
        call.user = self._authenticate(connection, message)
        representation, include = self._negotiate(call)
        if (call.info.verb == "watch" and call.info.resource) or call.info.path == STREAM:
            with self._turnstile.watch(call.user):
                result = await self._server.execute(call)
                return await self._write_result(connection, message, call, result, representation, include)
        async with self._turnstile.seat(call.user, "" if call.info.resource else call.info.path):
            try:
                async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                    result = await self._server.execute(call)
            except TimeoutError as error:
                raise errors.RequestTimeoutError(
                    f"Timeout: request did not complete within {REQUEST_TIMEOUT_SECONDS:.0f}s"
                ) from error
        return await self._write_result(connection, message, call, result, representation, include)

    def _page(self, call: Call) -> TextResult | None:
        """A page for people that anybody may have: what is in it they get only with credentials."""
        pages, info = self._server.pages, call.info
        if pages is None or info.method not in ("GET", "HEAD") or not info.path.startswith(ROOT):
            return None
        return pages.public(info.path, call.if_none_match)

    def _authenticate(self, connection: Connection, message: _Message) -> UserInfo:
        user = self._server.authenticator.authenticate(
            authorization_header=message.headers.get("authorization"),
            peer_certificate=connection.peer_certificate,
            now=self._server.clock.now(),
        )
        if is_impersonating(message.headers):
            return impersonate(message.raw_headers, user, self._server.authorizer.authorize)
        return user

    def _negotiate(self, call: Call) -> tuple[Representation, str]:
        info = call.info
        if not info.resource:
            return JSON, "Metadata"
        endpoint = self._server.catalog.get(info.group, info.version, info.resource)
        protobuf = endpoint is None or not endpoint.custom
        representation = negotiate(call.accept, listing=not info.name, protobuf=protobuf)
        if is_true(call.query.get("pretty")) or (
            call.user_agent[:4] in ("curl", "Wget") and "pretty" not in call.query
        ):
            representation = Representation(
                representation.media, representation.transform, representation.api_version, pretty=True
            )
        include = "Metadata"
        if representation.transform == "Table":
            include = check_include_object(call.query.get("includeObject", ""))
        return representation, include

    async def _write_result(
        self,
        connection: Connection,
        message: _Message,
        call: Call,
        result: Result,
        representation: Representation,
        include: str,
    ) -> int:
        warnings = _warning_headers(call)
        if isinstance(result, WatchResult):
            content_type = WATCH_CONTENT_TYPES[representation.media]
            headers = (_NO_CACHE, ("Content-Type", content_type), *warnings)
            await connection.write_stream(200, headers, self._frames(result, representation, include))
            return 200
        if isinstance(result, TextResult):
            return await self._write_text(connection, message, result)
        body = self._encode(result, representation, include)
        status = 200 if isinstance(result, ListResult) else result.status
        headers = (_NO_CACHE, ("Content-Type", CONTENT_TYPES[representation.media]), *warnings)
        encoding, body = await _compress(message, body)
        connection.write_answer(status, (*headers, *encoding), body, head_only=message.method == "HEAD")
        return status

    async def _write_text(self, connection: Connection, message: _Message, result: TextResult) -> int:
        headers: tuple[tuple[str, str], ...] = (("Content-Type", result.content_type), *result.headers)
        if not any(name == "Cache-Control" for name, _ in result.headers):
            headers = (_NO_CACHE, *headers)
        if result.stream is not None:
            # A client that leaves early must not leave the source behind.
            async with aclosing(result.stream) as chunks:
                await connection.write_stream(result.status, headers, chunks)
            return result.status
        encoding, body = await _compress(message, result.body)
        connection.write_answer(result.status, (*headers, *encoding), body, head_only=message.method == "HEAD")
        return result.status

    def _encode(self, result: Result, representation: Representation, include: str) -> bytes:
        now = self._server.clock.now()
        if isinstance(result, ObjectResult):
            return encode_object_result(result, representation, include=include, now=now)
        if isinstance(result, ListResult):
            return encode_list(result, representation, include=include, now=now)
        assert isinstance(result, DocumentResult)
        return encode_document_result(result, representation, include=include, now=now)

    async def _frames(self, result: WatchResult, representation: Representation, include: str) -> AsyncIterator[bytes]:
        encoder = FrameEncoder(result.endpoint, representation, include)
        async with aclosing(cast("Any", result.frames)) as frames:
            async for batch in frames:
                now = self._server.clock.now()
                piece, size = [], 0
                for frame in batch:
                    piece.append(encoder.encode(frame, now))
                    size += len(piece[-1])
                    if size >= _STREAM_PIECE_SIZE:
                        yield b"".join(piece)
                        piece, size = [], 0
                if piece:
                    yield b"".join(piece)

    def _write_error(self, connection: Connection, call: Call, error: APIError) -> None:
        if connection.transport.is_closing():
            return
        headers: list[tuple[str, str]] = [_NO_CACHE, *_warning_headers(call)]
        if isinstance(error, PageNotFoundError):
            body, content_type = error.plain_text.encode(), "text/plain; charset=utf-8"
            headers.append(("X-Content-Type-Options", "nosniff"))
        else:
            body, content_type = _error_body(call, error)
        if error.code == 403:  # noqa: PLR2004 - Forbidden
            headers.append(("X-Content-Type-Options", "nosniff"))
        if error.retry_after_seconds is not None:
            headers.append(("Retry-After", str(error.retry_after_seconds)))
        headers.append(("Content-Type", content_type))
        connection.write_answer(error.code, headers, body, head_only=call.info.method == "HEAD")


def _error_body(call: Call, error: APIError) -> tuple[bytes, str]:
    """A Status in the media type the client prefers; what cannot be negotiated is JSON."""
    status = error.status()
    media = Media.JSON
    if not isinstance(error, UnavailableRepresentationError):
        with suppress(APIError):
            media = negotiate(call.accept).media
    if error.code == 406 and media is Media.JSON:  # noqa: PLR2004 - Not Acceptable is indented
        return orjson.dumps(status, option=orjson.OPT_INDENT_2), CONTENT_TYPES[media]
    return dump(status, Representation(media)), CONTENT_TYPES[media]


def _warning_headers(call: Call) -> list[tuple[str, str]]:
    unique = dict.fromkeys(call.warnings)
    return [("Warning", f"299 - {orjson.dumps(text).decode()}") for text in unique]


async def _compress(message: _Message, body: bytes) -> tuple[tuple[tuple[str, str], ...], bytes]:
    if len(body) < GZIP_SIZE_MIN or "gzip" not in message.headers.get("accept-encoding", ""):
        return (), body
    if len(body) >= _GZIP_THREAD_SIZE_MIN:
        packed = await asyncio.to_thread(gzip.compress, body, _GZIP_LEVEL)
    else:
        packed = gzip.compress(body, _GZIP_LEVEL)
    return (("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding")), packed
