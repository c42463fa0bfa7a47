"""A work queue's decisions, with client-go's promises; time is an argument, `client.loop` waits.

* A key is never worked twice at a time; a key added while it is worked is worked again afterwards.
* Adding a key that waits already changes nothing. Keys are worked in the order of their adding.
* A key added with a delay appears when the delay is over; of several delays the shortest counts.
* A retried key waits 5 ms, doubling up to 1000 s, and no sooner than the overall rate allows. A conflict with another
  writer is no sign of trouble: many at once are retried after their own wait alone.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable
from typing import Final, Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)

# client-go's DefaultTypedControllerRateLimiter.
RETRY_FIRST_SECONDS: Final = 0.005
RETRY_MAX_SECONDS: Final = 1000.0
RETRY_RATE_PER_SECOND: Final = 10.0
RETRY_BURST: Final = 100


class QueueObserver(Protocol):
    """Hears what metrics need."""

    def added(self, depth: int) -> None:
        """A key entered the queue."""

    def started(self, depth: int, waited_seconds: float) -> None:
        """A worker took a key that had waited."""

    def finished(self, worked_seconds: float) -> None:
        """A worker is done with a key."""

    def retried(self) -> None:
        """A key was added with backoff."""


class SilentObserver:
    """Hears nothing."""

    def added(self, depth: int) -> None:
        """Ignore it."""

    def started(self, depth: int, waited_seconds: float) -> None:
        """Ignore it."""

    def finished(self, worked_seconds: float) -> None:
        """Ignore it."""

    def retried(self) -> None:
        """Ignore it."""


class TokenBucket:
    """Tokens that come back at a rate, up to a burst; spending ahead is allowed and costs waiting."""

    def __init__(self, *, rate_per_second: float, burst: int) -> None:
        self._rate = rate_per_second
        self._burst = float(burst)
        self._tokens = float(burst)
        self._last = 0.0

    def reserve(self, now: float) -> float:
        """Take a token; returns how long to wait until it is there."""
        self._refill(now)
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._rate)

    def try_take(self, now: float) -> bool:
        """Take a token only if one is there."""
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
    """How long a failed key waits: the longer of its own backoff and the overall rate."""

    def __init__(self, *, first_seconds: float = RETRY_FIRST_SECONDS, max_seconds: float = RETRY_MAX_SECONDS) -> None:
        self._first = first_seconds
        self._max = max_seconds
        self._failures: dict[K, int] = {}
        self._bucket = TokenBucket(rate_per_second=RETRY_RATE_PER_SECOND, burst=RETRY_BURST)

    def delay(self, key: K, now: float, *, overall: bool = True) -> float:
        """Count a failure and return the wait; `overall` says whether the rate of all keys counts too."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        # Beyond 2**60 the bound holds anyway; the exponent must not grow without end.
        own = min(self._first * 2.0 ** min(failures, 60), self._max)
        return max(own, self._bucket.reserve(now)) if overall else own

    def failures(self, key: K) -> int:
        """How often the key failed in a row."""
        return self._failures.get(key, 0)

    def forget(self, key: K) -> None:
        """The key succeeded: start afresh."""
        self._failures.pop(key, None)


class WorkQueue(Generic[K]):
    """See the module's promises."""

    def __init__(self, limiter: RetryLimiter[K] | None = None, observer: QueueObserver | None = None) -> None:
        self._limiter: RetryLimiter[K] = limiter or RetryLimiter()
        self._observer = observer or SilentObserver()
        self._waiting: deque[K] = deque()
        # Keys that need work, with when they were added: in `_waiting`, or added while worked.
        self._dirty: dict[K, float] = {}
        # Keys being worked, with since when.
        self._working: dict[K, float] = {}
        # (when, order, key); an entry counts only while `_delayed` has the same time for its key.
        self._timers: list[tuple[float, int, K]] = []
        self._delayed: dict[K, float] = {}
        self._order = 0

    def add(self, key: K, now: float) -> None:
        """The key needs work."""
        if key in self._dirty:
            return
        self._dirty[key] = now
        if key not in self._working:
            self._waiting.append(key)
            self._observer.added(len(self._waiting))

    def add_after(self, key: K, delay_seconds: float, now: float) -> None:
        """The key needs work when the delay is over."""
        if delay_seconds <= 0:
            self.add(key, now)
            return
        # A delay that is over counts as an adding, not as a shorter delay.
        self.fire_timers(now)
        due = now + delay_seconds
        if self._delayed.get(key, due + 1) <= due:
            return
        self._delayed[key] = due
        self._order += 1
        heapq.heappush(self._timers, (due, self._order, key))

    def add_rate_limited(self, key: K, now: float, *, overall: bool = True) -> float:
        """The key failed and needs work again; returns how long it will wait."""
        self._observer.retried()
        delay = self._limiter.delay(key, now, overall=overall)
        self.add_after(key, delay, now)
        return delay

    def forget(self, key: K) -> None:
        """The key succeeded: its next failure backs off from the beginning."""
        self._limiter.forget(key)

    def failures(self, key: K) -> int:
        """How often the key failed in a row."""
        return self._limiter.failures(key)

    def take(self, now: float) -> K | None:
        """The next key to work, or None; whoever takes one must call `done`."""
        if self._timers:
            self.fire_timers(now)
        if not self._waiting:
            return None
        key = self._waiting.popleft()
        added = self._dirty.pop(key)
        self._working[key] = now
        self._observer.started(len(self._waiting), now - added)
        return key

    def done(self, key: K, now: float) -> None:
        """The key's work has ended, well or not."""
        started = self._working.pop(key)
        self._observer.finished(now - started)
        if key in self._dirty:
            self._waiting.append(key)
            self._observer.added(len(self._waiting))

    def next_timer(self) -> float | None:
        """When the next delayed key is due."""
        while self._timers and self._delayed.get(self._timers[0][2]) != self._timers[0][0]:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def unfinished_seconds(self, now: float) -> tuple[float, float]:
        """How long the keys being worked have taken so far: all together, and the longest."""
        ages = [now - started for started in self._working.values()]
        return sum(ages), max(ages, default=0.0)

    @property
    def idle(self) -> bool:
        """Whether nothing waits, nothing is delayed and nothing is worked."""
        return not (self._waiting or self._working or self._delayed)

    def __len__(self) -> int:
        return len(self._waiting)

    def fire_timers(self, now: float) -> None:
        """Add the keys whose delay is over; the other calls do it by themselves."""
        while True:
            due = self.next_timer()
            if due is None or due > now:
                return
            key = heapq.heappop(self._timers)[2]
            del self._delayed[key]
            self.add(key, now)
