"""Timeouts of many short tasks with one timer, where a timer of the event loop for each would cost too much."""

from __future__ import annotations

import asyncio
from types import TracebackType


class SharedTimeout:
    """Like `asyncio.timeout`, with one duration for all its blocks: `with timeout.block(): ...`.

    The deadlines are in the order in which the blocks began, so that one timer, for the oldest, is enough. It is set
    again only when it fires: a block that ends in time costs an entry in a dictionary. Without `keep_timer`, the end of
    the last block cancels the timer.
    """

    def __init__(self, seconds: float, *, keep_timer: bool = True) -> None:
        self.seconds = seconds
        self._keep_timer = keep_timer
        # In the order of their deadlines.
        self._blocks: dict[_Block, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def block(self) -> _Block:
        """Return a block for the current task; TimeoutError is raised from it when it takes too long."""
        return _Block(self)

    def enter(self, block: _Block) -> None:
        """Begin a block; called by the block itself."""
        loop = asyncio.get_running_loop()
        block.deadline = loop.time() + self.seconds
        self._blocks[block] = None
        if self._timer is None:
            self._timer = loop.call_at(block.deadline, self._expire)

    def leave(self, block: _Block) -> None:
        """End a block; called by the block itself."""
        self._blocks.pop(block, None)
        if not self._keep_timer and not self._blocks and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._blocks:
            oldest = next(iter(self._blocks))
            if oldest.deadline > now:
                self._timer = loop.call_at(oldest.deadline, self._expire)
                return
            del self._blocks[oldest]
            oldest.expire()


class _Block:
    """One use of a timeout, with the semantics of `asyncio.Timeout`: a cancellation by others stays one."""

    __slots__ = ("_cancelling", "_expired", "_task", "_timeout", "deadline")

    def __init__(self, timeout: SharedTimeout) -> None:
        self._timeout = timeout
        self._expired = False
        self.deadline = 0.0

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._timeout.enter(self)

    def expire(self) -> None:
        """Interrupt the task."""
        self._expired = True
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._timeout.leave(self)
        if self._expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error
