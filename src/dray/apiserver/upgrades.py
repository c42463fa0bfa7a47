"""Limits streams, and serves upgraded connections: passes them on to nodes, or speaks WebSocket itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from http import HTTPStatus
from typing import Final

from dray.api.errors import TooManyRequestsError
from dray.apiserver.call import EndedSessionResult, UpgradeResult
from dray.rpc.remote_command.negotiation import agree_on_session, end_session
from dray.runtime.http.byte_stream import pump
from dray.runtime.http.connection import ClientResponse
from dray.runtime.http.requests import Request
from dray.runtime.http.router import TEXT, Reply
from dray.runtime.http.server import Response
from dray.runtime.http.websocket_connection import STREAM_PROTOCOLS, UnknownProtocolError, agree, send_stream

# The part of the streams that one user may have, so that no user can take those of the others.
USERS_SHARE: Final = 4
RETRY_AFTER_SECONDS: Final = 60
# What is passed on of a node's refusal.
REFUSAL_BYTES_MAX: Final = 64 * 1024
_UPGRADE_HEADERS: Final = frozenset(
    {
        "connection",
        "upgrade",
        "sec-websocket-extensions",
        "sec-websocket-key",
        "sec-websocket-protocol",
        "sec-websocket-version",
        "x-stream-protocol-version",
    }
)
_HOP_HEADERS: Final = frozenset({"connection", "content-length", "date", "transfer-encoding"})
# The result of a request whose upgrade was accepted, and has been counted already.
UPGRADED: Final = -1

# Called when an upgrade has been accepted, before the stream begins.
OnStart = Callable[[], Awaitable[None]]


class StreamLimiter:
    """Counts the streams of a server and of each user: exec, attach, port-forward, logs and proxied requests."""

    def __init__(self, streams_max: int) -> None:
        self._streams_max = streams_max
        self._user_streams_max = max(1, streams_max // USERS_SHARE)
        self._by_user: Counter[str] = Counter()

    @contextmanager
    def counted(self, user: str) -> Iterator[None]:
        """Count one stream of a user; raises `TooManyRequestsError` if it would be one too many."""
        if self._by_user.total() >= self._streams_max:
            raise TooManyRequestsError("too many streams, please try again later.", RETRY_AFTER_SECONDS)
        if self._by_user[user] >= self._user_streams_max:
            raise TooManyRequestsError(
                f"too many streams of user {user!r}, please try again later.", RETRY_AFTER_SECONDS
            )
        self._by_user[user] += 1
        try:
            yield
        finally:
            self._by_user[user] -= 1
            if not self._by_user[user]:
                del self._by_user[user]


# Each of these returns the status of a refusal, or `UPGRADED` at the end.


async def pass_on(request: Request, response: Response, result: UpgradeResult, on_start: OnStart) -> int:
    """Pass an upgrade request on, and then the bytes of both sides, until one of them ends."""
    headers = [item for item in request.raw_headers if item[0].lower() in _UPGRADE_HEADERS]
    with await result.connect(headers) as answer:
        return await _copy(answer, response, on_start)


async def end_attached(request: Request, response: Response, result: EndedSessionResult, on_start: OnStart) -> int:
    """Accept the upgrade for a session of attach, and end it."""
    agreed = agree_on_session(request)
    if isinstance(agreed, Reply):
        response.send(agreed.status, (("Content-Type", TEXT), *agreed.headers), agreed.body)
        return agreed.status
    upgraded = response.upgrade(agreed.headers)
    await on_start()
    await end_session(upgraded, agreed, result.options)
    return UPGRADED


async def send_messages(
    request: Request, response: Response, stream: AsyncGenerator[bytes, None], on_start: Callable[[], None]
) -> int:
    """Write a stream as the messages of a WebSocket."""
    async with aclosing(stream) as chunks:
        try:
            protocol, headers = agree(request.headers, STREAM_PROTOCOLS)
        except UnknownProtocolError as error:
            response.send(HTTPStatus.FORBIDDEN, (("Content-Type", TEXT),), str(error).encode())
            return HTTPStatus.FORBIDDEN
        upgraded = response.upgrade(headers)
        on_start()
        await send_stream(upgraded, protocol, chunks)
        return UPGRADED


async def _copy(answer: ClientResponse, response: Response, on_start: OnStart) -> int:
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.reader.headers]
    kept = tuple(item for item in headers if item[0] not in _HOP_HEADERS)
    if answer.stream is None:
        body = await answer.read(REFUSAL_BYTES_MAX)
        response.send(answer.status, kept, body)
        return answer.status
    upgraded = response.upgrade((("Connection", "Upgrade"), *kept))
    await on_start()
    await pump(upgraded, answer.stream)
    return UPGRADED
