"""A request to a handler, and the results that handlers return. Pure."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import msgspec

from dray.api.document import Document
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.request import UserInfo
from dray.apiserver.routes import RequestInfo
from dray.rpc.remote_command.messages import StreamOptions
from dray.store.interface import Entry


class Pacer(Protocol):
    """Lets long work pause for the requests of others."""

    def start(self) -> None:
        """Begin to measure, after waiting for something else than a turn."""

    def is_due(self) -> bool:
        """Return whether the work has taken so long that it should pause."""

    async def pause(self) -> None:
        """Return when the work may continue."""


class Call(msgspec.Struct):
    """One authenticated request; `warnings` collects texts for Warning headers."""

    info: RequestInfo
    query: Mapping[str, str]
    user: UserInfo
    body: bytes | Document | None = None
    content_type: str = ""
    user_agent: str = ""
    accept: str = ""
    if_none_match: str = ""
    raw_query: str = ""
    # The protocol that the client asks to upgrade to, and the WebSocket subprotocols that it offers.
    upgrade: str = ""
    websocket_protocols: str = ""
    # The address that the user's connection comes from; empty if it is not known or the user is impersonated.
    client_address: str = ""
    # None for calls that are not paced: those in the same process.
    pacer: Pacer | None = None
    warnings: list[str] = msgspec.field(default_factory=list)
    # Annotations of the request's audit events by key; None if the request is not audited.
    audit: dict[str, str] | None = None

    @property
    def manager(self) -> str:
        """The field manager: the query parameter, else the first word of the user agent."""
        named = self.query.get("fieldManager")
        return named or self.user_agent.partition("/")[0][:128] or "unknown"


class ObjectResult(msgspec.Struct):
    """One stored object; `status` is the HTTP code."""

    endpoint: Endpoint
    entry: Entry
    status: int = 200


class DocumentResult(msgspec.Struct):
    """A document that is not stored as such (a dry run, a review, a scale), in its served version."""

    document: Document
    status: int = 200
    endpoint: Endpoint | None = None


@dataclass(slots=True)
class ListResult:
    """A collection; `remaining` is None when it is not known."""

    endpoint: Endpoint
    entries: Sequence[Entry]
    revision: int
    continue_token: str = ""
    remaining: int | None = None

    def metadata(self) -> Document:
        """The ListMeta."""
        metadata: Document = {"resourceVersion": str(self.revision)}
        if self.continue_token:
            metadata["continue"] = self.continue_token
            if self.remaining:
                metadata["remainingItemCount"] = self.remaining
        return metadata


class WatchFrame(msgspec.Struct, frozen=True):
    """One event of a watch: an entry for ADDED, MODIFIED and DELETED, a document for BOOKMARK and ERROR."""

    type: str
    entry: Entry | None = None
    document: Document | None = None


@dataclass(slots=True)
class WatchResult:
    """A running watch; batches of frames until it times out or is closed."""

    endpoint: Endpoint
    frames: AsyncIterator[Sequence[WatchFrame]]


@dataclass(slots=True)
class TextResult:
    """Plain text or other ready-made bytes; `stream` follows the body when it is set (logs)."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    stream: AsyncGenerator[bytes, None] | None = None


@dataclass(slots=True)
class UpgradeResult:
    """A stream that another server speaks: `connect` passes the client's upgrade request on, with the given headers."""

    connect: Callable[[Sequence[tuple[str, str]]], Awaitable[Any]]


@dataclass(slots=True)
class EndedSessionResult:
    """A session of attach whose container has no output: it is accepted and ends at once."""

    options: StreamOptions


@dataclass(slots=True)
class ProxyResult:
    """A request that another server answers: `send` passes it on with the headers of the client."""

    send: Callable[[Sequence[tuple[str, str]]], Awaitable[TextResult]]


Result: TypeAlias = (
    ObjectResult
    | DocumentResult
    | ListResult
    | WatchResult
    | TextResult
    | UpgradeResult
    | EndedSessionResult
    | ProxyResult
)


def success(details: Document | None = None, *, code: int | None = None) -> Document:
    """Return a `Status` of success."""
    status: Document = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details:
        status["details"] = details
    if code is not None:
        status["code"] = code
    return status
