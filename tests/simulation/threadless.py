"""Runs code that uses threads in one thread and in virtual time, so that a run follows from its seed.

Calls in an executor run in the event loop after a random delay. The writer thread of the SQLite store becomes a timer:
what is put into its queue is performed in the event loop, also after a delay.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from queue import Empty
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

from dray.sim.replica.virtual_time import VirtualLoop
from dray.store import writer as writer_module
from dray.store.writer import WriterThread

# An executor or the writer gets to its work within this time.
DELAY_SECONDS_MAX = 0.004

T = TypeVar("T")


class ThreadlessLoop(VirtualLoop):
    """A loop in virtual time whose executors run in the loop itself."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random(0)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        del executor
        future: asyncio.Future[Any] = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - given to the waiting caller
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(self.rng.uniform(0.0, DELAY_SECONDS_MAX), work)
        return future


def run_without_threads(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time and in one thread."""
    with asyncio.Runner(loop_factory=ThreadlessLoop) as runner:
        return runner.run(main)


class _LoopQueue:
    """A queue that reports what is put into it; `get` is only called when there is something."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self.on_put: Callable[[], None] = lambda: None

    def put(self, item: Any) -> None:
        self._items.append(item)
        self.on_put()

    def get(self) -> Any:
        return self._items.popleft()

    def get_nowait(self) -> Any:
        if not self._items:
            raise Empty
        return self._items.popleft()

    def __bool__(self) -> bool:
        return bool(self._items)


class _LoopThread:
    """Stands for the thread of a writer: a round of its work for each time that it is woken."""

    def __init__(self, *, target: Callable[[], None], **_: Any) -> None:
        self._writer: WriterThread = target.__self__  # type: ignore[attr-defined]
        self._loop = asyncio.get_running_loop()
        self._scheduled = False

    def start(self) -> None:
        self._writer._inbox.on_put = self._schedule  # type: ignore[attr-defined]

    def join(self) -> None:
        """Its work is done when the writer has reported so."""

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            rng: random.Random = self._loop.rng  # type: ignore[attr-defined]
            self._loop.call_later(rng.uniform(0.0, DELAY_SECONDS_MAX), self._work)

    def _work(self) -> None:
        self._scheduled = False
        if self._writer._inbox:
            self._writer._work_once()
            self._schedule()


@contextmanager
def threadless_writer() -> Iterator[None]:
    """Stores that are opened inside write in the event loop."""
    threads = SimpleNamespace(Thread=_LoopThread)
    with mock.patch.multiple(writer_module, threading=threads, SimpleQueue=_LoopQueue):
        yield
