"""ResourceClaimTemplates: an immutable spec, from which claims are made."""

from __future__ import annotations

from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors
from dray.api.validation.resource_claim import validate_template, validate_template_update
from dray.apiserver.registry.columns import AGE, NAME
from dray.apiserver.registry.resource.admin_access import refuse_admin_requests
from dray.apiserver.registry.resource.gates import CLAIM_FIELDS, drop_disabled_fields
from dray.apiserver.registry.resource.group import GROUP, STORAGE_VERSION, VERSIONS, selector_compiler
from dray.apiserver.registry.strategy import ResourceDefinition, Strategy, WriteContext


class TemplateStrategy(Strategy):
    """The rules of writing a template."""

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """Drop fields of features that are off."""
        drop_disabled_fields(CLAIM_FIELDS, _claim(obj), None, context.gates)

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """The template, and that it asks for admin access only where that is offered."""
        return refuse_admin_requests(_claim(obj).get("spec") or {}, context) + validate_template(
            obj, selector_compiler(context.gates)
        )

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Drop fields of features that are off."""
        drop_disabled_fields(CLAIM_FIELDS, _claim(obj), _claim(old), context.gates)

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """The spec cannot change."""
        return validate_template_update(obj, old)


def _claim(template: Document) -> Document:
    """Return the part of the template that has the form of a claim."""
    claim: Document = template.get("spec") or {}
    return claim


TEMPLATES: Final = ResourceDefinition(
    group=GROUP,
    resource="resourceclaimtemplates",
    singular="resourceclaimtemplate",
    kind="ResourceClaimTemplate",
    namespaced=True,
    versions=VERSIONS,
    storage_version=STORAGE_VERSION,
    strategy=TemplateStrategy(),
    columns=(NAME, AGE),
)
