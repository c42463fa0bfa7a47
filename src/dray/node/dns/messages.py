"""DNS messages (RFC 1035): reads queries and writes responses, as far as a server of Services needs it. Pure."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

A, NS, CNAME, SOA, PTR, TXT, AAAA, SRV, OPT, ANY = 1, 2, 5, 6, 12, 16, 28, 33, 41, 255
INTERNET: Final = 1
NO_ERROR, FORMAT_ERROR, SERVER_FAILURE, NAME_ERROR, NOT_IMPLEMENTED, REFUSED = 0, 1, 2, 3, 4, 5
UDP_BYTES: Final = 512
# What a client may ask for by EDNS; larger datagrams are fragmented.
UDP_BYTES_MAX: Final = 1232
_HEADER: Final = struct.Struct("!6H")
_RESPONSE, _AUTHORITATIVE, _TRUNCATED, _RECURSION_DESIRED, _RECURSION_AVAILABLE = 0x8000, 0x0400, 0x0200, 0x0100, 0x0080
_NAME_BYTES_MAX: Final = 255
_LABEL_BYTES_MAX: Final = 63
_POINTER: Final = 0xC0
# The question is the first thing after the header: names equal to it point there.
_QUESTION_POINTER: Final = b"\xc0\x0c"


class MessageError(ValueError):
    """The bytes are not a DNS query that can be answered."""


@dataclass(frozen=True, slots=True)
class Query:
    """A question, with the name as it was asked."""

    id: int
    name: str
    type: int
    flags: int = 0
    # The largest answer by UDP, and whether the client speaks EDNS.
    udp_bytes: int = UDP_BYTES
    has_edns: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """A resource record; `value` is an address, a name, or of SRV priority, weight, port and target by spaces."""

    name: str
    type: int
    seconds: int
    value: str


@dataclass(frozen=True, slots=True)
class Response:
    """What a query is answered with; `authority` goes with an empty answer."""

    code: int = NO_ERROR
    answers: tuple[Record, ...] = ()
    authority: tuple[Record, ...] = ()
    additional: tuple[Record, ...] = ()
    is_authoritative: bool = True


def parse_query(data: bytes) -> Query:
    """Read a query with one question; raises `MessageError`."""
    if len(data) < _HEADER.size:
        raise MessageError("shorter than a header")
    number, flags, questions, answers, authorities, additionals = _HEADER.unpack_from(data)
    if flags & _RESPONSE or questions != 1 or answers or authorities:
        raise MessageError("not a query with one question")
    name, position = _read_name(data, _HEADER.size)
    kind, place, position = *_unpack(data, "!2H", position), position + 4
    if place not in (INTERNET, ANY):
        raise MessageError("not of the class IN")
    size, has_edns = UDP_BYTES, False
    if additionals and data[position : position + 1] == b"\0":
        extra, asked = _unpack(data, "!2H", position + 1)
        if extra == OPT:
            size, has_edns = min(max(asked, UDP_BYTES), UDP_BYTES_MAX), True
    return Query(number, name, kind, flags, size, has_edns)


def _unpack(data: bytes, form: str, position: int) -> tuple[int, int]:
    try:
        first, second = struct.unpack_from(form, data, position)
    except struct.error as error:
        raise MessageError("ends within a field") from error
    return first, second


def _read_name(data: bytes, position: int) -> tuple[str, int]:
    """Return a name without its last dot and the position after it; a query has no pointers."""
    labels: list[str] = []
    start = position
    while True:
        if position >= len(data) or position - start > _NAME_BYTES_MAX:
            raise MessageError("a name does not end")
        length = data[position]
        if length & _POINTER:
            raise MessageError("a question with a pointer")
        position += 1
        if length == 0:
            return ".".join(labels), position
        label = data[position : position + length]
        if len(label) < length or b"." in label:
            raise MessageError("a label that ends too early, or has a dot")
        labels.append(label.decode("latin-1"))
        position += length


def encode_name(name: str) -> bytes:
    """Return a name on the wire; raises `MessageError`."""
    result = b""
    for label in filter(None, name.split(".")):
        raw = label.encode("latin-1", errors="replace")
        if len(raw) > _LABEL_BYTES_MAX:
            raise MessageError("a label that is too long")
        result += bytes([len(raw)]) + raw
    if len(result) >= _NAME_BYTES_MAX:
        raise MessageError("a name that is too long")
    return result + b"\0"


def _encode_value(record: Record) -> bytes:
    if record.type in (A, AAAA):
        return ip_address(record.value).packed
    if record.type == SRV:
        *numbers, target = record.value.split(" ")
        return struct.pack("!3H", *map(int, numbers)) + encode_name(target)
    if record.type == SOA:
        server, mailbox, *numbers = record.value.split(" ")
        return encode_name(server) + encode_name(mailbox) + struct.pack("!5I", *map(int, numbers))
    return encode_name(record.value)


def _encode_record(record: Record, asked: str) -> bytes:
    owner = _QUESTION_POINTER if record.name == asked else encode_name(record.name)
    value = _encode_value(record)
    return owner + struct.pack("!2HIH", record.type, INTERNET, record.seconds, len(value)) + value


def encode_response(query: Query, response: Response, bytes_max: int) -> bytes:
    """Return the response; one that is too long says so, and the client asks again by TCP."""
    sections: list[Sequence[Record]] = [response.answers, response.authority, response.additional]
    options = struct.pack("!BHHIH", 0, OPT, UDP_BYTES_MAX, 0, 0) if query.has_edns else b""
    question = encode_name(query.name) + struct.pack("!2H", query.type, INTERNET)
    body = b"".join(_encode_record(record, query.name) for section in sections for record in section)
    flags = _RESPONSE | _RECURSION_AVAILABLE | (query.flags & _RECURSION_DESIRED) | response.code
    if response.is_authoritative:
        flags |= _AUTHORITATIVE
    counts = [len(section) for section in sections]
    if _HEADER.size + len(question) + len(body) + len(options) > bytes_max:
        flags, counts, body = flags | _TRUNCATED, [0, 0, 0], b""
    counts[2] += bool(options)
    return _HEADER.pack(query.id, flags, 1, *counts) + question + body + options


def encode_query(number: int, name: str, kind: int) -> bytes:
    """Return a query for a resolver; raises `MessageError`."""
    header = _HEADER.pack(number, _RECURSION_DESIRED, 1, 0, 0, 0)
    return header + encode_name(name) + struct.pack("!2H", kind, INTERNET)


def parse_addresses(data: bytes, name: str) -> list[Record]:
    """Return the addresses in a response as records of one name; raises `MessageError`."""
    if len(data) < _HEADER.size:
        raise MessageError("shorter than a header")
    _, _, questions, answers, _, _ = _HEADER.unpack_from(data)
    position = _HEADER.size
    for _ in range(questions):
        position = _skip_name(data, position) + 4
    found = []
    for _ in range(answers):
        position = _skip_name(data, position)
        kind, _ = _unpack(data, "!2H", position)
        seconds, length = _unpack(data, "!IH", position + 4)
        value = data[position + 10 : position + 10 + length]
        position += 10 + length
        if (kind, len(value)) in ((A, 4), (AAAA, 16)):
            found.append(Record(name, kind, min(seconds, 30), str(ip_address(value))))
    return found


def _skip_name(data: bytes, position: int) -> int:
    while position < len(data):
        length = data[position]
        if length & _POINTER == _POINTER:
            return position + 2
        position += 1 + length
        if length == 0:
            return position
    raise MessageError("a name does not end")


def response_code(data: bytes) -> int:
    """Return the code of a response."""
    return _HEADER.unpack_from(data)[1] & 0xF if len(data) >= _HEADER.size else SERVER_FAILURE


def is_truncated(data: bytes) -> bool:
    """Whether a response says that it is not whole."""
    return len(data) >= _HEADER.size and bool(_HEADER.unpack_from(data)[1] & _TRUNCATED)


def with_id(data: bytes, number: int) -> bytes:
    """Return a message with another number."""
    return struct.pack("!H", number) + data[2:]


def error_response(data: bytes, code: int) -> bytes | None:
    """Return the answer to bytes that are not a proper query; None if not even its number can be read."""
    if len(data) < _HEADER.size or _HEADER.unpack_from(data)[1] & _RESPONSE:
        return None
    return _HEADER.pack(_HEADER.unpack_from(data)[0], _RESPONSE | code, 0, 0, 0, 0)
