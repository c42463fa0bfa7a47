"""Bodies in pieces: unpacked, and as lines."""

from __future__ import annotations

import gzip
import random

import pytest

from dray.runtime.http.bodies import PIECE_BYTES_MAX, Gunzip, Lines
from dray.runtime.http.errors import BrokenResponseError


def unpack(*pieces: bytes) -> bytes:
    unzip, found = Gunzip(), []
    for piece in pieces:
        unzip.feed(piece)
        while part := unzip.take():
            assert len(part) <= PIECE_BYTES_MAX
            found.append(part)
    unzip.end()
    return b"".join(found)


def test_gzip_is_unpacked_wherever_it_is_cut() -> None:
    packed = gzip.compress(b"hello") + gzip.compress(b" world")
    for cut in range(len(packed)):
        assert unpack(packed[:cut], packed[cut:]) == b"hello world"
    assert unpack() == b""


@pytest.mark.parametrize("size", [PIECE_BYTES_MAX - 1, PIECE_BYTES_MAX, PIECE_BYTES_MAX + 1, 3 * PIECE_BYTES_MAX])
def test_a_small_piece_with_much_in_it_comes_out_in_pieces(size: int) -> None:
    assert unpack(gzip.compress(bytes(size))) == bytes(size)


def test_large_bodies_come_out_as_they_went_in() -> None:
    body = random.Random(1).randbytes(100_000) * 30
    packed = gzip.compress(body, 1)
    assert unpack(*(packed[start : start + 65536] for start in range(0, len(packed), 65536))) == body


def test_what_is_not_gzip_or_not_all_of_it_is_broken() -> None:
    with pytest.raises(BrokenResponseError, match="not gzip"):
        unpack(b"hello, this is plain text")
    packed = gzip.compress(b"hello")
    for cut in range(1, len(packed)):
        with pytest.raises(BrokenResponseError, match="middle of a response"):
            unpack(packed[:cut])


def test_lines_are_the_same_wherever_they_are_cut() -> None:
    data = b'{"a":1}\n\n{"b":2}\r\n  \n{"c":3}\nrest'
    expected = [b'{"a":1}', b'{"b":2}\r', b'{"c":3}']
    for first in range(len(data)):
        for second in range(first, len(data)):
            lines = Lines()
            parts = data[:first], data[first:second], data[second:]
            assert [line for part in parts for line in lines.feed(part)] == expected
