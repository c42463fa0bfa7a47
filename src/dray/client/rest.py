"""A client on top of one seam, `Transport`: which request each operation is. Transports only carry requests.

It awaits its transport and does no I/O of its own, so that all transports share one meaning of every operation.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import msgspec

from dray.api.document import Document
from dray.api.errors import APIError, ServiceUnavailableError
from dray.client.codec import decode, encode
from dray.client.interface import (
    DELETE,
    LIST_ALL,
    WATCH_ALL,
    WRITE,
    Bookmark,
    CacheEvent,
    DeleteOptions,
    IncompleteDiscoveryError,
    ListOptions,
    ListPage,
    LocalBody,
    Patch,
    Resource,
    ServedResource,
    Undecodable,
    WatchBatch,
    WatchEvent,
    WatchOptions,
    WriteOptions,
)
from dray.client.objects import key_of
from dray.client.responses import (
    Decode,
    discovery_path,
    group_versions,
    read_batch,
    read_list,
    read_resources,
    with_preferred_versions,
)
from dray.runtime.logs import fields

_log = logging.getLogger(__name__)

T = TypeVar("T")

_JSON: Final = "application/json"


class Call(msgspec.Struct, frozen=True):
    """One request, before a transport gives it its form; `resource` is None for plain paths."""

    verb: str
    resource: Resource[Any] | None = None
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    path: str = ""
    query: Mapping[str, str] = msgspec.field(default_factory=dict)
    body: LocalBody = None
    content_type: str = _JSON
    # The caller does not change the answer, which may then be shared.
    read_only: bool = False
    # How long to wait for a server to respond; 0 leaves it to the transport.
    timeout_seconds: float = 0.0


class Transport(Protocol):
    """Carries calls to a server; raises `APIError`."""

    async def send(self, call: Call) -> Document:
        """The answer to anything but a watch."""

    def stream(self, call: Call) -> AsyncIterator[WatchBatch]:
        """The events of a watch, as they come; a first, empty batch says that the watch is open."""

    async def close(self) -> None:
        """Release what the transport holds."""


# Makes of a watch's batch what `read_batch` does.
ReadBatch: TypeAlias = Callable[[WatchBatch, Resource[Any]], tuple[Sequence[Any], APIError | None]]


def reader(decode: Decode, *, for_cache: bool) -> ReadBatch:
    """Reads batches, decoding objects in a way of its own."""
    return lambda batch, resource: read_batch(resource, batch, decode, for_cache=for_cache)


class RestClient:
    """Implements `dray.client.interface.Client` over a transport."""

    def __init__(self, transport: Transport, decode: Decode = decode, read_for_cache: ReadBatch | None = None) -> None:
        self._transport = transport
        self._decode = decode
        self._read = reader(decode, for_cache=False)
        self._read_for_cache = read_for_cache or reader(decode, for_cache=True)

    async def get(self, resource: Resource[T], name: str, namespace: str = "", *, resource_version: str = "") -> T:
        """Read one object."""
        query = {"resourceVersion": resource_version} if resource_version else {}
        return self._decode(resource, await self._transport.send(Call("get", resource, namespace, name, query=query)))

    async def list(self, resource: Resource[T], namespace: str = "", options: ListOptions = LIST_ALL) -> ListPage[T]:
        """Read one page."""
        answer = await self._transport.send(Call("list", resource, namespace, query=options.query()))
        return read_list(resource, answer)

    async def watch(
        self, resource: Resource[T], namespace: str = "", options: WatchOptions = WATCH_ALL
    ) -> AsyncGenerator[WatchEvent[T] | Bookmark, None]:
        """Follow changes."""
        async with aclosing(self._follow(resource, namespace, options, self._read)) as batches:
            async for batch in batches:
                for event in batch:
                    if isinstance(event, Undecodable):
                        _log.warning("object skipped", extra=fields(object=str(event.key), problem=event.problem))
                    else:
                        yield event

    def watch_batches(
        self, resource: Resource[T], namespace: str = "", options: WatchOptions = WATCH_ALL
    ) -> AsyncGenerator[Sequence[CacheEvent[T]], None]:
        """Follow changes for a cache, all that came at once together."""
        return self._follow(resource, namespace, options, self._read_for_cache)

    async def _follow(
        self, resource: Resource[Any], namespace: str, options: WatchOptions, read: ReadBatch
    ) -> AsyncGenerator[Sequence[Any], None]:
        stream = self._transport.stream(Call("watch", resource, namespace, query=options.query()))
        try:
            async for batch in stream:
                events, failure = read(batch, resource)
                if events or not batch:
                    yield events
                if failure is not None:
                    raise failure
        finally:
            await _close_iterator(stream)

    async def create(self, resource: Resource[T], obj: T, namespace: str = "", options: WriteOptions = WRITE) -> T:
        """Create."""
        place = namespace or key_of(obj)[0]
        return await self._write("create", resource, obj, (place, ""), options, options.subresource)

    async def update(self, resource: Resource[T], obj: T, options: WriteOptions = WRITE) -> T:
        """Replace the object that has its namespace and name."""
        return await self._write("update", resource, obj, key_of(obj), options, options.subresource)

    async def update_status(self, resource: Resource[T], obj: T, options: WriteOptions = WRITE) -> T:
        """Replace the object's status."""
        return await self._write("update", resource, obj, key_of(obj), options, "status")

    async def patch(
        self, resource: Resource[T], name: str, namespace: str, patch: Patch, options: WriteOptions = WRITE
    ) -> T:
        """Change an object by a patch."""
        call = Call(
            verb="patch",
            resource=resource,
            namespace=namespace,
            name=name,
            subresource=options.subresource,
            path="",
            query=options.query(),
            body=patch.body,
            content_type=str(patch.type),
            read_only=options.read_only,
            timeout_seconds=options.timeout_seconds,
        )
        return self._decode(resource, await self._transport.send(call))

    async def delete(
        self, resource: Resource[Any], name: str, namespace: str = "", options: DeleteOptions = DELETE
    ) -> Document:
        """Delete one object."""
        return await self._transport.send(Call("delete", resource, namespace, name, body=options.document()))

    async def delete_collection(
        self,
        resource: Resource[Any],
        namespace: str = "",
        selection: ListOptions = LIST_ALL,
        options: DeleteOptions = DELETE,
    ) -> Document:
        """Delete everything selected in the namespace."""
        call = Call("deletecollection", resource, namespace, query=selection.query(), body=options.document())
        return await self._transport.send(call)

    async def create_subresource(
        self, resource: Resource[Any], name: str, namespace: str, subresource: str, body: Document
    ) -> Document:
        """Post to a subresource."""
        return await self._transport.send(Call("create", resource, namespace, name, subresource, body=body))

    async def get_subresource(self, resource: Resource[Any], name: str, namespace: str, subresource: str) -> Document:
        """Read a subresource."""
        return await self._transport.send(Call("get", resource, namespace, name, subresource))

    async def get_path(self, path: str, query: Mapping[str, str] | None = None) -> Document:
        """Read a path that is not an object."""
        return await self._transport.send(Call("get", path=path, query=query or {}))

    async def resources(self, *, complete: bool = False) -> tuple[ServedResource, ...]:
        """Every resource served now; a group whose own server is down is left out unless all are needed."""
        found: list[ServedResource] = []
        failures: dict[str, str] = {}
        for group_version, preferred in group_versions(await self.get_path("/api"), await self.get_path("/apis")):
            try:
                document = await self.get_path(discovery_path(group_version))
            except APIError as error:
                # A group may vanish between the two reads, or be served by an aggregated server that is down.
                if error.code not in (404, 503):
                    raise
                if isinstance(error, ServiceUnavailableError):
                    failures[group_version.api_version] = error.message
                continue
            found.extend(read_resources(group_version, document, preferred=preferred))
        served = with_preferred_versions(found)
        if failures and complete:
            raise IncompleteDiscoveryError(failures, served)
        return served

    async def close(self) -> None:
        """Release connections."""
        await self._transport.close()

    async def _write(
        self, verb: str, resource: Resource[T], obj: T, names: tuple[str, str], options: WriteOptions, subresource: str
    ) -> T:
        namespace, name = names
        call = Call(
            verb=verb,
            resource=resource,
            namespace=namespace,
            name=name,
            subresource=subresource,
            path="",
            query={} if options is WRITE else options.query(),
            body=encode(resource, obj),
            content_type=_JSON,
            read_only=options.read_only,
            timeout_seconds=options.timeout_seconds,
        )
        return self._decode(resource, await self._transport.send(call))


async def _close_iterator(stream: AsyncIterator[Any]) -> None:
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()
