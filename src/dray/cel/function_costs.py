"""Costs of calls by the sizes of their arguments: cel-go's model, with Kubernetes' functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from dray.cel import tree
from dray.cel.tree import Literal, Node
from dray.cel.types import Kind, Type
from dray.cel.values import UINT_MAX


class Range(NamedTuple):
    """Minimum and maximum of a cost or a size, capped at the largest uint64."""

    least: int
    most: int

    def plus(self, other: Range) -> Range:
        """Return the sum."""
        return Range(min(self.least + other.least, UINT_MAX), min(self.most + other.most, UINT_MAX))

    def times(self, other: Range) -> Range:
        """Return the product."""
        return Range(min(self.least * other.least, UINT_MAX), min(self.most * other.most, UINT_MAX))

    def scaled(self, factor: float) -> Range:
        """Return the product with a factor, rounded up."""
        return Range(scale(self.least, factor), scale(self.most, factor))

    def union(self, other: Range) -> Range:
        """Return the range that covers both."""
        return Range(min(self.least, other.least), max(self.most, other.most))


def scale(amount: int, factor: float) -> int:
    """Return the product, rounded up."""
    return min(math.ceil(amount * factor), UINT_MAX)


UNKNOWN: Final = Range(0, UINT_MAX)
ZERO: Final = Range(0, 0)
ONE: Final = Range(1, 1)


def fixed(amount: int) -> Range:
    """Return a range of one number."""
    return Range(amount, amount)


STRING_FACTOR: Final = 0.1
REGEX_FACTOR: Final = 0.25
# ResourceSliceMaxAttributeValuesPerDevice: `includes` never examines more values.
_INCLUDES_COST: Final = 48
SCALARS: Final = frozenset({Kind.BOOL, Kind.DOUBLE, Kind.DURATION, Kind.INT, Kind.TIMESTAMP, Kind.UINT})


class Sizes(Protocol):
    """Sizes and types of nodes, for cost rules."""

    def size(self, node: Node) -> Range:
        """Return the size of the node's value."""

    def type_of(self, node: Node) -> Type:
        """Return the node's type."""


# A call's cost and the size of its result, from receiver (if any) and arguments.
Rule = Callable[[Sizes, list[Node]], tuple[Range, Range | None]]


def _walk(place: int, factor: float = STRING_FACTOR, *, same_size: bool = False) -> Rule:
    def rule(estimator: Sizes, inputs: list[Node]) -> tuple[Range, Range | None]:
        size = estimator.size(inputs[place])
        return size.scaled(factor), size if same_size else None

    return rule


def _compare(estimator: Sizes, inputs: list[Node]) -> tuple[Range, Range | None]:
    most = min(estimator.size(inputs[0]).most, estimator.size(inputs[1]).most)
    return Range(min(1, most), scale(most, STRING_FACTOR)), None


def _order(estimator: Sizes, inputs: list[Node]) -> tuple[Range, Range | None]:
    kinds = {estimator.type_of(given).kind for given in inputs}
    if kinds & {Kind.STRING, Kind.BYTES}:
        return _compare(estimator, inputs)
    # Two unknown values may both be strings.
    return (ONE if kinds & SCALARS else ONE.union(_compare(estimator, inputs)[0])), None


def _add(estimator: Sizes, inputs: list[Node]) -> tuple[Range, Range | None]:
    kinds = {estimator.type_of(given).kind for given in inputs}
    if kinds & SCALARS:
        return ONE, None
    size = estimator.size(inputs[0]).plus(estimator.size(inputs[1]))
    return (ONE if kinds == {Kind.LIST} else ONE.union(size.scaled(STRING_FACTOR))), size


def _add_rule(estimator: Sizes, inputs: list[Node]) -> tuple[Range, Range | None]:
    cost, size = _add(estimator, inputs)
    kinds = {estimator.type_of(given).kind for given in inputs}
    if size is not None and kinds <= {Kind.STRING, Kind.BYTES}:
        cost = size.scaled(STRING_FACTOR)
    return cost, size


def _in(estimator: Sizes, inputs: list[Node]) -> tuple[Range, Range | None]:
    kind = estimator.type_of(inputs[1]).kind
    if kind is Kind.MAP:
        return ONE, None
    size = estimator.size(inputs[1])
    return (size if kind is Kind.LIST else size.union(ONE)), None


def _regex(estimator: Sizes, inputs: list[Node]) -> tuple[Range, Range | None]:
    text = estimator.size(inputs[0])
    pattern = estimator.size(inputs[1]).scaled(REGEX_FACTOR)
    return text.plus(ONE).scaled(STRING_FACTOR).times(pattern), Range(0, text.most)


def _contains(estimator: Sizes, inputs: list[Node]) -> tuple[Range, Range | None]:
    text, part = (estimator.size(given).scaled(STRING_FACTOR) for given in inputs)
    return text.times(part), None


def _split(estimator: Sizes, inputs: list[Node]) -> tuple[Range, Range | None]:
    size = estimator.size(inputs[0])
    most = size.most
    match inputs:
        case [_, _, Literal(value=limit), *_] if limit >= 0:
            most = limit
    return size.scaled(2 * STRING_FACTOR), Range(0, most)


def _replace(estimator: Sizes, inputs: list[Node]) -> tuple[Range, Range | None]:
    text, old, new = (estimator.size(given) for given in inputs[:3])
    if old.least == 0:
        most = min((text.most + 1) * new.most + text.most, UINT_MAX)
    elif new.most <= old.least:
        most = text.most
    else:
        most = min(math.ceil(text.most / old.least) * new.most, UINT_MAX)
    return text.scaled(2 * STRING_FACTOR), Range(0, most)


def _element_cost(estimator: Sizes, values: Node) -> Range:
    given = estimator.type_of(values)
    element = given.params[0] if given.params else None
    if element is None or element.kind not in (Kind.STRING, Kind.BYTES):
        return ONE
    size = UNKNOWN if element.size_max is None else Range(0, element.size_max)
    return ONE.plus(size.scaled(STRING_FACTOR))


def _each(estimator: Sizes, inputs: list[Node]) -> tuple[Range, Range | None]:
    size = estimator.size(inputs[0])
    if estimator.type_of(inputs[0]).kind is Kind.STRING:
        return size.scaled(STRING_FACTOR), None
    return size.times(_element_cost(estimator, inputs[0])), None


def _join(estimator: Sizes, inputs: list[Node]) -> tuple[Range, Range | None]:
    count = estimator.size(inputs[0])
    given = estimator.type_of(inputs[0])
    element = given.params[0].size_max if given.params else None
    total = count.times(UNKNOWN if element is None else Range(0, element))
    if len(inputs) > 1:
        gaps = Range(max(0, count.least - 1), max(0, count.most - 1))
        total = total.plus(estimator.size(inputs[1]).times(gaps))
    return total.scaled(STRING_FACTOR), total


def _sets(estimator: Sizes, inputs: list[Node]) -> tuple[Range, Range | None]:
    return estimator.size(inputs[0]).times(estimator.size(inputs[1])).plus(ONE), None


def _both_ways(estimator: Sizes, inputs: list[Node]) -> tuple[Range, Range | None]:
    return _sets(estimator, inputs)[0].scaled(2), None


def _list_result(factor: float) -> Rule:
    def rule(estimator: Sizes, inputs: list[Node]) -> tuple[Range, Range | None]:
        size = estimator.size(inputs[0])
        return size.scaled(factor).plus(ONE), size

    return rule


def _count(_: Sizes, inputs: list[Node]) -> tuple[Range, Range | None]:
    given = inputs[0]
    count = fixed(max(0, given.value)) if isinstance(given, Literal) else UNKNOWN
    return count.plus(ONE), count


def _square(estimator: Sizes, inputs: list[Node]) -> tuple[Range, Range | None]:
    size = estimator.size(inputs[0])
    return size.times(size).plus(ONE), size


def _to_bytes(estimator: Sizes, inputs: list[Node]) -> tuple[Range, Range | None]:
    size = estimator.size(inputs[0])
    return size.scaled(STRING_FACTOR), Range(size.least, min(size.most * 4, UINT_MAX))


def _to_string(estimator: Sizes, inputs: list[Node]) -> tuple[Range, Range | None]:
    kind = estimator.type_of(inputs[0]).kind
    if kind in SCALARS or kind is Kind.OPAQUE:
        return ONE, None
    size = estimator.size(inputs[0])
    return ONE.union(size.scaled(STRING_FACTOR)), size


def _quote(estimator: Sizes, inputs: list[Node]) -> tuple[Range, Range | None]:
    size = estimator.size(inputs[0])
    return size.scaled(STRING_FACTOR), Range(size.least + 2, min(size.most * 2 + 2, UINT_MAX))


def _format(estimator: Sizes, inputs: list[Node]) -> tuple[Range, Range | None]:
    return estimator.size(inputs[0]).scaled(STRING_FACTOR), UNKNOWN


def _includes(_: Sizes, __: list[Node]) -> tuple[Range, Range | None]:
    return fixed(_INCLUDES_COST), None


# Comparing networks reads 4 to 16 bytes twice; a network inside another, three times and one more.
_CONTAINS_IP: Final = Range(8, 32).scaled(STRING_FACTOR)
_CONTAINS_CIDR: Final = _CONTAINS_IP.plus(Range(4, 16).scaled(STRING_FACTOR)).plus(ONE)


def _network(base: Range) -> Rule:
    def rule(estimator: Sizes, inputs: list[Node]) -> tuple[Range, Range | None]:
        if estimator.type_of(inputs[1]).kind is Kind.STRING:
            return base.plus(estimator.size(inputs[1]).scaled(STRING_FACTOR)), None
        return base, None

    return rule


RULES: Final[dict[str, Rule]] = {
    tree.EQUALS: _compare,
    tree.NOT_EQUALS: _compare,
    "_<_": _order,
    "_<=_": _order,
    "_>_": _order,
    "_>=_": _order,
    "_+_": _add_rule,
    tree.IN: _in,
    "matches": _regex,
    "find": _regex,
    "findAll": _regex,
    "contains": _contains,
    "startsWith": _walk(1),
    "endsWith": _walk(1),
    "bytes": _to_bytes,
    "string": _to_string,
    "lowerAscii": _walk(0, same_size=True),
    "upperAscii": _walk(0, same_size=True),
    "substring": _walk(0, same_size=True),
    "trim": _walk(0, same_size=True),
    "replace": _replace,
    "split": _split,
    "join": _join,
    "format": _format,
    "strings.quote": _quote,
    "isSorted": _each,
    "sum": _each,
    "min": _each,
    "max": _each,
    "indexOf": _each,
    "lastIndexOf": _each,
    "sort": _square,
    "@sortByAssociatedKeys": _square,
    "distinct": _square,
    "reverse": _list_result(1),
    "slice": _list_result(1),
    "lists.range": _count,
    "flatten": _list_result(1),
    "sets.contains": _sets,
    "sets.intersects": _sets,
    "sets.equivalent": _both_ways,
    "url": _walk(0),
    "quantity": _walk(0),
    "isQuantity": _walk(0),
    "semver": _walk(0),
    "isSemver": _walk(0),
    "isIP": _walk(0),
    "isCIDR": _walk(0),
    "cidr": _walk(0),
    "ip.isCanonical": _walk(0, 2 * STRING_FACTOR),
    "containsIP": _network(_CONTAINS_IP),
    "containsCIDR": _network(_CONTAINS_CIDR),
    "validate": _walk(1),
    "includes": _includes,
}
