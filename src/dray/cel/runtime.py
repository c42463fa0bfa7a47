"""Operators of compiled expressions.

Any traversal of values of unknown size charges the budget per step, because values may share structure and be
exponentially larger than their memory.
"""

from __future__ import annotations

import math
from typing import Any, Final, NoReturn

from dray.cel.errors import CELRuntimeError
from dray.cel.signatures import kind_of_class, opaque_name
from dray.cel.types import Kind
from dray.cel.values import (
    INT_MAX,
    INT_MIN,
    NONE,
    UINT_MAX,
    BoolKey,
    Budget,
    Duration,
    MapList,
    Optional,
    SetList,
    Timestamp,
    Uint,
)
from dray.lib.processor_time import ticking

# One step over this many characters costs as much as one over an element.
CHARS_PER_UNIT: Final = 10
# Opening a nested container costs as much as several steps over elements.
_NESTED_COST: Final = 4
_NO_OVERLOAD: Final = "no such overload"
# Exceptions that Python raises in an implementation for a value of an unexpected type.
PYTHON_FAILURES: Final = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError)
FAILURES: Final = (CELRuntimeError, *PYTHON_FAILURES)
_NUMBERS: Final = (int, float)


def fail(message: str = _NO_OVERLOAD) -> NoReturn:
    """Raise a run-time error."""
    raise CELRuntimeError(message)


def size_of(value: Any) -> int:
    """Return the size for costs; scalars count one."""
    return len(value) if isinstance(value, (str, bytes, list, dict, tuple)) else 1


def traversal(size: int, factor: float = 0.1) -> int:
    """Return the cost of traversing this many characters."""
    return math.ceil(size * factor)


# --- Equality and order.


def equals(budget: Budget, left: Any, right: Any) -> bool:
    """Evaluate equality across types; numbers compare by value, everything else needs the same type."""
    if isinstance(left, (list, tuple, dict, Optional)):
        return _containers_equal(budget, left, right)
    budget.spend(max(1, traversal(min(size_of(left), size_of(right)))))
    return equals_scalar(left, right)


def nested_equals(budget: Budget, left: Any, right: Any) -> bool:
    """Evaluate equality inside a container, whose elements are already charged, but not their content."""
    if isinstance(left, (list, tuple, dict, Optional)):
        budget.spend(_NESTED_COST)
        return _containers_equal(budget, left, right)
    if isinstance(left, (str, bytes)) and isinstance(right, (str, bytes)):
        budget.spend(min(len(left), len(right)) // CHARS_PER_UNIT)
    return not unequal_scalar(left, right)


def _containers_equal(budget: Budget, left: Any, right: Any) -> bool:
    budget.spend(max(1, traversal(size_of(left))))
    if isinstance(left, dict):
        return _maps_equal(budget, left, right)
    return _optionals_equal(budget, left, right) if isinstance(left, Optional) else _lists_equal(budget, left, right)


def equals_scalar(left: Any, right: Any) -> bool:
    """Evaluate equality of scalars; Python alone would treat True as 1.

    A value of one of Kubernetes' types on the left can be compared only with its like.
    """
    cls, other = type(left), type(right)
    if cls is other:
        return bool(left == right)
    if isinstance(left, bool) or isinstance(right, bool):
        return False
    if isinstance(left, _NUMBERS) and isinstance(right, _NUMBERS):
        # As in Go, an integer is rounded to the nearest double.
        return float(left) == float(right) if float in (cls, other) else int(left) == int(right)
    if _is_opaque(cls):
        if right is not None and opaque_name(cls) != opaque_name(other):
            fail()
        return bool(left == right)
    return not _is_opaque(other) and bool(left == right)


def unequal_scalar(left: Any, right: Any) -> bool:
    """Evaluate inequality of scalars; whatever cannot be compared is unequal."""
    if _is_opaque(type(left)) and opaque_name(type(left)) != opaque_name(type(right)):
        return True
    return not equals_scalar(left, right)


def _is_opaque(cls: type) -> bool:
    return cls is not Optional and kind_of_class(cls) is Kind.OPAQUE


def _lists_equal(budget: Budget, left: Any, right: Any) -> bool:
    if not isinstance(right, (list, tuple)) or len(left) != len(right):
        return False
    for one, other in ((left, right), (right, left)):
        if isinstance(one, (SetList, MapList)):
            return one.equals(budget, other, nested_equals)
    return all(nested_equals(budget, mine, yours) for mine, yours in zip(ticking(left), right, strict=True))


def _maps_equal(budget: Budget, left: Any, right: Any) -> bool:
    if not isinstance(right, dict) or len(left) != len(right):
        return False
    return all(key in right and nested_equals(budget, value, right[key]) for key, value in ticking(left.items()))


def _optionals_equal(budget: Budget, left: Optional, right: Any) -> bool:
    if not isinstance(right, Optional) or left.present is not right.present:
        return False
    return not left.present or nested_equals(budget, left.value, right.value)


def not_equals(budget: Budget, left: Any, right: Any) -> bool:
    """Evaluate `!=`."""
    if isinstance(left, (list, tuple, dict, Optional)):
        return not equals(budget, left, right)
    budget.spend(max(1, traversal(min(size_of(left), size_of(right)))))
    return unequal_scalar(left, right)


def contains_in_list(budget: Budget, element: Any, values: Any) -> bool:
    """Evaluate `element in list`."""
    budget.spend(len(values))
    return any(nested_equals(budget, element, value) for value in ticking(values))


def contains_in_map(element: Any, values: Any) -> bool:
    """Evaluate `key in map`."""
    return _key(element) in values


def includes(budget: Budget, values: Any, element: Any) -> bool:
    """Report whether a device attribute equals the element or has it among its values."""
    if not isinstance(values, (list, tuple)):
        # As among the values of a list, what cannot be compared is unequal.
        return not not_equals(budget, values, element)
    budget.spend(len(values))
    return any(nested_equals(budget, value, element) for value in values)


# --- Arithmetic.


def check_int(value: int) -> int:
    """Return the value if it fits int64, else raise."""
    if INT_MIN <= value <= INT_MAX:
        return value
    raise CELRuntimeError("integer overflow")


def check_uint(value: int) -> Uint:
    """Return the value if it fits uint64, else raise."""
    if 0 <= value <= UINT_MAX:
        return Uint(value)
    raise CELRuntimeError("unsigned integer overflow")


def add_int(left: int, right: int) -> int:
    """Return int + int."""
    return check_int(left + right)


def subtract_int(left: int, right: int) -> int:
    """Return int - int."""
    return check_int(left - right)


def multiply_int(left: int, right: int) -> int:
    """Return int * int."""
    return check_int(left * right)


def divide_int(left: int, right: int) -> int:
    """Return the integer quotient, rounded towards zero."""
    if right == 0:
        fail("division by zero")
    quotient = abs(left) // abs(right)
    return check_int(quotient if (left < 0) is (right < 0) else -quotient)


def modulo_int(left: int, right: int) -> int:
    """Return the remainder, which has the sign of the dividend."""
    if right == 0:
        fail("modulus by zero")
    if left == INT_MIN and right == -1:
        fail("integer overflow")
    rest = abs(left) % abs(right)
    return -rest if left < 0 else rest


def divide_uint(left: int, right: int) -> Uint:
    """Return uint / uint."""
    if right == 0:
        fail("division by zero")
    return Uint(int(left) // int(right))


def modulo_uint(left: int, right: int) -> Uint:
    """Return uint % uint."""
    if right == 0:
        fail("modulus by zero")
    return Uint(int(left) % int(right))


def divide_double(left: float, right: float) -> float:
    """Return the IEEE quotient, also for a zero divisor."""
    if right == 0:
        if left == 0 or math.isnan(left):
            return math.nan
        return math.copysign(math.inf, left) * math.copysign(1.0, right)
    return left / right


def negate_int(value: int) -> int:
    """Return -int."""
    return check_int(-value)


def add_time(left: Timestamp | Duration, right: Timestamp | Duration) -> Timestamp | Duration:
    """Return timestamp + duration in either order, or duration + duration."""
    kind = Timestamp if Timestamp in (type(left), type(right)) else Duration
    return kind(left.nanos + right.nanos)


def subtract_time(left: Timestamp | Duration, right: Timestamp | Duration) -> Timestamp | Duration:
    """Return the difference; that of two timestamps is a duration."""
    kind = Timestamp if isinstance(left, Timestamp) and isinstance(right, Duration) else Duration
    return kind(left.nanos - right.nanos)


def concat_lists(budget: Budget, left: Any, right: Any) -> list[Any]:
    """Return list + list; lists are copied, and an element takes as much memory as several characters."""
    budget.spend(1 + traversal(len(left) + len(right), 0.5))
    if isinstance(left, (SetList, MapList)):
        return left.merged(budget, right, nested_equals)
    return [*left, *right]


# --- Selection.


def _key(key: Any) -> Any:
    return BoolKey(key) if isinstance(key, bool) else key


def unkey(key: Any) -> Any:
    """Return the map key as a value of the language."""
    return key.value if isinstance(key, BoolKey) else key


def index_list(values: Any, index: Any) -> Any:
    """Evaluate `list[index]`; a whole double is a valid index."""
    if isinstance(index, bool) or not isinstance(index, (int, float)):
        fail()
    if isinstance(index, float):
        if index != index // 1 or math.isinf(index):
            fail(f"unsupported index type '{index}' in list")
        index = int(index)
    if not 0 <= index < len(values):
        fail(f"index out of bounds: {int(index)}")
    return values[index]


def index_map(values: Any, key: Any) -> Any:
    """Evaluate `map[key]`."""
    try:
        return values[_key(key)]
    except (KeyError, TypeError):
        raise CELRuntimeError(f"no such key: {text_of_key(key)}") from None


def index(values: Any, key: Any) -> Any:
    """Index a value of unknown type."""
    if isinstance(values, dict):
        return index_map(values, key)
    if isinstance(values, (list, tuple)):
        return index_list(values, key)
    if isinstance(values, Optional):
        return optional_index(values, key)
    return fail()


def text_of_key(key: Any) -> str:
    """Return the key as messages print it."""
    if isinstance(key, bool):
        return str(key).lower()
    return str(key)


def select(value: Any, field: str) -> Any:
    """Evaluate `value.field` on a map."""
    if isinstance(value, dict):
        return index_map(value, field)
    if isinstance(value, Optional):
        return optional_select(value, field)
    return fail()


def has(value: Any, field: str) -> bool:
    """Evaluate `has(value.field)`."""
    if isinstance(value, dict):
        return _find(value, field).present
    if isinstance(value, Optional):
        return value.present and has(value.value, field)
    return fail()


def _find(values: dict[Any, Any], key: Any) -> Optional:
    """Return the value of a key; a map of domains has one for every domain, though not every domain is `in` it."""
    try:
        return Optional(values[key])
    except KeyError:
        return NONE


def optional_index(values: Any, key: Any) -> Optional:
    """Evaluate `values[?key]`."""
    if isinstance(values, Optional):
        if not values.present:
            return NONE
        values = values.value
    if isinstance(values, dict):
        return _find(values, _key(key))
    if isinstance(values, (list, tuple)):
        if isinstance(key, bool) or not isinstance(key, (int, float)):
            fail()
        return Optional(values[int(key)]) if 0 <= key < len(values) and key == int(key) else NONE
    return fail()


def optional_select(value: Any, field: str) -> Optional:
    """Evaluate `value.?field`."""
    if isinstance(value, Optional):
        if not value.present:
            return NONE
        value = value.value
    if not isinstance(value, dict):
        fail("no such overload")
    return _find(value, field)


# --- Construction.


def optional_elements(*parts: tuple[Any, bool]) -> list[Any]:
    """Return a list in which some elements are optional."""
    values: list[Any] = []
    for value, optional in parts:
        if not optional:
            values.append(value)
            continue
        if not isinstance(value, Optional):
            fail()
        if value.present:
            values.append(value.value)
    return values


def make_map(*entries: tuple[Any, Any, bool]) -> dict[Any, Any]:
    """Return a map; a repeated key is an error."""
    made: dict[Any, Any] = {}
    for key, value, optional in entries:
        present = value
        if optional:
            if not isinstance(value, Optional):
                fail()
            if not value.present:
                continue
            present = value.value
        put(made, key, present)
    return made


_KEY_CLASSES: Final = (bool, int, str)


def put(target: dict[Any, Any], key: Any, value: Any) -> None:
    """Add an entry to a map under construction."""
    if not isinstance(key, _KEY_CLASSES):
        fail(f"unsupported key type: {type_name(key)}")
    stored = _key(key)
    if stored in target:
        fail(f"insert failed: key {text_of_key(key)} already exists")
    target[stored] = value


# --- Types.


def type_name(value: Any) -> str:
    """Return the run-time name of the value's type."""
    kind = kind_of_class(type(value))
    return opaque_name(type(value)) if kind is Kind.OPAQUE else _TYPE_NAMES.get(kind, str(kind.value))


_TYPE_NAMES: Final = {
    Kind.NULL: "null_type",
    Kind.TIMESTAMP: "google.protobuf.Timestamp",
    Kind.DURATION: "google.protobuf.Duration",
}
