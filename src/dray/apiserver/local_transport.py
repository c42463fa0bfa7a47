"""The transport of in-process clients: no HTTP, JSON or TLS; the same handlers and rules."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from functools import lru_cache, partial
from typing import Any, Final, cast

import orjson

from dray.api.document import Document, copy_document
from dray.api.raw_numbers import MARK, fragment
from dray.apiserver.call import (
    Call,
    DocumentResult,
    ListResult,
    ObjectResult,
    Result,
    TextResult,
    WatchFrame,
    WatchResult,
)
from dray.apiserver.document_cache import DocumentCache
from dray.apiserver.encoding import list_document, served_document
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.malformed import each_shown, log_malformed
from dray.apiserver.request import UserInfo
from dray.apiserver.routes import RequestInfo, parse_request
from dray.apiserver.server import APIServer
from dray.client.interface import LocalRequest, WatchBatch
from dray.lib.latest_memo import LatestMemo
from dray.store.interface import Entry

_METHODS: Final = {
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
    "deletecollection": "DELETE",
}
# A request of the API server to itself; the arguments are those of LocalRequest after user and groups.
own_request: Final = partial(LocalRequest, "system:apiserver", ("system:masters",), user_agent="kube-apiserver")


class LocalTransport:
    """Implements `LocalServer` of `dray.client` on an API server."""

    def __init__(self, server: APIServer) -> None:
        self._server = server
        self.documents = server.documents
        # Watches of one resource get the same batch in turn.
        self._batches: LatestMemo[Sequence[WatchFrame], Endpoint, WatchBatch] = LatestMemo(self._batch)

    async def handle(self, request: LocalRequest) -> Document:
        """Handle any request but a watch."""
        result = await self._server.execute(_call(request))
        if request.read_only and isinstance(result, ObjectResult):
            return _shared_document(result.endpoint, result.entry, self.documents)
        if request.read_only and isinstance(result, DocumentResult):
            return result.document
        if request.read_only and isinstance(result, ListResult):
            return _encoded_list(result)
        return _document(result)

    async def watch(self, request: LocalRequest) -> AsyncIterator[WatchBatch]:
        """Start a watch; no event after the return is missed."""
        result = await self._server.execute(_call(request))
        assert isinstance(result, WatchResult)
        return self._events(result)

    async def _events(self, result: WatchResult) -> AsyncIterator[WatchBatch]:
        async with aclosing(cast("Any", result.frames)) as batches:
            async for frames in batches:
                yield self._batches.get(frames, result.endpoint)

    def _batch(self, frames: Sequence[WatchFrame], endpoint: Endpoint) -> WatchBatch:
        batch: list[tuple[str, Document]] = []
        for frame in frames:
            entry, document = frame.entry, frame.document
            if entry is not None:
                try:
                    document = _shared_document(endpoint, entry, self.documents)
                except Exception as error:  # noqa: BLE001 - a value that has not the form of its kind fails anywhere
                    log_malformed(entry, error)
                    continue
            assert document is not None
            batch.append((frame.type, document))
        return batch


def _call(request: LocalRequest) -> Call:
    # A list is the body of a JSON patch.
    body: Any = request.body
    method = _METHODS.get(request.verb, "GET")
    if request.path:
        info = parse_request(method, request.path, request.query)
    else:
        info = RequestInfo(
            method=method,
            path="",
            verb=request.verb,
            group=request.group,
            version=request.version,
            resource=request.resource,
            subresource=request.subresource,
            namespace=request.namespace,
            name=request.name,
        )
    return Call(
        info,
        request.query,
        _user(request.user, request.groups),
        body,
        request.content_type,
        request.user_agent,
    )


@lru_cache(maxsize=1024)
def _user(name: str, groups: tuple[str, ...]) -> UserInfo:
    """Return the user of a component; there are few, with many requests each."""
    return UserInfo(name, groups=(*groups, "system:authenticated"))


def _plain_document(endpoint: Endpoint, entry: Entry) -> Document:
    """Return a new document of an entry as a client over HTTP would decode it, without raw numbers."""
    document = served_document(endpoint, entry)
    if entry.value.endswith(MARK):
        document = orjson.loads(orjson.dumps(document, default=fragment))
    return document


def _shared_document(endpoint: Endpoint, entry: Entry, documents: DocumentCache) -> Document:
    """Return the document of an entry, shared by all callers that use the storage version."""
    document = (
        documents.plain_document(entry) if endpoint.is_storage_version and not endpoint.completes_stored else None
    )
    return _plain_document(endpoint, entry) if document is None else document


def _document(result: Result) -> Document:
    if isinstance(result, ObjectResult):
        return _plain_document(result.endpoint, result.entry)
    if isinstance(result, ListResult):
        documents = each_shown(partial(_plain_document, result.endpoint), result.entries)
        return list_document(result.endpoint, documents, result.metadata())
    if isinstance(result, DocumentResult):
        # A deleted object shares parts with the events of its deletion.
        return copy_document(result.document)
    assert isinstance(result, TextResult)
    document: Document = orjson.loads(result.body)
    return document


def _encoded_list(result: ListResult) -> Document:
    """Return a list whose items are JSON: the client decodes them at once, without documents in between."""
    endpoint = result.endpoint
    return {"metadata": result.metadata(), "items": each_shown(partial(_encoded_item, endpoint), result.entries)}


def _encoded_item(endpoint: Endpoint, entry: Entry) -> bytes | Document:
    if endpoint.is_storage_version and endpoint.is_framed(entry.value) and not entry.value.endswith(MARK):
        return endpoint.splice(entry.value, entry.revision)
    return _plain_document(endpoint, entry)
