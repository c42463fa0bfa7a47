"""Lists and sets: the Kubernetes list functions, the list extension and the set extension."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

from dray.cel import runtime
from dray.cel.runtime import fail, nested_equals, size_of, traversal
from dray.cel.signatures import Registry, kind_of_class
from dray.cel.types import Kind
from dray.cel.values import NONE, Budget, Duration, Optional, Uint

REGISTRY: Final = Registry()
_declare = REGISTRY.declare

_ORDERED: Final = frozenset({"int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes"})
_SUMMED: Final = ("int", "uint", "double", "duration")


def _is_sorted(values: list[Any]) -> bool:
    _comparable(values)
    return all(not later < earlier for earlier, later in pairwise(values))


def _comparable(values: Iterable[Any]) -> None:
    kinds = {kind_of_class(type(value)) for value in values}
    if len(kinds) > 1 and not kinds <= _NUMBERS:
        fail("list elements must have the same type")
    if kinds and not kinds <= _COMPARABLE:
        fail("list elements must be comparable")


_NUMBERS: Final = {Kind.INT, Kind.UINT, Kind.DOUBLE}
_COMPARABLE: Final = _NUMBERS | {Kind.BOOL, Kind.STRING, Kind.BYTES, Kind.TIMESTAMP, Kind.DURATION}


def _sum(values: list[Any]) -> Any:
    if not values:
        return 0
    first = values[0]
    if isinstance(first, Duration):
        return Duration(sum(value.nanos for value in values))
    if isinstance(first, float):
        return float(sum(values))
    total = sum(int(value) for value in values)
    return runtime.check_uint(total) if isinstance(first, Uint) else runtime.check_int(total)


def _least(values: list[Any]) -> Any:
    if not values:
        fail("min called on empty list")
    _comparable(values)
    return min(values)


def _greatest(values: list[Any]) -> Any:
    if not values:
        fail("max called on empty list")
    _comparable(values)
    return max(values)


def _index_of(budget: Budget, values: list[Any], wanted: Any) -> int:
    budget.spend(_elements_cost(values))
    return next((place for place, value in enumerate(values) if nested_equals(budget, value, wanted)), -1)


def _last_index_of(budget: Budget, values: list[Any], wanted: Any) -> int:
    budget.spend(_elements_cost(values))
    places = range(len(values) - 1, -1, -1)
    return next((place for place in places if nested_equals(budget, values[place], wanted)), -1)


def _slice(values: list[Any], start: int, end: int) -> list[Any]:
    if start < 0 or end < 0:
        fail(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        fail(f"cannot slice({start}, {end}), start index must be less than or equal to end index")
    if end > len(values):
        fail(f"cannot slice({start}, {end}), list is length {len(values)}")
    return list(values[start:end])


def _flatten(budget: Budget, values: Sequence[Any], depth: int = 1) -> list[Any]:
    if depth < 0:
        fail("level must be non-negative")
    budget.spend(1 + len(values) * depth)
    flat: list[Any] = []
    for value in values:
        budget.spend(1)
        if isinstance(value, (list, tuple)) and depth > 0:
            flat += _flatten(budget, value, depth - 1)
        else:
            flat.append(value)
    return flat


def _distinct(budget: Budget, values: list[Any]) -> list[Any]:
    kept: list[Any] = []
    budget.spend(1 + len(values) ** 2)
    for value in values:
        if not any(nested_equals(budget, value, other) for other in kept):
            kept.append(value)
    return kept


def _sort(budget: Budget, values: list[Any]) -> list[Any]:
    return _sort_by(budget, values, values)


def _sort_by(budget: Budget, values: list[Any], keys: list[Any]) -> list[Any]:
    if len(values) != len(keys):
        fail("sort keys do not match the list")
    _comparable(keys)
    # Each comparison may read a whole key; Kubernetes charges for comparing each key with each other.
    longest = max(map(size_of, keys), default=0)
    comparisons = len(values) * (1 + math.ceil(math.log2(len(values) + 1))) * (1 + traversal(longest))
    budget.spend(max(comparisons, 1 + len(values) ** 2))
    order = sorted(range(len(values)), key=keys.__getitem__)
    return [values[place] for place in order]


def _range(count: int) -> list[int]:
    if count < 0:
        fail("range() requires a non-negative argument")
    return list(range(count))


def _first(values: list[Any]) -> Optional:
    return Optional(values[0]) if values else NONE


def _last(values: list[Any]) -> Optional:
    return Optional(values[-1]) if values else NONE


def _contains_all(budget: Budget, values: list[Any], wanted: list[Any]) -> bool:
    budget.spend(1 + len(values) * len(wanted))
    return all(any(nested_equals(budget, one, other) for other in values) for one in wanted)


def _equivalent(budget: Budget, left: list[Any], right: list[Any]) -> bool:
    budget.spend(1 + 2 * len(left) * len(right))
    return _contains_all(budget, left, right) and _contains_all(budget, right, left)


def _intersects(budget: Budget, left: list[Any], right: list[Any]) -> bool:
    budget.spend(1 + len(left) * len(right))
    return any(nested_equals(budget, one, other) for one in left for other in right)


def _elements_cost(values: Sequence[Any], *_: Any) -> int:
    """Return the cost of traversing the elements and their characters."""
    return sum(1 + _content_cost(value) for value in values)


def _content_cost(value: Any) -> int:
    if isinstance(value, (list, tuple)):
        return _elements_cost(value)
    if isinstance(value, dict):
        return _elements_cost([*map(runtime.unkey, value), *value.values()])
    # Up to four bytes for a character.
    return traversal(size_of(value), 0.1 if isinstance(value, str) and value.isascii() else 0.4)


def _length(values: list[Any], *_: Any) -> int:
    return 1 + len(values)


for _kind in sorted(_ORDERED):
    _declare(f"list({_kind})::isSorted() -> bool", _is_sorted, charge=_elements_cost)
    _declare(f"list({_kind})::min() -> {_kind}", _least, charge=_elements_cost)
    _declare(f"list({_kind})::max() -> {_kind}", _greatest, charge=_elements_cost)
    _declare(f"list({_kind})::sort() -> list({_kind})", _sort, budgeted=True)
    _declare(f"list(A)::@sortByAssociatedKeys(list({_kind})) -> list(A)", _sort_by, budgeted=True)
for _kind in _SUMMED:
    _declare(f"list({_kind})::sum() -> {_kind}", _sum, charge=_elements_cost)
_declare("list(A)::indexOf(A) -> int", _index_of, budgeted=True)
_declare("list(A)::lastIndexOf(A) -> int", _last_index_of, budgeted=True)
_declare("list(A)::slice(int, int) -> list(A)", _slice, charge=_length)
_declare("list(list(A))::flatten() -> list(A)", _flatten, budgeted=True)
_declare("list(dyn)::flatten() -> list(dyn)", _flatten, budgeted=True)
_declare("list(dyn)::flatten(int) -> list(dyn)", _flatten, budgeted=True)
_declare("list(A)::reverse() -> list(A)", lambda values: list(values)[::-1], charge=_length)
_declare("list(A)::distinct() -> list(A)", _distinct, budgeted=True)
_declare("lists.range(int) -> list(int)", _range, charge=lambda count: 1 + max(0, count))
_declare("list(A)::first() -> optional(A)", _first)
_declare("list(A)::last() -> optional(A)", _last)
_declare("sets.contains(list(A), list(A)) -> bool", _contains_all, budgeted=True)
_declare("sets.equivalent(list(A), list(A)) -> bool", _equivalent, budgeted=True)
_declare("sets.intersects(list(A), list(A)) -> bool", _intersects, budgeted=True)
