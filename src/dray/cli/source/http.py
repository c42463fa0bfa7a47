"""Snapshots from an API server: the kinds a command asks for, in whichever version the server has them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

from dray.api.document import Document, GroupVersion
from dray.api.errors import ForbiddenError
from dray.client.files import load_access
from dray.client.http import http_client
from dray.client.interface import Client, ListOptions, Resource
from dray.client.kubeconfig import Overrides
from dray.runtime.clock import SystemClock
from dray.sim.snapshot import Snapshot
from dray.sim.source import best_resources

PAGE: Final = 500


@asynccontextmanager
async def connected(kubeconfig: str, context: str = "") -> AsyncIterator[Client]:
    """A client with the user's own access."""
    access = load_access(os.environ, Overrides(context=context) if context else None, path=kubeconfig)
    client = http_client(access, SystemClock(), user_agent="dray-cli")
    try:
        yield client
    finally:
        await client.close()


async def read_cluster(client: Client, kinds: Iterable[str], *, optional: frozenset[str] = frozenset()) -> Snapshot:
    """List the kinds; those that are not served, or optional and forbidden, are left out."""
    served = best_resources(await client.resources())
    wanted = [(kind, served[kind]) for kind in kinds if kind in served]
    pages = await asyncio.gather(*(_list(client, resource, skip=kind in optional) for kind, resource in wanted))
    return Snapshot.of(document for page in pages for document in page)


async def _list(client: Client, resource: Resource[Document], *, skip: bool) -> list[Document]:
    found: list[Document] = []
    token = ""
    api_version = GroupVersion(resource.group, resource.version).api_version
    while True:
        try:
            page = await client.list(resource, options=ListOptions(limit=PAGE, continue_token=token))
        except ForbiddenError:
            if skip:
                return []
            raise
        found += [{"apiVersion": api_version, "kind": resource.kind, **item} for item in page.items]
        token = page.continue_token
        if not token:
            return found
