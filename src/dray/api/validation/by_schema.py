"""Structural validation: what the schema of a kind alone can tell, for kinds without rules of their own."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, required
from dray.api.schema.model import ListOf, MapOf, Scalar, StructType, Type

# Written by the server or by controllers, which have their own checks.
_SKIPPED: Final = frozenset({"apiVersion", "kind", "metadata", "status"})
# Numbers and booleans may be zero, lists empty; texts and objects may not be missing.
_TEXTS: Final = frozenset({Scalar.STRING, Scalar.BYTES})
# The empty audience is that of the API server, the empty group the core group.
_MAY_BE_EMPTY: Final = frozenset(
    {
        ("io.k8s.api.storage.v1.TokenRequest", "audience"),
        ("io.k8s.apimachinery.pkg.apis.meta.v1.GroupResource", "group"),
    }
)


def validate_required_fields(document: Document, struct: StructType) -> FieldErrors:
    """Return an error for every required text or object that is missing."""
    errors: FieldErrors = []
    for name, field in struct.fields.items():
        if name not in _SKIPPED:
            _validate_field(document.get(name), field.type, Path(name), errors, needed=field.required)
    return errors


def _validate_field(value: Any, kind: Type, path: Path, errors: FieldErrors, *, needed: bool) -> None:
    is_missing = value is None if isinstance(kind, StructType) else kind in _TEXTS and not value
    if needed and is_missing:
        errors.append(required(path))
    elif value is not None and _has_required(kind):
        _validate_inside(value, kind, path, errors)


def _validate_inside(value: Any, kind: Type, path: Path, errors: FieldErrors) -> None:
    if isinstance(kind, ListOf):
        for index, item in enumerate(value):
            _validate_field(item, kind.element, path.index(index), errors, needed=False)
    elif isinstance(kind, MapOf):
        for key, item in value.items():
            _validate_field(item, kind.element, path.key(key), errors, needed=False)
    elif isinstance(kind, StructType):
        for name, field in kind.fields.items():
            needed = field.required and (kind.name, name) not in _MAY_BE_EMPTY
            _validate_field(value.get(name), field.type, path.child(name), errors, needed=needed)


@lru_cache(maxsize=4096)
def _has_required(kind: Type) -> bool:
    """Report whether anything below the type is required."""
    return _reaches_required(kind, set())


def _reaches_required(kind: Type, seen: set[str]) -> bool:
    while isinstance(kind, ListOf | MapOf):
        kind = kind.element
    if not isinstance(kind, StructType) or kind.name in seen:
        return False
    seen.add(kind.name)
    return any(field.required or _reaches_required(field.type, seen) for field in kind.fields.values())
