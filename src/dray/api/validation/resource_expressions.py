"""CEL expressions of claims and classes: device selectors and derived attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, forbidden, invalid, required, too_long
from dray.api.validation import resource_fields as fields

EXPRESSION_LENGTH_MAX: Final = 10 * 1024
EXPRESSION_COST_MAX: Final = 1_000_000
DERIVED_ATTRIBUTES_MAX: Final = 32

_UNREFERENCED: Final = (
    "must be referenced by at least one matchAttribute or distinctAttribute constraint targeting this request"
)
_TOO_COMPLEX_IN_ALL: Final = (
    "too complex, total cost of derived attribute CEL expressions in the claim exceeds cost limit"
)


@dataclass(frozen=True, slots=True)
class SelectorResult:
    """The result of compiling a CEL expression: an error text, or else an estimated cost."""

    error: str = ""
    cost: int = 0


# Compiles an expression without raising. A parameter, because the CEL package is in a higher layer.
SelectorCompiler = Callable[[str], SelectorResult]


@dataclass(frozen=True, slots=True)
class Compilers:
    """The compilers of the expressions of a claim."""

    selector: SelectorCompiler
    derived_attribute: SelectorCompiler


def selectors(
    items: list[Document] | None, path: Path, compile_selector: SelectorCompiler, *, stored: bool = False
) -> FieldErrors:
    """Validate CEL selectors; stored ones were valid once and remain so."""
    if not items:
        return []
    return fields.bounded(
        items, fields.SELECTORS_MAX, lambda item, at: _selector(item, at, compile_selector, stored=stored), path
    )


def _selector(item: Document, path: Path, compile_selector: SelectorCompiler, *, stored: bool) -> FieldErrors:
    cel = item.get("cel")
    if cel is None:
        return [required(path.child("cel"))]
    if stored:
        return []
    return _expression(cel.get("expression") or "", path.child("cel", "expression"), compile_selector)[0]


def _expression(text: str, path: Path, compile_expression: SelectorCompiler) -> tuple[FieldErrors, int]:
    """Return the errors of an expression, and its estimated cost."""
    if fields.byte_length(text) > EXPRESSION_LENGTH_MAX:
        return [too_long(path, EXPRESSION_LENGTH_MAX)], 0
    result = compile_expression(text)
    if result.error:
        return [invalid(path, text, result.error)], 0
    if result.cost > EXPRESSION_COST_MAX:
        return [forbidden(path, "too complex, exceeds cost limit")], result.cost
    return [], result.cost


def derived_attributes(devices: Document, path: Path, compile_expression: SelectorCompiler) -> FieldErrors:
    """Validate the derived attributes of all requests of a claim; `path` leads to its devices."""
    errors: FieldErrors = []
    cost = 0
    for names, request, at in _requests(devices, path):
        items = request.get("derivedAttributes")
        if not items:
            continue
        compared = _compared_attributes(devices, names)

        def rule(item: Document, item_at: Path, compared: frozenset[str] = compared) -> FieldErrors:
            nonlocal cost
            found, item_cost = _derived_attribute(item, item_at, compared, compile_expression)
            cost += item_cost
            return found

        errors += fields.bounded_set(
            items, DERIVED_ATTRIBUTES_MAX, rule, lambda item: item.get("name") or "", at.child("derivedAttributes")
        )
    if cost > EXPRESSION_COST_MAX:
        errors.append(forbidden(path, _TOO_COMPLEX_IN_ALL))
    return errors


def _requests(devices: Document, path: Path) -> Iterator[tuple[frozenset[str], Document, Path]]:
    """Yield each request and alternative, with the names by which constraints refer to it."""
    for index, request in enumerate(devices.get("requests") or ()):
        name, at = request.get("name") or "", path.child("requests").index(index)
        if request.get("exactly") is not None:
            yield frozenset({name}), request["exactly"], at.child("exactly")
        for number, alternative in enumerate(request.get("firstAvailable") or ()):
            names = frozenset({name, f"{name}/{alternative.get('name') or ''}"})
            yield names, alternative, at.child("firstAvailable").index(number)


def _compared_attributes(devices: Document, names: frozenset[str]) -> frozenset[str]:
    """Return the attributes that constraints compare for a request; a constraint without requests is for all."""
    return frozenset(
        attribute
        for constraint in devices.get("constraints") or ()
        if not constraint.get("requests") or not names.isdisjoint(constraint["requests"])
        for attribute in (constraint.get("matchAttribute"), constraint.get("distinctAttribute"))
        if attribute
    )


def _derived_attribute(
    item: Document, path: Path, compared: frozenset[str], compile_expression: SelectorCompiler
) -> tuple[FieldErrors, int]:
    name, text = item.get("name") or "", item.get("expression") or ""
    errors = fields.fully_qualified_id(name, path.child("name")) if name else [required(path.child("name"))]
    if not errors and name not in compared:
        errors.append(invalid(path.child("name"), name, _UNREFERENCED))
    if not text:
        return [*errors, required(path.child("expression"))], 0
    found, cost = _expression(text, path.child("expression"), compile_expression)
    return errors + found, cost
