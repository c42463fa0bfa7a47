"""Requests of two users on one event loop, with a clock that only their work moves."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from dray.api.errors import TooManyRequestsError
from dray.apiserver.call import Pacer
from dray.apiserver.fairness import FairQueue, Limits
from dray.apiserver.request import UserInfo
from dray.apiserver.request_limiter import SLICE_SECONDS, RequestLimiter
from dray.lib import processor_time
from dray.runtime.system import SystemClock
from dray.runtime.timeouts import SharedTimeout

GREEDY, MODEST = UserInfo("greedy"), UserInfo("modest")
ADMIN = UserInfo("admin", groups=("system:masters",))
CONNECTIONS = 100
TURN = Limits().turn_seconds
# Only for what does not end at all.
WAIT_SECONDS = 120.0


class WorkClock:
    """The time that work has used; waiting takes none."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class Cluster:
    """A limiter, and the work of its requests."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.clock = WorkClock()
        self.queue = FairQueue(limits or Limits())
        self.limiter = RequestLimiter(self.queue, self.clock, self.clock.monotonic)
        self.tasks: list[asyncio.Task[None]] = []

    def short(self, seconds: float) -> Callable[[Pacer], Coroutine[Any, Any, None]]:
        async def work(_pacer: Pacer) -> None:
            self.clock.seconds += seconds

        return work

    def long(self, seconds: float) -> Callable[[Pacer], Coroutine[Any, Any, None]]:
        async def work(pacer: Pacer) -> None:
            for _ in range(round(seconds / (TURN / 4))):
                self.clock.seconds += TURN / 4
                if pacer.is_due():
                    await pacer.pause()

        return work

    def flood(self, work: Callable[[Pacer], Coroutine[Any, Any, None]]) -> None:
        async def client() -> None:
            while True:
                await self.limiter.run(GREEDY, "", work)
                await asyncio.sleep(0)

        self.tasks = [asyncio.ensure_future(client()) for _ in range(CONNECTIONS)]

    async def delays(self, count: int = 50) -> list[float]:
        """How long each of the modest user's requests takes, in seconds of work."""
        found = []
        for _ in range(count):
            arrived = self.clock.seconds
            # As on a connection: a request is read in one turn of the event loop, and served by a task in the next.
            await asyncio.sleep(0)
            await self.limiter.run(MODEST, "", self.short(TURN / 10))
            found.append(self.clock.seconds - arrived)
        return found

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)


@pytest.mark.parametrize("cost", [TURN / 4, 6 * TURN])
async def test_a_hundred_connections_delay_another_user_by_some_requests(cost: float) -> None:
    cluster = Cluster()
    cluster.flood(cluster.short(cost))
    delays = await cluster.delays()
    await cluster.stop()
    assert max(delays[1:]) <= 3 * max(cost, TURN) + TURN, "in order of arrival it would be a hundred requests"
    # Two steps on a fast connection; the first one waits for what was started before the limiter knew the cost.
    assert delays[0] <= 3 * max(cost, TURN) + TURN


async def test_a_hundred_long_lists_delay_another_user_by_some_turns() -> None:
    cluster = Cluster()
    cluster.flood(cluster.long(50 * TURN))
    delays = await cluster.delays()
    await cluster.stop()
    assert max(delays) <= 5 * TURN


async def test_one_long_request_is_completed_before_the_next_one_of_its_user_starts() -> None:
    """A hundred half-encoded lists would take the memory of a hundred."""
    cluster = Cluster()
    open_lists, most = 0, 0
    step = cluster.long(20 * TURN)

    async def work(pacer: Pacer) -> None:
        nonlocal open_lists, most
        open_lists += 1
        most = max(most, open_lists)
        await step(pacer)
        open_lists -= 1

    cluster.flood(work)
    await cluster.delays(100)
    await cluster.stop()
    assert most <= 3


async def test_time_spent_waiting_is_not_charged() -> None:
    """A user whose requests wait for the disk keeps many in flight, and is not behind one who computes."""
    cluster = Cluster()
    released = asyncio.Event()
    running = 0

    async def write(_pacer: Pacer) -> None:
        nonlocal running
        running += 1
        cluster.clock.seconds += TURN / 10
        await released.wait()

    tasks = [asyncio.ensure_future(cluster.limiter.run(MODEST, "", write)) for _ in range(40)]
    for _ in range(40):
        await asyncio.sleep(0)
    assert running == 40
    cluster.clock.seconds += 100
    released.set()
    await asyncio.gather(*tasks)
    assert cluster.queue._users["modest"].used_seconds < 40 * TURN
    assert cluster.queue.seats_taken == 0


async def test_time_in_which_other_programs_have_the_processor_is_not_charged() -> None:
    cluster = Cluster()
    used = 0.0
    limiter = RequestLimiter(cluster.queue, cluster.clock, lambda: used)

    async def work(pacer: Pacer) -> None:
        nonlocal used
        for _ in range(3):
            cluster.clock.seconds += 50 * TURN
            used += TURN / 10
            await pacer.pause()

    await limiter.run(GREEDY, "", work)
    assert cluster.queue._users["greedy"].used_seconds < TURN


async def test_requests_of_administrators_never_wait() -> None:
    cluster = Cluster(Limits(seats=1, queue_length_max=0))
    blocked = asyncio.ensure_future(cluster.limiter.run(GREEDY, "", lambda _pacer: asyncio.Event().wait()))
    await asyncio.sleep(0)
    await cluster.limiter.run(ADMIN, "", cluster.long(3 * TURN))
    await cluster.limiter.run(MODEST, "/readyz", cluster.short(TURN))
    with pytest.raises(TooManyRequestsError) as refused:
        await cluster.limiter.run(MODEST, "", cluster.short(TURN))
    assert refused.value.retry_after_seconds == 1
    blocked.cancel()
    await asyncio.wait([blocked])
    assert cluster.queue.seats_taken == 0


async def test_a_client_that_disconnects_while_it_waits_or_pauses_frees_its_place() -> None:
    cluster = Cluster(Limits(seats=4))
    hold = asyncio.Event()
    first = asyncio.ensure_future(cluster.limiter.run(GREEDY, "", lambda _pacer: hold.wait()))
    await asyncio.sleep(0)
    waiting = [asyncio.ensure_future(cluster.limiter.run(GREEDY, "", lambda _pacer: hold.wait())) for _ in range(3)]
    paused = asyncio.ensure_future(cluster.limiter.run(MODEST, "", lambda pacer: pacer.pause()))
    await asyncio.sleep(0)
    assert cluster.queue.queued == 3
    for task in (*waiting, paused, first):
        task.cancel()
    await asyncio.wait([*waiting, paused, first])
    assert (cluster.queue.seats_taken, cluster.queue.queued) == (0, 0)
    await cluster.limiter.run(GREEDY, "", cluster.short(TURN))


async def test_a_seat_that_is_freed_by_a_disconnect_goes_to_the_next() -> None:
    cluster = Cluster(Limits(seats=1))
    hold = asyncio.Event()
    first = asyncio.ensure_future(cluster.limiter.run(GREEDY, "", lambda _pacer: hold.wait()))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(cluster.limiter.run(MODEST, "", lambda _pacer: hold.wait()))
    third = asyncio.ensure_future(cluster.limiter.run(GREEDY, "", cluster.short(TURN)))
    await asyncio.sleep(0)
    first.cancel()
    second.cancel()
    async with asyncio.timeout(10):
        await third


async def test_errors_and_cancellations_reach_the_work_and_leave_no_cycle() -> None:
    cluster = Cluster()

    class Held:
        pass

    held = Held()
    gone = weakref.ref(held)
    seen = []

    async def work(kept: Held, _pacer: Pacer) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append(kept is not None)
            raise

    task = asyncio.ensure_future(cluster.limiter.run(GREEDY, "", partial(work, held)))
    await asyncio.sleep(0)
    del held
    gc.disable()
    try:
        task.cancel()
        await asyncio.wait([task])
        assert seen == [True]
        del task
        assert gone() is None
    finally:
        gc.enable()
    with pytest.raises(KeyError):
        await cluster.limiter.run(GREEDY, "", lambda _pacer: _fail())
    assert cluster.queue.seats_taken == 0


async def _fail() -> None:
    await asyncio.sleep(0)
    raise KeyError("bug")


async def test_watches_are_bounded_and_their_long_parts_take_turns() -> None:
    cluster = Cluster(Limits(watches_per_user_max=1))
    cluster.flood(cluster.short(6 * TURN))
    done = asyncio.Event()

    async def watch(pacer: Pacer) -> None:
        pacer.start()
        await cluster.long(10 * TURN)(pacer)
        await done.wait()

    watching = asyncio.ensure_future(cluster.limiter.run_watch(MODEST, watch))
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequestsError):
        await cluster.limiter.run_watch(MODEST, watch)
    done.set()
    async with asyncio.timeout(20):
        await watching
    await cluster.stop()
    assert cluster.queue.watches == 0


@pytest.mark.parametrize("user", [GREEDY, ADMIN])
async def test_a_long_step_is_suspended_for_the_requests_of_others(user: UserInfo) -> None:
    """Of everyone. What a request has started is not measured."""
    clock = WorkClock()
    limiter = RequestLimiter(FairQueue(), clock, clock.monotonic)
    order: list[str] = []

    def step(slices: int) -> None:
        for number in range(slices):
            processor_time.check()
            clock.seconds += 1.5 * SLICE_SECONDS
            order.append(f"long {number}")

    async def background() -> None:
        step(3)
        order.append("started")

    async def long(_pacer: Pacer) -> str:
        tasks.append(asyncio.ensure_future(background()))
        step(4)
        return "done"

    async def short(_pacer: Pacer) -> None:
        order.append("short")

    tasks: list[asyncio.Task[None]] = []
    running = asyncio.ensure_future(limiter.run(user, "", long))
    while not order:  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0)
    await limiter.run(MODEST, "", short)
    assert await running == "done"
    assert order.index("short") < order.index("long 3")
    assert order[order.index("started") - 3 : order.index("started")] == ["long 0", "long 1", "long 2"]
    await asyncio.gather(*tasks)


async def test_the_deadline_of_a_request_ends_a_step_that_never_waits() -> None:
    limiter = RequestLimiter(FairQueue(), SystemClock())
    ended = []

    def endless() -> None:
        try:
            while True:
                processor_time.check()
        except asyncio.CancelledError:
            ended.append("undone")
            raise

    async def work(_pacer: Pacer) -> None:
        try:
            with SharedTimeout(0.05).block():
                endless()
        except TimeoutError:
            ended.append("timeout")
            await asyncio.sleep(0)
            raise

    with pytest.raises(TimeoutError):
        await limiter.run(GREEDY, "", work)
    assert ended == ["undone", "timeout"]
    assert await limiter.run(GREEDY, "", _answer) == "answer"


async def _answer(_pacer: Pacer) -> str:
    return "answer"


async def test_what_is_called_in_a_thread_holds_up_nobody_and_is_charged() -> None:
    limiter = RequestLimiter(FairQueue(), SystemClock())
    allowed = threading.Event()

    async def match(_pacer: Pacer) -> bool:
        return processor_time.run_aside(lambda: allowed.wait(WAIT_SECONDS))

    async def short(_pacer: Pacer) -> None:
        allowed.set()

    matches = [asyncio.ensure_future(limiter.run(GREEDY, "", match)) for _ in range(5)]
    await asyncio.sleep(0)
    await limiter.run(MODEST, "", short)
    assert await asyncio.gather(*matches) == [True] * 5


async def test_matches_of_a_user_leave_threads_for_others() -> None:
    limiter = RequestLimiter(FairQueue(), SystemClock())
    allowed = threading.Event()

    async def slow(_pacer: Pacer) -> bool:
        return processor_time.run_aside(lambda: allowed.wait(WAIT_SECONDS))

    async def fast(_pacer: Pacer) -> str:
        return processor_time.run_aside(lambda: "matched")

    async def cancelled() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await limiter.run(GREEDY, "", slow)

    matches = [asyncio.ensure_future(limiter.run(GREEDY, "", slow)) for _ in range(5)]
    await cancelled()
    for user in (MODEST, ADMIN):
        assert await limiter.run(user, "", fast) == "matched"
    allowed.set()
    assert await asyncio.gather(*matches) == [True] * 5
    assert await limiter.run(GREEDY, "", fast) == "matched"
