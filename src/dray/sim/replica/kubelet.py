"""Simulates the kubelets of a replica: scheduled Pods become ready, deleted Pods are removed.

Nobody acts on Pods whose node is gone or not ready, nor on those that should have ended long ago.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Final

from dray.api.document import Document
from dray.api.errors import ConflictError, NotFoundError
from dray.api.pod_claims import TERMINAL_PHASES
from dray.api.timestamps import parse_time
from dray.api.types.core_v1 import Node
from dray.client import resources
from dray.client.interface import Client, DeleteOptions, Patch, PatchType, WriteOptions
from dray.client.resources import NODES
from dray.client.shared_informers import SharedInformerFactory

PODS: Final = resources.PODS.unstructured
# A node ends a Pod within seconds after its grace period.
OVERDUE_AFTER: Final = timedelta(seconds=30)
_STATUS: Final = WriteOptions(subresource="status")


class SimulatedKubelets:
    """One instance for all nodes; `start` is when the replica does."""

    def __init__(self, client: Client, informers: SharedInformerFactory, start: datetime) -> None:
        self._client = client
        self._start = start
        self._nodes = informers.informer(NODES).lister
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
        node = self._nodes.get(pod["spec"]["nodeName"])
        ends = metadata.get("deletionTimestamp")
        if node is None or not _is_ready(node) or (ends and self._start - parse_time(ends) > OVERDUE_AFTER):
            return
        phase = (pod.get("status") or {}).get("phase", "Pending")
        if metadata.get("deletionTimestamp"):
            if metadata.get("finalizers") and phase not in TERMINAL_PHASES:
                # The object stays, but its containers have stopped: it uses nothing any more.
                await self._patch_status(pod, {"phase": "Failed"})
            await self._client.delete(PODS, name, namespace, DeleteOptions(uid=metadata["uid"], grace_period_seconds=0))
        elif phase == "Pending":
            await self._patch_status(pod, _running())

    async def _patch_status(self, pod: Document, status: Document) -> None:
        metadata = pod["metadata"]
        patch = Patch(PatchType.STRATEGIC, {"metadata": {"uid": metadata["uid"]}, "status": status})
        await self._client.patch(PODS, metadata["name"], metadata["namespace"], patch, _STATUS)


def _is_ready(node: Node) -> bool:
    return all(item.status == "True" for item in node.status.conditions if item.type == "Ready")


def _running() -> Document:
    kinds = ("Initialized", "ContainersReady", "Ready")
    return {"phase": "Running", "conditions": [{"type": kind, "status": "True"} for kind in kinds]}
