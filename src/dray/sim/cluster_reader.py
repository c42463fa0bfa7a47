"""Reads a snapshot from an API server, page by page, in the newest version it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from dray.api import classic_claims as classic
from dray.api.document import Document
from dray.api.errors import ForbiddenError
from dray.client.interface import Client, ListOptions, Resource, ServedResource
from dray.sim.snapshot import DRA, KINDS, Snapshot, kind_key

PAGE: Final = 500
# Kinds that many users may not list; without permission they are omitted.
OPTIONAL: Final = frozenset({"DeviceTaintRule", "Namespace", "Service", "PersistentVolume", "PersistentVolumeClaim"})


async def read_cluster(client: Client, kinds: Iterable[str]) -> Snapshot:
    """List the kinds; those that are not served, or optional and forbidden, are omitted."""
    return Snapshot.of(await read_documents(client, kinds))


async def read_documents(client: Client, kinds: Iterable[str]) -> list[Document]:
    """Return the objects as documents with apiVersion and kind."""
    served = best_resources(await client.resources())
    wanted = [(kind, served[kind]) for kind in kinds if kind in served]
    pages = await asyncio.gather(*(_list(client, resource, skip=kind in OPTIONAL) for kind, resource in wanted))
    return [document for page in pages for document in page]


async def _list(client: Client, resource: Resource[Document], *, skip: bool) -> list[Document]:
    found: list[Document] = []
    token = ""
    api_version = resource.group_version.api_version
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


# By group, newest first.
_VERSIONS: Final = {"": ("v1",), DRA: ("v1", "v1beta2", "v1beta1", "v1alpha3"), classic.GROUP: (classic.VERSION,)}


def best_resources(resources: Iterable[ServedResource]) -> dict[str, Resource[Document]]:
    """Return for each kind of a snapshot the resource in the newest served version."""
    found: dict[str, ServedResource] = {}
    for item in resources:
        kind = kind_key(item.kind, item.group)
        if KINDS.get(kind) != (item.group, item.plural) or item.version not in _VERSIONS[item.group]:
            continue
        known, versions = found.get(kind), _VERSIONS[item.group]
        if known is None or versions.index(item.version) < versions.index(known.version):
            found[kind] = item
    return {kind: item.resource() for kind, item in found.items()}
