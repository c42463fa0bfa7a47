"""SPDY frames, from bytes to events and back."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.runtime.http.spdy import (
    DICTIONARY,
    Data,
    GoAway,
    Ping,
    RstStream,
    SpdyConnection,
    SpdyError,
    SynReply,
    SynStream,
    data_frame,
    goaway_frame,
    ping_frame,
    reset_frame,
)


@pytest.mark.behaviour("EX-18")
def test_the_dictionary_is_the_protocols() -> None:
    assert len(DICTIONARY) == 1423
    assert zlib.adler32(DICTIONARY) == 0xE3C6A7C2


@given(st.lists(st.dictionaries(st.text("abcdef-", min_size=1), st.text(max_size=40)), max_size=4), st.integers(1, 500))
@pytest.mark.behaviour("EX-18")
def test_headers_share_one_compressed_stream(headers: list[dict[str, str]], size: int) -> None:
    client, server = SpdyConnection(is_client=True), SpdyConnection()
    opened = [client.open_stream(item) for item in headers]
    data = b"".join(frame for _, frame in opened)
    found = [frame for start in range(0, len(data), size) for frame in server.feed(data[start : start + size])]
    assert [(frame.stream_id, frame.headers) for frame in found if isinstance(frame, SynStream)] == [
        (1 + 2 * number, {name: value.partition("\0")[0] for name, value in item.items()})
        for number, item in enumerate(headers)
    ]
    replies = b"".join(server.reply(stream_id) for stream_id, _ in opened)
    assert list(client.feed(replies)) == [SynReply(stream_id, {}) for stream_id, _ in opened]


@pytest.mark.behaviour("EX-18")
def test_the_other_frames() -> None:
    data = data_frame(1, b"x") + data_frame(3, b"", fin=True) + reset_frame(5) + goaway_frame()
    settings = struct.pack(">HHI", 0x8003, 4, 4) + bytes(4)
    window = struct.pack(">HHI", 0x8003, 9, 8) + bytes(8)
    found = list(SpdyConnection().feed(data + settings + window))
    assert found == [Data(1, b"x"), Data(3, b"", fin=True), RstStream(5, 5), GoAway()]


@pytest.mark.behaviour("EX-18")
def test_pings_of_the_other_side_are_reported() -> None:
    assert list(SpdyConnection().feed(ping_frame(1))) == [Ping(1)]
    assert list(SpdyConnection().feed(ping_frame(2))) == []


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">HHI", 0x8002, 1, 0),
        struct.pack(">HHI", 0x8003, 1, 2) + b"xx",
        struct.pack(">HHI", 0x8003, 1, 14) + bytes(10) + b"junk",
    ],
    ids=["another version", "too short", "not compressed"],
)
@pytest.mark.behaviour("EX-18")
def test_broken_frames(data: bytes) -> None:
    with pytest.raises(SpdyError):
        list(SpdyConnection().feed(data))


@pytest.mark.behaviour("EX-18")
@pytest.mark.parametrize("text", [struct.pack(">I", 2000), struct.pack(">II", 1, 50), b"\0" * (2 * 1024 * 1024)])
def test_headers_are_bounded(text: bytes) -> None:
    deflate = zlib.compressobj(zdict=DICTIONARY)
    block = deflate.compress(text) + deflate.flush(zlib.Z_SYNC_FLUSH)
    frame = struct.pack(">HHI", 0x8003, 1, 10 + len(block)) + struct.pack(">IIH", 1, 0, 0) + block
    with pytest.raises(SpdyError):
        list(SpdyConnection().feed(frame))
