"""The WebSocket protocol (RFC 6455) of a server, from bytes to messages and back. Pure."""

from __future__ import annotations

import base64
import enum
import hashlib
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

# Larger messages end the connection.
MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024
VERSION: Final = "13"
NORMAL: Final = 1000
PROTOCOL_ERROR: Final = 1002
TOO_LARGE: Final = 1009
INTERNAL_ERROR: Final = 1011

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTROL_BYTES_MAX: Final = 125
_FINAL: Final = 0x80
_RESERVED: Final = 0x70
_MASKED: Final = 0x80
_TWO_BYTES: Final = 126
_EIGHT_BYTES: Final = 127


class Opcode(enum.IntEnum):
    """The kinds of frames."""

    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


class WebSocketError(Exception):
    """The client has broken the protocol; the connection must be closed with the code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Message:
    """A whole message (TEXT or BINARY), or a control frame (CLOSE, PING, PONG)."""

    opcode: Opcode
    data: bytes


def is_request(headers: Mapping[str, str]) -> bool:
    """Whether a request with these headers, by names in lower case, asks for a WebSocket."""
    return headers.get("upgrade", "").lower() == "websocket" and "sec-websocket-key" in headers


def accept_key(key: str) -> str:
    """Return the answer to the client's key."""
    # SHA-1 is the protocol's; nothing depends on its strength.
    return base64.b64encode(hashlib.sha1(key.strip().encode() + _GUID, usedforsecurity=False).digest()).decode()


def offered_protocols(header: str) -> list[str]:
    """Return the subprotocols of a Sec-WebSocket-Protocol header, in the client's order."""
    return [name for name in (part.strip() for part in header.split(",")) if name]


def encode(opcode: Opcode, data: bytes, mask: bytes = b"") -> bytes:
    """Return one final frame; a client must give a mask of four bytes."""
    size, flag = len(data), _MASKED if mask else 0
    if size <= _CONTROL_BYTES_MAX:
        head = struct.pack(">BB", _FINAL | opcode, flag | size)
    elif size < 1 << 16:
        head = struct.pack(">BBH", _FINAL | opcode, flag | _TWO_BYTES, size)
    else:
        head = struct.pack(">BBQ", _FINAL | opcode, flag | _EIGHT_BYTES, size)
    return head + mask + _unmask(data, mask) if mask else head + data


def encode_close(code: int, reason: str = "") -> bytes:
    """Return a close frame."""
    text = reason.encode()[: _CONTROL_BYTES_MAX - 2].decode(errors="ignore").encode()
    return encode(Opcode.CLOSE, struct.pack(">H", code) + text)


class MessageReader:
    """Turns the bytes of one side into messages; fragments are joined."""

    def __init__(self, *, masked: bool = True, message_bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        self._masked = masked
        self._message_bytes_max = message_bytes_max
        self._buffer = bytearray()
        # The fragments of an unfinished message.
        self._opcode: Opcode | None = None
        self._fragments: list[bytes] = []
        self._fragment_bytes = 0

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the messages that are complete; raise WebSocketError."""
        self._buffer += data
        while (frame := self._next_frame()) is not None:
            message = self._take(*frame)
            if message is not None:
                yield message

    def _next_frame(self) -> tuple[Opcode, bool, bytes] | None:
        buffer = self._buffer
        if len(buffer) < 2:  # noqa: PLR2004 - the fixed part of a head
            return None
        if buffer[0] & _RESERVED:
            raise WebSocketError(PROTOCOL_ERROR, "a frame has reserved bits")
        try:
            opcode = Opcode(buffer[0] & 0x0F)
        except ValueError:
            raise WebSocketError(PROTOCOL_ERROR, "a frame is of unknown kind") from None
        if bool(buffer[1] & _MASKED) != self._masked:
            raise WebSocketError(PROTOCOL_ERROR, "a frame is not masked" if self._masked else "a frame is masked")
        size, start = buffer[1] & 0x7F, 2
        if size >= _TWO_BYTES:
            width = 2 if size == _TWO_BYTES else 8
            start += width
            if len(buffer) < start:
                return None
            size = int.from_bytes(buffer[2:start], "big")
        final = bool(buffer[0] & _FINAL)
        self._check_size(opcode, size, final=final)
        end = start + (4 if self._masked else 0) + size
        if len(buffer) < end:
            return None
        payload = bytes(buffer[end - size : end])
        if self._masked:
            payload = _unmask(payload, bytes(buffer[start : start + 4]))
        del buffer[:end]
        return opcode, final, payload

    def _check_size(self, opcode: Opcode, size: int, *, final: bool) -> None:
        if opcode >= Opcode.CLOSE:
            if size > _CONTROL_BYTES_MAX or not final:
                raise WebSocketError(PROTOCOL_ERROR, "a control frame is too long or fragmented")
        elif self._fragment_bytes + size > self._message_bytes_max:
            raise WebSocketError(TOO_LARGE, f"a message has more than {self._message_bytes_max} bytes")

    def _take(self, opcode: Opcode, final: bool, payload: bytes) -> Message | None:  # noqa: FBT001 - a field of the frame
        if opcode >= Opcode.CLOSE:
            return Message(opcode, payload)
        if (opcode is Opcode.CONTINUATION) != (self._opcode is not None):
            raise WebSocketError(PROTOCOL_ERROR, "fragments of messages are mixed up")
        if opcode is not Opcode.CONTINUATION:
            if final:
                return Message(opcode, payload)
            self._opcode = opcode
        self._fragments.append(payload)
        self._fragment_bytes += len(payload)
        if not final:
            return None
        assert self._opcode is not None
        whole = Message(self._opcode, b"".join(self._fragments))
        self._opcode, self._fragments, self._fragment_bytes = None, [], 0
        return whole


@lru_cache(maxsize=256)
def _table(mask: int) -> bytes:
    """Return what one byte of a mask makes of every byte."""
    return bytes(value ^ mask for value in range(256))


def _unmask(data: bytes, mask: bytes) -> bytes:
    """Return the data combined with the repeated mask, every fourth byte by one table."""
    result = bytearray(data)
    for position in range(4):
        result[position::4] = data[position::4].translate(_table(mask[position]))
    return bytes(result)
