"""Decodes the schemas inside a schema: its type has them as any value, because they may be other things too."""

from __future__ import annotations

from typing import Final

from dray.api.document import Document
from dray.api.schema import load
from dray.api.strict import check_fields

_SCHEMA: Final = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps"
_INSIDE: Final = ("items", "additionalProperties")


def normalize_schema(schema: Document) -> None:
    """Make every schema below a decoded one fit its type, in place; raises `DecodeError`."""
    for keyword in _INSIDE:
        if isinstance(schema.get(keyword), dict):
            check_fields(schema[keyword], load.struct(_SCHEMA))
            normalize_schema(schema[keyword])
    for inner in (schema.get("properties") or {}).values():
        normalize_schema(inner)
    for keyword in ("allOf", "oneOf", "anyOf"):
        for inner in schema.get(keyword) or ():
            normalize_schema(inner)
    if schema.get("not") is not None:
        normalize_schema(schema["not"])
