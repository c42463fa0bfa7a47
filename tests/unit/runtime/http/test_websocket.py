"""WebSocket frames, from bytes to messages and back."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.runtime.http.websocket import (
    PROTOCOL_ERROR,
    TOO_LARGE,
    Message,
    MessageReader,
    Opcode,
    WebSocketError,
    accept_key,
    encode,
    encode_close,
    offered_protocols,
)

MASK = b"\x01\x02\x03\xf4"


@pytest.mark.behaviour("EX-16")
def test_the_key_of_the_rfc() -> None:
    assert accept_key("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


def test_offered_protocols_are_in_the_clients_order() -> None:
    assert offered_protocols(" v5.channel.k8s.io,, v4.channel.k8s.io") == ["v5.channel.k8s.io", "v4.channel.k8s.io"]


@given(
    st.lists(st.binary(max_size=70000), max_size=4),
    st.integers(min_value=1, max_value=9000),
    st.booleans(),
)
@pytest.mark.behaviour("EX-16")
def test_messages_come_back_whatever_the_pieces(messages: list[bytes], size: int, masked: bool) -> None:
    data = b"".join(encode(Opcode.BINARY, message, MASK if masked else b"") for message in messages)
    reader = MessageReader(masked=masked)
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    found = [message for piece in pieces for message in reader.feed(piece)]
    assert found == [Message(Opcode.BINARY, message) for message in messages]


@pytest.mark.behaviour("EX-16")
def test_fragments_are_joined_with_control_frames_between_them() -> None:
    first = bytes([0x01]) + encode(Opcode.TEXT, b"one")[1:]
    last = bytes([0x80]) + encode(Opcode.TEXT, b"two")[1:]
    found = list(MessageReader(masked=False).feed(first + encode(Opcode.PING, b"p") + last))
    assert found == [Message(Opcode.PING, b"p"), Message(Opcode.TEXT, b"onetwo")]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (encode(Opcode.BINARY, b"x"), PROTOCOL_ERROR),
        (bytes([0xC2, 0x80]) + MASK, PROTOCOL_ERROR),
        (bytes([0x83, 0x80]) + MASK, PROTOCOL_ERROR),
        (bytes([0x80, 0x80]) + MASK, PROTOCOL_ERROR),
        (bytes([0x09, 0x80]) + MASK, PROTOCOL_ERROR),
        (bytes([0x89, 0xFE, 0x00, 0x7E]) + MASK, PROTOCOL_ERROR),
        (bytes([0x82, 0xFF]) + struct.pack(">Q", 17 * 1024 * 1024), TOO_LARGE),
        (bytes([0x82, 0xFF]) + struct.pack(">Q", 2**63), TOO_LARGE),
    ],
    ids=["not masked", "reserved bit", "unknown", "nothing to continue", "fragmented ping", "long ping", "17M", "huge"],
)
@pytest.mark.behaviour("EX-16")
def test_broken_frames(data: bytes, code: int) -> None:
    with pytest.raises(WebSocketError) as caught:
        list(MessageReader().feed(data))
    assert caught.value.code == code


def test_a_close_frame_has_a_code_and_a_short_reason() -> None:
    (message,) = MessageReader(masked=False).feed(encode_close(1000, "ä" * 100))
    assert message.opcode is Opcode.CLOSE
    assert message.data[:2] == struct.pack(">H", 1000)
    assert message.data[2:].decode() == "ä" * 61
