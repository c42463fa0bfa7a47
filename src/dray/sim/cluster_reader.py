"""Reads a snapshot from an API server, page by page, in the newest version it serves, with the user's permissions.

All kinds are read as they were at one moment, so that a Pod is never seen without the devices that it had already got.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dray.api.document import Document
from dray.api.errors import APIError, ForbiddenError
from dray.client.interface import Client, ListOptions, Resource, ServedResource
from dray.sim.snapshot import KINDS, VERSIONS, Snapshot, kind_key

PAGE: Final = 500
# Kinds of which those of one namespace are enough.
OF_NAMESPACE: Final = frozenset({"Event"})


@dataclass(frozen=True, slots=True)
class _Listing:
    """The objects of a kind that could be read."""

    documents: list[Document]
    # The only namespace that could be read; empty if all could.
    namespace: str = ""


# A kind with its resource, and what could be read of it.
_Part = tuple[str, Resource[Document], _Listing | ForbiddenError]


async def read_cluster(client: Client, kinds: Iterable[str], namespace: str = "", own_namespace: str = "") -> Snapshot:
    """List the kinds that are served, as far as the user may, with notes on what is hidden.

    What may not be listed in the whole cluster is listed in `namespace` or, if that is not given, in the user's own.
    If nothing may be read, raises `ForbiddenError`.
    """
    read = await _read(client, kinds, namespace, own_namespace)
    partial = {kind: _read_namespace(part) for kind, _, part in read}
    partial = {kind: found for kind, found in partial.items() if found != ""}
    snapshot = Snapshot.of(_documents(read), tuple(_hidden(read)), partial)
    return replace(snapshot, listed=frozenset(kind for kind, _, _ in read))


async def read_documents(client: Client, kinds: Iterable[str], namespace: str = "") -> list[Document]:
    """Return the objects as documents with apiVersion and kind, as far as the user may list them."""
    return _documents(await _read(client, kinds, namespace))


async def _read(client: Client, kinds: Iterable[str], namespace: str, own_namespace: str = "") -> list[_Part]:
    served = best_resources(await client.resources())
    wanted = [(kind, served[kind]) for kind in kinds if kind in served]
    reader = _Reader(client, await _resource_version(client, [resource for _, resource in wanted]))
    found = await asyncio.gather(*(_permitted(reader, *item, namespace, own_namespace) for item in wanted))
    parts = [(kind, resource, part) for (kind, resource), part in zip(wanted, found, strict=True)]
    refused = {kind: part for kind, _, part in parts if isinstance(part, ForbiddenError)}
    if refused and len(refused) == len(parts):
        raise refused.get("Pod") or next(iter(refused.values()))
    return parts


def _documents(parts: Iterable[_Part]) -> list[Document]:
    return [item for _, _, part in parts if isinstance(part, _Listing) for item in part.documents]


def _hidden(parts: Iterable[_Part]) -> Iterator[str]:
    """Yield a note on the kinds of which one namespace was read, and one on those that were not read at all."""
    one_namespace: dict[str, list[str]] = {}
    unread = []
    for _, resource, part in parts:
        if isinstance(part, ForbiddenError):
            unread.append(_plural(resource))
        elif part.namespace:
            one_namespace.setdefault(part.namespace, []).append(_plural(resource))
    for namespace, names in one_namespace.items():
        yield f"only namespace {namespace} was read, because you may not list all {_enumerated(names)}"
    if unread:
        yield f"you may not list {_enumerated(unread)}: what depends on them is not evaluated"


def _read_namespace(part: _Listing | ForbiddenError) -> str | None:
    """Return the only namespace that was read, None if nothing was, and an empty text if all were."""
    return None if isinstance(part, ForbiddenError) else part.namespace


def _enumerated(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


async def check_permission(client: Client, resource: Resource[Document]) -> None:
    """Raise `ForbiddenError` if the user may not list a kind in the whole cluster: an informer would wait for ever."""
    await client.list(resource, options=ListOptions(limit=1))


async def _resource_version(client: Client, resources: Iterable[Resource[Document]]) -> str:
    """Return the resource version of now, from a kind that the user may list; empty if there is none."""
    for resource in resources:
        try:
            return (await client.list(resource, options=ListOptions(limit=1))).resource_version
        except ForbiddenError:
            continue
    return ""


async def _permitted(
    reader: _Reader, kind: str, resource: Resource[Document], namespace: str, own_namespace: str
) -> _Listing | ForbiddenError:
    """List a kind in the whole cluster or, if that is forbidden, in a namespace."""
    fallback = namespace or own_namespace
    scopes = [namespace] if kind in OF_NAMESPACE and namespace else [""]
    if resource.namespaced and fallback and scopes == [""]:
        scopes.append(fallback)
    failure: ForbiddenError | None = None
    for scope in scopes:
        try:
            found = await reader.objects(resource, scope)
        except ForbiddenError as error:
            failure = error
        else:
            return _Listing(found, scope if failure is not None else "")
    assert failure is not None
    return failure


@dataclass(frozen=True, slots=True)
class _Reader:
    """Lists objects as they were at one resource version, which is empty for the newest."""

    client: Client
    resource_version: str

    async def objects(self, resource: Resource[Document], namespace: str) -> list[Document]:
        """Return the objects of a kind."""
        if self.resource_version:
            try:
                return await self._pages(resource, namespace, self.resource_version)
            except ForbiddenError:
                raise
            except APIError:
                # The version is compacted, or means nothing for this kind: some servers keep kinds in several stores.
                pass
        return await self._pages(resource, namespace, "")

    async def _pages(self, resource: Resource[Document], namespace: str, resource_version: str) -> list[Document]:
        found: list[Document] = []
        api_version = resource.group_version.api_version
        options = ListOptions(
            limit=PAGE,
            resource_version=resource_version,
            resource_version_match="Exact" if resource_version else "",
        )
        while True:
            page = await self.client.list(resource, namespace, options=options)
            found += [{"apiVersion": api_version, "kind": resource.kind, **item} for item in page.items]
            if not page.continue_token:
                return found
            # The token has the version.
            options = ListOptions(limit=PAGE, continue_token=page.continue_token)


def _plural(resource: Resource[Document]) -> str:
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def best_resources(resources: Iterable[ServedResource]) -> dict[str, Resource[Document]]:
    """Return for each kind of a snapshot the resource in the newest served version."""
    found: dict[str, ServedResource] = {}
    for item in resources:
        kind = kind_key(item.kind, item.group)
        if KINDS.get(kind) != (item.group, item.plural) or item.version not in VERSIONS[item.group]:
            continue
        known, versions = found.get(kind), VERSIONS[item.group]
        if known is None or versions.index(item.version) < versions.index(known.version):
            found[kind] = item
    return {kind: item.resource() for kind, item in found.items()}
