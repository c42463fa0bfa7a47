"""Node selection of slices and devices, and the node selector of an allocation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from dray.api.types.core_v1 import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm

_INT64_LIMIT: Final = 2**63
NODE_NAME_FIELD: Final = "metadata.name"


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        return None
    # Go's ParseInt accepts neither blanks nor underscores, and at most 64 bits.
    return number if not set(text) - set("+-0123456789") and -_INT64_LIMIT <= number < _INT64_LIMIT else None


def _compares(values: tuple[str, ...], value: str | None, accept: Callable[[int, int], bool]) -> bool:
    bound = _number(values[0]) if len(values) == 1 else None
    number = _number(value)
    return number is not None and bound is not None and accept(number, bound)


_OPERATORS: Final[Mapping[str, Callable[[tuple[str, ...], str | None], bool]]] = {
    "In": lambda values, value: value is not None and value in values,
    "NotIn": lambda values, value: value is None or value not in values,
    "Exists": lambda _values, value: value is not None,
    "DoesNotExist": lambda _values, value: value is None,
    "Gt": lambda values, value: _compares(values, value, int.__gt__),
    "Lt": lambda values, value: _compares(values, value, int.__lt__),
}
# The operators for fields.
_FIELD_OPERATORS: Final = frozenset({"In", "NotIn"})


def _holds(requirement: NodeSelectorRequirement, value: str | None) -> bool:
    # An unknown operator matches no node.
    operator = _OPERATORS.get(requirement.operator)
    return operator is not None and operator(requirement.values, value)


def _field_holds(requirement: NodeSelectorRequirement, name: str) -> bool:
    supported = requirement.key == NODE_NAME_FIELD and requirement.operator in _FIELD_OPERATORS
    return supported and len(requirement.values) == 1 and _holds(requirement, name)


def matching_term(selector: NodeSelector, name: str, labels: Mapping[str, str]) -> NodeSelectorTerm | None:
    """Return the first term that the node matches; an empty term matches none."""
    for term in selector.node_selector_terms:
        if not term.match_expressions and not term.match_fields:
            continue
        if all(_holds(item, labels.get(item.key)) for item in term.match_expressions) and all(
            _field_holds(item, name) for item in term.match_fields
        ):
            return term
    return None


def local_selector(name: str) -> NodeSelector:
    """Return a selector for this node only."""
    requirement = NodeSelectorRequirement(key=NODE_NAME_FIELD, operator="In", values=(name,))
    return NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=(requirement,)),))


def united_selector(terms: Iterable[NodeSelectorTerm]) -> NodeSelector | None:
    """Return one term with all distinct requirements; None if there are none. The order of values does not matter."""
    expressions: dict[object, NodeSelectorRequirement] = {}
    fields: dict[object, NodeSelectorRequirement] = {}
    for term in terms:
        _collect(expressions, term.match_expressions)
        _collect(fields, term.match_fields)
    if not expressions and not fields:
        return None
    united = NodeSelectorTerm(match_expressions=tuple(expressions.values()), match_fields=tuple(fields.values()))
    return NodeSelector(node_selector_terms=(united,))


def _collect(found: dict[object, NodeSelectorRequirement], requirements: Iterable[NodeSelectorRequirement]) -> None:
    for item in requirements:
        found.setdefault((item.key, item.operator, tuple(sorted(item.values))), item)
