"""Sessions of clients without a network: what they send, and what they get."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from dray.node.runtimes.runtime import RuntimeFailure
from dray.node.streams.port_forward import ChannelPortForward, SpdyPortForward
from dray.node.streams.remote_command import run_session
from dray.rpc.remote_command import spdy_session
from dray.rpc.remote_command.messages import (
    STDERR,
    STDOUT,
    Resize,
    StdinData,
    StdinEnd,
    StreamEnd,
    StreamOptions,
    StreamProtocolError,
)
from dray.rpc.remote_command.spdy_session import SpdySession
from dray.rpc.remote_command.websocket_session import ChannelSession, Tunnel
from dray.runtime.http import websocket_connection
from dray.runtime.http.spdy import Data, RstStream, SpdyConnection, SynReply, data_frame, ping_frame
from dray.runtime.http.websocket import Message, MessageReader, Opcode, encode, encode_close

ALL = StreamOptions(stdin=True, stdout=True, stderr=True)
TERMINAL = StreamOptions(stdin=True, stdout=True, tty=True)
MASK = b"mask"


@pytest.fixture(autouse=True)
def no_lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_connection, "LINGER_SECONDS", 0.0)
    monkeypatch.setattr(spdy_session, "LINGER_SECONDS", 0.0)


class Wire:
    """A connection whose other side is the test."""

    def __init__(self, *received: bytes) -> None:
        self._received = list(received)
        self.sent = b""
        self.closed = False
        self.more = asyncio.Event()

    def give(self, data: bytes) -> None:
        self._received.append(data)
        self.more.set()

    async def read(self) -> bytes:
        while not self._received:
            self.more.clear()
            await self.more.wait()
        return self._received.pop(0)

    async def write(self, data: bytes) -> None:
        if self.closed:
            raise ConnectionResetError
        self.sent += data

    def close(self) -> None:
        self.closed = True

    @property
    def messages(self) -> list[Message]:
        return list(MessageReader(masked=False).feed(self.sent))


def binary(*data: bytes) -> bytes:
    return b"".join(encode(Opcode.BINARY, item, MASK) for item in data)


class Streams:
    """A command that gives outputs and notes its input."""

    def __init__(self, outputs: list[tuple[int, bytes]], end: StreamEnd, *, waits_for_input: bool = False) -> None:
        self._outputs = outputs
        self._end = end
        self.input: list[Any] = []
        self.closed = False
        self.ended = asyncio.Event()
        if not waits_for_input:
            self.ended.set()

    async def read(self) -> tuple[int, bytes] | None:
        if self._outputs:
            return self._outputs.pop(0)
        await self.ended.wait()
        return None

    async def write(self, data: bytes) -> None:
        self.input.append(data)

    async def end_input(self) -> None:
        self.input.append(None)
        self.ended.set()

    async def resize(self, columns: int, rows: int) -> None:
        self.input.append((columns, rows))

    async def wait(self) -> StreamEnd:
        return self._end

    def close(self) -> None:
        self.closed = True


@pytest.mark.behaviour("EX-10", "EX-11", "EX-12", "EX-14")
async def test_a_command_over_channels() -> None:
    wire = Wire(binary(b"\x00in", b"\x07ignored", b"\xff\x00"))
    session = ChannelSession(wire, "v5.channel.k8s.io", ALL)
    streams = Streams([(STDOUT, b"out"), (STDERR, b"err")], StreamEnd(3), waits_for_input=True)
    await session.start()
    await run_session(session, streams, "error executing command in container: ")
    assert streams.input == [b"in", None]
    assert streams.closed
    *texts, status, close = [message.data for message in wire.messages]
    assert texts == [b"\x01", b"\x01out", b"\x02err"]
    assert status[:1] == b"\x03"
    assert json.loads(status[1:]) == {
        "metadata": {},
        "status": "Failure",
        "message": "command terminated with non-zero exit code: exit code 3",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": "3"}]},
    }
    assert close == struct.pack(">H", 1000)


@pytest.mark.parametrize(
    ("protocol", "end", "last"),
    [
        ("v4.channel.k8s.io", StreamEnd(0), b'{"metadata":{},"status":"Success"}'),
        ("channel.k8s.io", StreamEnd(0), None),
        ("", StreamEnd(1), b"command terminated with non-zero exit code: exit code 1"),
        ("", StreamEnd(None, "gone"), b"Internal error occurred: error attaching to container: gone"),
    ],
)
@pytest.mark.behaviour("EX-14", "EX-15")
async def test_the_end_in_each_protocol(protocol: str, end: StreamEnd, last: bytes | None) -> None:
    wire = Wire()
    session = ChannelSession(wire, protocol, StreamOptions(stdout=True))
    await run_session(session, Streams([], end), "error attaching to container: ")
    texts = [message.data for message in wire.messages if message.opcode is Opcode.BINARY]
    errors = [text[1:] for text in texts if text[:1] == b"\x03"]
    assert errors[:1] == ([] if last is None else [last])


@pytest.mark.behaviour("EX-10")
async def test_base64_is_text() -> None:
    wire = Wire(encode(Opcode.TEXT, b"0" + base64.b64encode(b"in"), MASK))
    session = ChannelSession(wire, "v4.base64.channel.k8s.io", ALL)
    await session.send(STDOUT, b"out")
    assert wire.messages == [Message(Opcode.TEXT, b"1" + base64.b64encode(b"out"))]
    assert await session.receive() == StdinData(b"in")


@pytest.mark.behaviour("EX-13")
async def test_sizes_may_be_cut_and_joined() -> None:
    wire = Wire(binary(b'\x04{"Width":1,"Height":2}{"Wid', b'\x04th":3,"Height":4}\n', b"\x00x"))
    session = ChannelSession(wire, "v5.channel.k8s.io", TERMINAL)
    assert [await session.receive() for _ in range(3)] == [Resize(1, 2), Resize(3, 4), StdinData(b"x")]


@pytest.mark.parametrize(
    "data",
    [b"\xff\x00\x00", b"\xff", b"\x04[1,2]", b'\x04{"Width":-1,"Height":2}', b"\x04" + b"x" * 5000],
    ids=["long close", "short close", "no size", "negative", "endless"],
)
@pytest.mark.behaviour("EX-12", "EX-13")
async def test_broken_messages_end_the_connection(data: bytes) -> None:
    wire = Wire(binary(data, b"\x00later"))
    session = ChannelSession(wire, "v5.channel.k8s.io", TERMINAL)
    assert await session.receive() is None
    assert wire.messages[-1].data[:2] == struct.pack(">H", 1002)


@pytest.mark.behaviour("EX-16")
async def test_pings_are_answered_and_a_close_is_returned() -> None:
    wire = Wire(encode(Opcode.PING, b"here", MASK) + encode(Opcode.CLOSE, b"", MASK))
    session = ChannelSession(wire, "v5.channel.k8s.io", ALL)
    assert await session.receive() is None
    assert wire.messages == [Message(Opcode.PONG, b"here"), Message(Opcode.CLOSE, struct.pack(">H", 1000))]


@pytest.mark.behaviour("EX-16")
async def test_an_idle_connection_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    socket = websocket_connection.WebSocket(Wire(), idle_seconds=0.01)
    assert await socket.receive() is None


@pytest.mark.behaviour("EX-34")
async def test_a_client_that_leaves_ends_the_streams() -> None:
    streams = Streams([], StreamEnd(0), waits_for_input=True)
    await run_session(ChannelSession(Wire(b""), "", ALL), streams, "")
    assert streams.closed


class Client:
    """The client's side of SPDY."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.spdy = SpdyConnection(is_client=True)

    def open(self, **headers: str) -> int:
        stream_id, frame = self.spdy.open_stream(headers)
        self.wire.give(frame)
        return stream_id

    def frames(self) -> Iterator[Any]:
        data, self.wire.sent = self.wire.sent, b""
        return self.spdy.feed(data)


@pytest.mark.behaviour("EX-17", "EX-19")
async def test_a_command_over_spdy() -> None:
    wire = Wire()
    client = Client(wire)
    error, stdin, stdout, resize = (client.open(streamtype=name) for name in ("error", "stdin", "stdout", "resize"))
    session = SpdySession(wire, "v4.channel.k8s.io", TERMINAL)
    await session.start()
    wire.give(ping_frame(1) + data_frame(resize, b'{"Width":7,"Height":8}') + data_frame(stdin, b"x", fin=True))
    assert [await session.receive() for _ in range(3)] == [Resize(7, 8), StdinData(b"x"), StdinEnd()]
    await session.send(STDOUT, b"y")
    await session.send(STDERR, b"nobody asked")
    await session.finish(StreamEnd(0), "")
    found = list(client.frames())
    assert [frame.stream_id for frame in found if isinstance(frame, SynReply)] == [error, stdin, stdout, resize]
    assert [frame for frame in found if isinstance(frame, Data)] == [
        Data(stdout, b"y"),
        Data(stdout, b"", fin=True),
        Data(error, b'{"metadata":{},"status":"Success"}', fin=True),
    ]


@pytest.mark.behaviour("EX-19")
async def test_all_streams_must_be_opened_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spdy_session, "STREAMS_SECONDS_MAX", 0.01)
    wire = Wire()
    Client(wire).open(streamtype="error")
    with pytest.raises(StreamProtocolError):
        await SpdySession(wire, "v4.channel.k8s.io", ALL).start()


class Target:
    """A port of a Pod that answers in upper case, and ends when its client does."""

    def __init__(self) -> None:
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()
        self.closed = False

    async def read(self) -> bytes:
        return await self._answers.get()

    async def write(self, data: bytes) -> None:
        self._answers.put_nowait(data.upper())

    async def end(self) -> None:
        self._answers.put_nowait(b"")

    def close(self) -> None:
        self.closed = True


async def connect(port: int) -> Target:
    if port == 81:
        raise RuntimeFailure("connection refused")
    return Target()


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the other side is in the same loop
            await asyncio.sleep(0)


@pytest.mark.behaviour("EX-20")
async def test_connections_are_forwarded_and_refused_one_by_one() -> None:
    wire = Wire()
    client = Client(wire)
    task = asyncio.ensure_future(SpdyPortForward(wire, connect, "pod p, uid u").run())
    bad = client.open(streamtype="data", port="0")
    first = [client.open(streamtype=kind, port="80", requestid="0") for kind in ("error", "data")]
    second = [client.open(streamtype=kind, port="81", requestid="1") for kind in ("error", "data")]
    # Without an ID.
    third = [client.open(streamtype=kind, port="80") for kind in ("error", "data")]
    wire.give(data_frame(first[1], b"abc", fin=True) + data_frame(third[1], b"def", fin=True))
    frames: list[Any] = []

    def finished() -> bool:
        frames.extend(client.frames())
        ended = {frame.stream_id for frame in frames if isinstance(frame, Data) and frame.fin}
        reset = {frame.stream_id for frame in frames if isinstance(frame, RstStream)}
        return ended >= {*first, *third} and reset >= {bad, *second}

    await until(finished)
    data = [frame for frame in frames if isinstance(frame, Data) and frame.data]
    assert Data(first[1], b"ABC") in data
    assert Data(third[1], b"DEF") in data
    assert Data(second[0], b"error forwarding port 81 to pod p, uid u: connection refused") in data
    wire.give(b"")
    await task


@pytest.mark.behaviour("EX-21")
async def test_port_forward_in_a_tunnel() -> None:
    wire, inner = Wire(), Wire()
    client = Client(inner)
    ids = [client.open(streamtype=kind, port="80", requestid="0") for kind in ("error", "data")]
    inner.give(data_frame(ids[1], b"abc", fin=True))
    spdy = b"".join([await inner.read() for _ in range(3)])
    # Frames may span messages.
    wire.give(binary(spdy[:5], spdy[5:21], spdy[21:]))
    tunnel = Tunnel(wire)
    task = asyncio.ensure_future(SpdyPortForward(tunnel, connect, "").run())

    def answers() -> bytes:
        return b"".join(message.data for message in wire.messages)

    await until(lambda: Data(ids[1], b"ABC") in list(SpdyConnection(is_client=True).feed(answers())))
    wire.give(encode(Opcode.CLOSE, b"", MASK))
    await task


@pytest.mark.behaviour("EX-22")
async def test_ports_over_channels() -> None:
    wire = Wire(binary(b"\x00abc"))
    task = asyncio.ensure_future(ChannelPortForward(wire, [80, 81], connect, "pod p, uid u").run())
    refusal = b"\x03error forwarding port 81 to pod p, uid u: connection refused"
    await until(lambda: {b"\x00ABC", refusal} <= {message.data for message in wire.messages})
    first = [message.data for message in wire.messages][:4]
    assert first == [bytes((number,)) + struct.pack("<H", 80 + number // 2) for number in range(4)]
    wire.give(encode_close(1000)[:1] + b"\x80" + MASK)
    await task
