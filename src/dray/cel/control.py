"""Logical operators, loops and bindings of compiled expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

from dray.cel.errors import FATAL
from dray.cel.runtime import FAILURES, fail, put, unkey
from dray.cel.signatures import kind_of_class, opaque_name
from dray.cel.types import Kind
from dray.cel.values import NONE, Budget, Optional

# Go type names in messages.
_GO_NAMES: Final = {
    Kind.BOOL: "types.Bool",
    Kind.INT: "types.Int",
    Kind.UINT: "types.Uint",
    Kind.DOUBLE: "types.Double",
    Kind.STRING: "types.String",
    Kind.BYTES: "types.Bytes",
    Kind.NULL: "types.Null",
    Kind.TIMESTAMP: "types.Timestamp",
    Kind.DURATION: "types.Duration",
    Kind.TYPE: "*types.Type",
}


def boolean(value: Any) -> bool:
    """Return the value if it is a boolean, else raise."""
    if value is True or value is False:
        return bool(value)
    return fail()


def logical_and(*terms: Callable[[], Any]) -> bool:
    """Return False if any term is false, even if others fail; else raise the error of a failed term."""
    return _logical(terms, absorbing=False)


def logical_or(*terms: Callable[[], Any]) -> bool:
    """Return True if any term is true, even if others fail; else raise the error of a failed term."""
    return _logical(terms, absorbing=True)


def _logical(terms: tuple[Callable[[], Any], ...], *, absorbing: bool) -> bool:
    error: Exception | None = None
    for term in terms:
        try:
            if boolean(term()) is absorbing:
                return absorbing
        except FATAL:
            raise
        except FAILURES as failure:
            error = error or failure
    if error is not None:
        raise error
    return not absorbing


def iterate(budget: Budget, cost: int, values: Any) -> Iterator[Any]:
    """Iterate over the elements of a list or the keys of a map, charging each step."""
    if isinstance(values, dict):
        values = map(unkey, values)
    elif not isinstance(values, (list, tuple)):
        _not_iterable(values)
    spend = budget.spend
    for value in values:
        spend(cost)
        yield value


def iterate_pairs(budget: Budget, cost: int, values: Any) -> Iterator[tuple[Any, Any]]:
    """Iterate over index and element of a list, or key and value of a map."""
    if isinstance(values, dict):
        pairs: Iterator[tuple[Any, Any]] = ((unkey(key), value) for key, value in values.items())
    elif isinstance(values, (list, tuple)):
        pairs = enumerate(values)
    else:
        _not_iterable(values)
    for pair in pairs:
        budget.spend(cost)
        yield pair


def _not_iterable(value: Any) -> NoReturn:
    kind = kind_of_class(type(value))
    name = _GO_NAMES.get(kind) or "cel." + opaque_name(type(value)).rpartition(".")[2]
    fail(f"got '{name}', expected iterable type")


def absorb_all(steps: Iterator[Any], condition: Callable[[Any], Any]) -> bool:
    """Evaluate `all`: a false element decides even when other elements fail."""
    return _absorb(steps, condition, deciding=False)


def absorb_exists(steps: Iterator[Any], condition: Callable[[Any], Any]) -> bool:
    """Evaluate `exists`: a true element decides even when other elements fail."""
    return _absorb(steps, condition, deciding=True)


def _absorb(steps: Iterator[Any], condition: Callable[[Any], Any], *, deciding: bool) -> bool:
    error: Exception | None = None
    for step in steps:
        try:
            if boolean(condition(step)) is deciding:
                return deciding
        except FATAL:
            raise
        except FAILURES as failure:
            error = error or failure
    if error is not None:
        raise error
    return not deciding


def unpacked(condition: Callable[[Any, Any], Any]) -> Callable[[tuple[Any, Any]], Any]:
    """Return the condition as a function of a pair instead of two values."""
    return lambda pair: condition(*pair)


def exactly_one(outcomes: Iterator[Any]) -> bool:
    """Report whether exactly one outcome is true; every element is evaluated."""
    return sum(1 for outcome in outcomes if outcome) == 1


def collect_map(pairs: Iterator[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return a map of the pairs."""
    made: dict[Any, Any] = {}
    for key, value in pairs:
        put(made, key, value)
    return made


def merge_entries(entries: Iterator[Any]) -> dict[Any, Any]:
    """Return a map of all entries of the maps; a repeated key is an error."""
    made: dict[Any, Any] = {}
    for entry in entries:
        if not isinstance(entry, dict):
            fail()
        for key, value in entry.items():
            put(made, unkey(key), value)
    return made


class Lazy:
    """A bound value that is computed on first use."""

    __slots__ = ("_compute", "_done", "_value")

    def __init__(self, compute: Callable[[], Any]) -> None:
        self._compute = compute
        self._done = False
        self._value: Any = None

    def get(self) -> Any:
        """Return the value."""
        if not self._done:
            self._value = self._compute()
            self._done = True
        return self._value


def optional_map(target: Any, body: Callable[[Any], Any]) -> Optional:
    """Evaluate `optMap`."""
    if not isinstance(target, Optional):
        fail()
    return Optional(body(target.value)) if target.present else NONE


def optional_flat_map(target: Any, body: Callable[[Any], Any]) -> Optional:
    """Evaluate `optFlatMap`."""
    if not isinstance(target, Optional):
        fail()
    if not target.present:
        return NONE
    made = body(target.value)
    return made if isinstance(made, Optional) else fail()


def optional_or(target: Any, other: Callable[[], Any]) -> Optional:
    """Evaluate `or`; the alternative is evaluated lazily."""
    if not isinstance(target, Optional):
        fail()
    if target.present:
        return target
    made = other()
    return made if isinstance(made, Optional) else fail()


def optional_or_value(target: Any, other: Callable[[], Any]) -> Any:
    """Evaluate `orValue`; the alternative is evaluated lazily."""
    if not isinstance(target, Optional):
        fail()
    return target.value if target.present else other()
