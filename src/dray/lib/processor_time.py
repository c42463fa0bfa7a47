"""The time of a request's steps, and the places where a long one is suspended. Pure: the clocks are passed in.

A step is what a request does between two waits; while it runs, everybody else waits. Whoever runs requests puts a
`StepMeter` into the context for each of them (`metered`), and calls `begin` and `end` around its steps. Code whose work
grows with a request calls `check` at least once per millisecond of work, or `tick` for every element. A step that has
used its slice is suspended there: other requests run, and it continues as if nothing had happened, or ends with what
is raised into it (its deadline, or a client that is gone). A check is therefore like an `await`: it must not stand
between reading something that is shared and changing it, nor in a loop over something that others change.

Without a meter, as in tools, controllers and tasks of the server itself, `check` does nothing. Neither does it between
steps, so that a task that a request has started, and that inherits its context, is not measured by it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from typing import Any, Final, TypeVar

T = TypeVar("T")

# Elements between two readings of the clock: each takes at most some ten microseconds.
_TICKS_UNCHECKED: Final = 32


class StepMeter:
    """Measures the steps of one request, each from where it begins or continues."""

    __slots__ = (
        "_aside",
        "_expression_seconds",
        "_now",
        "_processor_seconds",
        "_runs",
        "_slice_seconds",
        "_suspend",
        "_ticks",
        "_used",
        "_used_at",
        "began_at",
    )

    def __init__(
        self,
        now: Callable[[], float],
        processor_seconds: Callable[[], float],
        suspend: Callable[[], object],
        aside: Callable[[Callable[[], Any]], tuple[Any, float]],
        *,
        slice_seconds: float,
        expression_seconds: float,
    ) -> None:
        # Elapsed time, which costs a tenth of the processor time to read: slices are what others wait for.
        self._now: Final = now
        # That of the thread, so that a busy machine ends no expression.
        self._processor_seconds: Final = processor_seconds
        # Returns when the step may continue; `end` and `begin` are called meanwhile.
        self._suspend: Final = suspend
        # Suspends the step until a thread has called the function; returns its result, and the time that it took.
        self._aside: Final = aside
        self._slice_seconds: Final = slice_seconds
        # What a request may have used when one of its expressions (CEL) is evaluated.
        self._expression_seconds: Final = expression_seconds
        # The processor time of all slices that were used up, and that of the thread when the running one began.
        self._used = 0.0
        self._used_at: float | None = None
        self._runs = False
        # When the running step began or continued.
        self.began_at = 0.0
        # The ticks until the clock is read.
        self._ticks = _TICKS_UNCHECKED

    def begin(self) -> None:
        """Begin a step, or continue one."""
        self._runs = True
        self.began_at = self._now()

    def end(self) -> None:
        """End a step, or interrupt one."""
        self._runs = False
        self._used_at = None

    def check(self) -> None:
        """Suspend the step if it has used its slice."""
        if self._runs and self._now() - self.began_at >= self._slice_seconds:
            self._interrupt()

    def _interrupt(self) -> None:
        # In the first slice of a step, only elapsed time is measured.
        self._used += self._slice_seconds if self._used_at is None else self._processor_seconds() - self._used_at
        self._suspend()
        self._used_at = self._processor_seconds()

    def tick(self, elements: int = 1) -> None:
        """Check once in a while."""
        self._ticks -= elements
        if self._ticks <= 0:
            self._ticks = _TICKS_UNCHECKED
            self.check()

    def run_aside(self, function: Callable[[], T]) -> T:
        """Call a function in a thread if a step runs."""
        if not self._runs:
            return function()
        result, seconds = self._aside(function)
        self._used += seconds
        found: T = result
        return found

    def is_expression_over(self) -> bool:
        """Check, and return whether the request has used what it may use for expressions."""
        self.check()
        return self._runs and self._used >= self._expression_seconds


_METER: Final[ContextVar[StepMeter | None]] = ContextVar("step meter", default=None)


@contextmanager
def metered(meter: StepMeter) -> Iterator[None]:
    """Measure what the block runs, in steps that its owner begins and ends."""
    token = _METER.set(meter)
    try:
        yield
    finally:
        _METER.reset(token)


@contextmanager
def unmetered() -> Iterator[None]:
    """Suspend no step within the block, which changes what others read."""
    token = _METER.set(None)
    try:
        yield
    finally:
        _METER.reset(token)


def check() -> None:
    """Suspend the running step if it has used its slice."""
    meter = _METER.get()
    if meter is not None:
        meter.check()


def tick(elements: int = 1) -> None:
    """Count elements of a traversal, and check once in a while."""
    meter = _METER.get()
    if meter is not None:
        meter.tick(elements)


def run_aside(function: Callable[[], T]) -> T:
    """Call a function that takes long and releases the interpreter, and suspend the running step meanwhile."""
    meter = _METER.get()
    return function() if meter is None else meter.run_aside(function)


def ticking(items: Collection[T]) -> Iterable[T]:
    """Return the elements, to be iterated over once, and check once in a while meanwhile."""
    meter = _METER.get()
    if meter is None:
        return items
    if len(items) > _TICKS_UNCHECKED:
        return _checking(meter, items)
    meter.tick(len(items))
    return items


def _checking(meter: StepMeter, items: Iterable[T]) -> Iterator[T]:
    iterator = iter(items)
    while part := tuple(islice(iterator, _TICKS_UNCHECKED)):
        yield from part
        meter.check()


def expression_limit() -> Callable[[], bool] | None:
    """Return the check of expressions, which are evaluated in one step; None if nothing is measured."""
    meter = _METER.get()
    return None if meter is None else meter.is_expression_over
