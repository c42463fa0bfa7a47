"""Agrees with clients of exec, attach and port-forward on a protocol, and opens the sessions of exec and attach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from dray.rpc.remote_command.messages import Input, StreamEnd, StreamOptions, StreamProtocolError
from dray.rpc.remote_command.spdy_session import COMMAND_PROTOCOLS, SpdySession
from dray.rpc.remote_command.websocket_session import CHANNEL_PROTOCOLS, ChannelSession
from dray.runtime.http.byte_stream import Duplex
from dray.runtime.http.requests import Request
from dray.runtime.http.router import Reply, text
from dray.runtime.http.websocket import is_request, offered_protocols
from dray.runtime.http.websocket_connection import UnknownProtocolError, agree

SPDY: Final = "SPDY/3.1"
_VERSIONS: Final = "x-stream-protocol-version"


class Session(Protocol):
    """A client's side of exec or attach."""

    async def start(self) -> None:
        """Open the channels."""

    async def receive(self) -> Input | None:
        """Return the next input; None when the client is gone."""

    async def send(self, channel: int, data: bytes) -> None:
        """Send output; returns when the client may get more. Raises `ConnectionError` if it is gone."""

    async def finish(self, end: StreamEnd, failure_prefix: str) -> None:
        """Tell the client how it ended."""

    async def fail(self) -> None:
        """Close after a bug."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """The protocol of an accepted upgrade, and the headers of the answer."""

    protocol: str
    is_spdy: bool
    headers: tuple[tuple[str, str], ...]


def open_session(stream: Duplex, agreed: Agreed, options: StreamOptions) -> Session:
    """Return the session of a client of exec or attach, whose upgrade was accepted."""
    make = SpdySession if agreed.is_spdy else ChannelSession
    return make(stream, agreed.protocol, options)


def agree_on_session(request: Request) -> Agreed | Reply:
    """Return the protocol of exec or attach that both sides know, or the refusal."""
    return agree_on_protocol(request, CHANNEL_PROTOCOLS, COMMAND_PROTOCOLS)


def agree_on_protocol(
    request: Request, channels: Sequence[str], streams: Sequence[str], *, allow_none: bool = True
) -> Agreed | Reply:
    """Return the protocol that both sides know, or the refusal."""
    if not request.is_upgrade:
        return text("Upgrade request required", 400)
    if is_request(request.headers):
        return _agree_on_channels(request, channels, allow_none=allow_none)
    if request.headers.get("upgrade", "").lower() != SPDY.lower():
        return text(f"unable to upgrade: unknown protocol {request.headers.get('upgrade')!r}", 400)
    return _agree_on_streams(request, streams)


def _agree_on_channels(request: Request, known: Sequence[str], *, allow_none: bool) -> Agreed | Reply:
    try:
        protocol, headers = agree(request.headers, known)
    except UnknownProtocolError as error:
        return text(str(error), 403)
    if not protocol and not allow_none:
        return text(f"the server supports only the protocols {', '.join(known)}", 403)
    return Agreed(protocol, is_spdy=False, headers=headers)


def _agree_on_streams(request: Request, known: Sequence[str]) -> Agreed | Reply:
    asked = [value for name, value in request.raw_headers if name.lower() == _VERSIONS]
    offered = [name for value in asked for name in offered_protocols(value)]
    if not offered:
        return text(f"unable to upgrade: {_VERSIONS} header is required", 400)
    version = next((name for name in offered if name in known), "")
    if not version:
        accepted = tuple(("X-Accepted-Stream-Protocol-Versions", name) for name in known)
        return text(f"unable to upgrade: unsupported protocols {', '.join(offered)}", 403, accepted)
    answer = (("Connection", "Upgrade"), ("Upgrade", SPDY), ("X-Stream-Protocol-Version", version))
    return Agreed(version, is_spdy=True, headers=answer)


async def end_session(stream: Duplex, agreed: Agreed, options: StreamOptions) -> None:
    """Open the session of a client and end it with success, without output; what the client sends is dropped."""
    try:
        session = open_session(stream, agreed, options)
        await session.start()
        await session.finish(StreamEnd(0), "")
    except (ConnectionError, StreamProtocolError):
        # The client has left, or has not opened its streams.
        return
    finally:
        stream.close()
