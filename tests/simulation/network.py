"""The network between a process and the API server, with everything that can go wrong on it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta

from dray.api.document import Document
from dray.api.errors import ConflictError, ExpiredError, ServiceUnavailableError
from dray.client.in_process import InProcessTransport
from dray.client.interface import WatchBatch
from dray.client.rest import Call
from dray.sim.replica.virtual_time import LoopClock

# A request that nobody waits for any more arrives within this time or never; restarts take longer.
LATE_SECONDS_MAX = 3.0
OUTAGE_SECONDS_MAX = 4.0
GAP_SECONDS_MAX = 6.0
JUMP_SECONDS_MAX = 86_400.0
_READ_FAULTS = ("request_lost", "outage")
_WRITE_FAULTS = ("request_lost", "outage", "conflict", "late", "answer_lost", "crash")
# What becomes of the write at which a process crashes: executed, never sent, or executed after the crash.
CRASH_OUTCOMES = ("landed", "lost", "late")
_READS = frozenset({"get", "list", "watch"})


@dataclass(frozen=True)
class CrashPoint:
    """The one write of a run at which a process crashes; writes are counted from 1, over all lives, without Events."""

    process: str
    write: int
    outcome: str

    @classmethod
    def parse(cls, text: str) -> CrashPoint:
        process, write, outcome = text.split(":")
        return cls(process, int(write), outcome)

    def __str__(self) -> str:
        return f"{self.process}:{self.write}:{self.outcome}"


@dataclass
class FaultRates:
    """How often each fault happens, per request or per event, and how often each has happened.

    A rate of 0 takes no random number, so that the other variants of a simulation replay as before.
    """

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
    # The watch is silent for a while and then expires: the states in between are never observed.
    watch_gap: float = 0.0
    # The watch is silent for a while and then continues: a process that acts meanwhile acts on an old state.
    watch_stalled: float = 0.0
    # The time of day jumps by up to a day, forwards or backwards.
    clock_jump: float = 0.0
    # The Pod is evicted while its binding is on the way.
    evicted_binding: float = 0.0
    # A request to a driver fails.
    driver_broken: float = 0.0
    # A node's heartbeat is not sent.
    heartbeat_lost: float = 0.0
    # Switches all of them.
    on: bool = field(default=True, kw_only=True)
    # Requests sent and events received.
    steps: int = field(default=0, kw_only=True)
    fired: Counter[str] = field(default_factory=Counter, kw_only=True)
    # How often the run took paths that it is meant for.
    paths: Counter[str] = field(default_factory=Counter, kw_only=True)
    # What happened in the run, a line each.
    story: list[str] = field(default_factory=list, kw_only=True)
    crash_point: CrashPoint | None = field(default=None, kw_only=True)
    # Evicts a Pod, by namespace and name; set by the simulation.
    evict: Callable[[str, str], Awaitable[None]] | None = field(default=None, kw_only=True)
    # Writes by process.
    writes: Counter[str] = field(default_factory=Counter, kw_only=True)

    @classmethod
    def of(cls, rates: Mapping[str, float]) -> FaultRates:
        """Return the usual rates but for these."""
        assert rates.keys() <= set(FAULTS)
        return replace(cls(), **rates)  # type: ignore[arg-type]

    @classmethod
    def none(cls, crash_point: CrashPoint | None = None) -> FaultRates:
        """Return rates with which nothing happens but perhaps one crash."""
        return replace(cls.of(dict.fromkeys(FAULTS, 0.0)), crash_point=crash_point)

    def happens(self, name: str, rng: random.Random) -> bool:
        """Decide whether a fault happens now, and count it."""
        rate: float = getattr(self, name)
        if not self.on or not rate or rng.random() >= rate:
            return False
        self.fired[name] += 1
        return True

    def choose(self, names: tuple[str, ...], rng: random.Random) -> str:
        """Return the one of the faults that happens now, and count it; empty if none does."""
        if not self.on:
            return ""
        point = rng.random()
        for name in names:
            point -= getattr(self, name)
            if point < 0:
                self.fired[name] += 1
                return name
        return ""

    def count_write(self, process: str) -> str:
        """Count a write; return the fault if this is the one at which the process crashes."""
        self.writes[process] += 1
        point = self.crash_point
        if point is None or (point.process, point.write) != (process, self.writes[process]):
            return ""
        self.fired[f"crash_{point.outcome}"] += 1
        return f"crash_{point.outcome}"


FAULTS = tuple(item.name for item in fields(FaultRates) if not item.kw_only)


class JumpingClock(LoopClock):
    """Implements `dray.lib.clock.Clock` for a machine whose time of day is set while processes run."""

    def __init__(self) -> None:
        super().__init__()
        self._offset = timedelta()

    def jump(self, rng: random.Random) -> None:
        self._offset = timedelta(seconds=rng.uniform(-JUMP_SECONDS_MAX, JUMP_SECONDS_MAX))

    def now(self) -> datetime:
        return super().now() + self._offset


class FaultyTransport:
    """Implements `dray.client.rest.Transport` for one life of one process."""

    def __init__(
        self,
        inner: InProcessTransport,
        rng: random.Random,
        rates: FaultRates,
        crash: Callable[[], None],
        clock: JumpingClock,
    ) -> None:
        self._inner = inner
        self._rng = rng
        self._rates = rates
        self._crash = crash
        self._clock = clock
        self._expire_next = False
        self._late: set[asyncio.Task[None]] = set()
        # Nothing gets through before this time.
        self._out_until = 0.0
        # Set when the process ends: it neither sends nor hears anything from then on.
        self.dead = False

    async def send(self, call: Call) -> Document:
        self._check_alive()
        # An API server whose watch cache lags may answer it with a state from before the process was started.
        assert call.verb != "list" or call.query.get("resourceVersion") != "0", "a list of any version"
        self._rates.steps += 1
        if self._rates.happens("clock_jump", self._rng):
            self._clock.jump(self._rng)
        await self._delay()
        if call.subresource == "binding" and self._rates.happens("evicted_binding", self._rng):
            assert self._rates.evict is not None
            await self._rates.evict(call.namespace, call.name)
        fault = self._choose_fault(call)
        await self._fail_before(fault, call)
        answer = await self._inner.send(call)
        if fault == "answer_lost":
            await asyncio.sleep(self._rng.uniform(0.0, 1.0))
            raise ServiceUnavailableError("answer lost")
        if fault in ("crash", "crash_landed"):
            self._crash()
            raise ServiceUnavailableError("crashed after the write")
        await self._delay()
        return answer

    async def _fail_before(self, fault: str, call: Call) -> None:
        """Raise if the request is not executed, or not yet."""
        match fault:
            case "request_lost":
                raise ServiceUnavailableError("request lost")
            case "conflict":
                raise ConflictError(call.resource.group_resource if call.resource else None, call.name, "made up")  # type: ignore[arg-type]
            case "late":
                self._send_late(call)
                await asyncio.sleep(self._rng.uniform(0.1, 1.0))
                raise ServiceUnavailableError("request late")
            case "outage":
                self._out_until = asyncio.get_running_loop().time() + self._rng.uniform(0.5, OUTAGE_SECONDS_MAX)
                if call.verb not in _READS:
                    self._send_late(call)
                raise ServiceUnavailableError("outage")
            case "crash_lost" | "crash_late":
                if fault == "crash_late":
                    self._send_late(call)
                self._crash()
                raise ServiceUnavailableError("crashed before the answer")

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
                    self._rates.steps += 1
                    if self._rates.happens("event_slow", self._rng):
                        await asyncio.sleep(self._rng.uniform(0.0, 2.0))
                    if self._rates.happens("watch_stalled", self._rng):
                        await asyncio.sleep(self._rng.uniform(1.0, GAP_SECONDS_MAX))
                    if self._rates.happens("watch_gap", self._rng):
                        await asyncio.sleep(self._rng.uniform(1.0, GAP_SECONDS_MAX))
                        self._expire_next = True
                        return
                    if self.dead or self._stream_fails():
                        # What was on its way is lost; the next watch begins where the last one was heard.
                        return
                    yield [event]
                    if self._rates.happens("event_twice", self._rng):
                        yield [event]
        finally:
            await inner.aclose()

    async def close(self) -> None:
        """Nothing is held."""

    def _choose_fault(self, call: Call) -> str:
        resource = call.resource.plural if call.resource else ""
        fault = self._rates.choose(_READ_FAULTS if call.verb in _READS else _WRITE_FAULTS, self._rng)
        if call.verb not in _READS and resource != "events":
            fault = self._rates.count_write(self._inner._user_agent) or fault
        if fault:
            parts = (resource, call.name, call.subresource)
            place = "/".join(part for part in parts if part)
            time = asyncio.get_running_loop().time()
            self._rates.story.append(f"{time:9.3f} {fault}: {self._inner._user_agent} {call.verb} {place}")
        return fault

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
        fault = self._rates.choose(("watch_expired", "watch_broken"), self._rng)
        if fault == "watch_expired":
            self._expire_next = True
        return bool(fault)

    async def _delay(self) -> None:
        slow = self._rates.happens("slow", self._rng)
        await asyncio.sleep(self._rng.uniform(0.1, 2.0) if slow else self._rng.uniform(0.0, 0.005))
        self._check_alive()
        if self._rates.on and asyncio.get_running_loop().time() < self._out_until:
            raise ServiceUnavailableError("outage")

    def _check_alive(self) -> None:
        if self.dead:
            raise ServiceUnavailableError("the process has ended")
