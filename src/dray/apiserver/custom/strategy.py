"""Strategies of custom resources."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from dray.api.document import Document, GroupResource
from dray.api.errors import ForbiddenError
from dray.api.field_errors import FieldErrors, Path, invalid
from dray.api.selectors import LabelSelector, SelectorError
from dray.api.structural.paths import simple_names
from dray.apiserver.custom.schema import MISSING, CompiledSchema
from dray.apiserver.registry.strategy import Strategy, WriteContext, carry_generation, restore, start_generation

_INT32_MAX: Final = 2**31 - 1
# Fields that do not count for the generation.
_WITHOUT_GENERATION: Final = frozenset({"metadata", "status"})


class ScaleRules:
    """Validation of the fields that the scale subresource maps."""

    def __init__(self, scale: Document) -> None:
        self._spec: str = scale["specReplicasPath"]
        self._status: str = scale["statusReplicasPath"]
        self._selector = scale.get("labelSelectorPath") or ""

    def validate(self, document: Document) -> FieldErrors:
        """Return the validation errors of the replica counts and the selector."""
        return _validate_count(document, self._spec) + self.validate_status(document)

    def validate_status(self, document: Document) -> FieldErrors:
        """Return those of the fields of the status."""
        errors = _validate_count(document, self._status)
        return errors + _validate_selector(document, self._selector) if self._selector else errors


def _find(document: Document, path: str) -> tuple[Any, str]:
    """Return the value at a path, or the obstacle."""
    value: Any = document
    names = simple_names(path)
    for position, name in enumerate(names):
        if not isinstance(value, dict):
            prefix = ".".join(names[: position + 1])
            return None, _accessor_error(f".{prefix}", value, "map[string]interface {}")
        if name not in value:
            return None, ""
        value = value[name]
    return value, ""


def _validate_count(document: Document, path: str) -> FieldErrors:
    value, problem = _find(document, path)
    if problem:
        return [invalid(Path(path), 0, problem)]
    if value is None:
        return []
    if type(value) is not int:
        return [invalid(Path(path), 0, _accessor_error(path, value, "int64"))]
    if value < 0:
        return [invalid(Path(path), value, "should be a non-negative integer")]
    if value > _INT32_MAX:
        return [invalid(Path(path), value, f"should be less than or equal to {_INT32_MAX}")]
    return []


def _validate_selector(document: Document, path: str) -> FieldErrors:
    value, problem = _find(document, path)
    if problem:
        return [invalid(Path(path), "", problem)]
    if value is None:
        return []
    if type(value) is not str:
        return [invalid(Path(path), "", _accessor_error(path, value, "string"))]
    try:
        LabelSelector.parse(value)
    except SelectorError as error:
        return [invalid(Path(path), value, str(error))]
    return []


_GO_TYPES: Final = {
    bool: "bool",
    int: "int64",
    float: "float64",
    str: "string",
    list: "[]interface {}",
    dict: "map[string]interface {}",
}


def _accessor_error(path: str, value: Any, wanted: str) -> str:
    given = _GO_TYPES.get(type(value), "<nil>")
    return f"{path} accessor error: {_shown(value)} is of the type {given}, expected {wanted}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


class CustomStrategy(Strategy):
    """Strategy of a custom resource at one version."""

    allow_unconditional_update = False

    def __init__(
        self,
        schema: CompiledSchema,
        *,
        resource: GroupResource,
        has_status: bool,
        scale: Document | None,
        terminating: bool,
    ) -> None:
        self._schema = schema
        self._resource = resource
        self._has_status = has_status
        self._scale = ScaleRules(scale) if scale else None
        self._terminating = terminating

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """Reset the status if it has its own subresource, and set the generation."""
        if self._terminating:
            name = obj["metadata"].get("name", "")
            raise ForbiddenError(
                self._resource, name, "create not allowed while custom resource definition is terminating"
            )
        if self._has_status:
            obj.pop("status", None)
        start_generation(obj)

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Validate by the schema."""
        return self._validate(obj, MISSING)

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore the status, and increment the generation unless only metadata or status changed."""
        if self._has_status:
            restore(obj, old, "status")
        carry_generation(obj, old, changed=self._changed(obj, old))

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate by the schema; unchanged values are ratcheted."""
        return self._validate(obj, old)

    def warnings(self, obj: Document, old: Document | None, context: WriteContext) -> Sequence[str]:
        """Warn of new finalizers without a domain and a path."""
        known = () if old is None else old["metadata"].get("finalizers") or ()
        return [
            f"metadata.finalizers: {json.dumps(name)}: prefer a domain-qualified finalizer name including a path (/) "
            "to avoid accidental conflicts with other finalizer writers"
            for name in obj["metadata"].get("finalizers") or ()
            if name not in known and "/" not in name
        ]

    def _validate(self, obj: Document, old: Any) -> FieldErrors:
        return self._schema.validate(obj, old, [] if self._scale is None else self._scale.validate(obj))

    def _changed(self, obj: Document, old: Document) -> bool:
        without_generation = _WITHOUT_GENERATION if self._has_status else frozenset({"metadata"})
        names = (obj.keys() | old.keys()) - without_generation
        return any(obj.get(name) != old.get(name) for name in names)


class CustomStatusStrategy(CustomStrategy):
    """Strategy of the status subresource."""

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate the status by its schema, and what concerns the whole object."""
        more = [] if self._scale is None else self._scale.validate_status(obj)
        return self._schema.validate_status(obj, old, more)

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore everything else, except managed fields."""
        managed = obj["metadata"].get("managedFields")
        restore(obj, old, *((obj.keys() | old.keys()) - {"status"}))
        metadata = dict(obj["metadata"])
        if managed is not None:
            metadata["managedFields"] = managed
        obj["metadata"] = metadata
