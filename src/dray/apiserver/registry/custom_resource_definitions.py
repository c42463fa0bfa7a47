"""Custom resource definitions."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.errors import BadRequestError
from dray.api.field_errors import FieldErrors
from dray.api.strict import DecodeError
from dray.api.structural.types import normalize_schema
from dray.api.validation.apiextensions_v1 import validate_definition, validate_definition_update
from dray.apiserver.registry.columns import NAME
from dray.apiserver.registry.strategy import (
    Column,
    ResourceDefinition,
    Strategy,
    WriteContext,
    carry_generation,
    restore,
    restore_metadata,
    spec_changed,
    start_generation,
)


class DefinitionStrategy(Strategy):
    """Strategy of custom resource definitions; users own the spec, the server the status."""

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """Reset the status; no names are accepted yet."""
        _check_schemas(obj)
        stored = [item.get("name", "") for item in _versions(obj) if item.get("storage")]
        obj["status"] = {"conditions": None, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": stored}
        start_generation(obj)

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Validate names, versions, schemas and their CEL rules."""
        # Imported lazily: CEL is slow to import.
        from dray.apiserver.custom.rule_checks import validate_rules

        errors = validate_definition(obj)
        return errors or validate_rules(obj)

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore the status, and record every version that objects may be stored in."""
        _check_schemas(obj)
        restore(obj, old, "status")
        status = dict(obj.get("status") or {})
        stored = list(status.get("storedVersions") or ())
        names = [item.get("name", "") for item in _versions(obj) if item.get("storage")]
        stored += [name for name in names if name not in stored]
        obj["status"] = status | {"storedVersions": stored}
        carry_generation(obj, old, changed=spec_changed(obj, old))

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate the definition and its immutable fields."""
        # Imported lazily: CEL is slow to import.
        from dray.apiserver.custom.rule_checks import validate_rules

        errors = validate_definition_update(obj, old)
        return errors or validate_rules(obj, old)


class DefinitionStatusStrategy(Strategy):
    """Strategy of the status."""

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore the spec."""
        restore(obj, old, "spec")
        restore_metadata(obj, old, "generation")


def _check_schemas(obj: Document) -> None:
    """Decode the schemas nested in schemas, which the definition's own type has as any value."""
    for version in _versions(obj):
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if schema is None:
            continue
        try:
            normalize_schema(schema)
        except DecodeError as error:
            kind = "CustomResourceDefinition"
            raise BadRequestError(f'{kind} in version "v1" cannot be handled as a {kind}: {error}') from error


def _versions(obj: Document) -> list[Document]:
    versions: list[Document] = (obj.get("spec") or {}).get("versions") or []
    return versions


def _created(document: Document, _now: datetime) -> str:
    created: str = document["metadata"].get("creationTimestamp", "")
    return created


CUSTOM_RESOURCE_DEFINITIONS: Final = ResourceDefinition(
    group="apiextensions.k8s.io",
    resource="customresourcedefinitions",
    singular="customresourcedefinition",
    kind="CustomResourceDefinition",
    namespaced=False,
    versions=("v1",),
    storage_version="v1",
    strategy=DefinitionStrategy(),
    status_strategy=DefinitionStatusStrategy(),
    short_names=("crd", "crds"),
    categories=("api-extensions",),
    columns=(NAME, Column("Created At", "date", "When the object was created.", _created)),
)

DEFINITIONS: Final = (CUSTOM_RESOURCE_DEFINITIONS,)
