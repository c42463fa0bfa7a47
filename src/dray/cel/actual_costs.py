"""Run-time costs of calls, by the values of their arguments: cel-go's model, with Kubernetes' functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from typing import Any, Final

from dray.cel import tree
from dray.cel.signatures import Overload, kind_of_class
from dray.cel.types import Kind
from dray.cel.values import Optional

# Receiver and arguments, then the result; None for a result that is an error.
Cost = Callable[[Overload, Sequence[Any], Any], int]

_STRING_FACTOR: Final = 0.1
_REGEX_FACTOR: Final = 0.25
_BITS_PER_BYTE: Final = 8
# Sizes of the patterns of named formats, as Kubernetes declares them; of all others it assumes none.
_FORMAT_PATTERN_SIZES: Final = {
    "dns1123Label": 30,
    "dns1123Subdomain": 60,
    "dns1035Label": 30,
    "qualifiedName": 60,
    "portName": 20,
    "dns1123LabelPrefix": 30,
    "dns1123SubdomainPrefix": 60,
    "dns1035LabelPrefix": 30,
    "labelValue": 40,
}


def actual_size(value: Any) -> int:
    """Return the size of a value: characters, bytes, elements or entries; everything else counts one."""
    if isinstance(value, (str, bytes, list, dict, tuple)):
        return len(value)
    if isinstance(value, Optional) and value.present:
        return actual_size(value.value)
    if isinstance(value, (IPv4Interface, IPv6Interface)):
        return math.ceil(value.network.prefixlen / _BITS_PER_BYTE)
    if isinstance(value, (IPv4Address, IPv6Address)):
        return len(value.packed)
    return 1


def _scaled(size: int, factor: float = _STRING_FACTOR) -> int:
    return math.ceil(size * factor)


def _traversal(value: Any) -> int:
    """Return the cost of visiting everything in a value; texts are rounded down."""
    if isinstance(value, str):
        return int(len(value.encode("utf-8", "surrogatepass")) * _STRING_FACTOR)
    if isinstance(value, bytes):
        return int(len(value) * _STRING_FACTOR)
    if isinstance(value, (list, tuple)):
        return sum(map(_traversal, value))
    if isinstance(value, dict):
        return sum(_traversal(key) + _traversal(item) for key, item in value.items())
    return 1


def _walk(place: int, factor: float = _STRING_FACTOR) -> Cost:
    return lambda _overload, args, _result: _scaled(actual_size(args[place]), factor)


def _smaller(_: Overload, args: Sequence[Any], __: Any) -> int:
    return _scaled(min(map(actual_size, args)))


def _equals(overload: Overload, args: Sequence[Any], result: Any) -> int:
    opaque = kind_of_class(type(args[0])) is Kind.OPAQUE and not isinstance(args[0], (Optional, Exception))
    return 1 if opaque else _smaller(overload, args, result)


def _order(overload: Overload, args: Sequence[Any], result: Any) -> int:
    return _smaller(overload, args, result) if overload.params[0].kind in _TEXTS else 1


def _add(overload: Overload, args: Sequence[Any], _: Any) -> int:
    return _scaled(sum(map(actual_size, args))) if overload.params[0].kind in _TEXTS else 1


_TEXTS: Final = (Kind.STRING, Kind.BYTES)


def _in(overload: Overload, args: Sequence[Any], _: Any) -> int:
    return actual_size(args[1]) if overload.params[1].kind is Kind.LIST else 1


def _pattern(_: Overload, args: Sequence[Any], __: Any) -> int:
    return _scaled(1 + actual_size(args[0])) * _scaled(actual_size(args[1]), _REGEX_FACTOR)


def _matches(overload: Overload, args: Sequence[Any], result: Any) -> int:
    # Only the method is charged by size.
    return _pattern(overload, args, result) if overload.member else 1


def _contains(_: Overload, args: Sequence[Any], __: Any) -> int:
    return _scaled(actual_size(args[0])) * _scaled(actual_size(args[1]))


def _elements(_: Overload, args: Sequence[Any], __: Any) -> int:
    return _traversal(args[0])


def _joined(_: Overload, __: Sequence[Any], result: Any) -> int:
    return _scaled(actual_size(result), 2 * _STRING_FACTOR)


def _conversion(kind: Kind) -> Cost:
    """Return the cost of a conversion that is charged by size from one kind only."""

    def cost(overload: Overload, args: Sequence[Any], _: Any) -> int:
        return _scaled(actual_size(args[0])) if overload.params[0].kind is kind else 1

    return cost


def _address(overload: Overload, args: Sequence[Any], _: Any) -> int:
    return 1 if overload.member else _scaled(actual_size(args[0]))


def _network(overload: Overload, args: Sequence[Any], _: Any) -> int:
    size = actual_size(args[0])
    parsed = overload.params[1].kind is Kind.STRING
    return _scaled(2 * size) + (_scaled(actual_size(args[1])) if parsed else 0)


def _network_inside(overload: Overload, args: Sequence[Any], result: Any) -> int:
    return _network(overload, args, result) + _scaled(actual_size(args[0])) + 1


def _validate(_: Overload, args: Sequence[Any], __: Any) -> int:
    pattern = _FORMAT_PATTERN_SIZES.get(getattr(args[0], "name", ""), 0)
    return _scaled(1 + actual_size(args[1])) * _scaled(pattern, _REGEX_FACTOR)


def _sets(factor: int) -> Cost:
    return lambda _overload, args, _result: 1 + factor * actual_size(args[0]) * actual_size(args[1])


def _built(_: Overload, args: Sequence[Any], result: Any) -> int:
    return 1 + actual_size(args[0] if result is None else result)


def _flattened(_: Overload, args: Sequence[Any], __: Any) -> int:
    return 1 + actual_size(args[0]) * (max(0, args[1]) if len(args) > 1 else 1)


def _compared(place: int) -> Cost:
    return lambda _overload, args, _result: 1 + actual_size(args[place]) ** 2


def _includes(_: Overload, args: Sequence[Any], __: Any) -> int:
    return actual_size(args[0]) if isinstance(args[0], (list, tuple)) else 1


def _fixed(amount: int) -> Cost:
    return lambda _overload, _args, _result: amount


# A selector is parsed, and every second character may begin a requirement of it.
_REQUIREMENT_COST: Final = 50
_SELECTOR_COST: Final = 10


def _selector(_: Overload, args: Sequence[Any], __: Any) -> int:
    size = actual_size(args[1])
    return _SELECTOR_COST + _scaled(size) + _scaled(size, 0.5) * _REQUIREMENT_COST


# An expression can afford two authorization checks.
CHECK_COST: Final = 350_000

# All other functions cost one unit.
_COSTS: Final[dict[str, Cost]] = {
    tree.EQUALS: _equals,
    tree.NOT_EQUALS: _smaller,
    **dict.fromkeys(("_<_", "_<=_", "_>_", "_>=_"), _order),
    "_+_": _add,
    tree.IN: _in,
    "matches": _matches,
    "find": _pattern,
    "findAll": _pattern,
    "contains": _contains,
    **dict.fromkeys(("startsWith", "endsWith"), _walk(0)),
    "bytes": _conversion(Kind.STRING),
    "string": _conversion(Kind.BYTES),
    **dict.fromkeys(("lowerAscii", "upperAscii", "substring", "trim", "format", "strings.quote", "url"), _walk(0)),
    **dict.fromkeys(("replace", "split"), _walk(0, 2 * _STRING_FACTOR)),
    "join": _joined,
    **dict.fromkeys(("isSorted", "sum", "min", "max", "indexOf", "lastIndexOf"), _elements),
    **dict.fromkeys(("quantity", "isQuantity", "semver", "isSemver", "isIP", "cidr", "isCIDR"), _walk(0)),
    "ip": _address,
    "ip.isCanonical": _walk(0, 2 * _STRING_FACTOR),
    "containsIP": _network,
    "containsCIDR": _network_inside,
    "validate": _validate,
    "sets.contains": _sets(1),
    "sets.intersects": _sets(1),
    "sets.equivalent": _sets(2),
    **dict.fromkeys(("slice", "reverse", "lists.range"), _built),
    "flatten": _flattened,
    "distinct": _compared(0),
    "sort": _compared(0),
    "@sortByAssociatedKeys": _compared(1),
    "includes": _includes,
    "check": _fixed(CHECK_COST),
    **dict.fromkeys(("fieldSelector", "labelSelector"), _selector),
}
_ONE: Final = _fixed(1)


def cost_of(function: str) -> Cost:
    """Return how the calls of a function are charged."""
    return _COSTS.get(function, _ONE)
