"""The work queue's promises, one by one."""

from __future__ import annotations

import asyncio

import pytest

from dray.api.document import GroupResource
from dray.api.errors import ConflictError
from dray.client.controller import Controller, Requeue, TerminalError
from dray.client.workqueue import GONE_MAX, QueueState, RetryLimiter, TokenBucket, WorkQueue
from dray.lib.clock import VirtualClock
from dray.runtime.metrics import Metrics
from dray.runtime.system import SystemClock


def test_a_key_added_twice_is_worked_once() -> None:
    queue: QueueState[str] = QueueState()
    queue.add("a", 0)
    queue.add("a", 0)
    assert queue.take(0) == "a"
    assert queue.take(0) is None


def test_a_key_added_while_worked_is_worked_again_after_done() -> None:
    queue: QueueState[str] = QueueState()
    queue.add("a", 0)
    queue.take(0)
    queue.add("a", 1)
    assert queue.take(1) is None
    queue.done("a", 2)
    assert queue.take(2) == "a"


def test_keys_come_in_the_order_of_their_adding() -> None:
    queue: QueueState[str] = QueueState()
    for key in "cab":
        queue.add(key, 0)
    assert [queue.take(0) for _ in range(3)] == ["c", "a", "b"]


def test_a_delayed_key_appears_when_due_and_the_shortest_delay_counts() -> None:
    queue: QueueState[str] = QueueState()
    queue.add_after("a", 10, now=0)
    queue.add_after("a", 3, now=0)
    queue.add_after("a", 7, now=0)
    assert queue.next_timer() == 3
    assert queue.take(2.9) is None
    assert queue.take(3) == "a"
    queue.done("a", 3)
    assert queue.next_timer() is None
    assert queue.take(100) is None
    assert queue.idle


def test_retries_double_from_5_ms_to_1000_s() -> None:
    limiter: RetryLimiter[str] = RetryLimiter()
    # Far apart, so that the overall rate never shows.
    delays = [limiter.delay("a", now=step * 1000.0) for step in range(20)]
    assert delays[:4] == [0.005, 0.01, 0.02, 0.04]
    assert delays[-1] == 1000.0
    assert limiter.failures("a") == 20
    limiter.forget("a")
    assert limiter.delay("a", now=1e6) == 0.005


def test_the_overall_rate_is_10_a_second_after_100() -> None:
    limiter: RetryLimiter[int] = RetryLimiter()
    delays = [limiter.delay(key, now=0.0) for key in range(103)]
    assert set(delays[:100]) == {0.005}
    assert delays[100:] == pytest.approx([0.1, 0.2, 0.3])


def test_the_overall_rate_can_be_left_out_and_is_not_spent() -> None:
    limiter: RetryLimiter[int] = RetryLimiter()
    assert {limiter.delay(key, now=0.0, overall=False) for key in range(500)} == {0.005}
    assert limiter.delay(0, now=0.0, overall=False) == 0.01
    assert limiter.delay(1000, now=0.0) == 0.005


def test_a_token_bucket_never_holds_more_than_its_burst() -> None:
    bucket = TokenBucket(rate_per_second=1, burst=2)
    assert [bucket.try_take(1000.0) for _ in range(3)] == [True, True, False]
    assert bucket.try_take(1001.0)


def test_a_recreated_object_does_not_restart_the_backoff() -> None:
    limiter: RetryLimiter[str] = RetryLimiter()
    for step in range(5):
        limiter.delay("a", now=step * 1000.0)
    limiter.object_deleted("a")
    # The key of the deleted object is worked with success.
    limiter.forget("a")
    limiter.object_created("a")
    assert limiter.delay("a", now=1e6) == 0.005 * 2**5
    limiter.object_deleted("a")
    limiter.object_created("a")
    limiter.forget("a")
    limiter.object_deleted("a")
    limiter.object_created("a")
    assert limiter.delay("a", now=2e6) == 0.005


def test_the_backoff_of_deleted_objects_is_kept_for_a_bounded_number() -> None:
    limiter: RetryLimiter[int] = RetryLimiter()
    for key in range(GONE_MAX + 1):
        limiter.delay(key, now=0.0, overall=False)
        limiter.object_deleted(key)
        limiter.forget(key)
    for key in (0, GONE_MAX):
        limiter.object_created(key)
    assert [limiter.failures(key) for key in (0, GONE_MAX)] == [0, 1]


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_waiting_workers_get_keys_as_they_come_and_delays_pass() -> None:
    clock = VirtualClock(asyncio.get_running_loop().create_future)
    queue = WorkQueue(QueueState[str](), clock)
    got: list[str] = []

    async def work() -> None:
        while True:
            key = await queue.get()
            got.append(key)
            queue.done(key)

    workers = [asyncio.create_task(work()) for _ in range(2)]
    await settle()
    queue.add("now")
    queue.add_after("later", 5)
    queue.add_after("sooner", 2)
    await settle()
    assert got == ["now"]
    clock.advance(2)
    await settle()
    assert got == ["now", "sooner"]
    clock.advance(3)
    await settle()
    assert got == ["now", "sooner", "later"]
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    queue.close()


async def test_a_delay_is_over_for_others_while_a_worker_is_busy_with_an_earlier_one() -> None:
    clock = VirtualClock(asyncio.get_running_loop().create_future)
    queue = WorkQueue(QueueState[str](), clock)
    first, second = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await settle()
    queue.add_after("sooner", 2)
    queue.add_after("later", 5)
    await settle()
    clock.advance(2)
    assert await asyncio.wait_for(first, 5) == "sooner"
    await settle()
    clock.advance(3)
    assert await asyncio.wait_for(second, 5) == "later"
    queue.close()


async def test_a_wake_up_for_a_cancelled_worker_goes_to_the_next() -> None:
    queue = WorkQueue(QueueState[str](), SystemClock())
    first, second = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await settle()
    queue.add("a")
    first.cancel()
    assert await asyncio.wait_for(second, 5) == "a"
    assert first.cancelled()


async def run_controller(reconcile, *keys: str, until: asyncio.Event, metrics: Metrics | None = None) -> None:  # type: ignore[no-untyped-def]
    controller: Controller[str] = Controller("test", reconcile, SystemClock(), metrics=metrics, workers=2)
    for key in keys:
        controller.queue.add(key)
    task = asyncio.create_task(controller.run())
    await asyncio.wait_for(until.wait(), 5)
    await settle()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_many_conflicts_at_once_do_not_wait_for_each_other() -> None:
    tried: set[str] = set()
    done: set[str] = set()
    finished = asyncio.Event()

    async def reconcile(key: str) -> Requeue | None:
        if key not in tried:
            tried.add(key)
            raise ConflictError(GroupResource("", "pods"), key)
        done.add(key)
        if len(done) == 300:
            finished.set()
        return None

    # At ten a second, two hundred of them would take longer than is waited.
    await run_controller(reconcile, *map(str, range(300)), until=finished)
    assert len(done) == 300


async def test_a_controller_retries_failures_and_not_terminal_ones() -> None:
    worked: list[str] = []
    finished = asyncio.Event()

    async def reconcile(key: str) -> Requeue | None:
        worked.append(key)
        if key == "terminal":
            raise TerminalError("no")
        if worked.count(key) < 3:
            raise ValueError(key)
        finished.set()
        return None

    metrics = Metrics()
    await run_controller(reconcile, "terminal", "flaky", until=finished, metrics=metrics)
    assert worked.count("terminal") == 1
    assert worked.count("flaky") == 3
    assert metrics.value("workqueue_retries_total", {"name": "test"}) == 2
    assert metrics.value("workqueue_adds_total", {"name": "test"}) == 4
    assert metrics.value("workqueue_work_duration_seconds_count", {"name": "test"}) == 4
    assert b"workqueue_unfinished_work_seconds" in metrics.exposition()


async def test_a_controller_works_a_requeued_key_again() -> None:
    worked: list[str] = []
    finished = asyncio.Event()

    async def reconcile(key: str) -> Requeue | None:
        worked.append(key)
        if len(worked) == 1:
            return Requeue(0.001)
        finished.set()
        return None

    await run_controller(reconcile, "a", until=finished)
    assert worked == ["a", "a"]
