"""Work queues with the guarantees of client-go. `QueueState` decides and is pure, `WorkQueue` waits for keys.

* A key is never processed by two workers at a time. A key added while it is processed is processed again afterwards.
* Adding a key that is already queued changes nothing. Keys are processed in the order in which they were added.
* A key added with a delay is queued when the delay is over; the shortest of several delays counts.
* A retried key waits 5 ms, doubling up to 1000 s, and no less than the overall rate limit demands. A conflict with
  another writer is not a failure: such keys wait for their own backoff only.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics, exponential_buckets
from dray.runtime.tasks import ChildTasks, Timer

K = TypeVar("K", bound=Hashable)

# client-go's DefaultTypedControllerRateLimiter.
RETRY_FIRST_SECONDS: Final = 0.005
RETRY_MAX_SECONDS: Final = 1000.0
RETRY_RATE_PER_SECOND: Final = 10.0
RETRY_BURST: Final = 100
# Keys of deleted objects whose failures are kept.
GONE_MAX: Final = 1024


class QueueObserver(Protocol):
    """Receives what metrics need."""

    def added(self) -> None:
        """Record that a key entered the queue."""

    def started(self, waited_seconds: float, /) -> None:
        """Record that a worker took a key from the queue."""

    def finished(self, worked_seconds: float, /) -> None:
        """Record that a worker is done with a key."""

    def retried(self) -> None:
        """Record that a key was added with backoff."""


class NoopObserver:
    """Records nothing."""

    def added(self) -> None:
        """Do nothing."""

    def started(self, waited_seconds: float) -> None:
        """Do nothing."""

    def finished(self, worked_seconds: float) -> None:
        """Do nothing."""

    def retried(self) -> None:
        """Do nothing."""


class TokenBucket:
    """A token bucket rate limiter; tokens may be reserved ahead of time, at the price of a delay."""

    # There is one for each of thousands of objects with events.
    __slots__ = ("_burst", "_last", "_rate", "_tokens")

    def __init__(self, *, rate_per_second: float, burst: int) -> None:
        self._rate = rate_per_second
        self._burst = float(burst)
        self._tokens = float(burst)
        self._last = 0.0

    def reserve(self, now: float) -> float:
        """Take a token; return the seconds until it is available."""
        self._refill(now)
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._rate)

    def try_take(self, now: float) -> bool:
        """Take a token if one is available."""
        self._refill(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def _refill(self, now: float) -> None:
        if now > self._last:
            self._tokens = min(self._burst, self._tokens + (now - self._last) * self._rate)
            self._last = now


class RetryLimiter(Generic[K]):
    """The delay of a failed key: the longer of its own backoff and the overall rate limit."""

    def __init__(self, *, first_seconds: float = RETRY_FIRST_SECONDS, max_seconds: float = RETRY_MAX_SECONDS) -> None:
        self._first = first_seconds
        self._max = max_seconds
        self._failures: dict[K, int] = {}
        # The failures of keys whose objects were deleted, oldest first.
        self._gone: OrderedDict[K, int] = OrderedDict()
        self._bucket = TokenBucket(rate_per_second=RETRY_RATE_PER_SECOND, burst=RETRY_BURST)

    def delay(self, key: K, now: float, *, overall: bool = True) -> float:
        """Count a failure and return the delay; `overall` applies the rate limit of all keys."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        # Beyond 2**60 the bound holds anyway; the exponent must not grow without end.
        own = min(self._first * 2.0 ** min(failures, 60), self._max)
        return max(own, self._bucket.reserve(now)) if overall else own

    def failures(self, key: K) -> int:
        """Return how often the key failed in a row."""
        return self._failures.get(key, 0)

    def forget(self, key: K) -> None:
        """Reset the backoff of a key that succeeded."""
        self._failures.pop(key, None)

    def object_deleted(self, key: K) -> None:
        """Keep the failures of a key whose object was deleted for the next one of its name."""
        failures = self._failures.get(key)
        if failures is not None:
            self._gone[key] = failures
            if len(self._gone) > GONE_MAX:
                self._gone.popitem(last=False)

    def object_created(self, key: K) -> None:
        """Go on with the failures of an earlier object of the name: recreating it does not restart the backoff."""
        failures = self._gone.pop(key, None)
        if failures is not None:
            self._failures[key] = failures


class QueueLoad(NamedTuple):
    """The keys of a queue at one moment, for metrics."""

    depth: int
    # Of the keys being processed: the sum, and the longest.
    unfinished_seconds: float
    longest_seconds: float


class QueueState(Generic[K]):
    """The state of a work queue; time is an argument."""

    def __init__(self, limiter: RetryLimiter[K] | None = None, observer: QueueObserver | None = None) -> None:
        self._limiter: RetryLimiter[K] = limiter or RetryLimiter()
        self._observer = observer or NoopObserver()
        # Changed by this class only.
        self.waiting: deque[K] = deque()
        # Keys with the time they were added: those in `waiting`, and those added while being processed.
        self._dirty: dict[K, float] = {}
        # Keys being processed, with the time of their start.
        self._processing: dict[K, float] = {}
        # (due, order, key); an entry is valid only while `_delayed` has the same time for its key.
        self._timers: list[tuple[float, int, K]] = []
        self._delayed: dict[K, float] = {}
        self._order = 0

    def add(self, key: K, now: float) -> None:
        """Add a key."""
        if key in self._dirty:
            return
        self._dirty[key] = now
        if key not in self._processing:
            self.waiting.append(key)
            self._observer.added()

    def add_after(self, key: K, delay_seconds: float, now: float) -> None:
        """Add a key when the delay is over."""
        if delay_seconds <= 0:
            self.add(key, now)
            return
        # A delay that is over has added its key; it is not a shorter delay.
        self.fire_timers(now)
        due = now + delay_seconds
        if self._delayed.get(key, due + 1) <= due:
            return
        self._delayed[key] = due
        self._order += 1
        heapq.heappush(self._timers, (due, self._order, key))

    def add_rate_limited(self, key: K, now: float, *, overall: bool = True) -> float:
        """Add a key that failed, with backoff; return the delay."""
        self._observer.retried()
        delay = self._limiter.delay(key, now, overall=overall)
        self.add_after(key, delay, now)
        return delay

    def forget(self, key: K) -> None:
        """Reset the backoff of a key that succeeded."""
        self._limiter.forget(key)

    def object_deleted(self, key: K) -> None:
        """Keep the backoff of a key whose object was deleted for the next one of its name."""
        self._limiter.object_deleted(key)

    def object_created(self, key: K) -> None:
        """Go on with the backoff of an earlier object of the name."""
        self._limiter.object_created(key)

    def failures(self, key: K) -> int:
        """Return how often the key failed in a row."""
        return self._limiter.failures(key)

    def take(self, now: float) -> K | None:
        """Return the next key, or None; the caller must call `done` with it."""
        if self._timers:
            self.fire_timers(now)
        if not self.waiting:
            return None
        key = self.waiting.popleft()
        added = self._dirty.pop(key)
        self._processing[key] = now
        self._observer.started(now - added)
        return key

    def done(self, key: K, now: float) -> None:
        """Mark the key as processed, successfully or not."""
        started = self._processing.pop(key)
        self._observer.finished(now - started)
        if key in self._dirty:
            self.waiting.append(key)
            self._observer.added()

    def next_timer(self) -> float | None:
        """Return when the next delayed key is due."""
        while self._timers and self._delayed.get(self._timers[0][2]) != self._timers[0][0]:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def load(self, now: float) -> QueueLoad:
        """Return how many keys wait, and how long those being processed have taken so far."""
        ages = [now - started for started in tuple(self._processing.values())]
        return QueueLoad(len(self.waiting), sum(ages), max(ages, default=0.0))

    @property
    def idle(self) -> bool:
        """Whether no key waits, is delayed or is being processed."""
        return not (self.waiting or self._processing or self._delayed)

    def __len__(self) -> int:
        return len(self.waiting)

    def fire_timers(self, now: float) -> None:
        """Add the keys whose delay is over; the other methods do so themselves."""
        while True:
            due = self.next_timer()
            if due is None or due > now:
                return
            key = heapq.heappop(self._timers)[2]
            del self._delayed[key]
            self.add(key, now)


class WorkQueue(Generic[K]):
    """A work queue that workers wait on."""

    def __init__(self, queue: QueueState[K], clock: Clock) -> None:
        self._queue = queue
        self._clock = clock
        self._waiters: deque[asyncio.Future[None]] = deque()
        # Workers that were woken and have not run yet.
        self._woken = 0
        self._tasks = ChildTasks("workqueue")
        self._timer = Timer(clock, self._on_timer, self._tasks, "workqueue timer")
        self._timer_due = 0.0

    def add(self, key: K) -> None:
        """Add a key."""
        self._queue.add(key, self._clock.monotonic())
        self._wake_workers()

    def add_after(self, key: K, delay_seconds: float) -> None:
        """Add a key when the delay is over."""
        self._queue.add_after(key, delay_seconds, self._clock.monotonic())
        self._wake_workers()
        self._arm_timer()

    def add_rate_limited(self, key: K, *, overall: bool = True) -> float:
        """Add a key that failed, with backoff; return the delay."""
        delay = self._queue.add_rate_limited(key, self._clock.monotonic(), overall=overall)
        self._wake_workers()
        self._arm_timer()
        return delay

    def forget(self, key: K) -> None:
        """Reset the backoff of a key that succeeded."""
        self._queue.forget(key)

    def object_deleted(self, key: K) -> None:
        """Keep the backoff of a key whose object was deleted for the next one of its name."""
        self._queue.object_deleted(key)

    def object_created(self, key: K) -> None:
        """Go on with the backoff of an earlier object of the name."""
        self._queue.object_created(key)

    def failures(self, key: K) -> int:
        """Return how often the key failed in a row."""
        return self._queue.failures(key)

    async def get(self) -> K:
        """Return the next key; the caller must call `done` with it."""
        while True:
            key = self._queue.take(self._clock.monotonic())
            if key is not None:
                self._wake_workers()
                return key
            await self._wait()

    def done(self, key: K) -> None:
        """Mark the key as processed."""
        self._queue.done(key, self._clock.monotonic())
        self._wake_workers()

    def __len__(self) -> int:
        return len(self._queue.waiting)

    @property
    def idle(self) -> bool:
        """Whether no key waits, is delayed or is being processed."""
        return self._queue.idle

    async def supervise(self) -> None:
        """Raise the failure of the timer; until then wait, and stop the timer when cancelled."""
        await self._tasks.supervise()

    def close(self) -> None:
        """Stop the timer."""
        self._timer.cancel()

    async def _wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._arm_timer()
        try:
            await waiter
        except asyncio.CancelledError:
            # The next worker takes the key that a cancelled one was woken for.
            if not waiter.cancelled():
                self._woken -= 1
                self._wake_workers()
            raise
        self._woken -= 1

    def _wake_workers(self) -> None:
        """Wake as many workers as keys wait."""
        while self._waiters and self._woken < len(self._queue.waiting):
            waiter = self._waiters.popleft()
            if not waiter.done():
                self._woken += 1
                waiter.set_result(None)

    def _arm_timer(self) -> None:
        """Wake a waiting worker when the next delayed key is due; a busy one checks when it is done."""
        due = self._queue.next_timer() if self._waiters else None
        if due is None or (self._timer.active and self._timer_due <= due):
            return
        self._timer_due = due
        self._timer.start(due - self._clock.monotonic())

    def _on_timer(self) -> None:
        self._queue.fire_timers(self._clock.monotonic())
        self._wake_workers()
        self._arm_timer()


# Kubernetes' buckets: 10 ns to 10 s.
_BUCKETS: Final = exponential_buckets(start=1e-8, factor=10, count=10)

ReadLoad: TypeAlias = Callable[[], QueueLoad]
# The queues by metrics registry and name; those of one name are counted together.
_queues: WeakKeyDictionary[Metrics, dict[str, list[ReadLoad]]] = WeakKeyDictionary()


class QueueMetrics:
    """Implements `QueueObserver` with the metrics of client-go's work queues; gauges are read when they are scraped."""

    def __init__(self, metrics: Metrics, name: str, load: ReadLoad) -> None:
        labels = ("name",)
        queues = _queues.setdefault(metrics, {}).setdefault(name, [])
        queues.append(load)
        adds = metrics.counter("workqueue_adds_total", "Adds handled by the queue", labels).labels(name)
        metrics.gauge("workqueue_depth", "Current depth of the queue", labels).labels(name).set_function(
            lambda: sum(queue().depth for queue in queues)
        )
        waits = metrics.histogram(
            "workqueue_queue_duration_seconds",
            "Time that an item stays in the queue before it is processed",
            labels,
            _BUCKETS,
        ).labels(name)
        works = metrics.histogram(
            "workqueue_work_duration_seconds", "Time to process an item", labels, _BUCKETS
        ).labels(name)
        retries = metrics.counter("workqueue_retries_total", "Retries handled by the queue", labels).labels(name)
        metrics.gauge("workqueue_unfinished_work_seconds", "Total age of the work items in progress", labels).labels(
            name
        ).set_function(lambda: sum(queue().unfinished_seconds for queue in queues))
        metrics.gauge(
            "workqueue_longest_running_processor_seconds", "Age of the longest-running work item", labels
        ).labels(name).set_function(lambda: max(queue().longest_seconds for queue in queues))
        # The methods of the metrics themselves, since each key calls three of them.
        self.added: Callable[[], None] = adds.inc
        self.started: Callable[[float], None] = waits.observe
        self.finished: Callable[[float], None] = works.observe
        self.retried: Callable[[], None] = retries.inc
