"""Reads requests from the bytes of a connection, within bounds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import httptools

HEAD_BYTES_MAX: Final = 64 * 1024
# None of what is served here takes more than a few words.
BODY_BYTES_MAX: Final = 64 * 1024


class RequestError(Exception):
    """A request that cannot be served; the connection is of no more use."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(slots=True)
class Request:
    """One request."""

    method: str = ""
    # As it was sent: quoted path, and query.
    target: str = ""
    path: str = ""
    # The first value of each name.
    query: dict[str, str] = field(default_factory=dict)
    # Names in lower case; of several headers with one name the last.
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    keep_alive: bool = False
    # Whether the client understands an answer in chunks.
    takes_chunks: bool = True
    # What the path's pattern named.
    parameters: dict[str, str] = field(default_factory=dict)
    # The client's certificate as the ssl module tells it; empty without one.
    certificate: dict[str, Any] = field(default_factory=dict)


class RequestReader:
    """Fed with bytes, it has complete requests in `ready`, in order."""

    def __init__(self, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        self.ready: deque[Request] = deque()
        # A client waits for this word before it sends its body; whoever says it resets this.
        self.expects_continue = False
        self._body_bytes_max = body_bytes_max
        self._parser: Any = httptools.HttpRequestParser(self)
        self._completed = 0
        # Bytes since a request was whole or had some of its body: of heads, trailers and chunk extensions.
        self._quiet = 0
        self._begin()

    @property
    def is_between(self) -> bool:
        """Whether nothing of another request has come."""
        return not self._began

    def feed(self, data: bytes) -> None:
        """Take in what came; raises RequestError."""
        before = self._completed, self._body_size
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Answered as a plain request; what follows is not HTTP as we know it.
            if self.ready:
                self.ready[-1].keep_alive = False
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, RequestError):
                raise error.__context__ from None
            raise
        except httptools.HttpParserError as error:
            raise RequestError(400, f"malformed HTTP request: {error}") from error
        self._quiet = self._quiet + len(data) if before == (self._completed, self._body_size) else 0
        if self._quiet > HEAD_BYTES_MAX:
            raise RequestError(431, "request header fields too large")

    def _begin(self) -> None:
        self._request = Request()
        self._target = b""
        self._body: list[bytes] = []
        self._body_size = 0
        self._in_head = True
        self._began = False

    # --- httptools' callbacks ---

    def on_message_begin(self) -> None:
        """The first byte."""
        self._began = True

    def on_url(self, url: bytes) -> None:
        """The target, possibly in pieces."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; trailers are dropped."""
        if self._in_head:
            self._request.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The head is whole."""
        request, self._in_head = self._request, False
        request.method = self._parser.get_method().decode("latin-1")
        request.takes_chunks = self._parser.get_http_version() == "1.1"
        request.target = self._target.decode("latin-1")
        path, _, query = request.target.partition("?")
        request.path = unquote(path)
        for name, value in parse_qsl(query, keep_blank_values=True):
            request.query.setdefault(name, value)
        self.expects_continue = request.headers.get("expect", "").lower() == "100-continue"

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        self._body_size += len(data)
        if self._body_size > self._body_bytes_max:
            raise RequestError(413, "request body too large")
        self._body.append(data)

    def on_message_complete(self) -> None:
        """The request is whole."""
        request = self._request
        request.body = b"".join(self._body)
        request.keep_alive = request.takes_chunks and self._parser.should_keep_alive()
        self.expects_continue = False
        self.ready.append(request)
        self._completed += 1
        self._begin()
