"""An event loop in its own thread, so that a cluster runs while a test blocks."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Generic, TypeVar

from dray.runtime.tasks import ChildTasks, first_completed

T = TypeVar("T")

CLOSE_SECONDS_MAX: Final = 10.0


class ContextTask(Generic[T]):
    """An async context manager that runs in its own task, so that other tasks may enter and leave it.

    If the context fails while it is open, the failure is logged at once and raised by `stop`.
    """

    def __init__(self, value: T, tasks: ChildTasks, task: asyncio.Task[None], stopping: asyncio.Event) -> None:
        self.value: Final = value
        self._tasks = tasks
        self._task = task
        self._stopping = stopping

    @classmethod
    async def start(cls, context: AbstractAsyncContextManager[T], name: str) -> ContextTask[T]:
        """Enter the context."""
        entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        stopping = asyncio.Event()

        async def run() -> None:
            async with context as value:
                entered.set_result(value)
                await stopping.wait()

        tasks = ChildTasks(name)
        task = tasks.spawn(run(), name)
        try:
            await first_completed(task, entered)
        except BaseException:
            with contextlib.suppress(BaseException):
                await tasks.aclose()
            raise
        return cls(entered.result(), tasks, task, stopping)

    async def stop(self) -> None:
        """Leave the context."""
        self._stopping.set()
        await asyncio.wait([self._task])
        await self._tasks.aclose()


class EventLoopThread:
    """An event loop for all clusters of a process: gRPC works best with a single loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="dray cluster", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for its result; interrupting the wait cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("called from the cluster's own thread, which would block; call it from another thread")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Stop the loop and its thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(CLOSE_SECONDS_MAX)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
        finally:
            self.loop.close()
