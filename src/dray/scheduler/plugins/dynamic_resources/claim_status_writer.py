"""Writes into a Pod's status what its claims use of the node, and removes it when the Pod is not bound."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from dray.api.document import Document
from dray.api.errors import APIError, ConflictError
from dray.api.types.core_v1 import NodeAllocatableResourceClaimStatus, Pod
from dray.client.errors import ignore_not_found
from dray.client.interface import Client, Patch, PatchType, WriteOptions
from dray.client.resources import PODS
from dray.runtime.logs import fields

_log = logging.getLogger(__name__)

_STATUS: Final = WriteOptions(subresource="status")
# Attempts to remove the amounts while others change the Pod.
ATTEMPTS_MAX: Final = 5


class ClaimStatusWriter:
    """Writes `nodeAllocatableResourceClaimStatuses`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def write(self, pod: Pod, statuses: Sequence[NodeAllocatableResourceClaimStatus]) -> str:
        """Set the amounts; return the version at which the Pod must be bound, so that it has them."""
        body = _body(pod.metadata.uid or "", statuses)
        written = await self._patch(pod, body)
        return written.metadata.resource_version or ""

    async def clear(self, pod: Pod) -> None:
        """Remove the amounts with an explicit empty list, unless the Pod has a node after all; log a failure.

        Amounts of a Pod without a node count for nothing.
        """
        name, namespace = pod.metadata.name or "", pod.metadata.namespace or ""
        failure: APIError | None = None
        for _ in range(ATTEMPTS_MAX):
            try:
                live = await ignore_not_found(self._client.get(PODS, name, namespace))
                if live is None or live.metadata.uid != pod.metadata.uid or live.spec.node_name:
                    return
                body = _body(pod.metadata.uid or "", ())
                body["metadata"]["resourceVersion"] = live.metadata.resource_version
                await self._patch(pod, body)
            except ConflictError as conflict:
                failure = conflict
            except APIError as error:
                failure = error
                break
            else:
                return
        key = f"{namespace}/{name}"
        _log.info("amounts of claims not removed from the status", extra=fields(pod=key, error=str(failure)))

    async def _patch(self, pod: Pod, body: Document) -> Pod:
        name, namespace = pod.metadata.name or "", pod.metadata.namespace or ""
        return await self._client.patch(PODS, name, namespace, Patch(PatchType.MERGE, body), _STATUS)


def _body(uid: str, statuses: Sequence[NodeAllocatableResourceClaimStatus]) -> Document:
    value = [msgspec.to_builtins(status) for status in statuses]
    return {"metadata": {"uid": uid}, "status": {"nodeAllocatableResourceClaimStatuses": value}}
