"""Snapshots from an API server: one, or one after every change."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from dray.api.document import Document, GroupVersion
from dray.api.errors import ForbiddenError, NotFoundError
from dray.client.credentials import load_access, read_kubeconfig, tls_context
from dray.client.http import http_client
from dray.client.interface import Client
from dray.client.kubeconfig import Access, Credential, KubeconfigError, Overrides, default_paths
from dray.client.shared_informers import SharedInformer, SharedInformerFactory
from dray.runtime.system import SystemClock
from dray.runtime.tasks import TaskGroup
from dray.sim.cluster_reader import best_resources, check_permission, read_cluster
from dray.sim.snapshot import Snapshot, SnapshotError

# Changes come in bursts; printing more often only flickers.
PRINT_INTERVAL_SECONDS: Final = 0.2


@asynccontextmanager
async def connect(kubeconfig: str, context: str = "") -> AsyncIterator[Client]:
    """Open a client with the user's own kubeconfig."""
    async with _connected(load_user_access(kubeconfig, context)) as client:
        yield client


@asynccontextmanager
async def _connected(access: Access) -> AsyncIterator[Client]:
    client = http_client(access, SystemClock(), user_agent="dray-cli")
    try:
        yield client
    finally:
        await client.close()


def load_user_access(kubeconfig: str, context: str = "") -> Access:
    """Return the access of the user's own kubeconfig; an error names the files that were read."""
    try:
        access = load_access(os.environ, Overrides(context=context) if context else None, path=kubeconfig)
        if access.exec_plugin is None:
            # Fails here, where the files are known, if a certificate cannot be used.
            tls_context(access, Credential(certificate_data=access.certificate_data, key_data=access.key_data))
    except KubeconfigError as error:
        raise KubeconfigError(f"{error}{_source_note(str(error), kubeconfig)}") from error
    return access


def _source_note(problem: str, kubeconfig: str) -> str:
    """Return which files were read, and which contexts they have, unless the problem names its file."""
    if problem.startswith("error loading config file"):
        return ""
    paths = (kubeconfig,) if kubeconfig else default_paths(os.environ, str(Path.home()))
    missing = [path for path in paths if not Path(path).exists()]
    if missing:
        source = (
            "--kubeconfig" if kubeconfig else "$KUBECONFIG" if os.environ.get("KUBECONFIG") else "no $KUBECONFIG, and"
        )
        return f" ({source}: {', '.join(missing)} does not exist)"
    contexts = sorted(read_kubeconfig(paths).contexts)
    known = f"its contexts are {', '.join(contexts)}" if contexts else "it has no contexts"
    return f" ({', '.join(paths)}: {known})"


async def read_once(kubeconfig: str, context: str, kinds: Sequence[str], namespace: str = "") -> Snapshot:
    """Return the cluster's current state, as far as the user may read it."""
    access = load_user_access(kubeconfig, context)
    async with _connected(access) as client:
        return await read_cluster(client, kinds, namespace, access.namespace)


async def read_page(
    kubeconfig: str, context: str, path: str, query: Mapping[str, str] | None = None, *, missing: str
) -> Document:
    """Return a page that some API servers have; raises `SnapshotError` with the text `missing` for others."""
    async with connect(kubeconfig, context) as client:
        try:
            return await client.get_path(path, query)
        except (NotFoundError, ForbiddenError) as error:
            # A kube-apiserver refuses unknown paths before it looks for them.
            raise SnapshotError(missing) from error


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
                await check_permission(self._client, resource)
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
