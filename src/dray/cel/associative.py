"""Lists of custom resources that are sets or maps: their order does not count, and adding merges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dray.cel.errors import CELRuntimeError
from dray.cel.values import Budget

Equals = Callable[[Budget, Any, Any], bool]


class SetList(list[Any]):
    """A list of `x-kubernetes-list-type: set`."""

    __slots__ = ()

    def equals(self, budget: Budget, other: Sequence[Any], same: Equals) -> bool:
        """Whether both have the same elements."""
        budget.spend(len(self) * len(other) // 2)
        return len(self) == len(other) and all(any(same(budget, mine, yours) for yours in other) for mine in self)

    def merged(self, budget: Budget, other: list[Any], same: Equals) -> SetList:
        """The elements of this list, then those of the other that are new."""
        budget.spend(len(self) * len(other) // 2)
        return SetList([*self, *(yours for yours in other if not any(same(budget, mine, yours) for mine in self))])


class MapList(list[Any]):
    """A list of `x-kubernetes-list-type: map`; its elements are known by the values of some fields."""

    __slots__ = ("keys",)

    def __init__(self, values: list[Any], keys: tuple[str, ...]) -> None:
        super().__init__(values)
        self.keys = keys

    def equals(self, budget: Budget, other: Sequence[Any], same: Equals) -> bool:
        """Whether both have equal elements under the same keys."""
        yours = self._by_key(other)
        if len(self) != len(other):
            return False
        return all(key in yours and same(budget, value, yours[key]) for key, value in self._by_key(self).items())

    def merged(self, budget: Budget, other: list[Any], _: Equals) -> MapList:
        """The elements of this list in their places, overwritten by those of the other with the same key."""
        budget.spend(len(self) + len(other))
        return MapList(list((self._by_key(self) | self._by_key(other)).values()), self.keys)

    def _by_key(self, values: Sequence[Any]) -> dict[tuple[Any, ...], Any]:
        try:
            return {tuple([(type(value.get(key)), value.get(key)) for key in self.keys]): value for value in values}
        except (AttributeError, TypeError):
            raise CELRuntimeError("list element has no usable key") from None
