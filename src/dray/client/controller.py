"""Controllers: informers feed keys to a work queue, and workers reconcile them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sized
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from dray.api.errors import APIError, ConflictError
from dray.client.informer import ALWAYS, Handler
from dray.client.shared_informers import SharedInformer
from dray.client.workqueue import QueueMetrics, QueueState, RetryLimiter, WorkQueue
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup, yield_to_others

_log = logging.getLogger(__name__)

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class TerminalError(Exception):
    """A failure that a retry cannot fix; the key waits for its next change."""


@dataclass(frozen=True, slots=True)
class Requeue:
    """Process the key again after a delay, although nothing failed."""

    after_seconds: float


Result: TypeAlias = Requeue | None


class Controller(Generic[K]):
    """Informer, keys, work queue, `reconcile(key)`; failed keys are retried with backoff."""

    def __init__(
        self,
        name: str,
        reconcile: Callable[[K], Awaitable[Result]],
        clock: Clock,
        *,
        metrics: Metrics | None = None,
        workers: int = 1,
    ) -> None:
        self.name = name
        self._reconcile = reconcile
        self._workers = workers
        self._informers: list[SharedInformer[Any]] = []
        limiter: RetryLimiter[K] = RetryLimiter()
        if metrics is None:
            queue: QueueState[K] = QueueState(limiter)
        else:
            observer = QueueMetrics(metrics, name, lambda: queue.load(clock.monotonic()))
            queue = QueueState(limiter, observer)
        self.queue = WorkQueue(queue, clock)

    def watch(
        self, informer: SharedInformer[T], keys: Callable[[T], Iterable[K]], *, keeps_backoff: bool = False
    ) -> None:
        """Enqueue the keys of an object whenever it changes, those of its old state too.

        With `keeps_backoff`, an object that is deleted and created again does not restart the backoff of its keys.
        """

        def handler(old: T | None, new: T | None) -> None:
            for obj in (old, new):
                if obj is not None:
                    for key in keys(obj):
                        self.queue.add(key)
                        if not keeps_backoff or (old is not None and new is not None):
                            continue
                        (self.queue.object_deleted if new is None else self.queue.object_created)(key)

        self.follow(informer, handler)

    def follow(self, informer: SharedInformer[T], handler: Handler[T], *, needed_while: Sized = ALWAYS) -> None:
        """Add a handler that enqueues keys itself; the workers start when the informer has synced.

        It is not called while the collection `needed_while` is empty; see `Informer.add_handler`.
        """
        self._informers.append(informer)
        informer.add_handler(handler, needed_while=needed_while)

    async def run(self) -> None:
        """Process keys until cancelled."""
        for informer in self._informers:
            await informer.wait_for_sync()
        try:
            async with TaskGroup(self.name) as group:
                group.spawn(self.queue.supervise(), f"{self.name} queue")
                for number in range(self._workers):
                    group.spawn(self._work(), f"{self.name} worker {number}")
                await group.wait()
        finally:
            self.queue.close()

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            try:
                await self._process(key)
            finally:
                self.queue.done(key)
            # A reconcile that never suspends must still let the informers run.
            if len(self.queue):
                await yield_to_others()

    async def _process(self, key: K) -> None:
        try:
            result = await self._reconcile(key)
        except TerminalError as error:
            _log.error("reconcile failed, will not be retried", extra=self._fields(key, error))
        except Exception as error:  # noqa: BLE001 - one key's failure must not stop the workers
            self._log_failure(key, error)
            self.queue.add_rate_limited(key, overall=not isinstance(error, ConflictError))
            return
        else:
            if result is not None:
                self.queue.add_after(key, result.after_seconds)
        self.queue.forget(key)

    def _log_failure(self, key: K, error: Exception) -> None:
        if isinstance(error, ConflictError):
            _log.debug("conflict, will be retried", extra=self._fields(key, error))
        elif isinstance(error, APIError):
            _log.warning("reconcile failed, will be retried", extra=self._fields(key, error))
        else:
            _log.error("reconcile crashed, will be retried", exc_info=error, extra=self._fields(key, error))

    def _fields(self, key: K, error: Exception) -> dict[str, Any]:
        return fields(controller=self.name, key=str(key), error=str(error))
