"""Snapshots from an API server: one, or one whenever something changes."""

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
from dray.runtime.clock import SystemClock
from dray.runtime.tasks import TaskGroup
from dray.sim.cluster_reader import best_resources, read_cluster
from dray.sim.snapshot import Snapshot

# Changes come in bursts; a table more often than this is only flicker.
PAUSE_SECONDS: Final = 0.2


async def read_once(kubeconfig: str, context: str, kinds: Sequence[str]) -> Snapshot:
    """The cluster as it is."""
    async with connected(kubeconfig, context) as client:
        return await read_cluster(client, kinds)


async def follow(kubeconfig: str, context: str, kinds: Sequence[str], tell: Callable[[Snapshot], None]) -> None:
    """Tell how the cluster is, now and after changes, until cancelled."""
    async with connected(kubeconfig, context) as client, TaskGroup("watch") as group:
        followed = _Followed(client)
        await followed.start(group, kinds)
        try:
            while True:
                await followed.changed.wait()
                followed.changed.clear()
                tell(followed.snapshot())
                await asyncio.sleep(PAUSE_SECONDS)
        finally:
            await group.cancel()


class _Followed:
    """The kinds of a snapshot, kept current by watches."""

    def __init__(self, client: Client) -> None:
        self._client = client
        rng = random.Random()  # noqa: S311 - spreads load, guards nothing
        self._informers = SharedInformerFactory(client, SystemClock(), rng)
        self._loops: dict[str, tuple[str, SharedInformer[Document]]] = {}
        self.changed = asyncio.Event()

    async def start(self, group: TaskGroup, kinds: Sequence[str]) -> None:
        served = best_resources(await self._client.resources())
        for kind in kinds:
            if kind in served:
                resource = served[kind]
                api_version = GroupVersion(resource.group, resource.version).api_version
                self._loops[kind] = api_version, self._informers.informer(resource)
        group.spawn(self._informers.run(), "informers")
        for _, loop in self._loops.values():
            await loop.wait_for_sync()
            loop.add_handler(self._note)
        self.changed.set()

    def _note(self, _old: Any, _new: Any) -> None:
        self.changed.set()

    def snapshot(self) -> Snapshot:
        return Snapshot.of(
            {"apiVersion": api_version, "kind": kind, **item}
            for kind, (api_version, loop) in self._loops.items()
            for item in loop.lister.list()
        )


@asynccontextmanager
async def connected(kubeconfig: str, context: str = "") -> AsyncIterator[Client]:
    """A client with the user's own access."""
    access = load_access(os.environ, Overrides(context=context) if context else None, path=kubeconfig)
    client = http_client(access, SystemClock(), user_agent="dray-cli")
    try:
        yield client
    finally:
        await client.close()
