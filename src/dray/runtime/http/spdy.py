"""SPDY/3.1 as kubectl and container runtimes speak it, from bytes to frames and back. Pure.

There is no flow control: window updates are ignored, and readers slow senders down by not reading.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

HEADERS_MAX: Final = 1000
HEADER_BYTES_MAX: Final = 1024 * 1024
# Larger frames end the connection; Go's clients write at most 32 KiB at a time.
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024 - 1
VERSION: Final = 3
OK: Final = 0
PROTOCOL_ERROR: Final = 1
REFUSED_STREAM: Final = 3
CANCEL: Final = 5

_CONTROL: Final = 0x8000
_SYN_STREAM: Final = 1
_SYN_REPLY: Final = 2
_RST_STREAM: Final = 3
_PING: Final = 6
_GOAWAY: Final = 7
_HEADERS: Final = 8
_FIN: Final = 1
_ID_MASK: Final = 0x7FFFFFFF
_HEAD_BYTES: Final = 8
_WORDS: Final = (
    *"""
    options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow
    authorization cache-control connection content-base content-encoding content-language content-length
    content-location content-md5 content-range content-type date etag expect expires from host if-match
    if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma
    proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade
    user-agent vary via warning www-authenticate method get status
    """.split(),  # noqa: SIM905 - a table that can be read
    *("200 OK", "version", "HTTP/1.1", "url", "public", "set-cookie", "keep-alive", "origin"),
)
_TAIL: Final = (
    b"100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    b"203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized"
    b"403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    b"Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    b"chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,"
    b"text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)
# The protocol's, for the compression of headers.
DICTIONARY: Final = b"".join(struct.pack(">I", len(word)) + word.encode() for word in _WORDS) + _TAIL


class SpdyError(Exception):
    """The other side has broken the protocol; the connection must be closed."""


@dataclass(frozen=True, slots=True)
class SynStream:
    """The other side has opened a stream."""

    stream_id: int
    headers: Mapping[str, str]
    fin: bool = False


@dataclass(frozen=True, slots=True)
class SynReply:
    """The other side has accepted a stream."""

    stream_id: int
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RstStream:
    """The other side has reset a stream."""

    stream_id: int
    status: int


@dataclass(frozen=True, slots=True)
class Data:
    """Data of a stream; `fin` means that the other side sends no more on it."""

    stream_id: int
    data: bytes
    fin: bool = False


@dataclass(frozen=True, slots=True)
class Ping:
    """A ping that must be answered with the same number."""

    number: int


@dataclass(frozen=True, slots=True)
class GoAway:
    """The other side opens no more streams."""


Frame: TypeAlias = SynStream | SynReply | RstStream | Data | Ping | GoAway


class SpdyConnection:
    """The state of one connection: the compression of headers in both directions, and the bytes of a partial frame."""

    def __init__(self, *, is_client: bool = False) -> None:
        self._is_client = is_client
        self._next_id = 1 if is_client else 2
        self._buffer = bytearray()
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)
        self._deflate = zlib.compressobj(zdict=DICTIONARY)

    # --- Receiving. ---

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that are complete; raise SpdyError."""
        self._buffer += data
        while len(self._buffer) >= _HEAD_BYTES:
            first, second = struct.unpack_from(">II", self._buffer)
            size, flags = second & 0xFFFFFF, second >> 24
            if len(self._buffer) < _HEAD_BYTES + size:
                return
            payload = bytes(self._buffer[_HEAD_BYTES : _HEAD_BYTES + size])
            del self._buffer[: _HEAD_BYTES + size]
            if first >> 31:
                frame = self._control(first >> 16, first & 0xFFFF, flags, payload)
                if frame is not None:
                    yield frame
            else:
                yield Data(first & _ID_MASK, payload, bool(flags & _FIN))

    def _control(self, version: int, kind: int, flags: int, payload: bytes) -> Frame | None:
        if version & 0x7FFF != VERSION:
            raise SpdyError("a frame is of another version")
        try:
            return self._control_frame(kind, flags, payload)
        except struct.error:
            raise SpdyError("a control frame is too short") from None

    def _control_frame(self, kind: int, flags: int, payload: bytes) -> Frame | None:
        match kind:
            case 1:
                stream_id = struct.unpack_from(">I", payload)[0] & _ID_MASK
                return SynStream(stream_id, self._headers(payload[10:]), bool(flags & _FIN))
            case 2:
                return SynReply(struct.unpack_from(">I", payload)[0] & _ID_MASK, self._headers(payload[4:]))
            case 3:
                stream_id, status = struct.unpack_from(">II", payload)
                return RstStream(stream_id & _ID_MASK, status)
            case 6:
                number: int = struct.unpack_from(">I", payload)[0]
                # Those that we began come back to us.
                return Ping(number) if number % 2 != self._next_id % 2 else None
            case 7:
                return GoAway()
            case 8:
                # Further headers carry nothing that we need, but belong to the compressed stream.
                self._headers(payload[4:])
        return None

    def _headers(self, block: bytes) -> dict[str, str]:
        try:
            text = self._inflate.decompress(block, HEADER_BYTES_MAX)
        except zlib.error as error:
            raise SpdyError(f"headers cannot be read: {error}") from error
        if self._inflate.unconsumed_tail:
            raise SpdyError("headers are too large")
        (count,) = struct.unpack_from(">I", text)
        if count > HEADERS_MAX:
            raise SpdyError("too many headers")
        found, position = {}, 4
        for _ in range(count):
            name, position = _string(text, position)
            value, position = _string(text, position)
            # Of several values the first counts, as Go's Header.Get.
            found[name.lower()] = value.partition("\0")[0]
        return found

    # --- Sending. ---

    def open_stream(self, headers: Mapping[str, str], *, fin: bool = False) -> tuple[int, bytes]:
        """Return the ID of a new stream, and the frame that opens it."""
        stream_id, self._next_id = self._next_id, self._next_id + 2
        block = struct.pack(">IIH", stream_id, 0, 0) + self._block(headers)
        return stream_id, _control_frame(_SYN_STREAM, _FIN if fin else 0, block)

    def reply(self, stream_id: int) -> bytes:
        """Return the frame that accepts a stream."""
        return _control_frame(_SYN_REPLY, 0, struct.pack(">I", stream_id) + self._block({}))

    def _block(self, headers: Mapping[str, str]) -> bytes:
        text = struct.pack(">I", len(headers))
        for name, value in headers.items():
            for part in (name.lower().encode(), value.encode()):
                text += struct.pack(">I", len(part)) + part
        return self._deflate.compress(text) + self._deflate.flush(zlib.Z_SYNC_FLUSH)


def data_frame(stream_id: int, data: bytes, *, fin: bool = False) -> bytes:
    """Return a frame with data of a stream."""
    assert len(data) <= FRAME_BYTES_MAX, "split the data"
    return struct.pack(">II", stream_id, (_FIN if fin else 0) << 24 | len(data)) + data


def reset_frame(stream_id: int, status: int = CANCEL) -> bytes:
    """Return the frame that resets a stream."""
    return _control_frame(_RST_STREAM, 0, struct.pack(">II", stream_id, status))


def ping_frame(number: int) -> bytes:
    """Return a ping, or the answer to one."""
    return _control_frame(_PING, 0, struct.pack(">I", number))


def goaway_frame(last_stream_id: int = 0) -> bytes:
    """Return the frame that announces the end of the connection."""
    return _control_frame(_GOAWAY, 0, struct.pack(">II", last_stream_id, OK))


def _control_frame(kind: int, flags: int, payload: bytes) -> bytes:
    return struct.pack(">HHI", _CONTROL | VERSION, kind, flags << 24 | len(payload)) + payload


def _string(text: bytes, position: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">I", text, position)
    end = position + 4 + size
    if end > len(text):
        raise SpdyError("headers are incomplete")
    return text[position + 4 : end].decode("utf-8", "replace"), end
