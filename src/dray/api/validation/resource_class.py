"""The rules of DeviceClasses."""

from __future__ import annotations

from dray.api.document import Document
from dray.api.extended_resources import is_extended_resource_name
from dray.api.field_errors import FieldErrors, invalid
from dray.api.validation import resource_fields as fields
from dray.api.validation.resource_claim import SPEC, SelectorCompiler, selectors


def validate_class(
    device_class: Document, compile_selector: SelectorCompiler, old: Document | None = None
) -> FieldErrors:
    """Everything wrong with a new or changed class; what is as stored is judged leniently."""
    spec = device_class.get("spec") or {}
    old_spec = None if old is None else old.get("spec") or {}
    errors = selectors(
        spec.get("selectors"),
        SPEC.child("selectors"),
        compile_selector,
        stored=_unchanged(spec, old_spec, "selectors"),
    )
    stored = _unchanged(spec, old_spec, "config")
    errors += fields.bounded(
        spec.get("config"),
        fields.CONFIGS_MAX,
        lambda item, at: fields.configuration(item, at, stored=stored),
        SPEC.child("config"),
    )
    extended = spec.get("extendedResourceName")
    if extended is not None and not is_extended_resource_name(extended):
        errors.append(invalid(SPEC.child("extendedResourceName"), extended, "must be a valid extended resource name"))
    return errors


def _unchanged(spec: Document, old_spec: Document | None, name: str) -> bool:
    return old_spec is not None and (spec.get(name) or []) == (old_spec.get(name) or [])
