"""JSON merge patch (RFC 7386): null removes, objects merge, everything else replaces."""

from __future__ import annotations

from typing import Any

from dray.api.document import Document
from dray.api.errors import BadRequestError
from dray.apiserver.patch.go_text import GoJSONError, json_kind, loads
from dray.lib.processor_time import ticking


def decode(body: bytes) -> Document:
    """Decode a patch body; raises 400 unless it is an object."""
    try:
        patch = loads(body)
    except GoJSONError as error:
        raise BadRequestError(f"error decoding patch: {error}") from None
    if patch is None:
        raise BadRequestError("Invalid JSON Patch")
    if not isinstance(patch, dict):
        kind = json_kind(patch)
        raise BadRequestError(
            f"error decoding patch: json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"
        )
    return patch


def apply(document: Document, patch: Document) -> Document:
    """Return the merged document; parts that the patch does not touch are shared, not copied."""
    merged = dict(document)
    for key, change in ticking(patch.items()):
        if change is None:
            merged.pop(key, None)
        elif isinstance(change, dict) and isinstance(merged.get(key), dict):
            merged[key] = apply(merged[key], change)
        else:
            merged[key] = without_nulls(change)
    return merged


def without_nulls(value: Any) -> Any:
    """Return a copy without null members, also in objects inside lists; null elements stay."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in ticking(value.items()) if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in ticking(value)]
    return value
