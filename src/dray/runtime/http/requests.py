"""Parses requests from the bytes of a connection, within limits. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import httptools

HEAD_BYTES_MAX: Final = 64 * 1024
# Pages and metrics take no more than a few words.
BODY_BYTES_MAX: Final = 64 * 1024


class RequestError(Exception):
    """A request that cannot be served; the connection must be closed."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits and deadlines of a server, per connection. A deadline of None never expires."""

    # Bytes of a head, or of trailers and chunk extensions.
    head_bytes_max: int = HEAD_BYTES_MAX
    body_bytes_max: int = BODY_BYTES_MAX
    # A larger body is discarded up to this size and its request marked as too large, so that the handler can respond
    # on the open connection. Beyond it the connection is refused with 413.
    discarded_bytes_max: int = 0
    # Complete requests that may wait for the one being served.
    pipelined_max: int = 16
    # Between requests.
    idle_seconds: float | None = 75.0
    # From the first byte of a request to the end of its head, and from there to the end of its body.
    head_seconds: float | None = 15.0
    body_seconds: float | None = 15.0
    handshake_seconds: float = 10.0
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
    # Whether the client understands chunked responses.
    accepts_chunks: bool = True
    # The values of a route's parameters.
    parameters: dict[str, str] = field(default_factory=dict)
    # The client's certificate as `ssl.SSLSocket.getpeercert` returns it, decoded and as DER; empty without one.
    certificate: dict[str, Any] = field(default_factory=dict)
    certificate_der: bytes | None = None

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
        self._limits = limits
        self._on_head = on_head
        self._parser: Any = httptools.HttpRequestParser(self)
        self._completed = 0
        # Bytes since a request was completed or part of a body came: heads, trailers and chunk extensions.
        self._head_bytes = 0
        self._begin()

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
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Served as a plain request; the bytes that follow are of another protocol.
            if self.ready:
                self.ready[-1].keep_alive = False
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, RequestError):
                raise error.__context__ from None
            raise
        except httptools.HttpParserError as error:
            raise RequestError(400, f"malformed HTTP request: {error}") from error
        if before == (self._completed, self._body_size):
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.head_bytes_max:
                raise RequestError(431, "request header fields too large")
        else:
            self._head_bytes = 0

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
        """Add a header; trailers are dropped."""
        if self._in_head:
            key, text = name.decode("latin-1"), value.decode("latin-1")
            self._request.raw_headers.append((key, text))
            self._request.headers[key.lower()] = text

    def on_headers_complete(self) -> None:
        """Complete the head."""
        request, self._in_head = self._request, False
        request.method = self._parser.get_method().decode("latin-1")
        request.accepts_chunks = self._parser.get_http_version() == "1.1"
        request.target = self._target.decode("latin-1")
        if self._on_head is not None:
            self._on_head(request)
        self.expects_continue = request.headers.get("expect", "").lower() == "100-continue"

    def on_body(self, data: bytes) -> None:
        """Append to the body, or discard it when it is too large."""
        self._body_size += len(data)
        if self._body_size <= self._limits.body_bytes_max:
            self._body.append(data)
            return
        if self._body_size > self._limits.discarded_bytes_max:
            raise RequestError(413, "request body too large")
        self._request.is_too_large = True
        self._body.clear()

    def on_message_complete(self) -> None:
        """Complete the request."""
        request = self._request
        request.body = b"".join(self._body)
        request.keep_alive = request.accepts_chunks and self._parser.should_keep_alive()
        self.expects_continue = False
        self.ready.append(request)
        self._completed += 1
        self._begin()
