"""Derived attributes of a request: named CEL expressions over a device, whose values its constraints compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgspec

from dray.allocator.content import Content, Value, Values, typed_value
from dray.cel.environments import CompiledExpression, compile_derived_attribute
from dray.cel.errors import CELError, CELRuntimeError

# Cached compiled expressions.
_COMPILED_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class DerivedFailure:
    """A derived attribute that could not be evaluated for a device."""

    name: str
    text: str


class DerivedAttributes(msgspec.Struct, frozen=True):
    """The derived attributes of a request, as pairs of a name and an expression; equal texts are evaluated once."""

    expressions: tuple[tuple[str, str], ...]

    def has(self, name: str) -> bool:
        """Return whether the attribute is derived here."""
        return any(name == own for own, _ in self.expressions)

    def failure(self, content: Content) -> DerivedFailure | None:
        """Return the first attribute that cannot be evaluated."""
        found = self._evaluated(content)
        return found if isinstance(found, DerivedFailure) else None

    def values(self, content: Content, name: str) -> Values | None:
        """Return the values of an attribute; None if it is not derived here."""
        found = self._evaluated(content)
        return None if isinstance(found, DerivedFailure) else found.get(name)

    def _evaluated(self, content: Content) -> Mapping[str, Values] | DerivedFailure:
        known = content.derived.get(self)
        if known is None:
            known = self._evaluate(content)
            content.cache_derived(self, known)
        return known

    def _evaluate(self, content: Content) -> Mapping[str, Values] | DerivedFailure:
        found: dict[str, Values] = {}
        for name, expression in self.expressions:
            try:
                found[name] = _values(_compile(expression).evaluate(content.view()))
            except CELRuntimeError as error:
                return DerivedFailure(name, str(error))
            except CELError as error:
                return DerivedFailure(name, error.detail)
        return found


@lru_cache(maxsize=_COMPILED_MAX)
def _compile(expression: str) -> CompiledExpression:
    """Compile a stored expression, which may use features whose gates are off now."""
    return compile_derived_attribute(expression)


def _values(result: object) -> Values:
    """Return the typed values of a result: a scalar, or a list of scalars of one type."""
    if not isinstance(result, (list, tuple)):
        return Values(frozenset((_value(result),)), is_list=False)
    values = [_value(item) for item in result]
    kinds = {kind for kind, _ in values}
    if len(kinds) > 1:
        raise CELRuntimeError(f"list has elements of different types: {', '.join(sorted(kinds))}")
    return Values(frozenset(values), is_list=True)


def _value(result: object) -> Value:
    value = typed_value(result)
    if value is None:
        raise CELRuntimeError(f"unsupported result type {type(result).__name__}")
    return value
