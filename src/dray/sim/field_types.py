"""Checks the fields of objects from files against their types, as an API server does with what it stores. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from dray.api.document import Document, GroupVersion, GroupVersionKind
from dray.api.schema.load import kind_type
from dray.api.strict import DecodeError, unknown_fields
from dray.sim.snapshot import KINDS, SnapshotError, checked_name, kind_key, title_of

# Beyond that, the number of further fields is given.
FIELDS_MAX: Final = 5


def with_checked_fields(documents: Iterable[Document]) -> tuple[list[Document], tuple[str, ...]]:
    """Return the objects, normalized in place, with notes on fields of specs and on objects that are not evaluated.

    Raises `SnapshotError` if the only object has no name, or a field of the wrong type; of several, it is left out.
    """
    checked: list[Document] = []
    unknown: dict[str, None] = {}
    refused: list[SnapshotError] = []
    for document in documents:
        try:
            checked_name(document)
            names = _unknown_fields(document)
        except SnapshotError as error:
            refused.append(error)
            continue
        checked.append(document)
        unknown |= dict.fromkeys(f"{document['kind']} {name}" for name in names)
    if refused and not checked:
        raise refused[0]
    notes = _notes("fields that this version does not know are not evaluated", list(unknown))
    return checked, (*notes, *_notes("objects with errors are not evaluated", [str(error) for error in refused]))


def _notes(what: str, items: Sequence[str]) -> tuple[str, ...]:
    more = len(items) - FIELDS_MAX
    further = f" and {more} more" if more > 0 else ""
    return (f"{what}: {', '.join(items[:FIELDS_MAX])}{further}",) if items else ()


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
