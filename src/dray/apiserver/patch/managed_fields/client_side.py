"""The passage from kubectl's client-side apply: its annotation says what the client believes to own."""

from __future__ import annotations

import json
from typing import Any, Final

from dray.api.document import Document
from dray.api.schema.model import StructType
from dray.apiserver.patch.managed_fields.field_set import FieldSet
from dray.apiserver.patch.managed_fields.walk import compare, fields_of

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

# Only kubectl's server-side apply upgrades; whoever does not want it names another manager.
_UPGRADING_MANAGER: Final = "kubectl"

# The bound on all annotations of an object together.
_ANNOTATIONS_BYTES_MAX: Final = 256 * 1024


def allowed_conflicts(live: Document, struct: StructType, api_version: str, manager: str) -> FieldSet:
    """What the last client-side apply set and nobody changed since."""
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
    return fields_of(last, struct) - change.modified - change.added - change.removed


def refreshed(merged: Document, applied: Document, manager: str) -> Document:
    """The object with its record of the last client-side apply, if it has one, brought up to what was applied."""
    annotations = _annotations(merged)
    if manager != _UPGRADING_MANAGER or LAST_APPLIED not in annotations:
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
