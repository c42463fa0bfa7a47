"""Updates `metadata.managedFields` on writes that are not server-side applies."""

from __future__ import annotations

from datetime import datetime

from dray.api.document import Document
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.patch.managed_fields.field_set import FieldSet
from dray.apiserver.patch.managed_fields.update import NOTHING, FieldWrite, equal_except_times, update_managed_fields


def reset_fields(endpoint: Endpoint, subresource: str) -> FieldSet | None:
    """Return the fields that the endpoint ignores in a request; None means the default of kinds with a status."""
    return None if endpoint.definition.status_strategy is not None or subresource else NOTHING


def stamp_create(document: Document, endpoint: Endpoint, *, manager: str, now: datetime) -> None:
    """Record the manager of a create as owner of all fields it set."""
    entries = update_managed_fields(
        None,
        document,
        FieldWrite(
            struct=endpoint.struct,
            manager=manager,
            api_version=endpoint.api_version,
            now=now,
            reset=reset_fields(endpoint, ""),
        ),
    )
    _set(document, entries)


def stamp_update(
    hub: Document, old: Document, endpoint: Endpoint, *, manager: str, now: datetime, subresource: str
) -> None:
    """Record the manager of an update as owner of the fields it changed; both documents are in the hub version."""
    entries = update_managed_fields(
        endpoint.from_hub_copy(old),
        endpoint.from_hub_copy(hub),
        FieldWrite(
            struct=endpoint.struct,
            manager=manager,
            api_version=endpoint.api_version,
            now=now,
            subresource=subresource,
            # The ignored fields have been restored already.
            reset=NOTHING,
            convert=endpoint.convert_served,
        ),
    )
    _set(hub, entries)


def differs_in_times_only(new: Document, old: Document) -> bool:
    """Return whether two objects differ only in the timestamps of managedFields."""
    # Fast path: most changes differ in more than the metadata.
    if new | {"metadata": None} != old | {"metadata": None}:
        return False
    ours: Document = new["metadata"]
    theirs: Document = old["metadata"]
    if not equal_except_times(ours.get("managedFields"), theirs.get("managedFields")):
        return False
    return ours | {"managedFields": None} == theirs | {"managedFields": None}


def _set(document: Document, entries: list[Document] | None) -> None:
    if entries:
        document["metadata"]["managedFields"] = entries
    else:
        document["metadata"].pop("managedFields", None)
