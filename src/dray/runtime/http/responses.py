"""Reads one answer from the bytes of a connection, however they are cut."""

from __future__ import annotations

from typing import Any, Final

import httptools

from dray.runtime.http.errors import BrokenAnswerError, NoAnswerError

# Bytes of a head, of trailers or of chunk extensions without any of the body: Go's client takes as much.
HEAD_BYTES_MAX: Final = 1024 * 1024
_SWITCHING: Final = 101
_SUCCESSES: Final = range(200, 300)
# Their answers have no body, whatever the headers say.
_HEAD_ONLY: Final = frozenset({"HEAD", "CONNECT"})
_BODILESS: Final = frozenset({204, 304})


class AnswerReader:
    """Fed with bytes, it has a head, pieces of the body, and an end; answers with 1xx are skipped.

    One reader reads one answer. What comes after it makes the connection unfit for another.
    """

    __slots__ = (
        "_began",
        "_in_head",
        "_method",
        "_parser",
        "_quiet",
        "_until_close",
        "buffered",
        "complete",
        "has_head",
        "headers",
        "pieces",
        "reason",
        "reusable",
        "status",
    )

    def __init__(self, method: str = "GET") -> None:
        self._method = method
        self.status = 0
        self.reason = b""
        # Names in lower case.
        self.headers: list[tuple[bytes, bytes]] = []
        self.pieces: list[bytes] = []
        # How many bytes the pieces have.
        self.buffered = 0
        self.has_head = False
        self.complete = False
        # Whether the connection may be used again, once complete.
        self.reusable = False
        self._began = False
        self._in_head = False
        self._until_close = False
        # Bytes since the last one of the body.
        self._quiet = 0
        self._parser: Any = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Take in what came; raises BrokenAnswerError."""
        self._began = True
        before = self.buffered
        if self._parser is None:
            self.reusable = False
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as error:
            raise BrokenAnswerError("the server switched to a protocol nobody asked for") from error
        except httptools.HttpParserError as error:
            self.reusable = False
            if not self.complete:
                raise BrokenAnswerError(f"malformed HTTP answer: {error}") from error
        if self.complete:
            self.stop()
            return
        self._quiet = self._quiet + len(data) if self.buffered == before else 0
        if self._quiet > HEAD_BYTES_MAX:
            raise BrokenAnswerError(f"the answer has more than {HEAD_BYTES_MAX} bytes of headers")

    def end(self, failure: str = "") -> None:
        """The connection has ended, well or by a failure; raises unless the answer is complete with that."""
        self.stop()
        if self.complete:
            return
        if not self._began:
            raise NoAnswerError(failure or "the server closed the connection without an answer")
        if failure or not self._until_close:
            raise BrokenAnswerError(failure or "the server closed the connection in the middle of an answer")
        self.complete = True

    def stop(self) -> None:
        """Read no more; the parser knows us as we know it, and would live until the next collection."""
        self._parser = None

    def take(self) -> list[bytes]:
        """The pieces so far, for good."""
        pieces, self.pieces, self.buffered = self.pieces, [], 0
        return pieces

    # --- httptools' callbacks ---

    def on_message_begin(self) -> None:
        """A head, unless it is what nobody asked for."""
        if self.complete:
            self.reusable = False
        else:
            self._in_head = True

    def on_status(self, reason: bytes) -> None:
        """The words after the number."""
        if self._in_head:
            self.reason = reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; trailers are dropped."""
        if self._in_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Know how the body will end."""
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
            # The parser waits for a body that does not come. A tunnel is kept for what goes through it.
            self.reusable = self._method == "CONNECT" and status in _SUCCESSES
            return
        self._until_close = self._is_until_close()

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        if self.complete:
            self.reusable = False
            return
        self.pieces.append(data)
        self.buffered += len(data)

    def on_message_complete(self) -> None:
        """The end, unless it was an answer before the answer."""
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
