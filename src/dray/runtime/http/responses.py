"""Parses one response incrementally."""

from __future__ import annotations

from typing import Any, Final

import httptools

from dray.runtime.http.errors import BrokenResponseError, NoResponseError

# Limit of a head, of trailers or of chunk extensions, as in Go's client.
HEAD_BYTES_MAX: Final = 1024 * 1024
_SWITCHING: Final = 101
_SUCCESSES: Final = range(200, 300)
# Responses to these have no body, regardless of their headers.
_HEAD_ONLY: Final = frozenset({"HEAD", "CONNECT"})
_BODILESS: Final = frozenset({204, 304})


class ResponseParser:
    """Parses the head, the body and the end of one response; 1xx responses are skipped.

    Data after the end makes the connection unusable for another request.
    """

    __slots__ = (
        "_began",
        "_in_head",
        "_method",
        "_parser",
        "_quiet",
        "_until_close",
        "_upgrade",
        "buffered",
        "complete",
        "has_head",
        "headers",
        "pieces",
        "reason",
        "rest",
        "reusable",
        "status",
    )

    def __init__(self, method: str = "GET", *, upgrade: bool = False) -> None:
        self._method = method
        # What follows a response that switches protocols; None unless the request has asked for that.
        self.rest: bytes | None = None
        self._upgrade = upgrade
        self.status = 0
        self.reason = b""
        # Names in lower case.
        self.headers: list[tuple[bytes, bytes]] = []
        self.pieces: list[bytes] = []
        # Total size of the pieces.
        self.buffered = 0
        self.has_head = False
        self.complete = False
        # Whether the connection can be reused after the response is complete.
        self.reusable = False
        self._began = False
        self._in_head = False
        self._until_close = False
        # Bytes received since the last byte of the body.
        self._quiet = 0
        self._parser: Any = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Parse received bytes; raise BrokenResponseError."""
        self._began = True
        before = self.buffered
        if self._parser is None:
            self.reusable = False
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as error:
            if self._upgrade and self.status == _SWITCHING:
                self.rest = data[error.args[0] :]
                self.complete = True
                self.stop()
                return
            raise BrokenResponseError("the server switched to an unrequested protocol") from error
        except httptools.HttpParserError as error:
            self.reusable = False
            if not self.complete:
                raise BrokenResponseError(f"malformed HTTP response: {error}") from error
        if self.complete:
            self.stop()
            return
        self._quiet = self._quiet + len(data) if self.buffered == before else 0
        if self._quiet > HEAD_BYTES_MAX:
            raise BrokenResponseError(f"the response has more than {HEAD_BYTES_MAX} bytes of headers")

    def end(self, failure: str = "") -> None:
        """Handle the end of the connection; raise unless the response is then complete."""
        self.stop()
        if self.complete:
            return
        if not self._began:
            raise NoResponseError(failure or "the server closed the connection without a response")
        if failure or not self._until_close:
            raise BrokenResponseError(failure or "the server closed the connection in the middle of a response")
        self.complete = True

    def stop(self) -> None:
        """Stop parsing; drops the parser, which has a reference cycle with this object."""
        self._parser = None

    def take(self) -> list[bytes]:
        """Remove and return the pieces received so far."""
        pieces, self.pieces, self.buffered = self.pieces, [], 0
        return pieces

    # --- Callbacks of httptools. ---

    def on_message_begin(self) -> None:
        """Start a head; after a complete response it is unexpected data."""
        if self.complete:
            self.reusable = False
        else:
            self._in_head = True

    def on_status(self, reason: bytes) -> None:
        """Store the reason phrase."""
        if self._in_head:
            self.reason = reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; trailers are dropped."""
        if self._in_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Complete the head and determine how the body ends."""
        if not self._in_head:
            return
        self._in_head = False
        status = self._parser.get_status_code()
        if status < _SUCCESSES.start and status != _SWITCHING:
            self.headers.clear()
            return
        self.status = status
        self.has_head = True
        if self._method in _HEAD_ONLY:
            self.complete = True
            # The parser would wait for a body. A tunnel stays open.
            self.reusable = self._method == "CONNECT" and status in _SUCCESSES
            return
        self._until_close = self._is_until_close()

    def on_body(self, data: bytes) -> None:
        """Add to the body."""
        if self.complete:
            self.reusable = False
            return
        self.pieces.append(data)
        self.buffered += len(data)

    def on_message_complete(self) -> None:
        """Complete the response, unless it was a 1xx response."""
        if self.has_head and not self.complete:
            self.complete = True
            self.reusable = self._parser.should_keep_alive()

    def _is_until_close(self) -> bool:
        if self.status in _BODILESS:
            return False
        coding = b""
        for name, value in self.headers:
            if name == b"content-length":
                return False
            if name == b"transfer-encoding":
                coding = value
        return coding.rpartition(b",")[2].strip().lower() != b"chunked"
