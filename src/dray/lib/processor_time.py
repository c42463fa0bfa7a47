"""The processor time that one step of the event loop may use. Pure: the clock is passed in.

A step is what a request does between two waits; while it runs, everybody else waits. Whoever runs requests puts a
`StepMeter` into the context for each of them (`metered`), and calls `begin` and `end` around its steps. Code whose work
grows with a request calls `check` at least once per millisecond of work, or `tick` for every element, and only where
nothing outside of the request has been changed yet. A step that has used its allowance raises
`ProcessorTimeExceededError`, which nobody catches but whoever has set the meter: it repeats the request where it holds
up nobody, or gives it up.

Without a meter, as in tools, controllers and tasks of the server itself, `check` does nothing. Neither does it between
steps, so that a task that a request has started, and that inherits its context, is not measured by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

# Elements between two readings of the clock: each takes at most some ten microseconds.
_TICKS_UNCHECKED: Final = 32


class ProcessorTimeExceededError(Exception):
    """A step has used its processor time; what it has computed is lost, and nothing else."""


class StepMeter:
    """Measures the steps of one request.

    The time counts from the first check of a step: a step that checks nothing, as most do, reads no clock.
    """

    __slots__ = ("_ends_at", "_now", "_runs", "_seconds", "_ticks", "expressions_end")

    def __init__(self, now: Callable[[], float], seconds: float, *, expressions_end: bool = False) -> None:
        # The processor time of the thread, so that a busy machine ends no request.
        self._now: Final = now
        self._seconds: Final = seconds
        # Whether expressions (CEL) end with an error of their own, after half of the time: where the request is not
        # repeated elsewhere, its user then learns which expression was too expensive.
        self.expressions_end: Final = expressions_end
        self._runs = False
        self._ends_at: float | None = None
        # The ticks until the clock is read.
        self._ticks = _TICKS_UNCHECKED

    @classmethod
    def unlimited(cls) -> StepMeter:
        """Return a meter that ends no step."""
        return cls(lambda: 0.0, 1.0)

    def begin(self) -> None:
        """Begin a step."""
        self._runs = True
        self._ends_at = None

    def end(self) -> None:
        """End a step."""
        self._runs = False

    def check(self) -> None:
        """Raise if the step has used its time."""
        if self._runs and self._left() <= 0.0:
            raise ProcessorTimeExceededError

    def tick(self) -> None:
        """Check once in a while."""
        self._ticks -= 1
        if self._ticks <= 0:
            self._ticks = _TICKS_UNCHECKED
            self.check()

    def is_expression_over(self) -> bool:
        """Return whether an expression must end; raise if the whole step must."""
        if not self._runs:
            return False
        left = self._left()
        if self.expressions_end:
            return left <= self._seconds / 2
        if left <= 0.0:
            raise ProcessorTimeExceededError
        return False

    def _left(self) -> float:
        now = self._now()
        if self._ends_at is None:
            self._ends_at = now + self._seconds
        return self._ends_at - now


_METER: Final[ContextVar[StepMeter | None]] = ContextVar("step meter", default=None)


@contextmanager
def metered(meter: StepMeter) -> Iterator[None]:
    """Measure what the block runs, in steps that its owner begins and ends."""
    token = _METER.set(meter)
    try:
        yield
    finally:
        _METER.reset(token)


def check() -> None:
    """Raise `ProcessorTimeExceededError` if the running step has used its time."""
    meter = _METER.get()
    if meter is not None:
        meter.check()


def tick() -> None:
    """Count one element of a traversal, and check once in a while."""
    meter = _METER.get()
    if meter is not None:
        meter.tick()


def expression_limit() -> Callable[[], bool] | None:
    """Return the check of expressions, which are evaluated in one step; None if nothing is measured."""
    meter = _METER.get()
    return None if meter is None else meter.is_expression_over
