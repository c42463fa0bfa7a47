"""Tasks that belong together: a crash is logged, stops the others and reaches the owner; leaving cancels."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from types import TracebackType
from typing import Any

from dray.runtime.logs import fields

_log = logging.getLogger(__name__)


class TaskGroup:
    """Runs tasks until the owner leaves `async with`; then whatever still runs is cancelled and awaited.

    The first crash is logged and cancels the owner's wait in `wait`, which raises it.
    """

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()
        self._crash: asyncio.Future[None] | None = None

    async def __aenter__(self) -> TaskGroup:
        """Open the group in the running loop."""
        self._crash = asyncio.get_running_loop().create_future()
        return self

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Start a task; it must not end by an exception other than cancellation."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def wait(self, stop: asyncio.Event | None = None) -> None:
        """Return when `stop` is set or every task has ended; raise when one crashed."""
        assert self._crash is not None, "enter the group first"
        stopped: asyncio.Future[Any] = asyncio.ensure_future(stop.wait() if stop is not None else self._all_ended())
        try:
            waited: set[asyncio.Future[Any]] = {self._crash, stopped}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if self._crash.done():
                self._crash.result()
        finally:
            stopped.cancel()

    async def cancel(self) -> None:
        """Cancel every task and wait until all have ended."""
        while self._tasks:
            pending = tuple(self._tasks)
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            # Done callbacks, which empty the set, run on the loop's next turn.
            await asyncio.sleep(0)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Cancel what still runs; a crash that nobody waited for is raised here."""
        await self.cancel()
        assert self._crash is not None
        if self._crash.done() and not self._crash.cancelled():
            crash = self._crash.exception()
            if crash is not None and error is None:
                raise crash
        else:
            self._crash.cancel()

    async def _all_ended(self) -> None:
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))
            await asyncio.sleep(0)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        _log.error("task crashed", exc_info=error, extra=fields(group=self._name, task=task.get_name()))
        if self._crash is not None and not self._crash.done():
            self._crash.set_exception(error)
