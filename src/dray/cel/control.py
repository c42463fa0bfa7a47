"""Logic, loops and bindings as compiled expressions call them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

from dray.cel.errors import FATAL
from dray.cel.runtime import FAILURES, fail, put, unkey
from dray.cel.signatures import kind_of_class, opaque_name
from dray.cel.types import Kind
from dray.cel.values import NONE, Budget, Optional

# How Go names the classes in messages that quote them.
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
    """The value, if it is a boolean."""
    if value is True or value is False:
        return bool(value)
    return fail()


def logical_and(*terms: Callable[[], Any]) -> bool:
    """False if any term is false, whatever the others do; else an error if any term has one."""
    return _logical(terms, absorbing=False)


def logical_or(*terms: Callable[[], Any]) -> bool:
    """True if any term is true, whatever the others do; else an error if any term has one."""
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
    """The elements of a list or the keys of a map, paying for each step."""
    if isinstance(values, dict):
        values = map(unkey, values)
    elif not isinstance(values, (list, tuple)):
        _not_iterable(values)
    spend = budget.spend
    for value in values:
        spend(cost)
        yield value


def iterate_pairs(budget: Budget, cost: int, values: Any) -> Iterator[tuple[Any, Any]]:
    """Index and element of a list, or key and value of a map."""
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
    """`all` that a false element decides even when other elements have errors."""
    return _absorb(steps, condition, deciding=False)


def absorb_exists(steps: Iterator[Any], condition: Callable[[Any], Any]) -> bool:
    """`exists` that a true element decides even when other elements have errors."""
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
    """The condition on a pair instead of two values."""
    return lambda pair: condition(*pair)


def exactly_one(outcomes: Iterator[Any]) -> bool:
    """Report whether just one outcome is true; every element is looked at."""
    return sum(1 for outcome in outcomes if outcome) == 1


def collect_map(pairs: Iterator[tuple[Any, Any]]) -> dict[Any, Any]:
    """A map of the pairs."""
    made: dict[Any, Any] = {}
    for key, value in pairs:
        put(made, key, value)
    return made


def merge_entries(entries: Iterator[Any]) -> dict[Any, Any]:
    """A map of all entries of the maps; a key may come only once."""
    made: dict[Any, Any] = {}
    for entry in entries:
        if not isinstance(entry, dict):
            fail()
        for key, value in entry.items():
            put(made, unkey(key), value)
    return made


class Lazy:
    """A bound value that is computed when first asked for."""

    __slots__ = ("_compute", "_done", "_value")

    def __init__(self, compute: Callable[[], Any]) -> None:
        self._compute = compute
        self._done = False
        self._value: Any = None

    def get(self) -> Any:
        """The value."""
        if not self._done:
            self._value = self._compute()
            self._done = True
        return self._value


def optional_map(target: Any, body: Callable[[Any], Any]) -> Optional:
    """`optMap`."""
    if not isinstance(target, Optional):
        fail()
    return Optional(body(target.value)) if target.present else NONE


def optional_flat_map(target: Any, body: Callable[[Any], Any]) -> Optional:
    """`optFlatMap`."""
    if not isinstance(target, Optional):
        fail()
    if not target.present:
        return NONE
    made = body(target.value)
    return made if isinstance(made, Optional) else fail()


def optional_or(target: Any, other: Callable[[], Any]) -> Optional:
    """`or`; the alternative is computed only when needed."""
    if not isinstance(target, Optional):
        fail()
    if target.present:
        return target
    made = other()
    return made if isinstance(made, Optional) else fail()


def optional_or_value(target: Any, other: Callable[[], Any]) -> Any:
    """`orValue`; the alternative is computed only when needed."""
    if not isinstance(target, Optional):
        fail()
    return target.value if target.present else other()
