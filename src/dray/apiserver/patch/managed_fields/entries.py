"""The `metadata.managedFields` list: decoding, ordered encoding, and a bound on its length."""

from __future__ import annotations

import json
from typing import Any, Final, TypeAlias

import msgspec

from dray.api.document import Document
from dray.apiserver.patch.managed_fields.field_set import FieldSet, FieldsFormatError

APPLY: Final = "Apply"
UPDATE: Final = "Update"

# Kubernetes' DefaultMaxUpdateManagers: older entries of updaters are merged into one per version.
UPDATE_MANAGERS_MAX: Final = 10
_OLD_UPDATES: Final = "ancient-changes"


class ManagedFieldsError(ValueError):
    """An invalid managedFields list."""


class Manager(msgspec.Struct, frozen=True, order=True):
    """The identity of a manager; appliers are the same at every version, so theirs is empty."""

    name: str
    operation: str
    api_version: str
    subresource: str

    @classmethod
    def of(cls, name: str, operation: str, api_version: str, subresource: str) -> Manager:
        """Return the identity of an entry."""
        return cls(name, operation, "" if operation == APPLY else api_version, subresource)

    @property
    def text(self) -> str:
        """Return the manager as conflicts print it."""
        text = json.dumps(self.name, ensure_ascii=False)
        if self.subresource:
            text += f" with subresource {json.dumps(self.subresource)}"
        return f"{text} using {self.api_version}" if self.operation == UPDATE else text


class Entry(msgspec.Struct, frozen=True):
    """The fields of a manager, their version, and the time of the last change (None: unknown)."""

    fields: FieldSet
    api_version: str
    time: str | None = None
    # The unchanged entry of the stored list, if any.
    document: Document | None = None


Managed: TypeAlias = dict[Manager, Entry]


def decode(entries: list[Any] | None, *, trusted: bool) -> Managed:
    """Decode a list; `trusted` means that this server wrote it, so that its order need not be checked."""
    managed: Managed = {}
    for position, entry in enumerate(entries or ()):
        if not isinstance(entry, dict) or (operation := entry.get("operation")) not in (APPLY, UPDATE):
            raise ManagedFieldsError("operation must be `Apply` or `Update`")
        api_version = entry.get("apiVersion")
        if not api_version:
            raise ManagedFieldsError("apiVersion must not be empty")
        if entry.get("fieldsType") != "FieldsV1":
            raise _fields_type_error(entry, position)
        fields = entry.get("fieldsV1")
        manager = Manager(
            entry.get("manager") or "",
            operation,
            "" if operation == APPLY else api_version,
            entry.get("subresource") or "",
        )
        managed[manager] = Entry(
            FieldSet(fields) if trusted and fields else _decode_fields(fields),
            api_version,
            entry.get("time"),
            entry if trusted else None,
        )
    return managed


def _decode_fields(fields: Any) -> FieldSet:
    try:
        return FieldSet.from_fields_v1({} if fields is None else fields)
    except FieldsFormatError as error:
        raise ManagedFieldsError(f"error decoding set: {error}") from None


def _fields_type_error(entry: Document, position: int) -> ManagedFieldsError:
    kind = entry.get("fieldsType")
    if not kind:
        return ManagedFieldsError(f"missing fieldsType in managed fields entry {position}")
    return ManagedFieldsError(f"invalid fieldsType {json.dumps(kind)} in managed fields entry {position}")


def encode(managed: Managed) -> list[Document] | None:
    """Return the list in Kubernetes' order, None when there are no managers."""
    if not managed:
        return None
    items = sorted(managed.items(), key=_order) if len(managed) > 1 else managed.items()
    return [entry.document or write(manager, entry) for manager, entry in items]


def _order(item: tuple[Manager, Entry]) -> tuple[str, ...]:
    manager, entry = item
    # Times are all RFC 3339 in UTC, so their text sorts in time order; an unknown one is the oldest.
    return (manager.operation, entry.time or "", manager.name, entry.api_version, manager.subresource)


def write(manager: Manager, entry: Entry) -> Document:
    """Return a new entry with its members in Kubernetes' order."""
    document: Document = {"manager": manager.name} if manager.name else {}
    document["operation"] = manager.operation
    document["apiVersion"] = entry.api_version
    if entry.time:
        document["time"] = entry.time
    document["fieldsType"] = "FieldsV1"
    document["fieldsV1"] = entry.fields.tree
    if manager.subresource:
        document["subresource"] = manager.subresource
    return document


def is_reset(entries: Any) -> bool:
    """Report whether a client asks to remove all managers: an empty list, or one empty entry."""
    return isinstance(entries, list) and (not entries or (len(entries) == 1 and entries[0] == {}))


def cap_updaters(managed: Managed) -> Managed:
    """Merge the oldest updaters of each version until their number is within the limit."""
    if len(managed) <= UPDATE_MANAGERS_MAX:
        return managed
    updaters = [manager for manager in managed if manager.operation == UPDATE]
    if len(updaters) <= UPDATE_MANAGERS_MAX:
        return managed
    updaters.sort(key=lambda each: (managed[each].time or "", each))
    result = dict(managed)
    excess = len(updaters) - UPDATE_MANAGERS_MAX
    first_of_version: dict[str, Manager] = {}
    for manager in updaters:
        if excess <= 0:
            break
        entry = result[manager]
        first = first_of_version.setdefault(entry.api_version, manager)
        if first is manager:
            continue
        bucket = Manager.of(_OLD_UPDATES, UPDATE, entry.api_version, "")
        before = result[bucket] if bucket in result else result.pop(first)
        # The merged entry has the later time, that of the entry merged last.
        result[bucket] = Entry(entry.fields | before.fields, entry.api_version, entry.time)
        if manager != bucket:
            del result[manager]
        excess -= 1
    return result
