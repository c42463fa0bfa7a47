"""Runs coroutines whose steps can be suspended within ordinary functions, so that a long one holds up nobody.

Each coroutine runs in a greenlet: its stack is kept aside while it is suspended. Awaiting works as ever.
"""

from __future__ import annotations

import asyncio
import math
import time
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Final, TypeVar

from greenlet import getcurrent, greenlet

from dray.lib.processor_time import StepMeter, metered

T = TypeVar("T")

_PART_SECONDS: Final = 0.002


class _Suspension:
    """What a suspended step waits for."""

    __slots__ = ("wait",)

    def __init__(self, wait: Callable[[], Awaitable[Any]]) -> None:
        self.wait: Final = wait


def suspend(wait: Callable[[], Awaitable[T]]) -> T:
    """Suspend the running step until what is returned is awaited, and return its result or raise its error."""
    parent = getcurrent().parent
    assert parent is not None
    result: T = parent.switch(_Suspension(wait))
    return result


async def run_in_parts(work: Callable[[], T]) -> T:
    """Call a function that may take long, outside of requests; the event loop goes on between its parts."""
    meter = StepMeter(
        time.monotonic,
        time.thread_time,
        lambda: suspend(lambda: asyncio.sleep(0)),
        lambda function: (function(), 0.0),
        slice_seconds=_PART_SECONDS,
        expression_seconds=math.inf,
    )

    async def run() -> T:
        return work()

    with metered(meter):
        return await run_in_steps(run(), meter.begin, meter.end)


@types.coroutine
def run_in_steps(
    work: Coroutine[Any, Any, T],
    begin: Callable[[], None],
    end: Callable[[], None],
) -> Generator[Any, Any, T]:
    """Await the coroutine; call `begin` and `end` around its steps and their parts, without the time that it waits."""
    stack = greenlet(_steps)
    # What a step sets in its context is seen by the next one.
    stack.gr_context = getcurrent().gr_context
    resume: Callable[[Any], Any] = stack.switch
    value: Any = work
    while True:
        begin()
        try:
            awaited = resume(value)
        finally:
            # A kept error would refer to this frame, and so to itself.
            value = None
            end()
        if stack.dead:
            result: T = awaited
            return result
        resume = stack.switch
        try:
            if isinstance(awaited, _Suspension):
                value = yield from awaited.wait().__await__()
            else:
                yield awaited
        except BaseException as raised:  # noqa: BLE001 - passed on
            value = raised
            if isinstance(awaited, _Suspension):
                resume = stack.throw


def _steps(work: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine; pass out what it awaits, and get None or an error to raise where it waits."""
    parent = getcurrent().parent
    assert parent is not None
    error: BaseException | None = None
    while True:
        try:
            awaited = work.send(None) if error is None else work.throw(error)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            error = None
        error = parent.switch(awaited)
