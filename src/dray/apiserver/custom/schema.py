"""The compiled schema of a version: type, defaults and validation."""

from __future__ import annotations

from typing import Any, Final

from dray.api.document import Document
from dray.api.field_errors import ErrorType, FieldErrors, Path, invalid
from dray.api.schema.model import StructType
from dray.api.strict import DecodeError, prune_fields
from dray.api.structural.correlation import MISSING
from dray.api.structural.defaults import compile_defaults
from dray.api.structural.types import object_type
from dray.api.structural.values import compile_values
from dray.api.structural.visitors import Visitor, compile_visitor, embedded_rules, list_type_rules

# Rules assume values of the declared types and sizes, so they are skipped for others.
_BLOCKING: Final = frozenset(
    {ErrorType.NOT_SUPPORTED, ErrorType.REQUIRED, ErrorType.TOO_LONG, ErrorType.TOO_MANY, ErrorType.TYPE_INVALID}
)
_UNCHECKED: Final = invalid(
    Path(),
    None,
    "some validation rules were not checked because the object was invalid; correct the existing errors to "
    "complete validation",
)


class CompiledSchema:
    """The schema of one version; without one, every object is valid."""

    def __init__(self, schema: Document | None, name: str) -> None:
        # Imported lazily: CEL is slow to import.
        from dray.apiserver.custom.rules import compile_rules

        self.document: Final = schema
        self.struct: Final[StructType] = object_type(schema, name)
        schema = schema or {}
        self._fill: Final = compile_defaults(schema)
        self._values: Final = compile_values(schema)
        self._embedded: Final = compile_visitor(schema, embedded_rules)
        self._lists: Final = compile_visitor(schema, list_type_rules)
        self._rules: Final = compile_rules(schema)

    def default(self, document: Document) -> None:
        """Default an object in place."""
        self._fill(document)

    def complete_stored(self, document: Document) -> None:
        """Prune and default an object that was written with another schema, in place."""
        try:
            prune_fields(document, self.struct)
        except DecodeError:
            # An object that cannot be decoded as this kind is returned as it is.
            return
        self._fill(document)

    def validate(self, document: Document, old: Any, more: FieldErrors) -> FieldErrors:
        """Return the validation errors of an object; `old` is the one it replaces or `MISSING`.

        `more` are the errors of other checks, which come after those of the schema and before those of the rules.
        """
        errors = self._values(document, old) + more
        for visit in (self._embedded, self._lists):
            _run(visit, document, old, errors)
        if self._rules is not None:
            if any(error.type in _BLOCKING for error in errors):
                errors.append(_UNCHECKED)
            else:
                _run(self._rules, document, old, errors)
        return errors


def _run(visit: Visitor | None, document: Document, old: Any, errors: FieldErrors) -> None:
    if visit is not None:
        visit(document, Path(), old, errors)


__all__ = ["MISSING", "CompiledSchema"]
