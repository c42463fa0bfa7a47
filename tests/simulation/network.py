"""The way between a process and the API server, with everything that can go wrong on it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from dray.api.document import Document
from dray.api.errors import ConflictError, ExpiredError, ServiceUnavailableError
from dray.client.in_process import InProcessTransport
from dray.client.interface import WatchBatch
from dray.client.rest import Call

# A request that nobody waits for any more arrives within this time or never; restarts take longer.
LATE_SECONDS_MAX = 3.0
OUTAGE_SECONDS_MAX = 4.0
_READ_FAULTS = ("request_lost", "outage")
_WRITE_FAULTS = ("request_lost", "outage", "conflict", "late", "answer_lost", "crash")
_READS = frozenset({"get", "list", "watch"})


@dataclass
class FaultRates:
    """How often each fault happens, per request or per event; `on` switches all of them."""

    on: bool = True
    slow: float = 0.05
    request_lost: float = 0.03
    conflict: float = 0.03
    late: float = 0.02
    answer_lost: float = 0.03
    crash: float = 0.01
    outage: float = 0.04
    event_slow: float = 0.05
    event_twice: float = 0.03
    watch_broken: float = 0.02
    watch_expired: float = 0.01


class FaultyTransport:
    """Implements `dray.client.rest.Transport` for one life of one process."""

    def __init__(
        self, inner: InProcessTransport, rng: random.Random, rates: FaultRates, crash: Callable[[], None]
    ) -> None:
        self._inner = inner
        self._rng = rng
        self._odds = rates
        self._crash = crash
        self._expire_next = False
        self._late: set[asyncio.Task[None]] = set()
        # Nothing gets through before this time.
        self._out_until = 0.0
        # Set when the process ends: it neither sends nor hears anything from then on.
        self.dead = False

    async def send(self, call: Call) -> Document:
        self._check_alive()
        await self._delay()
        fault = self._fault(call)
        if fault == "request_lost":
            raise ServiceUnavailableError("request lost")
        if fault == "conflict":
            raise ConflictError(call.resource.group_resource if call.resource else None, call.name, "made up")  # type: ignore[arg-type]
        if fault == "late":
            self._send_late(call)
            await asyncio.sleep(self._rng.uniform(0.1, 1.0))
            raise ServiceUnavailableError("request late")
        if fault == "outage":
            self._out_until = asyncio.get_running_loop().time() + self._rng.uniform(0.5, OUTAGE_SECONDS_MAX)
            if call.verb not in _READS:
                self._send_late(call)
            raise ServiceUnavailableError("outage")
        answer = await self._inner.send(call)
        if fault == "answer_lost":
            await asyncio.sleep(self._rng.uniform(0.0, 1.0))
            raise ServiceUnavailableError("answer lost")
        if fault == "crash":
            self._crash()
            raise ServiceUnavailableError("crashed after the write")
        await self._delay()
        return answer

    async def stream(self, call: Call) -> AsyncIterator[WatchBatch]:
        self._check_alive()
        await self._delay()
        if self._expire_next and call.query.get("resourceVersion"):
            self._expire_next = False
            raise ExpiredError("too old resource version")
        inner = self._inner.stream(call)
        try:
            async for batch in inner:
                for event in batch:
                    if self._odds.on and self._rng.random() < self._odds.event_slow:
                        await asyncio.sleep(self._rng.uniform(0.0, 2.0))
                    if self.dead or self._stream_fails():
                        # What was on its way is lost; the next watch begins where the last one was heard.
                        return
                    yield [event]
                    if self._odds.on and self._rng.random() < self._odds.event_twice:
                        yield [event]
        finally:
            await inner.aclose()

    async def close(self) -> None:
        """Nothing is held."""

    def _fault(self, call: Call) -> str:
        if not self._odds.on:
            return ""
        rates = self._odds
        point = self._rng.random()
        for name in _READ_FAULTS if call.verb in _READS else _WRITE_FAULTS:
            point -= getattr(rates, name)
            if point < 0:
                return name
        return ""

    def _send_late(self, call: Call) -> None:
        async def later(delay: float) -> None:
            await asyncio.sleep(delay)
            try:
                await self._inner.send(call)
            except Exception:  # noqa: BLE001 - nobody is there to hear of it
                return

        task = asyncio.ensure_future(later(self._rng.uniform(0.0, LATE_SECONDS_MAX)))
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    def _stream_fails(self) -> bool:
        if not self._odds.on:
            return False
        point = self._rng.random()
        if point < self._odds.watch_expired:
            self._expire_next = True
        return point < self._odds.watch_expired + self._odds.watch_broken

    async def _delay(self) -> None:
        slow = self._odds.on and self._rng.random() < self._odds.slow
        await asyncio.sleep(self._rng.uniform(0.1, 2.0) if slow else self._rng.uniform(0.0, 0.005))
        self._check_alive()
        if self._odds.on and asyncio.get_running_loop().time() < self._out_until:
            raise ServiceUnavailableError("outage")

    def _check_alive(self) -> None:
        if self.dead:
            raise ServiceUnavailableError("the process has ended")
