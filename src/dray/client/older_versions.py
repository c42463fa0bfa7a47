"""Requests to servers that do not serve `resource.k8s.io/v1` yet, or do not any more what they served before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import msgspec

from dray.api.document import Document, GroupResource
from dray.api.errors import APIError
from dray.client.interface import WatchBatch
from dray.client.rest import Call, Transport

_NOT_FOUND: Final = 404
_GROUP: Final = "resource.k8s.io"
_NEW: Final = "v1"
# Of Kubernetes 1.33 to 1.38; its objects have the form of v1.
_OLD: Final = "v1beta2"


class OlderVersions:
    """A transport that falls back to the older version of a resource while the server does not serve the newer one.

    What a server serves can change while it is followed: by an upgrade, or by another server of the cluster.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        # The resources that were found in the older version only.
        self._older: Final[set[GroupResource]] = set()

    async def send(self, call: Call) -> Document:
        """Send a call; in the other version if its resource is not served in the first."""
        known = _in_older_version(call) if self._is_older(call) else call
        try:
            return await self._transport.send(known)
        except APIError as error:
            if not _is_path_missing(error) or not _has_versions(call):
                raise
            failure = error
        other = _in_older_version(call) if known is call else call
        try:
            document = await self._transport.send(other)
        except APIError as error:
            if _is_path_missing(error):
                raise failure from None
            self._remember(other)
            raise
        self._remember(other)
        return document

    def stream(self, call: Call) -> AsyncIterator[WatchBatch]:
        """Watch in the version in which the resource was listed."""
        return self._transport.stream(_in_older_version(call) if self._is_older(call) else call)

    async def close(self) -> None:
        """Release what the transport holds."""
        await self._transport.close()

    def _is_older(self, call: Call) -> bool:
        # Of nearly all servers, none is.
        if not self._older or not _has_versions(call):
            return False
        return call.resource is not None and call.resource.group_resource in self._older

    def _remember(self, served: Call) -> None:
        assert served.resource is not None
        change = self._older.add if served.resource.version == _OLD else self._older.discard
        change(served.resource.group_resource)


def _has_versions(call: Call) -> bool:
    resource = call.resource
    return resource is not None and resource.group == _GROUP and resource.version == _NEW


def _in_older_version(call: Call) -> Call:
    resource, body = call.resource, call.body
    assert resource is not None
    served = msgspec.structs.replace(resource, version=_OLD)
    if isinstance(body, dict) and body.get("apiVersion") == resource.group_version.api_version:
        body = {**body, "apiVersion": served.group_version.api_version}
    return msgspec.structs.replace(call, resource=served, body=body)


def _is_path_missing(error: APIError) -> bool:
    """Report whether nothing is served at the path; an object that does not exist is named in the details."""
    return error.code == _NOT_FOUND and not (error.details or {}).get("name")
