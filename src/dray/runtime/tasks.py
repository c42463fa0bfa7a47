"""Supervised tasks, keyed locks and stop signals. Only this module calls `asyncio.create_task` and `ensure_future`.

`TaskGroup` supervises the tasks of a process or component, `ChildTasks` those of an object that outlives a block, and
`first_completed` and `run_to_completion` those of one call. A failure is never lost: it reaches the owner of the group
or the caller.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
import types
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Generator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, Final, NoReturn, TypeVar

from dray.lib.clock import Clock
from dray.runtime.logs import fields

_log = logging.getLogger(__name__)

T = TypeVar("T")

_NOTE_PREFIX: Final = "raised by task "


class TaskGroup:
    """`asyncio.TaskGroup` for background services: leaving the body cancels the tasks that still run and awaits them.

    When a task fails, the body and the sibling tasks are cancelled and `async with` raises the error, or an exception
    group when there are several. Each failure is logged once, by the innermost group.
    """

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[Any]] = set()
        # Whether the body was left or a task failed.
        self._closing = False

    async def __aenter__(self) -> TaskGroup:
        """Open the group; the current task becomes its owner."""
        await self._group.__aenter__()
        return self

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Start a task. In a group that is closing it is cancelled before its first step."""
        if self._closing:
            task = asyncio.create_task(work, name=name)
            task.cancel()
            return task
        task = self._group.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    async def wait(self, stop: asyncio.Event | None = None) -> None:
        """Return when `stop` is set, or without one when every task has ended."""
        if stop is not None:
            await stop.wait()
            return
        while pending := _pending(self._tasks):
            await asyncio.wait(pending)

    async def cancel(self) -> None:
        """Cancel every task and return when all have ended."""
        while pending := _pending(self._tasks):
            for task in pending:
                task.cancel()
            await asyncio.wait(pending)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Cancel what still runs, await it, and raise the failure of a task."""
        self._closing = True
        if error is None:
            # Still part of the body for `asyncio.TaskGroup`, which is only then sure to take back its own cancellation.
            try:
                await self.cancel()
            except asyncio.CancelledError as cancellation:
                kind, error, traceback = type(cancellation), cancellation, cancellation.__traceback__
        failure = error
        try:
            await self._group.__aexit__(kind, error, traceback)
        except BaseExceptionGroup as failures:
            if len(failures.exceptions) != 1:
                raise
            failure = failures.exceptions[0]
        # Outside the handler, so that the error's own cause and context stay.
        if failure is not None and failure is not error:
            raise failure

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = _failure(task)
        if error is not None:
            self._closing = True
            _log_failure(self._name, task, error)


class ChildTasks:
    """The tasks of one object; the object's `aclose` calls `aclose`, and a supervisor runs `supervise`.

    For objects that start tasks at any time, outside the block of a group. After a failure the siblings go on until
    the supervisor, which gets the error from `supervise`, closes them.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failed = asyncio.Event()
        # The first failure, until `supervise` or `aclose` has raised it.
        self._error: BaseException | None = None

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Start a task."""
        # By the method of the loop, which `asyncio.create_task` takes two more calls for.
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    async def supervise(self) -> NoReturn:
        """Wait for a failure and raise it; close the tasks in any case. To be spawned in the supervisor's group."""
        try:
            await self._failed.wait()
        finally:
            await self.aclose()
        raise AssertionError("closing raises the failure")

    async def aclose(self) -> None:
        """Cancel every task and await it; raise a failure that was not raised before."""
        while pending := _pending(self._tasks):
            for task in pending:
                task.cancel()
            await asyncio.wait(pending)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = _failure(task)
        if error is not None:
            _log_failure(self._name, task, error)
            if self._error is None:
                self._error = error
            self._failed.set()


class CoalescedCall:
    """Calls a coroutine function so that calls never overlap; callers that wait for the same start share one call.

    A call that starts after the caller asked for it serves that caller: a save of the whole state is the typical use.
    """

    def __init__(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._function = function
        self._lock = asyncio.Lock()
        # The call that has not started yet.
        self._next: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        """Return when a call that started after this one has ended, or raise its error."""
        if self._next is None:
            self._next = asyncio.create_task(self._run(), name="coalesced call")
        call = self._next
        try:
            # Shared with other callers: cancelling one of them must not cancel the call.
            await asyncio.shield(call)
        except asyncio.CancelledError:
            call.add_done_callback(_log_unseen_failure)
            raise

    async def _run(self) -> None:
        async with self._lock:
            self._next = None
            await self._function()


class Timer:
    """Calls a function once after a delay; starting it again replaces the delay."""

    def __init__(self, clock: Clock, callback: Callable[[], None], tasks: ChildTasks, name: str = "timer") -> None:
        self._clock = clock
        self._callback = callback
        self._tasks = tasks
        self._name = name
        self._task: asyncio.Task[None] | None = None

    @property
    def active(self) -> bool:
        """Whether the timer was started and has neither fired nor been cancelled."""
        return self._task is not None

    def start(self, seconds: float) -> None:
        """Call the function after so many seconds, and not at an earlier start's time."""
        self.cancel()
        self._task = self._tasks.spawn(self._fire_after(seconds), self._name)

    def cancel(self) -> None:
        """Do not call the function."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _fire_after(self, seconds: float) -> None:
        await self._clock.sleep(max(seconds, 0.0))
        self._task = None
        self._callback()


async def first_completed(*works: Coroutine[Any, Any, Any] | asyncio.Future[Any]) -> tuple[int, Any]:
    """Return the position and the result of the work that ends first, or raise its error.

    The other coroutines are cancelled and awaited. Futures and tasks belong to the caller and are left alone.
    """
    futures = [asyncio.ensure_future(work) for work in works]
    owned = [future for future, work in zip(futures, works, strict=True) if future is not work]
    try:
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        winner = next(position for position, future in enumerate(futures) if future.done())
    finally:
        await cancel_and_wait(owned)
    result = futures[winner].result()
    for future in owned:
        # A loser's error is the caller's as well.
        if not future.cancelled():
            future.result()
    return winner, result


async def run_to_completion(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of work that goes on if the caller is cancelled; the cancellation is raised when it has ended.

    For writes that must not be left in doubt. A failure of the work goes before the cancellation.
    """
    task = asyncio.ensure_future(work)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancellation = error
    result = task.result()
    if cancellation is not None:
        raise cancellation
    return result


@types.coroutine
def yield_to_others() -> Generator[None, None, None]:
    """Let other tasks run once: as `asyncio.sleep(0)`, with half of the calls."""
    yield


async def pause(clock: Clock, wake: asyncio.Event, seconds: float | None) -> None:
    """Return when `wake` is set or the seconds are over; None waits for `wake` alone."""
    if seconds is None:
        await wake.wait()
    else:
        await first_completed(wake.wait(), clock.sleep(max(seconds, 0.0)))


class WakeUpTimer:
    """Sets an event at a time; for a loop that waits often and hardly ever until that time.

    Waiting with `pause` takes two tasks each time. This takes one for as long as it runs.
    """

    def __init__(self, clock: Clock, wake: asyncio.Event) -> None:
        self._clock = clock
        self._wake = wake
        # When the event will be set, in monotonic seconds; None means never.
        self.due: float | None = None
        self._is_earlier = asyncio.Event()

    def set_at(self, due: float) -> None:
        """Set the event at this time, unless it will be set earlier: the loop then finds out what to do."""
        if self.due is None or due < self.due:
            self.due = due
            self._is_earlier.set()

    async def run(self) -> None:
        """Keep the time until cancelled."""
        while True:
            self._is_earlier.clear()
            now = self._clock.monotonic()
            if self.due is not None and self.due <= now:
                self.due = None
                self._wake.set()
            await pause(self._clock, self._is_earlier, None if self.due is None else self.due - now)


async def cancel_and_wait(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel the tasks and return when all have ended; their results are the caller's to read."""
    for task in tasks:
        task.cancel()
    if pending := _pending(tasks):
        await asyncio.wait(pending)


def _pending(tasks: Collection[asyncio.Future[Any]]) -> list[asyncio.Future[Any]]:
    return [task for task in tasks if not task.done()]


def _failure(task: asyncio.Task[Any]) -> BaseException | None:
    return None if task.cancelled() else task.exception()


def _log_unseen_failure(task: asyncio.Task[Any]) -> None:
    error = _failure(task)
    if error is not None:
        _log_failure("", task, error)


def _log_failure(group: str, task: asyncio.Task[Any], error: BaseException) -> None:
    """Log the failure, unless an inner group has done so."""
    if any(note.startswith(_NOTE_PREFIX) for note in getattr(error, "__notes__", ())):
        return
    error.add_note(f"{_NOTE_PREFIX}{task.get_name()!r} of {group!r}")
    _log.error("task crashed", exc_info=error, extra=fields(group=group, task=task.get_name()))


class KeyedLocks:
    """Locks by key. Holders of disjoint sets of keys do not wait for each other."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        # The number of holders and waiters of each key; without any its lock is removed.
        self._users: dict[str, int] = {}

    @asynccontextmanager
    async def held(self, keys: Iterable[str]) -> AsyncIterator[None]:
        """Hold the locks of all keys; they are taken in sorted order, which prevents deadlocks."""
        wanted = sorted(set(keys))
        for key in wanted:
            self._users[key] = self._users.get(key, 0) + 1
        try:
            async with AsyncExitStack() as stack:
                for key in wanted:
                    await stack.enter_async_context(self._locks.setdefault(key, asyncio.Lock()))
                yield
        finally:
            for key in wanted:
                self._users[key] -= 1
                if not self._users[key]:
                    del self._users[key]
                    self._locks.pop(key, None)


SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Ignored by what nohup and scripts start in the background; Windows has neither.
_INHERITED_SIGNALS = tuple(signal.Signals[name] for name in ("SIGHUP", "SIGQUIT") if name in signal.Signals.__members__)


def on_signals(callback: Callable[[signal.Signals], object]) -> None:
    """Call back in the event loop on each signal that asks the process to end."""
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        try:
            loop.add_signal_handler(number, callback, number)
        except NotImplementedError:  # the event loops of Windows

            def handler(received: int, _frame: object) -> None:
                loop.call_soon_threadsafe(callback, signal.Signals(received))

            signal.signal(number, handler)


def stop_on_signals(stop: asyncio.Event) -> None:
    """Set `stop` on the first signal; a second one ends the process with 128 + its number.

    Signals that the process was started to ignore are handled by doing nothing: children would inherit that they are
    ignored, and a command in a container would outlive its terminal.
    """
    on_signals(functools.partial(_on_signal, stop))
    for number in _INHERITED_SIGNALS:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)


def remove_signal_handlers() -> None:
    """Undo `stop_on_signals`."""
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.remove_signal_handler(number)


def _on_signal(stop: asyncio.Event, number: signal.Signals) -> None:
    if stop.is_set():
        os._exit(128 + number)
    _log.info("stopping on %s", number.name)
    stop.set()
