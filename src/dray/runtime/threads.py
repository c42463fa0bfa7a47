"""Threads for functions that release the interpreter; each user has one at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")


class FairThreads:
    """Calls functions in a fixed number of threads. Functions of the same user wait for each other, in order.

    A function cannot be interrupted: if its caller is cancelled, it keeps its thread until it returns.
    """

    def __init__(self, count: int) -> None:
        # Starts its threads when they are first needed.
        self._executor: Final = ThreadPoolExecutor(count, thread_name_prefix="fair")
        self._free: Final = asyncio.Semaphore(count)
        self._users: Final[WeakValueDictionary[str, asyncio.Lock]] = WeakValueDictionary()

    async def call(self, user: str, function: Callable[[], T]) -> tuple[T, float]:
        """Return the result, and the processor time that it took."""
        turn = self._users.setdefault(user, asyncio.Lock())
        await turn.acquire()
        try:
            await self._free.acquire()
        except BaseException:
            turn.release()
            raise

        def release(done: asyncio.Future[tuple[T, float]]) -> None:
            self._free.release()
            turn.release()
            # Nobody asks for it if the caller was cancelled.
            done.exception()

        future = asyncio.get_running_loop().run_in_executor(self._executor, partial(_timed, function))
        future.add_done_callback(release)
        return await asyncio.shield(future)


def _timed(function: Callable[[], T]) -> tuple[T, float]:
    started = time.thread_time()
    return function(), time.thread_time() - started
