"""Streams of CRI runtimes: the agent is an SPDY client of the address that the runtime gives for each request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from dray.node.runtimes.runtime import RuntimeFailure
from dray.rpc.remote_command.messages import CHUNK_BYTES, STDERR, STDOUT, StreamEnd, StreamOptions
from dray.runtime.http.byte_stream import ByteStream
from dray.runtime.http.client import HttpClient
from dray.runtime.http.dialing import Route
from dray.runtime.http.errors import HttpError
from dray.runtime.http.spdy import Data, Ping, RstStream, SpdyConnection, SpdyError, data_frame, ping_frame
from dray.runtime.http.urls import Origin

CONNECT_SECONDS_MAX: Final = 10.0
# What is read of a refusal or of a message on an error stream.
MESSAGE_BYTES_MAX: Final = 64 * 1024
_COMMAND: Final = "v4.channel.k8s.io"
_PORT_FORWARD: Final = "portforward.k8s.io"


class SpdyClient:
    """A connection with streams that this side opens; it is read by one reader."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._spdy = SpdyConnection(is_client=True)
        self._ready: list[Data | RstStream] = []

    async def open(self, headers: Mapping[str, str]) -> int:
        """Open a stream, and return its ID."""
        stream_id, frame = self._spdy.open_stream(headers)
        await self._stream.write(frame)
        return stream_id

    async def next(self) -> Data | RstStream | None:
        """Return the next frame of a stream; None at the end of the connection."""
        while not self._ready:
            data = await self._stream.read()
            if not data:
                return None
            try:
                for frame in self._spdy.feed(data):
                    if isinstance(frame, Ping):
                        await self._stream.write(ping_frame(frame.number))
                    elif isinstance(frame, Data | RstStream):
                        self._ready.append(frame)
            except (SpdyError, ConnectionError):
                return None
        return self._ready.pop(0)

    async def send(self, stream_id: int, data: bytes, *, fin: bool = False) -> None:
        """Send data; raises `ConnectionError`."""
        for start in range(0, len(data), CHUNK_BYTES):
            await self._stream.write(data_frame(stream_id, data[start : start + CHUNK_BYTES]))
        if fin:
            await self._stream.write(data_frame(stream_id, b"", fin=True))

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()


class CriStreams:
    """Implements `ContainerStreams` for exec and attach."""

    def __init__(self, client: SpdyClient, ids: Mapping[str, int]) -> None:
        self._client = client
        self._ids = ids
        self._channels = {
            ids[name]: channel for name, channel in (("stdout", STDOUT), ("stderr", STDERR)) if name in ids
        }
        self._open = {*self._channels, ids["error"]}
        self._message = b""

    async def read(self) -> tuple[int, bytes] | None:
        """Return the next output; None when all outputs and the status have come."""
        while self._open:
            frame = await self._client.next()
            if frame is None:
                return None
            if isinstance(frame, RstStream) or frame.fin:
                self._open.discard(frame.stream_id)
            if not isinstance(frame, Data) or not frame.data:
                continue
            if frame.stream_id in self._channels:
                return self._channels[frame.stream_id], frame.data
            if frame.stream_id == self._ids["error"]:
                self._message = (self._message + frame.data)[:MESSAGE_BYTES_MAX]
        return None

    async def write(self, data: bytes) -> None:
        """Write to the standard input."""
        await self._send("stdin", data)

    async def end_input(self) -> None:
        """Close the standard input."""
        await self._send("stdin", b"", fin=True)

    async def resize(self, columns: int, rows: int) -> None:
        """Set the size of the terminal."""
        await self._send("resize", orjson.dumps({"Width": columns, "Height": rows}))

    async def _send(self, name: str, data: bytes, *, fin: bool = False) -> None:
        if name in self._ids:
            try:
                await self._client.send(self._ids[name], data, fin=fin)
            except ConnectionError:
                return

    async def wait(self) -> StreamEnd:
        """Return what the runtime has reported."""
        if not self._message:
            return StreamEnd(None, "the container runtime has closed the connection")
        try:
            status: dict[str, Any] = orjson.loads(self._message)
            if status.get("status") == "Success":
                return StreamEnd(0)
            causes = (status.get("details") or {}).get("causes") or ()
            code = next((cause["message"] for cause in causes if cause.get("reason") == "ExitCode"), None)
            if code is not None:
                return StreamEnd(int(code))
            return StreamEnd(None, str(status.get("message", "")))
        except (ValueError, AttributeError, KeyError):
            return StreamEnd(None, self._message.decode(errors="replace"))

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


class CriPort:
    """Implements `ForwardedPort`."""

    def __init__(self, client: SpdyClient, data_id: int, error_id: int) -> None:
        self._client = client
        self._data_id = data_id
        self._error_id = error_id
        self._open = {data_id, error_id}

    async def read(self) -> bytes:
        """Return received bytes; raises OSError with the runtime's message, which may come after the data's end."""
        while self._open and (frame := await self._client.next()) is not None:
            if isinstance(frame, RstStream) or frame.fin:
                self._open.discard(frame.stream_id)
            if not isinstance(frame, Data) or not frame.data:
                continue
            if frame.stream_id == self._error_id:
                raise OSError(frame.data.decode(errors="replace"))
            if frame.stream_id == self._data_id:
                return frame.data
        return b""

    async def write(self, data: bytes) -> None:
        """Send bytes."""
        await self._client.send(self._data_id, data)

    async def end(self) -> None:
        """Send no more."""
        await self._client.send(self._data_id, b"", fin=True)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


async def open_command(url: str, options: StreamOptions) -> CriStreams:
    """Connect to the address for exec or attach; raises `RuntimeFailure`."""
    client = await _connect(url, _COMMAND)
    names = ["error"]
    names += [name for name in ("stdin", "stdout", "stderr") if getattr(options, name)]
    if options.tty:
        names.append("resize")
    with _closed_on_failure(client):
        return CriStreams(client, {name: await client.open({"streamtype": name}) for name in names})


async def open_port(url: str, port: int) -> CriPort:
    """Connect to the address for port-forward; raises `RuntimeFailure`."""
    client = await _connect(url, _PORT_FORWARD)
    headers = {"port": str(port), "requestid": "0"}
    with _closed_on_failure(client):
        error_id = await client.open({"streamtype": "error", **headers})
        return CriPort(client, await client.open({"streamtype": "data", **headers}), error_id)


async def _connect(url: str, version: str) -> SpdyClient:
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        raise RuntimeFailure(f"the container runtime serves streams at {url}, which the agent cannot use")
    origin = Origin("http", parts.hostname, parts.port or 80)
    headers = (("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1"), ("X-Stream-Protocol-Version", version))
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    client = HttpClient(Route(origin))
    try:
        response = await client.upgrade("POST", target, headers, CONNECT_SECONDS_MAX)
        if response.stream is not None:
            return SpdyClient(response.stream)
        with response:
            text = (await response.read(MESSAGE_BYTES_MAX)).decode(errors="replace").strip()
    except HttpError as error:
        raise RuntimeFailure(f"streams of the container runtime: {error}") from error
    raise RuntimeFailure(f"the container runtime refuses streams: {text}")


@contextmanager
def _closed_on_failure(client: SpdyClient) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        client.close()
        if isinstance(error, ConnectionError):
            raise RuntimeFailure(f"streams of the container runtime: {error}") from error
        raise
