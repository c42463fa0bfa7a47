"""The transport to a server in this process: no HTTP and no JSON in between."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Final

from dray.api.document import Document
from dray.client.codec import SharedObjects
from dray.client.interface import LocalRequest, LocalServer, WatchBatch
from dray.client.older_versions import OlderVersions
from dray.client.rest import Call, RestClient, reader
from dray.lib.latest_memo import LatestMemo

# All clients of a process see the same few documents of its server.
_SHARED: Final = SharedObjects()
_BATCHES: Final = LatestMemo(reader(_SHARED.decode, for_cache=True))


class LocalWatch:
    """A watch of a server in this process: an empty batch when it is open, then what the server yields.

    Not a generator, which would have to be resumed whenever the server's own is.
    """

    def __init__(self, server: LocalServer, request: LocalRequest) -> None:
        self._server = server
        self._request = request
        # The server's watch; None until it is open.
        self._batches: AsyncIterator[WatchBatch] | None = None
        self._closed = False

    def __aiter__(self) -> AsyncIterator[WatchBatch]:
        return self

    def __anext__(self) -> Awaitable[WatchBatch]:
        return self._open() if self._batches is None else self._batches.__anext__()

    async def aclose(self) -> None:
        """End the watch."""
        self._closed = True
        close = getattr(self._batches, "aclose", None)
        if close is not None:
            await close()

    async def _open(self) -> WatchBatch:
        if self._closed:
            raise StopAsyncIteration
        self._batches = await self._server.watch(self._request)
        return ()


class InProcessTransport:
    """Implements `dray.client.rest.Transport` on a `LocalServer`, as one user."""

    def __init__(self, server: LocalServer, *, user: str, groups: tuple[str, ...], user_agent: str) -> None:
        self._server = server
        self._user = user
        self._groups = groups
        self._user_agent = user_agent

    async def send(self, call: Call) -> Document:
        """Have the server handle it."""
        return await self._server.handle(self._request(call))

    def stream(self, call: Call) -> LocalWatch:
        """Follow the server's own watch."""
        return LocalWatch(self._server, self._request(call))

    async def close(self) -> None:
        """Nothing is held."""

    def _request(self, call: Call) -> LocalRequest:
        resource = call.resource
        if resource is None:
            return self._path_request(call)
        return LocalRequest(
            # With more than 15 keywords, Python makes a dict of the arguments first.
            self._user,
            self._groups,
            verb=call.verb,
            group=resource.group,
            version=resource.version,
            resource=resource.plural,
            namespace=call.namespace if resource.namespaced else "",
            name=call.name,
            subresource=call.subresource,
            path=call.path,
            query=call.query,
            body=call.body,
            content_type=call.content_type,
            metadata_only=resource.metadata_only,
            # What has become of a deleted object is only read.
            read_only=call.read_only or resource.type is not dict or call.verb == "delete",
            user_agent=self._user_agent,
        )

    def _path_request(self, call: Call) -> LocalRequest:
        return LocalRequest(
            user=self._user,
            groups=self._groups,
            verb=call.verb,
            path=call.path,
            query=call.query,
            body=call.body,
            content_type=call.content_type,
            user_agent=self._user_agent,
        )


def in_process_client(
    server: LocalServer,
    *,
    user: str,
    groups: tuple[str, ...] = ("system:authenticated",),
    user_agent: str = "dray",
) -> RestClient:
    """A client of a server in this process."""
    transport = InProcessTransport(server, user=user, groups=groups, user_agent=user_agent)
    return RestClient(OlderVersions(transport), _SHARED.decode, _BATCHES.get)
