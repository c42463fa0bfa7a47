"""Limits concurrent requests: measures the time they use, and starts or continues them when the fair queue says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final, TypeVar

from dray.api.errors import TooManyRequestsError
from dray.apiserver.call import Pacer
from dray.apiserver.fairness import REJECTED, FairQueue, Rejected, Ticket, TicketState, is_exempt
from dray.apiserver.request import UserInfo
from dray.lib.clock import Clock
from dray.lib.processor_time import StepMeter, metered
from dray.runtime.suspendable import run_in_steps, suspend
from dray.runtime.threads import FairThreads

T = TypeVar("T")

# How often tickets that have waited too long are removed while there are any.
_SWEEP_SECONDS: Final = 1.0
# The time after which a step is suspended. Each suspension costs some 50 microseconds.
SLICE_SECONDS: Final = 0.002
# The processor time that a request may have used when one of its expressions (CEL) is evaluated. Kubernetes' budgets
# count work that takes it a second, and takes up to 12 seconds here.
EXPRESSION_SECONDS_MAX: Final = 5.0

# For matches of regular expressions, which take seconds at worst.
_THREADS: Final = 2


class RequestLimiter:
    """Runs requests; those beyond the limits wait in the fair queue or are rejected."""

    def __init__(
        self, queue: FairQueue, clock: Clock, processor_seconds: Callable[[], float] = time.thread_time
    ) -> None:
        self._queue = queue
        self._processor_seconds: Final = processor_seconds
        self._now: Final = clock.monotonic
        self._turn_seconds: Final = queue.limits.turn_seconds
        self._waiting: dict[Ticket, asyncio.Future[None]] = {}
        self._threads: Final = FairThreads(_THREADS)
        self._turn_scheduled = False
        self._sweeping = False
        # The processor time of the thread when it was last read; reading it takes a microsecond.
        self._read_seconds = processor_seconds()

    async def run(self, user: UserInfo, path: str, work: Callable[[Pacer], Coroutine[Any, Any, T]]) -> T:
        """Run one request when there is a seat for it; `path` is given for non-resource requests."""
        if is_exempt(user, path):
            exempt = _ExemptPacer(self._now, self._turn_seconds)
            meter = self._meter(user, exempt, _charge_nobody)
            with metered(meter):
                return await run_in_steps(work(exempt), meter.begin, meter.end)
        ticket = self._queue.admit(user, self._now())
        if isinstance(ticket, Rejected):
            raise TooManyRequestsError(ticket.message, ticket.retry_after_seconds)
        if not self._turn_scheduled:
            self._schedule_turn()
        if ticket.state is TicketState.WAITING:
            await self._wait_for_seat(ticket)

        pacer = _TicketPacer(self, ticket)
        meter = self._meter(user, pacer, partial(self._queue.charge, ticket))

        def begin() -> None:
            meter.begin()
            ticket.started_at = meter.began_at

        def end() -> None:
            meter.end()
            self._charge(ticket)

        try:
            with metered(meter):
                return await run_in_steps(work(pacer), begin, end)
        finally:
            self._end(ticket)

    def _meter(self, user: UserInfo, pacer: Pacer, charge: Callable[[float], None]) -> StepMeter:
        """Return what suspends the long steps of a request."""

        def aside(function: Callable[[], Any]) -> tuple[Any, float]:
            # It must not refer to the meter, which refers to it: a cycle of each request would be left to collections.
            result, seconds = suspend(lambda: self._threads.call(user.name, function))
            charge(seconds)
            return result, seconds

        return StepMeter(
            self._now,
            self._processor_seconds,
            lambda: suspend(pacer.pause),
            aside,
            slice_seconds=SLICE_SECONDS,
            expression_seconds=EXPRESSION_SECONDS_MAX,
        )

    async def run_watch(self, user: UserInfo, work: Callable[[Pacer], Coroutine[Any, Any, T]]) -> T:
        """Run one watch; its time is measured only where it calls the pacer."""
        ticket = self._queue.admit_watch(user)
        if isinstance(ticket, Rejected):
            raise TooManyRequestsError(ticket.message, ticket.retry_after_seconds)
        exempt = is_exempt(user)
        try:
            return await work(_ExemptPacer(self._now, self._turn_seconds) if exempt else _WatchPacer(self, ticket))
        finally:
            self._queue.release_watch(ticket)

    def is_due(self, ticket: Ticket) -> bool:
        """Return whether the running part of a request has used a turn."""
        return self._now() - ticket.started_at >= self._turn_seconds

    def start(self, ticket: Ticket) -> None:
        """Begin to measure the running part of a request."""
        ticket.started_at = self._now()

    async def pause(self, ticket: Ticket) -> None:
        """Continue a running request when it is the user's turn."""
        self._charge(ticket)
        self._queue.pause(ticket)
        if not self._turn_scheduled:
            self._schedule_turn()
        await self._woken(ticket)

    def _charge(self, ticket: Ticket) -> None:
        """Charge what has run: no more than the thread has used since the turn began, if that is less than elapsed.

        While other programs have the processor, time elapses that nobody has used.
        """
        now = self._now()
        used = now - ticket.started_at
        if used >= self._turn_seconds:
            used = min(used, self._processor_seconds_since())
        self._queue.charge(ticket, used)
        # What follows until the request is woken is charged to its next part.
        ticket.started_at = now

    def _processor_seconds_since(self) -> float:
        """Return the processor time of the thread since it was last read."""
        before, self._read_seconds = self._read_seconds, self._processor_seconds()
        return self._read_seconds - before

    async def _wait_for_seat(self, ticket: Ticket) -> None:
        if not self._sweeping:
            self._sweep_later()
        try:
            await self._woken(ticket)
        except asyncio.CancelledError:
            self._end(ticket)
            raise
        if ticket.state is TicketState.DONE:
            raise TooManyRequestsError(REJECTED.message)

    def _end(self, ticket: Ticket) -> None:
        self._queue.cancel(ticket)
        if self._queue.has_tickets and not self._turn_scheduled:
            self._schedule_turn()

    async def _woken(self, ticket: Ticket) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = future
        try:
            await future
        finally:
            self._waiting.pop(ticket, None)

    def _schedule_turn(self) -> None:
        self._turn_scheduled = True
        asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_scheduled = False
        self._processor_seconds_since()
        woken = self._queue.next_turn(self._now())
        if woken:
            self._wake(woken)
            # After the woken ones have run.
            self._schedule_turn()

    def _wake(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            future = self._waiting.get(ticket)
            if future is not None and not future.done():
                future.set_result(None)

    def _sweep_later(self) -> None:
        self._sweeping = True
        asyncio.get_running_loop().call_later(_SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = False
        self._wake(self._queue.expire(self._now()))
        if self._waiting:
            self._sweep_later()


def _charge_nobody(_seconds: float) -> None:
    """Forget the time of a request that is exempt."""


class _ExemptPacer:
    """Lets other requests go first once in a while, without waiting for a turn."""

    __slots__ = ("_now", "_started_at", "_turn_seconds")

    def __init__(self, now: Callable[[], float], turn_seconds: float) -> None:
        self._now = now
        self._turn_seconds = turn_seconds
        self._started_at = now()

    def start(self) -> None:
        self._started_at = self._now()

    def is_due(self) -> bool:
        return self._now() - self._started_at >= self._turn_seconds

    async def pause(self) -> None:
        await asyncio.sleep(0)
        self._started_at = self._now()


class _TicketPacer:
    """Pauses a request whose steps the limiter measures."""

    __slots__ = ("_limiter", "_ticket")

    def __init__(self, limiter: RequestLimiter, ticket: Ticket) -> None:
        self._limiter = limiter
        self._ticket = ticket

    def start(self) -> None:
        """Every step is measured from its beginning."""

    def is_due(self) -> bool:
        return self._limiter.is_due(self._ticket)

    async def pause(self) -> None:
        await self._limiter.pause(self._ticket)


class _WatchPacer(_TicketPacer):
    """Pauses a watch, which mostly waits for events."""

    __slots__ = ()

    def __init__(self, limiter: RequestLimiter, ticket: Ticket) -> None:
        super().__init__(limiter, ticket)
        limiter.start(ticket)

    def start(self) -> None:
        self._limiter.start(self._ticket)

    async def pause(self) -> None:
        await self._limiter.pause(self._ticket)
        self._limiter.start(self._ticket)
