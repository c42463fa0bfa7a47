"""The protobuf wire format: varints, tags and length-delimited values."""

from __future__ import annotations

from typing import Final

from dray.api.schema.model import Scalar, Type

VARINT: Final = 0
FIXED64: Final = 1
DELIMITED: Final = 2
FIXED32: Final = 5

# The high bit of a varint's byte: more bytes follow.
CONTINUATION: Final = 0x80
_MASK64: Final = (1 << 64) - 1
_SIGN64: Final = 1 << 63
# Ten groups of seven bits hold 64.
_SHIFT_MAX: Final = 63


class ProtobufError(ValueError):
    """Malformed protobuf."""


def varint(number: int) -> bytes:
    """Encode an integer; negative ones take ten bytes, as two's complement of 64 bits."""
    number &= _MASK64
    if number < CONTINUATION:
        return _SMALL[number]
    out = bytearray()
    while number >= CONTINUATION:
        out.append(number & 0x7F | CONTINUATION)
        number >>= 7
    out.append(number)
    return bytes(out)


_SMALL: Final = tuple(bytes((number,)) for number in range(CONTINUATION))


def tag(number: int, wire_type: int) -> bytes:
    """Return the key of a field."""
    return varint(number << 3 | wire_type)


def delimited(payload: bytes) -> bytes:
    """Return the payload prefixed with its length."""
    return varint(len(payload)) + payload


def read_varint(buffer: bytes, position: int, end: int) -> tuple[int, int]:
    """Return the unsigned integer at a position, and the position after it."""
    result = shift = 0
    while position < end:
        byte = buffer[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < CONTINUATION:
            return result & _MASK64, position
        shift += 7
        if shift > _SHIFT_MAX:
            raise ProtobufError("proto: integer overflow")
    raise ProtobufError("unexpected EOF")


def signed(number: int) -> int:
    """Interpret 64 bits as two's complement."""
    return number - (1 << 64) if number & _SIGN64 else number


def read_length(buffer: bytes, position: int, end: int) -> tuple[int, int]:
    """Return start and end of a length-delimited value."""
    length, start = read_varint(buffer, position, end)
    if start + length > end:
        raise ProtobufError("unexpected EOF")
    return start, start + length


def skip(buffer: bytes, position: int, end: int, wire_type: int) -> int:
    """Return the position after a value that is ignored."""
    if wire_type == VARINT:
        return read_varint(buffer, position, end)[1]
    if wire_type == DELIMITED:
        return read_length(buffer, position, end)[1]
    if wire_type in (FIXED64, FIXED32):
        after = position + (8 if wire_type == FIXED64 else 4)
        if after <= end:
            return after
        raise ProtobufError("unexpected EOF")
    raise ProtobufError(f"proto: illegal wireType {wire_type}")


def read_fields(buffer: bytes) -> dict[int, bytes]:
    """Return the length-delimited fields of a flat message, the last of each number."""
    found: dict[int, bytes] = {}
    position, end = 0, len(buffer)
    while position < end:
        key, position = read_varint(buffer, position, end)
        if key & 7 == DELIMITED:
            start, position = read_length(buffer, position, end)
            found[key >> 3] = buffer[start:position]
        else:
            position = skip(buffer, position, end, key & 7)
    return found


def wire_type_of(kind: Type) -> int:
    """Return how values of the type are encoded."""
    if kind in (Scalar.INT32, Scalar.INT64, Scalar.BOOL):
        return VARINT
    return FIXED64 if kind is Scalar.DOUBLE else DELIMITED
