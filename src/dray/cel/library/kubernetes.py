"""Functions of Kubernetes' types: quantities, semantic versions, regular expressions."""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from typing import Any, Final

import re2

from dray.api import patterns
from dray.api.quantity import Quantity, QuantityError, is_quantity
from dray.api.semver import Semver, SemverError, is_semver
from dray.cel.errors import CELRuntimeError
from dray.cel.runtime import traversal
from dray.cel.signatures import Registry

REGISTRY: Final = Registry()
_declare = REGISTRY.declare

_PATTERN_CACHE_SIZE: Final = 256
# Characters of a pattern that cost as much as one expression of it.
_PATTERN_FACTOR: Final = 0.25


def _walk(text: str, *_: Any) -> int:
    return traversal(len(text))


# --- Quantities.


def _quantity(text: str) -> Quantity:
    try:
        return Quantity.parse(text)
    except QuantityError as error:
        raise CELRuntimeError(str(error)) from None


def _as_integer(quantity: Quantity) -> int:
    try:
        return quantity.as_integer()
    except QuantityError as error:
        raise CELRuntimeError(str(error)) from None


def compare_quantities(left: Quantity, right: Quantity) -> int:
    """Return -1, 0 or 1."""
    return (left.nanos > right.nanos) - (left.nanos < right.nanos)


_declare("quantity(string) -> quantity", _quantity, charge=_walk)
_declare("isQuantity(string) -> bool", is_quantity, charge=_walk)
_declare("sign(quantity) -> int", lambda quantity: quantity.sign)
_declare("quantity::sign() -> int", lambda quantity: quantity.sign)
_declare("quantity::isGreaterThan(quantity) -> bool", lambda left, right: left.nanos > right.nanos)
_declare("quantity::isLessThan(quantity) -> bool", lambda left, right: left.nanos < right.nanos)
_declare("quantity::compareTo(quantity) -> int", compare_quantities)
_declare("quantity::asApproximateFloat() -> double", Quantity.as_float)
_declare("quantity::asInteger() -> int", _as_integer)
_declare("quantity::isInteger() -> bool", Quantity.is_integer)
_declare("quantity::add(quantity) -> quantity", lambda left, right: left + right)
_declare("quantity::add(int) -> quantity", lambda left, right: left + Quantity.parse(right))
_declare("quantity::sub(quantity) -> quantity", lambda left, right: left - right)
_declare("quantity::sub(int) -> quantity", lambda left, right: left - Quantity.parse(right))

# --- Versions.


def _semver(text: str, *normalize: bool) -> Semver:
    try:
        return Semver.parse(text, normalize=any(normalize))
    except SemverError as error:
        raise CELRuntimeError(str(error)) from None


def _is_semver(text: str, *normalize: bool) -> bool:
    return is_semver(text, normalize=any(normalize))


_declare("semver(string) -> semver", _semver, charge=_walk)
_declare("semver(string, bool) -> semver", _semver, charge=_walk)
_declare("isSemver(string) -> bool", _is_semver, charge=_walk)
_declare("isSemver(string, bool) -> bool", _is_semver, charge=_walk)
_declare("semver::isGreaterThan(semver) -> bool", lambda left, right: left.compare(right) > 0)
_declare("semver::isLessThan(semver) -> bool", lambda left, right: left.compare(right) < 0)
_declare("semver::compareTo(semver) -> int", Semver.compare)
_declare("semver::major() -> int", lambda version: version.major)
_declare("semver::minor() -> int", lambda version: version.minor)
_declare("semver::patch() -> int", lambda version: version.patch)

# --- Regular expressions.


def _options() -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 4 << 20
    return options


_OPTIONS: Final = _options()


@lru_cache(maxsize=_PATTERN_CACHE_SIZE)
def pattern(text: str) -> Any:
    """Return the compiled pattern; RE2 matches any pattern in linear time."""
    try:
        return re2.compile(text, _OPTIONS)
    except re2.error as error:
        reason = error.args[0] if error.args else b""
        shown = reason.decode() if isinstance(reason, bytes) else str(reason)
        raise CELRuntimeError(f"error parsing regexp: {shown}") from None


def _matches(text: str, expression: str) -> bool:
    return patterns.search(pattern(expression), text) is not None


def _find(text: str, expression: str) -> str:
    found = patterns.search(pattern(expression), text)
    return found[0] if found else ""


def _find_all(text: str, expression: str, limit: int = -1) -> list[str]:
    return list(islice(patterns.find_all(pattern(expression), text), None if limit < 0 else limit))


def _regex_cost(text: str, expression: str, *_: Any) -> int:
    return traversal(len(text) + 1) * max(1, traversal(len(expression), _PATTERN_FACTOR))


_declare("string::matches(string) -> bool", _matches, charge=_regex_cost)
_declare("matches(string, string) -> bool", _matches, charge=_regex_cost)
_declare("string::find(string) -> string", _find, charge=_regex_cost)
_declare("string::findAll(string) -> list(string)", _find_all, charge=_regex_cost)
_declare("string::findAll(string, int) -> list(string)", _find_all, charge=_regex_cost)
