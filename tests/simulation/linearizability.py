"""Checks that a history of concurrent operations is linearizable. Pure.

The search is that of Wing and Gong with the memory of Lowe: it takes any operation that may come first, tries it on the
model, and never visits the same pair of (operations taken, state) twice. Operations of different keys are independent,
so that the histories of keys are checked one by one.

An operation whose answer was lost may have taken effect at any time after its call, up to `returned`, or never.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

S = TypeVar("S", bound=Hashable)
# Bounds the search of one key; a history that needs more is too concurrent to be checked.
STATES_MAX = 2_000_000


class TooComplexError(Exception):
    """The search would take too long; the history is neither accepted nor rejected."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call, and its result unless that is unknown. Times are of one clock, `returned` later than `called`."""

    key: str
    called: float
    returned: float
    # What was asked for and what was answered; given to the model.
    request: Any
    result: Any = None
    # Whether the answer was lost: the operation may or may not have taken effect.
    unknown: bool = False

    def __str__(self) -> str:
        result = "unknown" if self.unknown else self.result
        return f"[{self.called:.4f}, {self.returned:.4f}] {self.key}: {self.request} -> {result}"


@dataclass(frozen=True, slots=True)
class Model(Generic[S]):
    """A sequential object: its first state, and the state after an operation (None if that is impossible there).

    For an operation whose answer was lost the model returns the state that its effect leads to.
    """

    initial: S
    step: Callable[[S, Operation], S | None]


@dataclass(frozen=True, slots=True)
class Violation:
    """A history of one key that no order explains; `longest` is the longest prefix of an order that was found."""

    key: str
    history: tuple[Operation, ...]
    longest: tuple[Operation, ...]

    def __str__(self) -> str:
        done = set(map(id, self.longest))
        rest = [str(operation) for operation in self.history if id(operation) not in done]
        explained = [str(operation) for operation in self.longest]
        return "\n  ".join([f"{self.key} is not linearizable; explained:", *explained, "not explained:", *rest])


def check(history: Iterable[Operation], model: Model[S]) -> Violation | None:
    """Return the first key whose operations no order explains; None if the history is linearizable."""
    by_key: defaultdict[str, list[Operation]] = defaultdict(list)
    for operation in history:
        by_key[operation.key].append(operation)
    for key in sorted(by_key):
        operations = sorted(by_key[key], key=lambda operation: (operation.called, operation.returned))
        longest = _longest_order(operations, model)
        if longest is not None:
            return Violation(key, tuple(operations), longest)
    return None


def _longest_order(operations: Sequence[Operation], model: Model[S]) -> tuple[Operation, ...] | None:
    """Return the longest prefix of an order if no order explains all operations; None if one does."""
    needed = sum(1 << index for index, operation in enumerate(operations) if not operation.unknown)
    # Depth first; an entry has the operations taken, the state after them, and the entry it came from.
    stack: list[tuple[int, S, tuple[Any, ...]]] = [(0, model.initial, ())]
    visited: set[tuple[int, S]] = {(0, model.initial)}
    best: tuple[int, tuple[Any, ...]] = (0, ())
    while stack:
        taken, state, order = stack.pop()
        if taken & needed == needed:
            return None
        if taken.bit_count() > best[0]:
            best = (taken.bit_count(), order)
        for index in _first_possible(operations, taken):
            after = model.step(state, operations[index])
            mark = (taken | 1 << index, after)
            if after is None or mark in visited:
                continue
            if len(visited) >= STATES_MAX:
                raise TooComplexError(f"more than {STATES_MAX} states for {operations[0].key}")
            visited.add(mark)  # type: ignore[arg-type]
            stack.append((taken | 1 << index, after, (index, order)))
    return _unlink(operations, best[1])


def _first_possible(operations: Sequence[Operation], taken: int) -> list[int]:
    """Return the operations that may come next: those called before any other one of the rest has returned."""
    earliest = math.inf
    rest = []
    for index, operation in enumerate(operations):
        if taken >> index & 1:
            continue
        if operation.called > earliest:
            # They are sorted by call: all later ones come after the one that returned first.
            break
        rest.append(index)
        # An operation without effect need not come before anything.
        if not operation.unknown:
            earliest = min(earliest, operation.returned)
    return [index for index in rest if operations[index].called <= earliest and not _too_late(operations, index, taken)]


def _too_late(operations: Sequence[Operation], index: int, taken: int) -> bool:
    """Whether an operation without an answer would take effect after the last moment at which it can have."""
    operation = operations[index]
    if not operation.unknown or math.isinf(operation.returned):
        return False
    return any(taken >> other & 1 and operations[other].called > operation.returned for other in range(len(operations)))


def _unlink(operations: Sequence[Operation], order: tuple[Any, ...]) -> tuple[Operation, ...]:
    indices = []
    while order:
        index, order = order
        indices.append(index)
    return tuple(operations[index] for index in reversed(indices))
