"""The API over HTTP: authenticates requests, limits them, executes them and encodes the responses."""

from __future__ import annotations

import asyncio
import functools
import gzip
import logging
import socket
import ssl
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias, cast

import orjson

from dray.api import errors
from dray.api.errors import APIError, InternalError, RequestEntityTooLargeError
from dray.apiserver.audit.auditor import Auditor
from dray.apiserver.audit.events import AuditRecord
from dray.apiserver.authentication.impersonation import impersonate, is_impersonating
from dray.apiserver.call import (
    Call,
    DocumentResult,
    EndedSessionResult,
    ListResult,
    ObjectResult,
    Pacer,
    ProxyResult,
    Result,
    TextResult,
    UpgradeResult,
    WatchResult,
)
from dray.apiserver.encoding import (
    CONTENT_TYPES,
    WATCH_CONTENT_TYPES,
    FrameEncoder,
    dump,
    encode_document_result,
    encode_object_result,
)
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.handlers.nonresource import PageNotFoundError
from dray.apiserver.list_encoding import ListEncoder
from dray.apiserver.malformed import log_malformed
from dray.apiserver.metrics import RequestMetrics
from dray.apiserver.negotiation import JSON, Media, Representation, UnavailableRepresentationError, negotiate
from dray.apiserver.options import parse_timeout_seconds
from dray.apiserver.request import ANONYMOUS, UserInfo
from dray.apiserver.request_limiter import RequestLimiter
from dray.apiserver.routes import RequestInfo, is_true, parse_query, parse_request
from dray.apiserver.server import UI_ROOT, UI_STREAM, APIServer, attributes_of
from dray.apiserver.tables import check_include_object
from dray.apiserver.upgrades import UPGRADED, StreamLimiter, end_attached, pass_on, send_messages
from dray.apiserver.warning_headers import warning_headers
from dray.runtime.descriptors import STREAMS_MAX
from dray.runtime.http.requests import Limits, Request, RequestError
from dray.runtime.http.server import HttpServer, Response
from dray.runtime.http.websocket import is_request
from dray.runtime.timeouts import SharedTimeout

_LOG: Final = logging.getLogger("dray.apiserver.http")
# kube-apiserver's limit for one request body.
BODY_SIZE_MAX: Final = 3 * 1024 * 1024
# More than the watches, each of which has a connection.
CONNECTIONS_MAX: Final = 20_000
LIMITS: Final = Limits(
    connections_max=CONNECTIONS_MAX,
    # As Go's net/http.
    head_bytes_max=1024 * 1024,
    body_bytes_max=BODY_SIZE_MAX,
    discarded_bytes_max=256 * 1024 * 1024,
    pipelined_max=64,
    idle_seconds=180.0,
    received_bytes_max=8 * 1024 * 1024,
    total_received_bytes_max=256 * 1024 * 1024,
    # As kube-apiserver's.
    head_seconds=32.0,
    body_seconds=60.0,
    handshake_seconds=10.0,
    stop_seconds=1.5,
)
# Smaller responses are not worth the time to compress.
GZIP_SIZE_MIN: Final = 128 * 1024
_GZIP_THREAD_SIZE_MIN: Final = 256 * 1024
_GZIP_LEVEL: Final = 1
REQUEST_TIMEOUT_SECONDS: Final = 60.0
# A watch is written in chunks of about this size, which bounds the memory of a slow reader of large objects.
_CHUNK_SIZE: Final = 256 * 1024
# Larger responses are encrypted and written in parts of this size, with other requests in between.
_PART_SIZE: Final = 256 * 1024
# Smaller batches of events are encoded in one go.
_PACED_FRAMES_MIN: Final = 64
_NO_CACHE: Final = ("Cache-Control", "no-cache, private")
# Subresources whose answers are of a kind that is not stored.
_WITHOUT_TABLES: Final = frozenset({"binding", "eviction", "token"})


# Results that take no seat.
_Stream: TypeAlias = TextResult | UpgradeResult | EndedSessionResult | ProxyResult


class _Exchange(NamedTuple):
    """One request, where its response is written, and in which form."""

    request: Request
    response: Response
    call: Call
    representation: Representation
    include: str = "Metadata"
    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS
    started: float = 0.0


class Listener:
    """Serves one API server over HTTP."""

    def __init__(
        self,
        server: APIServer,
        limiter: RequestLimiter,
        metrics: RequestMetrics,
        *,
        connections_max: int = CONNECTIONS_MAX,
        streams_max: int = STREAMS_MAX,
        auditor: Auditor | None = None,
    ) -> None:
        self._auditor = auditor
        self._server = server
        self._limiter = limiter
        self._metrics = metrics
        self._timeout = SharedTimeout(REQUEST_TIMEOUT_SECONDS)
        self._streams = StreamLimiter(streams_max)
        self._http = HttpServer(self._serve, replace(LIMITS, connections_max=connections_max), on_head=self._check_head)

    async def start(self, sockets: Iterable[socket.socket], tls: ssl.SSLContext | None) -> None:
        """Listen on bound sockets, which then belong to the listener."""
        await self._http.listen(sockets, tls)

    async def supervise(self) -> NoReturn:
        """Raise the failure of a connection, which is a bug. To be spawned in the supervisor's group."""
        await self._http.supervise()

    async def stop(self) -> None:
        """End watches, stop listening, let the other requests complete for a short time, and close."""
        self._http.closing = True
        self._server.watcher.close()
        await self._http.stop()

    def _check_head(self, request: Request) -> None:
        """Authenticate a request with a body before the body is read; an anonymous one must be authorized as well."""
        headers = request.headers
        if "transfer-encoding" not in headers and headers.get("content-length", "0") == "0":
            return
        try:
            request.context = self._authenticate(request)
            if request.context.name == ANONYMOUS.name:
                call = _call(request)
                call.user = request.context
                self._server.authorizer.check(attributes_of(call))
        except APIError as error:
            call = _call(request)
            self._observe(call, error.code, 0.0)
            raise RequestError(error.code, error.message, *_error_response(call, error)) from error

    async def _serve(self, request: Request, response: Response) -> None:
        """Serve one request; every failure becomes a response."""
        call = _call(request)
        started = self._server.clock.monotonic()
        status, failure, panic = 500, None, False
        try:
            status = await self._execute(request, response, call)
        except APIError as error:
            status, failure = error.code, error
            self._write_error(response, call, error)
        except Exception as error:  # noqa: BLE001 - a bug ends this request only
            _LOG.exception("%s %s", request.method, request.target)
            failure, panic = InternalError(f"{type(error).__name__}: {error}"), True
            self._write_error(response, call, failure)
        finally:
            if status != UPGRADED:
                self._observe(call, status, self._server.clock.monotonic() - started)
            if self._auditor is not None and call.audit is not None:
                code = HTTPStatus.SWITCHING_PROTOCOLS if status == UPGRADED else status
                await self._auditor.complete(call, code, None if failure is None else failure.status(), panic=panic)
            # Its traceback refers to this frame.
            failure = None

    def _observe(self, call: Call, status: int, seconds: float) -> None:
        self._metrics.observe(call.info, status, seconds, known=self._is_known(call.info))

    def _is_known(self, info: RequestInfo) -> bool:
        """Return whether the request is for a resource that is served."""
        return bool(info.resource) and self._server.catalog.get(info.group, info.version, info.resource) is not None

    async def _execute(self, request: Request, response: Response, call: Call) -> int:
        if request.is_too_large:
            raise RequestEntityTooLargeError(f"Request entity too large: limit is {BODY_SIZE_MAX}")
        page = self._page(call)
        if page is not None:
            return await self._write(_Exchange(request, response, call, JSON), page, page.body, None)
        watching = (call.info.verb == "watch" and bool(call.info.resource)) or call.info.path == UI_STREAM
        timeout = "" if watching else call.query.get("timeout", "")
        timeout_seconds = parse_timeout_seconds(timeout, REQUEST_TIMEOUT_SECONDS)
        call.user = self._authenticate(request) if request.context is None else request.context
        if not is_impersonating(request.headers):
            call.client_address = response.peer
        if self._auditor is not None:
            await self._auditor.receive(call, request.headers, target=request.target, peer=response.peer)
        representation, include = self._negotiate(call)
        started = self._server.clock.monotonic()
        exchange = _Exchange(
            request=request,
            response=response,
            call=call,
            representation=representation,
            include=include,
            timeout_seconds=timeout_seconds,
            started=started,
        )
        if watching:
            with self._metrics.long_running(call.info, known=self._is_known(call.info)):
                return await self._limiter.run_watch(call.user, lambda pacer: self._serve_watch(exchange, pacer))
        path = "" if call.info.resource else call.info.path
        answered = await self._limiter.run(call.user, path, lambda pacer: self._serve_seated(exchange, pacer))
        if isinstance(answered, int):
            return answered
        with self._metrics.long_running(call.info, known=self._is_known(call.info)):
            return await self._serve_stream(exchange, answered)

    async def _serve_stream(self, exchange: _Exchange, result: _Stream) -> int:
        async with AsyncExitStack() as stack:
            if isinstance(result, TextResult) and result.stream is not None:
                # Also if the client is gone, or has too many streams, before the first byte is read.
                stack.push_async_callback(result.stream.aclose)
            stack.enter_context(self._streams.counted(exchange.call.user.name))
            if isinstance(result, UpgradeResult | EndedSessionResult):
                return await self._serve_upgrade(exchange, result)
            if isinstance(result, ProxyResult):
                result = await result.send(exchange.request.raw_headers)
                assert result.stream is not None
                stack.push_async_callback(result.stream.aclose)
            return await self._write_stream(exchange, result)

    async def _serve_upgrade(self, exchange: _Exchange, result: UpgradeResult | EndedSessionResult) -> int:
        """Serve an upgraded connection until it ends."""

        async def on_start() -> None:
            await self._audit_start(exchange, HTTPStatus.SWITCHING_PROTOCOLS)
            self._observe_upgrade(exchange)

        if isinstance(result, EndedSessionResult):
            return await end_attached(exchange.request, exchange.response, result, on_start)
        return await pass_on(exchange.request, exchange.response, result, on_start)

    def _observe_upgrade(self, exchange: _Exchange) -> None:
        """Record the time until the upgrade; what follows may take hours, and is not the duration of the request."""
        waited = self._server.clock.monotonic() - exchange.started
        self._observe(exchange.call, HTTPStatus.SWITCHING_PROTOCOLS, waited)

    async def _audit_start(self, exchange: _Exchange, code: int) -> None:
        """Record that the response of a long-running request begins."""
        if self._auditor is not None:
            await self._auditor.start(exchange.call, code)

    async def _serve_seated(self, exchange: _Exchange, pacer: Pacer) -> int | _Stream:
        """Execute a request and write its response; a stream, which takes no seat, is returned."""
        call = exchange.call
        call.pacer = pacer
        try:
            with self._timeout_of(exchange.timeout_seconds).block():
                result = await self._server.execute(call)
                if isinstance(result, UpgradeResult | EndedSessionResult | ProxyResult) or (
                    isinstance(result, TextResult) and result.stream is not None
                ):
                    return result
                if self._auditor is not None:
                    self._auditor.keep(call, result)
                body = await self._encode(exchange, result, pacer)
        except TimeoutError as error:
            raise errors.RequestTimeoutError(
                f"Timeout: request did not complete within {exchange.timeout_seconds:g}s"
            ) from error
        return await self._write(exchange, result, body, pacer)

    def _timeout_of(self, seconds: float) -> SharedTimeout:
        return self._timeout if seconds == self._timeout.seconds else SharedTimeout(seconds, keep_timer=False)

    async def _serve_watch(self, exchange: _Exchange, pacer: Pacer) -> int:
        exchange.call.pacer = pacer
        result = await self._server.execute(exchange.call)
        if isinstance(result, WatchResult) or (isinstance(result, TextResult) and result.stream is not None):
            return await self._write_stream(exchange, result)
        return await self._write(exchange, result, await self._encode(exchange, result, pacer), pacer)

    def _page(self, call: Call) -> TextResult | None:
        """Return a page that needs no credentials, such as the dashboard without its data."""
        pages, info = self._server.pages, call.info
        if pages is None or info.method not in ("GET", "HEAD") or not info.path.startswith(UI_ROOT):
            return None
        return pages.public(info.path, call.if_none_match)

    def _authenticate(self, request: Request) -> UserInfo:
        user = self._server.authenticator.authenticate(
            authorization_header=request.headers.get("authorization"),
            peer_certificate=request.certificate_der,
            now=self._server.clock.now(),
        )
        if is_impersonating(request.headers):
            return impersonate(request.raw_headers, user, self._server.authorizer.authorize)
        return user

    def _negotiate(self, call: Call) -> tuple[Representation, str]:
        info = call.info
        if not info.resource:
            return JSON, "Metadata"
        endpoint = self._server.catalog.get(info.group, info.version, info.resource)
        protobuf = endpoint is None or endpoint.has_protobuf
        tables = endpoint is None or _has_tables(info, endpoint)
        representation = negotiate(call.accept, listing=not info.name, protobuf=protobuf, tables=tables)
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

    async def _encode(self, exchange: _Exchange, result: Result, pacer: Pacer) -> bytes:
        """Return the body of a response; other requests go before the rest of a long list."""
        representation, include, now = exchange.representation, exchange.include, self._server.clock.now()
        if isinstance(result, ObjectResult):
            return encode_object_result(result, representation, include=include, now=now)
        if isinstance(result, TextResult):
            return result.body
        if isinstance(result, DocumentResult):
            return encode_document_result(result, representation, include=include, now=now)
        assert isinstance(result, ListResult)
        encoder = ListEncoder(result, representation, include=include, now=now, on_malformed=log_malformed)
        for _ in encoder.steps():
            if pacer.is_due():
                await pacer.pause()
        return encoder.body()

    async def _write(self, exchange: _Exchange, result: Result, body: bytes, pacer: Pacer | None) -> int:
        """Write a complete response, a large one in parts."""
        assert not isinstance(result, WatchResult | UpgradeResult | EndedSessionResult | ProxyResult)
        status = 200 if isinstance(result, ListResult) else result.status
        encoding, body = await _compress(exchange.request, body)
        headers = (*self._headers(exchange, result), *encoding)
        response = exchange.response
        if len(body) <= _PART_SIZE or pacer is None:
            response.send(status, headers, body)
            return status
        for _ in response.write_parts(status, headers, body, _PART_SIZE):
            if pacer.is_due():
                await pacer.pause()
        return status

    async def _write_stream(self, exchange: _Exchange, result: TextResult | WatchResult) -> int:
        """Write what has no known length, as fast as the client reads."""
        headers = self._headers(exchange, result)
        await self._audit_start(exchange, 200 if isinstance(result, WatchResult) else result.status)
        if isinstance(result, WatchResult):
            await exchange.response.stream(200, headers, self._frames(result, exchange))
            return 200
        assert result.stream is not None
        if exchange.call.info.subresource == "log" and _is_websocket_request(exchange.request):
            on_start = functools.partial(self._observe_upgrade, exchange)
            return await send_messages(exchange.request, exchange.response, result.stream, on_start)
        await exchange.response.stream(result.status, headers, result.stream)
        return result.status

    def _headers(self, exchange: _Exchange, result: Result) -> tuple[tuple[str, str], ...]:
        if isinstance(result, TextResult):
            headers: tuple[tuple[str, str], ...] = (("Content-Type", result.content_type), *result.headers)
            cached = any(name == "Cache-Control" for name, _ in result.headers)
            return headers if cached else (_NO_CACHE, *headers)
        types = WATCH_CONTENT_TYPES if isinstance(result, WatchResult) else CONTENT_TYPES
        content_type = ("Content-Type", types[exchange.representation.media])
        return _NO_CACHE, content_type, *_warning_headers(exchange.call)

    async def _frames(self, result: WatchResult, exchange: _Exchange) -> AsyncGenerator[bytes, None]:
        encoder = FrameEncoder(result.endpoint, exchange.representation, exchange.include, log_malformed)
        pacer = exchange.call.pacer
        async with aclosing(cast("Any", result.frames)) as frames:
            async for batch in frames:
                now = self._server.clock.now()
                chunk, size = [], 0
                # Initial objects, and events that were missed.
                paced = pacer if len(batch) >= _PACED_FRAMES_MIN else None
                if paced is not None:
                    paced.start()
                for frame in batch:
                    chunk.append(encoder.encode(frame, now))
                    size += len(chunk[-1])
                    if size >= _CHUNK_SIZE:
                        yield b"".join(chunk)
                        chunk, size = [], 0
                    if paced is not None and paced.is_due():
                        await paced.pause()
                if size:
                    yield b"".join(chunk)

    def _write_error(self, response: Response, call: Call, error: APIError) -> None:
        if response.is_started:
            response.abort()
        elif not response.is_closing:
            response.send(error.code, *_error_response(call, error))


def _is_websocket_request(request: Request) -> bool:
    return request.is_upgrade and is_request(request.headers)


def _has_tables(info: RequestInfo, endpoint: Endpoint) -> bool:
    """Return whether answers are objects of a kind that is stored, or scales of such objects."""
    return info.subresource not in _WITHOUT_TABLES and "get" in endpoint.definition.verbs


def _call(request: Request) -> Call:
    """Return the call of a request, whose user is not known yet."""
    path, _, query_text = request.target.partition("?")
    query = parse_query(query_text) if query_text else {}
    headers = request.headers
    return Call(
        info=parse_request(request.method, path, query),
        query=query,
        user=cast("UserInfo", None),
        body=request.body,
        content_type=headers.get("content-type", ""),
        user_agent=headers.get("user-agent", ""),
        accept=headers.get("accept", ""),
        if_none_match=headers.get("if-none-match", ""),
        raw_query=query_text,
        upgrade=headers.get("upgrade", "") if request.is_upgrade else "",
        websocket_protocols=headers.get("sec-websocket-protocol", ""),
    )


def _error_response(call: Call, error: APIError) -> tuple[list[tuple[str, str]], bytes]:
    """Return headers and body of the response to a failed request."""
    headers: list[tuple[str, str]] = [_NO_CACHE, *_warning_headers(call)]
    if isinstance(error, PageNotFoundError):
        body, content_type = error.plain_text.encode(), "text/plain; charset=utf-8"
        headers.append(("X-Content-Type-Options", "nosniff"))
    else:
        body, content_type = _error_body(call, error)
    if error.code == HTTPStatus.FORBIDDEN:
        headers.append(("X-Content-Type-Options", "nosniff"))
    if error.retry_after_seconds is not None:
        headers.append(("Retry-After", str(error.retry_after_seconds)))
    headers.append(("Content-Type", content_type))
    return headers, body


def _error_body(call: Call, error: APIError) -> tuple[bytes, str]:
    """Return a Status in the media type the client prefers, or JSON when that cannot be negotiated."""
    status = error.status()
    media = Media.JSON
    if not isinstance(error, UnavailableRepresentationError):
        with suppress(APIError):
            media = negotiate(call.accept).media
    # kube-apiserver indents this one.
    if error.code == HTTPStatus.NOT_ACCEPTABLE and media is Media.JSON:
        return orjson.dumps(status, option=orjson.OPT_INDENT_2), CONTENT_TYPES[media]
    return dump(status, Representation(media)), CONTENT_TYPES[media]


def _warning_headers(call: Call) -> list[tuple[str, str]]:
    headers = warning_headers(call.warnings)
    if isinstance(call.audit, AuditRecord):
        headers.append(("Audit-Id", call.audit.audit_id))
    return headers


async def _compress(request: Request, body: bytes) -> tuple[tuple[tuple[str, str], ...], bytes]:
    if len(body) < GZIP_SIZE_MIN or "gzip" not in request.headers.get("accept-encoding", ""):
        return (), body
    if len(body) >= _GZIP_THREAD_SIZE_MIN:
        packed = await asyncio.to_thread(gzip.compress, body, _GZIP_LEVEL)
    else:
        packed = gzip.compress(body, _GZIP_LEVEL)
    return (("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding")), packed
