"""Checks the fields of objects from files against their types, as an API server does with what it stores. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dray.api.document import Document, GroupVersion, GroupVersionKind
from dray.api.schema.load import kind_type
from dray.api.strict import DecodeError, unknown_fields
from dray.sim.snapshot import KINDS, SnapshotError, checked_name, kind_key, title_of

# Beyond that, the number of further fields is given.
FIELDS_MAX: Final = 5


def with_checked_fields(documents: Iterable[Document]) -> tuple[list[Document], tuple[str, ...]]:
    """Return the objects, normalized in place, and notes on fields of specs that are not known.

    Raises `SnapshotError` for a field of the wrong type.
    """
    checked: list[Document] = []
    unknown: dict[str, None] = {}
    for document in documents:
        checked_name(document)
        checked.append(document)
        unknown |= dict.fromkeys(f"{document['kind']} {name}" for name in _unknown_fields(document))
    if not unknown:
        return checked, ()
    names, more = list(unknown)[:FIELDS_MAX], len(unknown) - FIELDS_MAX
    further = f" and {more} more" if more > 0 else ""
    return checked, (f"fields that this version does not know are not evaluated: {', '.join(names)}{further}",)


def _unknown_fields(document: Document) -> list[str]:
    """Return the fields of the spec that the object's type does not have."""
    group_version = GroupVersion.parse(document["apiVersion"])
    if kind_key(document["kind"], group_version.group) not in KINDS:
        return []
    type_ = kind_type(GroupVersionKind(group_version.group, group_version.version, document["kind"]))
    if type_ is None:
        return []
    try:
        found = unknown_fields(document, type_)
    except DecodeError as error:
        raise SnapshotError(f"{title_of(document)}: {error}") from error
    return [name for name in found if name.startswith("spec.")]
