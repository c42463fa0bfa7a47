"""The compiled schema of a version: type, defaults and validation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from dray.api.document import Document
from dray.api.field_errors import ErrorType, FieldErrors, Path, invalid
from dray.api.schema.model import StructType
from dray.api.structural.correlation import MISSING
from dray.api.structural.defaults import compile_defaults
from dray.api.structural.pruning import Pruner
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
        self.pruner: Final = Pruner(schema)
        schema = schema or {}
        self._fill: Final = compile_defaults(schema)
        self._values: Final = compile_values(schema)
        status = (schema.get("properties") or {}).get("status")
        self._status: Final = None if status is None else compile_values(status)
        self._embedded: Final = compile_visitor(schema, embedded_rules)
        self._lists: Final = compile_visitor(schema, list_type_rules)
        self._rules: Final = compile_rules(schema)

    def default(self, document: Document) -> None:
        """Default an object in place."""
        self._fill(document)

    def complete_stored(self, document: Document) -> None:
        """Prune and default an object that may have been stored with an earlier schema, in place."""
        self.pruner.prune(document)
        self._fill(document)

    def validate(self, document: Document, old: Any, more: FieldErrors) -> FieldErrors:
        """Return the validation errors of an object; `old` is the one it replaces or `MISSING`.

        `more` are the errors of other checks, which come after those of the schema and before those of the rules.
        """
        errors = self._values(document, old) + more
        _run(self._embedded, document, old, errors)
        return self._with_errors_of_the_whole(errors, document, old)

    def validate_status(self, document: Document, old: Document, more: FieldErrors) -> FieldErrors:
        """Return the validation errors of an object whose status alone is written."""
        errors: FieldErrors = []
        if self._status is not None and "status" in document:
            found = self._status(document["status"], old.get("status"))
            # Details have the path within the status.
            errors = [replace(error, path=_below_status(error.path)) for error in found]
        return self._with_errors_of_the_whole(errors + more, document, old)

    def _with_errors_of_the_whole(self, errors: FieldErrors, document: Document, old: Any) -> FieldErrors:
        """Add the errors of list types, unless the old object has some already, and those of rules."""
        duplicates: FieldErrors = []
        known: FieldErrors = []
        _run(self._lists, document, old, duplicates)
        if duplicates and old is not MISSING:
            _run(self._lists, old, old, known)
        if not known:
            errors += duplicates
        if self._rules is not None:
            if any(error.type in _BLOCKING for error in errors):
                errors.append(_UNCHECKED)
            else:
                _run(self._rules, document, old, errors)
        return errors


def _below_status(path: str) -> str:
    inner = path.removeprefix(".")
    return "status" if inner == str(Path()) else f"status.{inner}"


def _run(visit: Visitor | None, document: Document, old: Any, errors: FieldErrors) -> None:
    if visit is not None:
        visit(document, Path(), old, errors)


__all__ = ["MISSING", "CompiledSchema"]
