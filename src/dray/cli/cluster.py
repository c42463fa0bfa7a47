"""Snapshots from an API server: one, or one after every change."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from dray.api.document import Document, GroupVersion
from dray.client.credentials import load_access
from dray.client.http import http_client
from dray.client.interface import Client
from dray.client.kubeconfig import Overrides
from dray.client.shared_informers import SharedInformer, SharedInformerFactory
from dray.runtime.system import SystemClock
from dray.runtime.tasks import TaskGroup
from dray.sim.cluster_reader import best_resources, read_cluster
from dray.sim.snapshot import Snapshot

# Changes come in bursts; printing more often only flickers.
PRINT_INTERVAL_SECONDS: Final = 0.2


@asynccontextmanager
async def connect(kubeconfig: str, context: str = "") -> AsyncIterator[Client]:
    """Open a client with the user's own kubeconfig."""
    access = load_access(os.environ, Overrides(context=context) if context else None, path=kubeconfig)
    client = http_client(access, SystemClock(), user_agent="dray-cli")
    try:
        yield client
    finally:
        await client.close()


async def read_once(kubeconfig: str, context: str, kinds: Sequence[str], namespace: str = "") -> Snapshot:
    """Return the cluster's current state, as far as the user may read it."""
    async with connect(kubeconfig, context) as client:
        return await read_cluster(client, kinds, namespace)


async def watch(kubeconfig: str, context: str, kinds: Sequence[str], on_change: Callable[[Snapshot], None]) -> None:
    """Pass the cluster's state to the callback, now and after changes, until cancelled."""
    async with connect(kubeconfig, context) as client, TaskGroup("watch") as group:
        cache = _SnapshotCache(client)
        await cache.start(group, kinds)
        while True:
            await cache.changed.wait()
            cache.changed.clear()
            on_change(cache.snapshot())
            await asyncio.sleep(PRINT_INTERVAL_SECONDS)


class _SnapshotCache:
    """The objects of a snapshot, kept current by informers."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._informers = SharedInformerFactory(client, SystemClock(), random.SystemRandom())
        # apiVersion, kind and informer.
        self._kinds: list[tuple[str, str, SharedInformer[Document]]] = []
        self.changed = asyncio.Event()

    async def start(self, group: TaskGroup, kinds: Sequence[str]) -> None:
        served = best_resources(await self._client.resources())
        for kind in kinds:
            if kind in served:
                resource = served[kind]
                api_version = GroupVersion(resource.group, resource.version).api_version
                self._kinds.append((api_version, resource.kind, self._informers.informer(resource)))
        group.spawn(self._informers.run(), "informers")
        for _, _, informer in self._kinds:
            await informer.wait_for_sync()
            informer.add_handler(self._on_event)
        self.changed.set()

    def _on_event(self, _old: Any, _new: Any) -> None:
        self.changed.set()

    def snapshot(self) -> Snapshot:
        return Snapshot.of(
            {"apiVersion": api_version, "kind": kind, **item}
            for api_version, kind, informer in self._kinds
            for item in informer.lister.list()
        )
