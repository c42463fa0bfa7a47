"""Deletes the stored objects of a definition that is being deleted.

They are read as they are stored: no version need be served, nothing is converted and no webhook is called, as these are
often served by what is being removed at the same time.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.apiserver.deletion import Outcome, plan_deletion
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.options import DeleteOptions
from dray.apiserver.registry.strategy import ResourceDefinition, Strategy
from dray.store.interface import Entry, KeyNotFoundError, RevisionConflictError, Store

_PAGE: Final = 500
_OPTIONS: Final = DeleteOptions()


async def delete_stored(store: Store, definition: Document, now: datetime) -> bool:
    """Delete every object; return whether none is left, as some may wait for finalizers."""
    by_version = {item["name"]: _stored_endpoint(definition, item["name"]) for item in definition["spec"]["versions"]}
    endpoint = next(iter(by_version.values()))
    is_empty, start, revision = True, "", 0
    while True:
        page = await store.list_page(endpoint.prefix, limit=_PAGE, start_after=start, revision=revision)
        for entry in page.entries:
            is_empty &= await _delete(store, by_version, endpoint, entry, now)
        if not page.remaining:
            return is_empty
        start, revision = page.entries[-1].key, page.revision


def _stored_endpoint(definition: Document, version: str) -> Endpoint:
    """Return an endpoint in which objects of the version are stored as they are."""
    spec = definition["spec"]
    names = spec["names"]
    resource = ResourceDefinition(
        group=spec["group"],
        resource=names["plural"],
        singular=names.get("singular") or names["kind"].lower(),
        kind=names["kind"],
        namespaced=spec["scope"] == "Namespaced",
        versions=(version,),
        storage_version=version,
        strategy=Strategy(),
    )
    return Endpoint(resource, version, custom=True)


async def _delete(
    store: Store, by_version: dict[str, Endpoint], default: Endpoint, entry: Entry, now: datetime
) -> bool:
    """Delete an object, or mark it; return whether it is gone."""
    old = default.decode(entry.value, entry.revision)
    endpoint = by_version.get(str(old.get("apiVersion", "")).rpartition("/")[2], default)
    deletion = plan_deletion(endpoint, old, _OPTIONS, now)
    try:
        if deletion.outcome is Outcome.REMOVE:
            await store.delete(entry.key, expected_revision=entry.revision)
            return True
        if deletion.outcome is Outcome.WRITE:
            value = endpoint.dump(endpoint.content(deletion.document))
            await store.update(entry.key, value, expected_revision=entry.revision)
    except KeyNotFoundError:
        return True
    except RevisionConflictError:
        # The next round sees the newer state.
        return False
    return False
