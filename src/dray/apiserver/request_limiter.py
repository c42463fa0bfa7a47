"""Limits concurrent requests: waits for the seats that the fair queue assigns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

from dray.api.errors import TooManyRequestsError
from dray.apiserver.fairness import Admitted, FairQueue, Queued, Rejected, Ticket, TicketState
from dray.apiserver.request import UserInfo
from dray.lib.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Iterator

# How often tickets that have waited too long are removed while there are any.
_SWEEP_SECONDS: Final = 1.0


class RequestLimiter:
    """Admits requests; those beyond the limit wait in the fair queue or are rejected."""

    def __init__(self, queue: FairQueue, clock: Clock) -> None:
        self._queue = queue
        self._clock = clock
        self._waiting: dict[Ticket, asyncio.Future[None]] = {}
        self._sweeping = False

    @asynccontextmanager
    async def seat(self, user: UserInfo, path: str) -> AsyncIterator[None]:
        """Hold a seat while one request is served."""
        admission = self._queue.admit(user, self._clock.monotonic(), path=path)
        if isinstance(admission, Rejected):
            raise TooManyRequestsError(admission.message, admission.retry_after_seconds)
        held: Admitted | Ticket
        if isinstance(admission, Queued):
            held = admission.ticket
            await self._wait(held)
        else:
            held = admission
        try:
            yield
        finally:
            self._wake(self._queue.release(held, self._clock.monotonic()))

    @contextmanager
    def watch(self, user: UserInfo) -> Iterator[None]:
        """Count a watch while it is open."""
        admission = self._queue.admit_watch(user)
        if isinstance(admission, Rejected):
            raise TooManyRequestsError(admission.message, admission.retry_after_seconds)
        try:
            yield
        finally:
            self._queue.release_watch(user)

    async def _wait(self, ticket: Ticket) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = future
        self._sweep_later()
        try:
            await future
        except asyncio.CancelledError:
            self._wake(self._queue.cancel(ticket, self._clock.monotonic()))
            raise
        finally:
            self._waiting.pop(ticket, None)
        if ticket.state is TicketState.DONE:
            raise TooManyRequestsError(Rejected().message)

    def _wake(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            future = self._waiting.get(ticket)
            if future is not None and not future.done():
                future.set_result(None)

    def _sweep_later(self) -> None:
        if not self._sweeping:
            self._sweeping = True
            asyncio.get_running_loop().call_later(_SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = False
        self._wake(self._queue.expire(self._clock.monotonic()))
        if self._waiting:
            self._sweep_later()
