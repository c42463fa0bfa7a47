"""managedFields of the scale subresource: its replicas map to a field of the parent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dray.api.document import Document
from dray.apiserver.patch.managed_fields.entries import Entry, Managed, Manager, decode, encode
from dray.apiserver.patch.managed_fields.field_set import FieldSet, Path

SCALE_VERSION: Final = "autoscaling/v1"
_REPLICAS: Final[Path] = ("f:spec", "f:replicas")


def scale_entries(parent: list[Document] | None, paths: Mapping[str, Path]) -> list[Document] | None:
    """Return the Scale's list: the managers of the parent's replicas; `paths` has that field at each version."""
    managed: Managed = {}
    for manager, entry in decode(parent, trusted=True).items():
        path = paths.get(entry.api_version)
        if path is not None and path in entry.fields:
            seen = Manager.of(manager.name, manager.operation, SCALE_VERSION, manager.subresource)
            managed[seen] = Entry(FieldSet.of(_REPLICAS), SCALE_VERSION, entry.time)
    return encode(managed)


def parent_entries(
    parent: list[Document] | None, scale: list[Document] | None, paths: Mapping[str, Path], api_version: str
) -> list[Document] | None:
    """Return the parent's list after the Scale's changed: the Scale's managers own the replicas, at `api_version`.

    Managers at versions that `paths` lacks are dropped, new ones have no time.
    """
    holders = {_manager_key(manager): manager for manager, entry in decode(scale, trusted=False).items() if _has(entry)}
    managed: Managed = {}
    for manager, entry in decode(parent, trusted=True).items():
        path = paths.get(entry.api_version)
        if path is None:
            continue
        if path not in entry.fields or holders.pop(_manager_key(manager), None) is not None:
            managed[manager] = entry
            continue
        fields = entry.fields - FieldSet.of(path)
        if fields:
            managed[manager] = Entry(fields, entry.api_version, entry.time)
    for manager in holders.values():
        mine = Manager.of(manager.name, manager.operation, api_version, manager.subresource)
        managed[mine] = Entry(FieldSet.of(paths[api_version]), api_version)
    return encode(managed)


def _has(entry: Entry) -> bool:
    return _REPLICAS in entry.fields


def _manager_key(manager: Manager) -> tuple[str, str, str]:
    """Return a manager without the version, which differs for the Scale."""
    return manager.name, manager.operation, manager.subresource
