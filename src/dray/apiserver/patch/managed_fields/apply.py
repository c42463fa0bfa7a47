"""Server-side apply: merge a manager's configuration into the live object.

The manager owns exactly the fields of its configuration. Fields that it owned before and no longer lists are removed
unless another manager owns them. Changed fields of other managers are conflicts, or change their owner when forced. The
result still needs defaulting, admission and validation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from dray.api.document import Document, GroupVersion
from dray.api.errors import ApplyConflictError, BadRequestError, PatchFailedError
from dray.api.schema.model import StructType
from dray.api.timestamps import format_time
from dray.apiserver.patch.managed_fields.entries import (
    APPLY,
    UPDATE,
    Entry,
    Managed,
    ManagedFieldsError,
    Manager,
    cap_updaters,
    decode,
    encode,
)
from dray.apiserver.patch.managed_fields.field_set import FieldSet, Path, path_text
from dray.apiserver.patch.managed_fields.first_apply import add_unowned_fields
from dray.apiserver.patch.managed_fields.typed_errors import joined, type_errors
from dray.apiserver.patch.managed_fields.typed_merge import merge
from dray.apiserver.patch.managed_fields.update import (
    Change,
    Converter,
    FieldWrite,
    conflicts_of,
    take_over,
    without_changed,
    without_managed_fields,
    without_unmanaged,
)
from dray.apiserver.patch.managed_fields.walk import compare, fields_of, plain_fields, remove, with_named_fields

# Far more than anyone reads; objects of 3 MiB can have a hundred times as many.
_CONFLICTS_SHOWN_MAX: Final = 1000
_BEFORE_FIRST_APPLY = "before-first-apply"


class _ConflictsError(Exception):
    """Fields of other managers that the configuration would change."""

    def __init__(self, conflicts: Sequence[tuple[Manager, Path]]) -> None:
        super().__init__("conflicts")
        self.conflicts = conflicts


class _Request(msgspec.Struct, frozen=True):
    """One apply request."""

    live: Document
    applied: Document
    # All fields of the applied configuration.
    fields: FieldSet
    struct: StructType
    me: Manager
    api_version: str
    ignored: FieldSet
    convert: Converter | None


def apply(
    live: Document | None, applied: Document, write: FieldWrite, *, force: bool, kind: str | None = None
) -> Document:
    """Return the object after the apply, with its managedFields; `live` is None when the object does not exist.

    `kind` is the expected kind of the applied document.
    """
    _check_kind(applied, write.api_version, kind)
    metadata = applied.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise BadRequestError("invalid object: metadata must be an object")
    if metadata.get("managedFields") is not None:
        raise BadRequestError("metadata.managedFields must be nil")
    time = format_time(write.now)
    me = Manager.of(write.manager, APPLY, write.api_version, write.subresource)
    managed = _stored(live)
    base = without_managed_fields({} if live is None else live)
    added = add_unowned_fields(base, applied, write, managed) if me not in managed else None
    if added is not None:
        merged, fields = added
        managed[me] = Entry(fields, write.api_version, time)
        return _with_managed_fields(_refresh_last_applied(merged, applied, write.manager), encode(managed))
    fields = _typed_fields(applied, write)
    request = _Request(
        live=base,
        applied=applied,
        fields=fields,
        struct=write.struct,
        me=me,
        api_version=write.api_version,
        ignored=write.ignored,
        convert=write.convert,
    )
    if not managed and live is not None:
        managed = _before_first_apply(request, time)
    merged, managed = _apply_with_upgrade(request, managed, force=force)
    # An apply without changes keeps its time; a first one without changes has none.
    before = managed.get(me)
    if before is not None and (live is None or merged != base):
        managed[me] = Entry(before.fields, before.api_version, time)
    return _with_managed_fields(_refresh_last_applied(merged, applied, write.manager), encode(managed))


def _check_kind(applied: Document, api_version: str, kind: str | None) -> None:
    found, found_kind = str(applied.get("apiVersion") or ""), str(applied.get("kind") or "")
    if found != api_version or (kind is not None and found_kind != kind) or not found_kind:
        raise BadRequestError(f"invalid object type: {_kind_text(found, found_kind)}")


def _kind_text(api_version: str, kind: str) -> str:
    version = GroupVersion.parse(api_version)
    return f"{version.group}/{version.version}, Kind={kind}"


def _stored(live: Document | None) -> Managed:
    try:
        return decode(((live or {}).get("metadata") or {}).get("managedFields"), trusted=True)
    except ManagedFieldsError as error:
        raise PatchFailedError(f"failed to decode managed fields: {error}") from None


def _with_managed_fields(document: Document, entries: list[Document] | None) -> Document:
    metadata: dict[str, Any] = dict(document.get("metadata") or {})
    metadata.pop("managedFields", None)
    if entries is not None:
        metadata["managedFields"] = entries
    return {**document, "metadata": metadata}


def _before_first_apply(request: _Request, time: str) -> Managed:
    """Return one manager for all fields of an object without managed fields."""
    me = Manager.of(_BEFORE_FIRST_APPLY, UPDATE, request.api_version, request.me.subresource)
    change = Change(None, request.live, request.struct, request.api_version, request.ignored, request.convert)
    return cap_updaters(take_over({}, change, me, time))


def _typed_fields(applied: Document, write: FieldWrite) -> FieldSet:
    """Return the fields of the configuration, which must be of its type."""
    fields = plain_fields(applied, write.struct)
    if fields is not None:
        return fields
    errors = type_errors(applied, write.struct)
    if errors:
        raise PatchFailedError(f"failed to create typed patch object ({object_text(applied)}): {joined(errors)}")
    return fields_of(applied, write.struct)


def object_text(applied: Document) -> str:
    """Return the name and the kind of an applied configuration, as errors refer to it."""
    metadata = applied.get("metadata") or {}
    name = f"{metadata.get('namespace') or ''}/{metadata.get('name') or ''}"
    return f"{name}; {_kind_text(str(applied.get('apiVersion') or ''), str(applied.get('kind') or ''))}"


# --- Merging.


def _apply_with_upgrade(request: _Request, managed: Managed, *, force: bool) -> tuple[Document, Managed]:
    """Apply; kubectl may take the fields of its last-applied annotation without force."""
    try:
        return _merge_and_claim(request, managed, force=force)
    except _ConflictsError as error:
        conflicts = error.conflicts
    allowed = _last_applied_fields(request.live, request.struct, request.api_version, request.me.name)
    remaining = [(manager, path) for manager, path in conflicts if path not in allowed]
    if remaining:
        raise _conflict_error(remaining)
    return _merge_and_claim(request, managed, force=True)


def _merge_and_claim(request: _Request, managed: Managed, *, force: bool) -> tuple[Document, Managed]:
    merged = merge(request.live, request.applied, request.struct)
    last = managed.get(request.me)
    claimed = request.fields.without_below(request.ignored)
    managed = {**managed, request.me: Entry(claimed, request.api_version, None if last is None else last.time)}
    merged = _prune(request, merged, managed, last)
    change = Change(
        request.live, merged, request.struct, request.api_version, request.ignored, request.convert, as_sent=True
    )
    conflicts = {} if force else conflicts_of(managed, change, request.me)
    if conflicts:
        raise _ConflictsError([(each, path) for each in sorted(conflicts) for path in conflicts[each].fields.paths()])
    managed = without_changed(managed, change, spared=request.me)
    fields = without_unmanaged(managed[request.me].fields)
    if fields:
        managed[request.me] = Entry(fields, request.api_version, managed[request.me].time)
    else:
        del managed[request.me]
    return merged, managed


def _conflict_error(conflicts: Sequence[tuple[Manager, Path]]) -> ApplyConflictError:
    shown = conflicts[:_CONFLICTS_SHOWN_MAX]
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {manager.text}", "field": path_text(path)}
        for manager, path in shown
    ]
    return ApplyConflictError(_conflict_message(shown, len(conflicts)), causes)


def _conflict_message(shown: Sequence[tuple[Manager, Path]], count: int) -> str:
    if count == 1:
        manager, path = shown[0]
        return f"Apply failed with 1 conflict: conflict with {manager.text}: {path_text(path)}"
    by_manager: dict[Manager, list[str]] = {}
    for manager, path in shown:
        by_manager.setdefault(manager, []).append(f"- {path_text(path)}")
    lines = [line for manager, paths in by_manager.items() for line in (f"conflicts with {manager.text}:", *paths)]
    if count > len(shown):
        lines.append(f"and {count - len(shown)} more conflicts")
    return f"Apply failed with {count} conflicts: " + "\n".join(lines)


# --- Pruning.


class _Typed(msgspec.Struct, frozen=True):
    """An object at one version."""

    document: Document
    struct: StructType
    api_version: str

    @property
    def fields(self) -> FieldSet:
        """Return all its fields, including declared ones that only contain others."""
        return with_named_fields(fields_of(self.document, self.struct), self.struct)

    def without(self, fields: FieldSet) -> _Typed:
        """Return the object without some fields."""
        return _Typed(remove(self.document, fields, self.struct), self.struct, self.api_version)


def _prune(request: _Request, merged: Document, managed: Managed, last: Entry | None) -> Document:
    """Remove the fields that the manager applied last time and that no manager applies now."""
    if last is None or not last.fields:
        return merged
    at_request = _Typed(merged, request.struct, request.api_version)
    whole = _converted(at_request, last.api_version, request.convert)
    if whole is None:
        return merged
    dropped = with_named_fields(last.fields, whole.struct)
    owned_back = _add_back_owned(whole, whole.without(dropped), managed, request.convert)
    pruned = _converted(owned_back, last.api_version, request.convert)
    if pruned is None:
        return merged
    # Only fields of this manager are removed; fields without a manager stay.
    result = whole.without((whole.fields - pruned.fields) & dropped)
    back = _converted(result, request.api_version, request.convert)
    return merged if back is None else back.document


def _add_back_owned(whole: _Typed, pruned: _Typed, managed: Managed, convert: Converter | None) -> _Typed:
    for api_version in _versions(managed.values(), first=whole.api_version):
        at_whole = _converted(whole, api_version, convert)
        at_pruned = _converted(pruned, api_version, convert)
        if at_whole is None or at_pruned is None:
            continue
        owned = FieldSet()
        for entry in managed.values():
            if entry.api_version == api_version:
                owned |= entry.fields
        keep = at_pruned.fields | with_named_fields(owned, at_whole.struct)
        whole, pruned = at_whole, at_whole.without(at_whole.fields - keep)
    return pruned


def _versions(entries: Iterable[Entry], *, first: str) -> list[str]:
    """Yield every version in use; the given one first, since others may need what it adds back."""
    found = sorted({entry.api_version for entry in entries})
    return sorted(found, key=lambda each: each != first)


def _converted(typed: _Typed, api_version: str, convert: Converter | None) -> _Typed | None:
    if api_version == typed.api_version or convert is None:
        return _Typed(typed.document, typed.struct, api_version)
    found = convert(typed.document, api_version)
    return None if found is None else _Typed(*found, api_version)


LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

# Only kubectl's server-side apply upgrades from client-side apply; another manager name disables it.
_UPGRADING_MANAGER: Final = "kubectl"

# The maximum total size of an object's annotations.
_ANNOTATIONS_BYTES_MAX: Final = 256 * 1024


def _last_applied_fields(live: Document, struct: StructType, api_version: str, manager: str) -> FieldSet:
    """Return the fields that the last client-side apply set and that are unchanged since."""
    recorded = _annotations(live).get(LAST_APPLIED)
    if manager != _UPGRADING_MANAGER or not isinstance(recorded, str):
        return FieldSet()
    try:
        last = json.loads(recorded)
    except ValueError:
        return FieldSet()
    if not isinstance(last, dict) or last.get("apiVersion") != api_version:
        return FieldSet()
    change = compare(last, live, struct)
    return fields_of(last, struct) - change.changed - change.removed


def _refresh_last_applied(merged: Document, applied: Document, manager: str) -> Document:
    """Return the object with its last-applied annotation, if it has one, updated to the applied configuration."""
    if manager != _UPGRADING_MANAGER:
        return merged
    annotations = _annotations(merged)
    if LAST_APPLIED not in annotations:
        return merged
    record = _record(applied)
    updated = {**annotations, LAST_APPLIED: record}
    if sum(len(key.encode()) + len(str(value).encode()) for key, value in updated.items()) > _ANNOTATIONS_BYTES_MAX:
        updated[LAST_APPLIED] = ""
    return {**merged, "metadata": {**merged["metadata"], "annotations": updated}}


def _record(applied: Document) -> str:
    metadata = applied.get("metadata")
    if isinstance(metadata, dict) and LAST_APPLIED in (metadata.get("annotations") or {}):
        others = {key: value for key, value in metadata["annotations"].items() if key != LAST_APPLIED}
        metadata = {**metadata, "annotations": others}
        applied = {**applied, "metadata": metadata}
    return json.dumps(applied, separators=(",", ":"), ensure_ascii=False, sort_keys=True) + "\n"


def _annotations(document: Document) -> dict[str, Any]:
    found = (document.get("metadata") or {}).get("annotations")
    return found if isinstance(found, dict) else {}
