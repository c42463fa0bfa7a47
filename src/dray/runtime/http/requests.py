"""Parses requests from the bytes of a connection, within limits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import httptools

HEAD_BYTES_MAX: Final = 64 * 1024
# Pages and metrics take no more than a few words.
BODY_BYTES_MAX: Final = 64 * 1024
# Many small headers cost far more memory than their bytes.
HEADERS_MAX: Final = 2000
# What a request counts for besides its body; heads that may be larger than `_SMALL_HEAD_BYTES` are measured.
_HEAD_BYTES: Final = 1024
_SMALL_HEAD_BYTES: Final = 16 * 1024
TOO_MANY_REQUESTS: Final = "Too many requests, please try again later."


class RequestError(Exception):
    """A request that cannot be served; the connection must be closed.

    The response has the headers and the body, or is the text.
    """

    def __init__(
        self, status: int, text: str, headers: Sequence[tuple[str, str]] = (), body: bytes | None = None
    ) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers
        self.body = body


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits and deadlines of a server, per connection unless noted otherwise. A deadline of None never expires."""

    # Connections of the server. Those beyond it are answered with 503 and closed.
    connections_max: int = 1024
    # Bytes of a head, or of trailers and chunk extensions.
    head_bytes_max: int = HEAD_BYTES_MAX
    body_bytes_max: int = BODY_BYTES_MAX
    # A larger body is discarded up to this size and its request marked as too large, so that the handler can respond
    # on the open connection. Beyond it the connection is refused with 413.
    discarded_bytes_max: int = 0
    # Complete requests that may wait for the one being served.
    pipelined_max: int = 16
    # Bytes of requests that were received and not answered. Beyond it the connection is not read from; it must be
    # larger than a head and a body.
    received_bytes_max: int = 1024 * 1024
    # The same of all connections together. Beyond it the largest incomplete requests are refused with 429.
    total_received_bytes_max: int = 64 * 1024 * 1024
    # Between requests.
    idle_seconds: float | None = 75.0
    # From the first byte of a request to the end of its head, and from there to the end of its body.
    head_seconds: float | None = 15.0
    body_seconds: float | None = 15.0
    handshake_seconds: float = 10.0
    # A client that reads nothing of what is written for this long is disconnected.
    write_seconds: float = 60.0
    # A client that was refused may go on sending for this long.
    linger_seconds: float = 1.0
    # A request being served when the server stops may take this long to complete.
    stop_seconds: float = 0.5


@dataclass(slots=True)
class Request:
    """One request."""

    method: str = ""
    # The target as it was sent: quoted path, and query.
    target: str = ""
    # Names in lower case; of several headers with one name the last.
    headers: dict[str, str] = field(default_factory=dict)
    # All headers in order, names as they were sent.
    raw_headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    # The body exceeded the limit and was discarded.
    is_too_large: bool = False
    keep_alive: bool = False
    # Whether the client asks to speak another protocol on this connection, which the handler may accept.
    is_upgrade: bool = False
    # Whether the client understands chunked responses.
    accepts_chunks: bool = True
    # The values of a route's parameters.
    parameters: dict[str, str] = field(default_factory=dict)
    # The client's certificate as `ssl.SSLSocket.getpeercert` returns it, decoded and as DER; empty without one.
    certificate: dict[str, Any] = field(default_factory=dict)
    certificate_der: bytes | None = None
    # What `on_head` found out, such as the user.
    context: Any = None
    # An estimate of the memory of the head.
    head_bytes: int = _HEAD_BYTES

    @property
    def path(self) -> str:
        """The unquoted path."""
        return unquote(self.target.partition("?")[0])

    @property
    def query(self) -> dict[str, str]:
        """The first value of each query parameter."""
        found: dict[str, str] = {}
        for name, value in parse_qsl(self.target.partition("?")[2], keep_blank_values=True):
            found.setdefault(name, value)
        return found


class RequestParser:
    """Turns bytes into complete requests in `ready`, in order.

    `on_head` is called with each request when its head is complete, before its body is read. It may raise
    RequestError to refuse the request.
    """

    def __init__(self, limits: Limits, on_head: Callable[[Request], None] | None = None) -> None:
        self.ready: deque[Request] = deque()
        # The client waits for 100 Continue before it sends the body; reset by the sender of that response.
        self.expects_continue = False
        # What follows an upgrade request, after which nothing can be fed; None before it.
        self.rest: bytes | None = None
        self._limits = limits
        self._on_head = on_head
        self._parser: Any = httptools.HttpRequestParser(self)
        self._completed = 0
        # Bytes since a request was completed or part of a body came: heads, trailers and chunk extensions.
        self._head_bytes = 0
        # Whether the head may be of unusual size, and is measured.
        self._is_large = False
        # Of complete requests and the body being received.
        self._stored_bytes = 0
        self._begin()

    @property
    def received_bytes(self) -> int:
        """The size of the requests that were received and not released."""
        return self._stored_bytes + self._head_bytes

    @property
    def incomplete_bytes(self) -> int:
        """The part of `received_bytes` that belongs to a request which is not complete."""
        return self._head_bytes + (0 if self._request.is_too_large else self._body_size)

    @property
    def is_idle(self) -> bool:
        """Whether no byte of a further request has come."""
        return not self._begun

    @property
    def is_in_body(self) -> bool:
        """Whether a head is complete and its body is not."""
        return not self._in_head

    def feed(self, data: bytes) -> None:
        """Parse more bytes; raise RequestError for a request that cannot be served."""
        before = self._completed, self._body_size
        self._is_large = self._head_bytes + len(data) > _SMALL_HEAD_BYTES
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # The bytes that follow are of another protocol.
            self.rest = data[upgrade.args[0] :]
            if self.ready:
                self.ready[-1].keep_alive = False
                self.ready[-1].is_upgrade = True
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, RequestError):
                raise error.__context__ from None
            raise
        except httptools.HttpParserError as error:
            raise RequestError(400, f"malformed HTTP request: {error}") from error
        if before == (self._completed, self._body_size):
            self._head_bytes += len(data)
            self._check_head(self._head_bytes)
        else:
            self._head_bytes = 0

    def release(self, request: Request) -> None:
        """Stop counting a request that has been served."""
        self._stored_bytes -= request.head_bytes + len(request.body)

    def drop_ready(self, keep: int = 0) -> None:
        """Drop the complete requests beyond the first `keep`."""
        while len(self.ready) > keep:
            self.release(self.ready.pop())

    def close(self) -> None:
        """Drop the incomplete request and free its memory without the garbage collector; nothing can be fed afterwards.

        httptools' parser and this one form a cycle.
        """
        self._stored_bytes -= 0 if self._request.is_too_large else self._body_size
        self._head_bytes = 0
        self._parser = self._on_head = None
        self._begin()

    def _check_head(self, size: int) -> None:
        if size > self._limits.head_bytes_max or len(self._request.raw_headers) > HEADERS_MAX:
            raise RequestError(431, "request header fields too large")

    def _begin(self) -> None:
        self._request = Request()
        self._target = b""
        self._body: list[bytes] = []
        self._body_size = 0
        self._in_head = True
        self._begun = False

    # --- Callbacks of httptools. ---

    def on_message_begin(self) -> None:
        """Start a request with its first byte."""
        self._begun = True

    def on_url(self, url: bytes) -> None:
        """Append to the target, which may come in pieces."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; trailers are dropped, because they come after the head was checked."""
        if self._in_head:
            key, text = name.decode("latin-1"), value.decode("latin-1")
            self._request.raw_headers.append((key, text))
            # The first of a name counts, as in Go: a proxy in front must not have checked another one.
            if self._request.headers.setdefault(key.lower(), text) is not text and key.lower() == "host":
                raise RequestError(400, "too many Host headers")

    def on_headers_complete(self) -> None:
        """Complete the head."""
        request, self._in_head = self._request, False
        request.method = self._parser.get_method().decode("latin-1")
        request.accepts_chunks = self._parser.get_http_version() == "1.1"
        request.target = self._target.decode("latin-1")
        if self._is_large or len(request.raw_headers) > HEADERS_MAX:
            request.head_bytes += len(self._target) + sum(len(key) + len(text) + 4 for key, text in request.raw_headers)
            self._check_head(request.head_bytes - _HEAD_BYTES)
        if self._on_head is not None:
            self._on_head(request)
        self.expects_continue = request.headers.get("expect", "").lower() == "100-continue"

    def on_body(self, data: bytes) -> None:
        """Append to the body, or discard it when it is too large."""
        self._body_size += len(data)
        if self._body_size <= self._limits.body_bytes_max:
            self._body.append(data)
            self._stored_bytes += len(data)
            return
        if self._body_size > self._limits.discarded_bytes_max:
            raise RequestError(413, "request body too large")
        if not self._request.is_too_large:
            self._request.is_too_large = True
            self._stored_bytes -= self._body_size - len(data)
            self._body.clear()

    def on_message_complete(self) -> None:
        """Complete the request."""
        request = self._request
        request.body = b"".join(self._body)
        request.keep_alive = request.accepts_chunks and self._parser.should_keep_alive()
        self.expects_continue = False
        self._stored_bytes += request.head_bytes
        self.ready.append(request)
        self._completed += 1
        self._begin()
