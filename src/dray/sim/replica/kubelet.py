"""Simulates the kubelets of a replica: scheduled Pods become ready, deleted Pods are removed."""

from __future__ import annotations

import asyncio
from typing import Final

from dray.api.document import Document
from dray.api.errors import ConflictError, NotFoundError
from dray.client import resources
from dray.client.interface import Client, DeleteOptions, Patch, PatchType, WriteOptions
from dray.client.shared_informers import SharedInformerFactory

PODS: Final = resources.PODS.unstructured
_STATUS: Final = WriteOptions(subresource="status")


class SimulatedKubelets:
    """One instance for all nodes."""

    def __init__(self, client: Client, informers: SharedInformerFactory) -> None:
        self._client = client
        self._changed: asyncio.Queue[Document] = asyncio.Queue()
        informers.informer(PODS).add_handler(self._pod_changed)

    def _pod_changed(self, _old: Document | None, new: Document | None) -> None:
        if new is not None and new["spec"].get("nodeName"):
            self._changed.put_nowait(new)

    async def run(self) -> None:
        """Sync Pods until cancelled."""
        while True:
            pod = await self._changed.get()
            try:
                await self._sync(pod)
            except (NotFoundError, ConflictError):
                # Deleted or changed meanwhile; the event of a change is in the queue.
                continue

    async def _sync(self, pod: Document) -> None:
        metadata = pod["metadata"]
        name, namespace = metadata["name"], metadata["namespace"]
        if metadata.get("deletionTimestamp"):
            await self._client.delete(PODS, name, namespace, DeleteOptions(uid=metadata["uid"], grace_period_seconds=0))
        elif (pod.get("status") or {}).get("phase", "Pending") == "Pending":
            patch = {"metadata": {"uid": metadata["uid"]}, "status": _running()}
            await self._client.patch(PODS, name, namespace, Patch(PatchType.STRATEGIC, patch), _STATUS)


def _running() -> Document:
    kinds = ("Initialized", "ContainersReady", "Ready")
    return {"phase": "Running", "conditions": [{"type": kind, "status": "True"} for kind in kinds]}
