"""Adopts and releases the dependents of an owner, as its selector requires."""

from __future__ import annotations

from typing import Any, TypeVar

from dray.client.errors import ignore_not_found
from dray.client.interface import Client, Patch, PatchType, Resource
from dray.client.objects import key_of
from dray.client.shared_informers import SharedInformer
from dray.controllers.pod_control.ownership import (
    BY_ORPHAN_NAMESPACE,
    Dependents,
    Owned,
    Owner,
    adoption_patch,
    match_dependents,
    release_patch,
)

T = TypeVar("T", bound=Owned)


async def claim_dependents(
    client: Client, informer: SharedInformer[T], owners: Resource[Any], owner: Owner
) -> tuple[T, ...]:
    """Adopt and release objects of the informer; return the owner's dependents. The informer has `OWNER_INDEXES`."""
    found = cached_dependents(informer, owner)
    if not found.adopt and not found.release:
        return found.owned
    return (*found.owned, *await adopt_and_release(client, informer.resource, owners, owner, found))


def cached_dependents(informer: SharedInformer[T], owner: Owner) -> Dependents[T]:
    """Compare the cached objects with the owner's selector; the informer has `OWNER_INDEXES`."""
    lister = informer.lister
    return match_dependents(owner, lister.owned_by(owner.uid), lister.by_index(BY_ORPHAN_NAMESPACE, owner.namespace))


async def adopt_and_release(
    client: Client,
    resource: Resource[T],
    owners: Resource[Any],
    owner: Owner,
    found: Dependents[T],
    *,
    finalizer: str = "",
) -> tuple[T, ...]:
    """Write the owner references; return the adopted objects as written."""
    for item in found.release:
        patch = Patch(PatchType.STRATEGIC, release_patch(owner, item, finalizer=finalizer))
        await _patch(client, resource, item, patch)
    if not found.adopt or not await _can_adopt(client, owners, owner):
        return ()
    adopted = []
    for item in found.adopt:
        patch = Patch(PatchType.STRATEGIC, adoption_patch(owner, item, finalizer=finalizer))
        written = await _patch(client, resource, item, patch)
        if written is not None:
            adopted.append(written)
    return tuple(adopted)


async def _patch(client: Client, resource: Resource[T], item: T, patch: Patch) -> T | None:
    key = key_of(item)
    return await ignore_not_found(client.patch(resource, key.name, key.namespace, patch))


async def _can_adopt(client: Client, owners: Resource[Any], owner: Owner) -> bool:
    """Return whether a live read finds the owner: dependents of a deleted one would be garbage-collected."""
    live = await ignore_not_found(client.get(owners, owner.name, owner.namespace))
    return live is not None and live.metadata.uid == owner.uid and live.metadata.deletion_timestamp is None
