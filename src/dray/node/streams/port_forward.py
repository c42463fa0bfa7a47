"""Forwards connections of clients to ports of a Pod: over SPDY, or over the channels of a WebSocket."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from dray.lib.ports import parse_port
from dray.node.runtimes.runtime import RuntimeFailure
from dray.node.runtimes.streams import ForwardedPort
from dray.rpc.remote_command.messages import CHUNK_BYTES
from dray.runtime.http.byte_stream import Duplex
from dray.runtime.http.spdy import (
    REFUSED_STREAM,
    Data,
    Frame,
    Ping,
    RstStream,
    SpdyConnection,
    SpdyError,
    SynStream,
    data_frame,
    ping_frame,
    reset_frame,
)
from dray.runtime.http.websocket_connection import IDLE_SECONDS_MAX, WebSocket
from dray.runtime.tasks import TaskGroup, first_completed

PORT_FORWARD_PROTOCOL: Final = "portforward.k8s.io"
# kubelet's: the second stream of a pair must have been opened by then.
PAIR_SECONDS_MAX: Final = 30.0
# Connections that a client may forward at the same time over one of its own.
PAIRS_MAX: Final = 256
# Pieces of data that wait for one target; the client is not read from while there are more.
PIECES_MAX: Final = 16

Connect = Callable[[int], Awaitable[ForwardedPort]]


@dataclass(slots=True)
class _Pair:
    """The two streams of one forwarded connection."""

    port: int
    data_id: int = 0
    error_id: int = 0
    started: bool = False
    # Data from the client; None is its end.
    pieces: asyncio.Queue[bytes | None] = field(default_factory=lambda: asyncio.Queue(PIECES_MAX))
    # The target takes no more data.
    closed: bool = False


class SpdyPortForward:
    """One SPDY connection of a client; `describe` names the Pod in messages."""

    def __init__(self, stream: Duplex, connect: Connect, describe: str) -> None:
        self._stream = stream
        self._connect = connect
        self._describe = describe
        self._spdy = SpdyConnection()
        self._pairs: dict[str, _Pair] = {}
        # By stream ID.
        self._streams: dict[int, _Pair] = {}

    async def run(self) -> None:
        """Forward connections until the client closes its own."""
        async with TaskGroup("port-forward") as group:
            try:
                while data := await self._read():
                    for frame in self._spdy.feed(data):
                        await self._take(frame, group)
            except (SpdyError, ConnectionError):
                return

    async def _read(self) -> bytes:
        try:
            async with asyncio.timeout(IDLE_SECONDS_MAX):
                return await self._stream.read()
        except TimeoutError:
            return b""

    async def _take(self, frame: Frame, group: TaskGroup) -> None:
        if isinstance(frame, SynStream):
            await self._open(frame, group)
        elif isinstance(frame, Data):
            pair = self._streams.get(frame.stream_id)
            if pair is not None and frame.stream_id == pair.data_id:
                await self._give(pair, frame)
        elif isinstance(frame, RstStream):
            pair = self._streams.get(frame.stream_id)
            if pair is not None:
                await _put(pair, None)
        elif isinstance(frame, Ping):
            await self._stream.write(ping_frame(frame.number))

    async def _give(self, pair: _Pair, frame: Data) -> None:
        if frame.data:
            await _put(pair, frame.data)
        if frame.fin:
            await _put(pair, None)

    async def _open(self, frame: SynStream, group: TaskGroup) -> None:
        headers = frame.headers
        kind, port = headers.get("streamtype"), parse_port(headers.get("port", ""))
        is_data = kind == "data"
        # Clients that send no ID open the error stream first, and the data stream next.
        key = headers.get("requestid") or str(frame.stream_id - 2 if is_data else frame.stream_id)
        pair = self._pairs.get(key)
        if port is None or kind not in ("data", "error") or (pair is None and len(self._pairs) >= PAIRS_MAX):
            await self._stream.write(reset_frame(frame.stream_id, REFUSED_STREAM))
            return
        if pair is None:
            pair = self._pairs[key] = _Pair(port)
            group.spawn(self._expire(key, pair), "port-forward pair")
        if is_data:
            pair.data_id = frame.stream_id
        else:
            pair.error_id = frame.stream_id
        self._streams[frame.stream_id] = pair
        await self._stream.write(self._spdy.reply(frame.stream_id))
        if pair.data_id and pair.error_id and not pair.started:
            pair.started = True
            group.spawn(self._forward(key, pair), f"port-forward to {port}")

    async def _expire(self, key: str, pair: _Pair) -> None:
        await asyncio.sleep(PAIR_SECONDS_MAX)
        if not pair.started:
            await self._refuse(pair, f"timed out waiting for streams of request {key}")
            self._forget(key, pair)

    async def _forward(self, key: str, pair: _Pair) -> None:
        try:
            target = await self._connect(pair.port)
        except (OSError, RuntimeFailure) as error:
            await self._refuse(pair, f"error forwarding port {pair.port} to {self._describe}: {error}")
            self._forget(key, pair)
            return
        try:
            await _both(self._to_client(pair, target), _to_target(pair, target))
            ends = data_frame(pair.data_id, b"", fin=True) + data_frame(pair.error_id, b"", fin=True)
            await self._stream.write(ends)
        except ConnectionError:
            return
        except OSError as error:
            await self._refuse(pair, f"error forwarding port {pair.port} to {self._describe}: {error}")
        finally:
            target.close()
            self._forget(key, pair)

    async def _to_client(self, pair: _Pair, target: ForwardedPort) -> None:
        while data := await target.read():
            for start in range(0, len(data), CHUNK_BYTES):
                await self._stream.write(data_frame(pair.data_id, data[start : start + CHUNK_BYTES]))

    async def _refuse(self, pair: _Pair, message: str) -> None:
        """Send the reason on the error stream, and reset both; the connection stays."""
        frames = b""
        if pair.error_id:
            frames = data_frame(pair.error_id, message.encode()) + reset_frame(pair.error_id)
        if pair.data_id:
            frames += reset_frame(pair.data_id)
        try:
            await self._stream.write(frames)
        except ConnectionError:
            return

    def _forget(self, key: str, pair: _Pair) -> None:
        pair.closed = True
        # Lets the reader of the connection continue if it waits for room.
        while not pair.pieces.empty():
            pair.pieces.get_nowait()
        self._pairs.pop(key, None)
        for stream_id in (pair.data_id, pair.error_id):
            self._streams.pop(stream_id, None)


class ChannelPortForward:
    """Ports over the channels of a WebSocket, as older clients ask for: two channels for each port."""

    def __init__(self, stream: Duplex, ports: Sequence[int], connect: Connect, describe: str) -> None:
        self._socket = WebSocket(stream)
        self._ports = ports
        self._connect = connect
        self._describe = describe
        self._pairs = [_Pair(port) for port in ports]

    async def run(self) -> None:
        """Forward each port once, until the client closes or all targets have ended."""
        try:
            for number, port in enumerate(self._ports):
                for channel in (2 * number, 2 * number + 1):
                    await self._socket.send(bytes((channel,)) + struct.pack("<H", port))
            await first_completed(self._receive(), self._forward_all())
        except ConnectionError:
            return
        await self._socket.close()
        await self._socket.linger()

    async def _receive(self) -> None:
        while (message := await self._socket.receive()) is not None:
            number, is_error = divmod(message.data[0], 2) if message.data else (len(self._pairs), 0)
            if number < len(self._pairs) and not is_error and len(message.data) > 1:
                await _put(self._pairs[number], message.data[1:])

    async def _forward_all(self) -> None:
        async with TaskGroup("port-forward") as group:
            for number, pair in enumerate(self._pairs):
                group.spawn(self._forward(number, pair), f"port-forward to {pair.port}")
            await group.wait()

    async def _forward(self, number: int, pair: _Pair) -> None:
        target: ForwardedPort | None = None
        try:
            target = await self._connect(pair.port)
            await first_completed(self._to_client(number, target), _to_target(pair, target))
        except ConnectionResetError:
            return
        except (OSError, RuntimeFailure) as error:
            text = f"error forwarding port {pair.port} to {self._describe}: {error}"
            await self._socket.send(bytes((2 * number + 1,)) + text.encode())
        finally:
            pair.closed = True
            if target is not None:
                target.close()

    async def _to_client(self, number: int, target: ForwardedPort) -> None:
        while data := await target.read():
            await self._socket.send(bytes((2 * number,)) + data)


async def _put(pair: _Pair, piece: bytes | None) -> None:
    if not pair.closed:
        await pair.pieces.put(piece)


async def _to_target(pair: _Pair, target: ForwardedPort) -> None:
    while (piece := await pair.pieces.get()) is not None:
        await target.write(piece)
    await target.end()


async def _both(to_client: Awaitable[None], to_target: Awaitable[None]) -> None:
    """Wait until the target has ended; the client may end before, and goes on reading then."""
    async with TaskGroup("forwarded connection") as group:
        group.spawn(_coroutine(to_target), "to the target")
        await to_client


async def _coroutine(work: Awaitable[None]) -> None:
    await work
