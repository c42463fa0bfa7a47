"""Estimated costs of calls by overload and sizes of arguments: cel-go's model, with Kubernetes' functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from dray.cel import tree
from dray.cel.signatures import Overload
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
    """Return the product, rounded up, with the precision of a double."""
    return min(math.ceil(float(amount) * factor), UINT_MAX)


UNKNOWN: Final = Range(0, UINT_MAX)
ZERO: Final = Range(0, 0)
ONE: Final = Range(1, 1)


def fixed(amount: int) -> Range:
    """Return a range of one number."""
    return Range(amount, amount)


STRING_FACTOR: Final = 0.1
REGEX_FACTOR: Final = 0.25
# The longest pattern of a named format, and the longest format.
_FORMAT_PATTERN_LENGTH: Final = 128
_FORMAT_LENGTH: Final = 64
SCALARS: Final = frozenset({Kind.BOOL, Kind.DOUBLE, Kind.DURATION, Kind.INT, Kind.TIMESTAMP, Kind.UINT})
_TEXTS: Final = frozenset({Kind.STRING, Kind.BYTES})


class Sizes(Protocol):
    """Sizes and types of nodes, for cost rules."""

    def size(self, node: Node) -> Range:
        """Return the size of the node's value."""

    def element_size(self, node: Node) -> Range:
        """Return the size of the elements of a list, as declared."""

    def type_of(self, node: Node) -> Type:
        """Return the node's type."""


class CallSite(NamedTuple):
    """A call of one overload; `target` is the receiver of a method."""

    overload: Overload
    target: Node | None
    args: Sequence[Node]

    @property
    def inputs(self) -> list[Node]:
        """Return receiver and arguments."""
        return [*([] if self.target is None else [self.target]), *self.args]

    @property
    def kind(self) -> Kind:
        """Return the kind of the overload's first parameter."""
        return self.overload.params[0].kind


class Estimate(NamedTuple):
    """The cost of a call without its arguments, and the size of its result if it is known."""

    cost: Range
    size: Range | None = None


Rule = Callable[[Sizes, CallSite], Estimate]
_NOMINAL: Final = Estimate(ONE)


def _walk(place: int, factor: float = STRING_FACTOR, *, same_size: bool = False) -> Rule:
    def rule(sizes: Sizes, call: CallSite) -> Estimate:
        size = sizes.size(call.inputs[place])
        return Estimate(size.scaled(factor), size if same_size else None)

    return rule


def _compare(sizes: Sizes, call: CallSite) -> Estimate:
    most = min(sizes.size(given).most for given in call.args)
    return Estimate(Range(min(1, most), most).scaled(STRING_FACTOR))


def _equals(sizes: Sizes, call: CallSite) -> Estimate:
    left, right = (sizes.type_of(given) for given in call.args)
    if left != right or left.kind is not Kind.OPAQUE:
        return _compare(sizes, call)
    if left.name == "kubernetes.URL":
        return Estimate(Range(1, sizes.size(call.args[1]).most).scaled(STRING_FACTOR))
    found = _OPAQUE_EQUALITY.get(left.name)
    return _compare(sizes, call) if found is None else Estimate(found)


# Kubernetes' types compare at a fixed cost, but only with `==`.
_OPAQUE_EQUALITY: Final = {
    "net.IP": ONE,
    "net.CIDR": ONE,
    "kubernetes.Quantity": ONE,
    "kubernetes.Semver": ONE,
    "kubernetes.NamedFormat": Range(1, _FORMAT_LENGTH).scaled(STRING_FACTOR),
}


def _order(sizes: Sizes, call: CallSite) -> Estimate:
    return _compare(sizes, call) if call.kind in _TEXTS else _NOMINAL


def _add(sizes: Sizes, call: CallSite) -> Estimate:
    if call.kind not in _TEXTS and call.kind is not Kind.LIST:
        return _NOMINAL
    size = sizes.size(call.args[0]).plus(sizes.size(call.args[1]))
    return Estimate(ONE if call.kind is Kind.LIST else size.scaled(STRING_FACTOR), size)


def _in(sizes: Sizes, call: CallSite) -> Estimate:
    return Estimate(sizes.size(call.args[1])) if call.overload.params[1].kind is Kind.LIST else _NOMINAL


def _matches(sizes: Sizes, call: CallSite) -> Estimate:
    # Only the method is charged by size.
    return _NOMINAL if call.target is None else Estimate(_regex(sizes, call).cost)


def _regex(sizes: Sizes, call: CallSite) -> Estimate:
    text, pattern = (sizes.size(given) for given in call.inputs[:2])
    return Estimate(
        text.plus(ONE).scaled(STRING_FACTOR).times(pattern.scaled(REGEX_FACTOR)),
        Range(0, text.most),
    )


def _contains(sizes: Sizes, call: CallSite) -> Estimate:
    text, part = (sizes.size(given).scaled(STRING_FACTOR) for given in call.inputs)
    return Estimate(text.times(part))


def _split(sizes: Sizes, call: CallSite) -> Estimate:
    size = sizes.size(call.inputs[0])
    most = size.most
    if len(call.args) > 1 and isinstance(call.args[1], Literal):
        limit = call.args[1].value
        most = limit if limit >= 0 else UINT_MAX + 1 + limit
    return Estimate(size.scaled(2 * STRING_FACTOR), Range(0, most))


def _replace(sizes: Sizes, call: CallSite) -> Estimate:
    text, old, new = (sizes.size(given) for given in call.inputs[:3])
    most = _replaced(text.most, old.least, new.most, keeps=new.most <= old.least)
    least = _replaced(text.least, old.most, new.least, keeps=old.most <= new.least)
    return Estimate(text.scaled(2 * STRING_FACTOR), Range(least, most))


def _replaced(text: int, old: int, new: int, *, keeps: bool) -> int:
    """Return the length of a text in which pieces of one length are replaced; `keeps` if that does not change it."""
    if old == 0:
        # An empty piece is found around all characters.
        return min(min(text + 1, UINT_MAX) * new + text, UINT_MAX)
    return text if keeps else min(math.ceil(float(text) / old) * new, UINT_MAX)


def _each(sizes: Sizes, call: CallSite) -> Estimate:
    values = call.inputs[0]
    size = sizes.size(values)
    params = sizes.type_of(values).params
    if not params:
        return Estimate(size.scaled(STRING_FACTOR))
    cost = ONE
    if params[0].kind in _TEXTS:
        cost = cost.plus(sizes.element_size(values).scaled(STRING_FACTOR))
    return Estimate(size.times(cost))


def _join(sizes: Sizes, call: CallSite) -> Estimate:
    count = sizes.size(call.inputs[0])
    total = count.times(sizes.element_size(call.inputs[0])) if sizes.type_of(call.inputs[0]).params else ZERO
    if call.args:
        gaps = Range(max(0, count.least - 1), max(0, count.most - 1))
        total = total.plus(sizes.size(call.args[0]).times(gaps))
    return Estimate(total.scaled(STRING_FACTOR), total)


def _sets(sizes: Sizes, call: CallSite) -> Estimate:
    return Estimate(sizes.size(call.args[0]).times(sizes.size(call.args[1])).plus(ONE))


def _both_ways(sizes: Sizes, call: CallSite) -> Estimate:
    return Estimate(sizes.size(call.args[0]).times(sizes.size(call.args[1])).scaled(2).plus(ONE))


def _list_result(sizes: Sizes, call: CallSite) -> Estimate:
    size = sizes.size(call.inputs[0])
    return Estimate(size.plus(ONE), size)


def _count(_: Sizes, call: CallSite) -> Estimate:
    given = call.args[0]
    count = fixed(max(0, given.value)) if isinstance(given, Literal) else UNKNOWN
    return Estimate(count.plus(ONE), count)


def _square(sizes: Sizes, call: CallSite) -> Estimate:
    size = sizes.size(call.inputs[0])
    return Estimate(size.times(size).plus(ONE), size)


def _to_bytes(sizes: Sizes, call: CallSite) -> Estimate:
    if call.kind is not Kind.STRING:
        return _NOMINAL
    size = sizes.size(call.args[0])
    return Estimate(size.scaled(STRING_FACTOR), Range(size.least, min(size.most * 4, UINT_MAX)))


def _to_string(sizes: Sizes, call: CallSite) -> Estimate:
    if call.kind is not Kind.BYTES:
        return _NOMINAL
    size = sizes.size(call.args[0])
    return Estimate(size.scaled(STRING_FACTOR), Range(size.least // 4, size.most))


def _quote(sizes: Sizes, call: CallSite) -> Estimate:
    size = sizes.size(call.args[0])
    return Estimate(size.scaled(STRING_FACTOR), Range(size.least + 2, min(size.most * 2 + 2, UINT_MAX)))


def _format(sizes: Sizes, call: CallSite) -> Estimate:
    return Estimate(sizes.size(call.inputs[0]).scaled(STRING_FACTOR), UNKNOWN)


def _validate(sizes: Sizes, call: CallSite) -> Estimate:
    size = sizes.size(call.args[0])
    return Estimate(size.scaled(STRING_FACTOR).scaled(_FORMAT_PATTERN_LENGTH * REGEX_FACTOR))


def _includes(sizes: Sizes, call: CallSite) -> Estimate:
    # An attribute that may be a list has the size of the longest string.
    return Estimate(sizes.size(call.inputs[0]))


def _address(sizes: Sizes, call: CallSite) -> Estimate:
    # The address of a network need not be parsed.
    return _NOMINAL if call.target is not None else Estimate(sizes.size(call.args[0]).scaled(STRING_FACTOR))


# Comparing networks reads 4 to 16 bytes twice; a network inside another, three times and one more.
_ADDRESS: Final = Range(4, 16)
_CONTAINS_IP: Final = _ADDRESS.plus(_ADDRESS).scaled(STRING_FACTOR)
_CONTAINS_CIDR: Final = _CONTAINS_IP.plus(_ADDRESS.scaled(STRING_FACTOR)).plus(ONE)


def _network(base: Range) -> Rule:
    def rule(sizes: Sizes, call: CallSite) -> Estimate:
        if call.overload.params[1].kind is Kind.STRING:
            return Estimate(base.plus(sizes.size(call.args[0]).scaled(STRING_FACTOR)))
        return Estimate(base)

    return rule


# All other functions cost one unit.
RULES: Final[dict[str, Rule]] = {
    tree.EQUALS: _equals,
    tree.NOT_EQUALS: _compare,
    "_<_": _order,
    "_<=_": _order,
    "_>_": _order,
    "_>=_": _order,
    "_+_": _add,
    tree.IN: _in,
    "matches": _matches,
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
    "reverse": _list_result,
    "slice": _list_result,
    "lists.range": _count,
    "flatten": _list_result,
    "sets.contains": _sets,
    "sets.intersects": _sets,
    "sets.equivalent": _both_ways,
    "url": _walk(0, same_size=True),
    "quantity": _walk(0),
    "isQuantity": _walk(0),
    "semver": _walk(0),
    "isSemver": _walk(0),
    "ip": _address,
    "isIP": _walk(0),
    "ip.isCanonical": _walk(0, 2 * STRING_FACTOR),
    "cidr": _walk(0),
    "isCIDR": _walk(0),
    "containsIP": _network(_CONTAINS_IP),
    "containsCIDR": _network(_CONTAINS_CIDR),
    "validate": _validate,
    "includes": _includes,
}


def estimate_call(sizes: Sizes, function: str, call: CallSite) -> Estimate:
    """Return the estimate for a call of one overload."""
    rule = RULES.get(function)
    return _NOMINAL if rule is None else rule(sizes, call)
