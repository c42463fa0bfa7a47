"""The values of the language without a Python type.

Booleans, int64, doubles, strings, bytes, lists, maps and null are Python's own; an unsigned integer is an int
of the class `Uint`, so that numbers compare across types.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dray.cel.errors import CELCostError, CELInterruptedError, CELRuntimeError
from dray.lib.processor_time import ticking

INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1
UINT_MAX: Final = 2**64 - 1
NANOS: Final = 1_000_000_000
# 0001-01-01T00:00:00Z and the last nanosecond of 9999, in nanoseconds since 1970.
TIMESTAMP_MIN: Final = -62_135_596_800 * NANOS
TIMESTAMP_MAX: Final = 253_402_300_799 * NANOS + 999_999_999


class Uint(int):
    """An unsigned 64-bit integer."""

    __slots__ = ()


class BoolKey(enum.Enum):
    """A boolean as a map key; Python's True would equal the key 1."""

    TRUE = True
    FALSE = False


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A signed duration in nanoseconds."""

    nanos: int

    def __post_init__(self) -> None:
        if not INT_MIN <= self.nanos <= INT_MAX:
            raise CELRuntimeError("range error: duration overflow")


@dataclass(frozen=True, slots=True, order=True)
class Timestamp:
    """A time in nanoseconds since 1970."""

    nanos: int

    def __post_init__(self) -> None:
        if not TIMESTAMP_MIN <= self.nanos <= TIMESTAMP_MAX:
            raise CELRuntimeError("range error: timestamp overflow")


@dataclass(frozen=True, slots=True)
class Optional:
    """A value that may be absent."""

    value: Any = None
    present: bool = True


NONE: Final = Optional(None, present=False)

# The work between two checks of the interrupt.
INTERRUPT_INTERVAL: Final = 1000


class Budget:
    """The remaining work of an evaluation."""

    __slots__ = ("_checkpoint", "_interrupt", "remaining")

    def __init__(self, limit: int, interrupt: Callable[[], bool] | None = None) -> None:
        self.remaining = limit
        self._interrupt = interrupt
        # The interrupt is checked when less than this remains.
        self._checkpoint = max(0, limit - INTERRUPT_INTERVAL) if interrupt is not None else 0

    def spend(self, amount: int) -> None:
        """Charge work in advance; raises an error when the budget is exhausted or the evaluation is cancelled."""
        self.remaining -= amount
        if self.remaining < self._checkpoint:
            self._check()

    def _check(self) -> None:
        if self.remaining < 0:
            raise CELCostError
        if self._interrupt is not None:
            if self._interrupt():
                raise CELInterruptedError
            self._checkpoint = max(0, self.remaining - INTERRUPT_INTERVAL)


Equals = Callable[[Budget, Any, Any], bool]


class SetList(list[Any]):
    """A list of `x-kubernetes-list-type: set`."""

    __slots__ = ()

    def equals(self, budget: Budget, other: Sequence[Any], same: Equals) -> bool:
        """Report whether both have the same elements."""
        budget.spend(len(self) * len(other) // 2)
        return len(self) == len(other) and all(
            any(same(budget, mine, yours) for yours in ticking(other)) for mine in self
        )

    def merged(self, budget: Budget, other: list[Any], same: Equals) -> SetList:
        """Return the elements of this list, then the new ones of the other."""
        budget.spend(len(self) * len(other) // 2)
        return SetList(
            [*self, *(yours for yours in other if not any(same(budget, mine, yours) for mine in ticking(self)))]
        )


class MapList(list[Any]):
    """A list of `x-kubernetes-list-type: map`; the values of its keys identify an element."""

    __slots__ = ("keys",)

    def __init__(self, values: list[Any], keys: tuple[str, ...]) -> None:
        super().__init__(values)
        self.keys = keys

    def equals(self, budget: Budget, other: Sequence[Any], same: Equals) -> bool:
        """Report whether both have equal elements under the same keys."""
        yours = self._by_key(other)
        if len(self) != len(other):
            return False
        return all(key in yours and same(budget, value, yours[key]) for key, value in self._by_key(self).items())

    def merged(self, budget: Budget, other: list[Any], _: Equals) -> MapList:
        """Return the elements in order, replaced by those of the other list with the same key."""
        budget.spend(len(self) + len(other))
        return MapList(list((self._by_key(self) | self._by_key(other)).values()), self.keys)

    def _by_key(self, values: Sequence[Any]) -> dict[tuple[Any, ...], Any]:
        try:
            return {tuple([(type(value.get(key)), value.get(key)) for key in self.keys]): value for value in values}
        except (AttributeError, TypeError):
            raise CELRuntimeError("list element has no usable key") from None
