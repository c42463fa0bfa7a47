"""The rules of ResourceClaimTemplates."""

from __future__ import annotations

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, invalid
from dray.api.validation import resource_fields as fields
from dray.api.validation.resource_claim import SPEC, SelectorCompiler, validate_claim_spec
from dray.api.validation.resource_rendering import template_spec_form


def validate_template(template: Document, compile_selector: SelectorCompiler) -> FieldErrors:
    """Everything wrong with a new template."""
    spec = template.get("spec") or {}
    errors = fields.labels_only(spec.get("metadata"), SPEC.child("metadata"))
    return errors + validate_claim_spec(spec.get("spec") or {}, SPEC.child("spec"), compile_selector)


def validate_template_update(template: Document, old: Document) -> FieldErrors:
    """A template's spec cannot change."""
    spec = template.get("spec")
    if spec == old.get("spec"):
        return []
    return [invalid(SPEC, template_spec_form(spec or {}), fields.IMMUTABLE)]
