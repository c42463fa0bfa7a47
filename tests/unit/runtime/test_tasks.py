"""Supervision of tasks, and signals."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import Any

import pytest

from dray.lib.clock import VirtualClock
from dray.runtime.system import SystemClock
from dray.runtime.tasks import (
    SIGNALS,
    ChildTasks,
    CoalescedCall,
    TaskGroup,
    Timer,
    WakeUpTimer,
    first_completed,
    pause,
    remove_signal_handlers,
    run_to_completion,
    stop_on_signals,
    yield_to_others,
)


async def forever(cancelled: list[str] | None = None) -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        if cancelled is not None:
            cancelled.append("yes")
        raise


async def crash(message: str = "boom") -> None:
    raise ValueError(message)


async def crash_when_cancelled() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        raise ValueError("boom")


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def crashes(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """(group, task) of each logged failure."""
    found = [record for record in caplog.records if record.message == "task crashed"]
    return [(record.__dict__["dray_fields"]["group"], record.__dict__["dray_fields"]["task"]) for record in found]


# --- TaskGroup. ---


async def test_leaving_the_body_cancels_and_awaits_the_tasks() -> None:
    cancelled: list[str] = []
    async with TaskGroup("test") as group:
        group.spawn(forever(cancelled), "one")
        group.spawn(forever(cancelled), "two")
        await asyncio.sleep(0)
    assert cancelled == ["yes", "yes"]


async def test_a_crash_cancels_the_body_and_the_siblings_and_reaches_the_owner(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cancelled: list[str] = []

    async def own() -> None:
        async with TaskGroup("test") as group:
            group.spawn(forever(cancelled), "one")
            group.spawn(crash(), "two")
            await forever(cancelled)

    with caplog.at_level(logging.ERROR), pytest.raises(ValueError, match="boom"):
        await asyncio.wait_for(own(), 5)
    assert cancelled == ["yes", "yes"]
    assert crashes(caplog) == [("test", "two")]


async def test_a_crash_in_a_nested_group_is_logged_once_and_reaches_the_outer_owner(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cancelled: list[str] = []

    async def component() -> None:
        async with TaskGroup("inner") as group:
            group.spawn(crash(), "worker")
            await group.wait(asyncio.Event())

    async def own() -> None:
        async with TaskGroup("outer") as group:
            group.spawn(component(), "component")
            await forever(cancelled)

    with caplog.at_level(logging.ERROR), pytest.raises(ValueError, match="boom"):
        await asyncio.wait_for(own(), 5)
    assert cancelled == ["yes"]
    assert crashes(caplog) == [("inner", "worker")]


async def test_an_error_of_the_body_cancels_the_tasks_and_is_raised() -> None:
    cancelled: list[str] = []

    async def own() -> None:
        async with TaskGroup("test") as group:
            group.spawn(forever(cancelled), "one")
            await asyncio.sleep(0)
            raise KeyError("body")

    with pytest.raises(KeyError) as caught:
        await asyncio.wait_for(own(), 5)
    assert cancelled == ["yes"]
    assert caught.value.__context__ is None


async def test_an_error_while_leaving_reaches_the_owner() -> None:
    cancelled: list[str] = []

    async def own() -> None:
        async with TaskGroup("test") as group:
            group.spawn(crash_when_cancelled(), "one")
            group.spawn(forever(cancelled), "two")
            await asyncio.sleep(0)

    with pytest.raises(ValueError, match="boom"):
        await asyncio.wait_for(own(), 5)
    assert cancelled == ["yes"]


@pytest.mark.parametrize("at", ["in the body", "while leaving"])
async def test_an_owner_that_handles_the_error_is_not_cancelled(at: str) -> None:
    async def own() -> str:
        try:
            async with TaskGroup("test") as group:
                group.spawn(crash() if at == "in the body" else crash_when_cancelled(), "one")
                await (group.wait(asyncio.Event()) if at == "in the body" else asyncio.sleep(0))
        except ValueError:
            task = asyncio.current_task()
            assert task is not None
            assert not task.cancelling()
            await settle()
        return "went on"

    assert await asyncio.wait_for(own(), 5) == "went on"


async def test_several_errors_are_raised_as_a_group() -> None:

    async def own() -> None:
        async with TaskGroup("test") as group:
            group.spawn(crash_when_cancelled(), "one")
            await asyncio.sleep(0)
            group.spawn(crash("first"), "two")
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(own(), 5)
    assert sorted(str(error) for error in caught.value.exceptions) == ["boom", "first"]


async def test_cancellation_from_outside_cancels_the_tasks_and_goes_on() -> None:
    cancelled: list[str] = []

    async def own() -> None:
        async with TaskGroup("test") as group:
            group.spawn(forever(cancelled), "one")
            await group.wait(asyncio.Event())

    owner = asyncio.create_task(own())
    await settle()
    owner.cancel()
    with pytest.raises(asyncio.CancelledError):
        await owner
    assert cancelled == ["yes"]
    assert owner.cancelled()


def test_a_keyboard_interrupt_ends_the_loop_and_the_group() -> None:
    cancelled: list[str] = []
    owners: list[asyncio.Task[Any] | None] = []

    async def interrupt() -> None:
        raise KeyboardInterrupt

    async def own() -> None:
        owners.append(asyncio.current_task())
        async with TaskGroup("test") as group:
            group.spawn(forever(cancelled), "one")
            await asyncio.sleep(0)
            group.spawn(interrupt(), "two")
            await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(own())
    assert cancelled == ["yes"]
    # Retrieved here, or asyncio logs it whenever the task is collected, which may be in the middle of another test.
    assert [type(owner.exception()) for owner in owners if owner] == [KeyboardInterrupt]


async def test_a_task_spawned_while_the_group_closes_does_not_start() -> None:
    started: list[asyncio.Task[Any]] = []
    group = TaskGroup("test")

    async def spawn_at_the_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            started.append(group.spawn(crash(), "late"))

    async with group:
        group.spawn(spawn_at_the_end(), "one")
        await asyncio.sleep(0)
    await settle()
    assert started[0].cancelled()


async def test_wait_returns_when_stopped_or_when_all_have_ended() -> None:
    stop = asyncio.Event()
    stop.set()
    async with TaskGroup("test") as group:
        group.spawn(forever(), "one")
        await asyncio.wait_for(group.wait(stop), 5)
    async with TaskGroup("test") as group:
        group.spawn(asyncio.sleep(0), "one")
        await asyncio.wait_for(group.wait(), 5)


async def test_cancel_ends_the_tasks_and_leaves_the_group_open() -> None:
    cancelled: list[str] = []
    async with TaskGroup("test") as group:
        group.spawn(forever(cancelled), "one")
        await asyncio.sleep(0)
        await group.cancel()
        assert cancelled == ["yes"]
        await group.spawn(asyncio.sleep(0), "two")


# --- Tasks of an object. ---


async def test_a_failed_child_task_reaches_the_supervisor(caplog: pytest.LogCaptureFixture) -> None:
    cancelled: list[str] = []
    children = ChildTasks("object")

    async def own() -> None:
        async with TaskGroup("test") as group:
            group.spawn(children.supervise(), "object")
            children.spawn(forever(cancelled), "one")
            await asyncio.sleep(0)
            children.spawn(crash(), "two")
            await asyncio.Event().wait()

    with caplog.at_level(logging.ERROR), pytest.raises(ValueError, match="boom"):
        await asyncio.wait_for(own(), 5)
    assert cancelled == ["yes"]
    assert crashes(caplog) == [("object", "two")]
    assert len(children) == 0


async def test_closing_child_tasks_cancels_them_and_raises_unobserved_errors() -> None:
    cancelled: list[str] = []
    children = ChildTasks("object")
    children.spawn(forever(cancelled), "one")
    children.spawn(crash(), "two")
    await settle()
    with pytest.raises(ValueError, match="boom"):
        await children.aclose()
    assert cancelled == ["yes"]
    await children.aclose()


async def test_leaving_the_supervisor_closes_child_tasks() -> None:
    cancelled: list[str] = []
    children = ChildTasks("object")
    async with TaskGroup("test") as group:
        group.spawn(children.supervise(), "object")
        children.spawn(forever(cancelled), "one")
        await settle()
    assert cancelled == ["yes"]


async def test_starting_a_timer_again_replaces_it() -> None:
    clock = VirtualClock(asyncio.get_running_loop().create_future)
    fired: list[float] = []
    children = ChildTasks("object")
    timer = Timer(clock, lambda: fired.append(clock.monotonic()), children)
    timer.start(5.0)
    timer.start(2.0)
    await settle()
    for _ in range(6):
        clock.advance(1.0)
        await settle()
    assert fired == [2.0]
    assert not timer.active
    timer.start(1.0)
    timer.cancel()
    await settle()
    clock.advance(1.0)
    await children.aclose()
    assert fired == [2.0]


async def test_a_timer_that_fails_reaches_the_supervisor() -> None:
    children = ChildTasks("object")

    def fail() -> None:
        raise ValueError("boom")

    async def own() -> None:
        async with TaskGroup("test") as group:
            group.spawn(children.supervise(), "object")
            Timer(SystemClock(), fail, children).start(0.0)
            await asyncio.Event().wait()

    with pytest.raises(ValueError, match="boom"):
        await asyncio.wait_for(own(), 5)


# --- The first of several. ---


async def test_the_first_completed_wins_and_the_others_are_cancelled_and_awaited() -> None:
    cancelled: list[str] = []

    async def win() -> str:
        await asyncio.sleep(0)
        return "won"

    assert await first_completed(forever(cancelled), win()) == (1, "won")
    assert cancelled == ["yes"]


async def test_the_error_of_the_first_completed_is_raised() -> None:
    cancelled: list[str] = []

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        await first_completed(forever(cancelled), fail())
    assert cancelled == ["yes"]


async def test_the_error_of_a_cancelled_loser_is_raised() -> None:
    with pytest.raises(ValueError, match="boom"):
        await first_completed(settle(), crash_when_cancelled())


async def test_a_future_of_the_caller_stays_pending() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    assert await first_completed(settle(), future) == (0, None)
    assert not future.done()


async def test_cancelling_the_caller_cancels_all_works() -> None:
    cancelled: list[str] = []
    task = asyncio.create_task(first_completed(forever(cancelled), forever(cancelled)))
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled == ["yes", "yes"]


async def test_a_pause_ends_with_the_time_or_the_event() -> None:
    clock = VirtualClock(asyncio.get_running_loop().create_future)
    wake = asyncio.Event()
    timed = asyncio.create_task(pause(clock, wake, 5.0))
    await settle()
    clock.advance(4.9)
    await settle()
    assert not timed.done()
    clock.advance(0.1)
    await timed
    woken = asyncio.create_task(pause(clock, wake, None))
    wake.set()
    await woken


async def test_a_wake_up_timer_sets_the_event_at_the_earliest_time() -> None:
    clock = VirtualClock(asyncio.get_running_loop().create_future)
    wake = asyncio.Event()
    timer = WakeUpTimer(clock, wake)
    timer.set_at(9.0)
    running = asyncio.create_task(timer.run())
    await settle()
    for due in (5.0, 7.0):
        timer.set_at(due)
        await settle()
    assert timer.due == 5.0
    clock.advance(4.9)
    await settle()
    assert not wake.is_set()
    clock.advance(0.1)
    await settle()
    assert (wake.is_set(), timer.due) == (True, None)
    wake.clear()
    clock.advance(10.0)
    await settle()
    assert not wake.is_set()
    # A time in the past.
    timer.set_at(0.0)
    await settle()
    assert wake.is_set()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


# --- Calls that are shared. ---


class Disk:
    """Saves its state; a save takes until the gate lets it through."""

    def __init__(self) -> None:
        self.state = 0
        self.saved: list[int] = []
        self.gate = asyncio.Semaphore(0)
        self.fails = False
        self.save = CoalescedCall(self._write)

    async def _write(self) -> None:
        sample = self.state
        await self.gate.acquire()
        if self.fails:
            raise OSError("disk full")
        self.saved.append(sample)

    async def change_and_save(self) -> int:
        """Return the state of the change; a save that includes it has ended."""
        self.state += 1
        mine = self.state
        await self.save()
        assert self.saved[-1] >= mine
        return mine


async def test_callers_that_wait_share_the_next_call() -> None:
    disk = Disk()
    first = asyncio.create_task(disk.change_and_save())
    await settle()
    others = [asyncio.create_task(disk.change_and_save()) for _ in range(5)]
    await settle()
    disk.gate.release()
    await first
    assert not any(task.done() for task in others)
    disk.gate.release()
    assert await asyncio.gather(*others) == [2, 3, 4, 5, 6]
    assert disk.saved == [1, 6]


async def test_a_failed_call_fails_for_all_its_callers_and_the_next_one_is_tried() -> None:
    disk = Disk()
    disk.fails = True
    tasks = [asyncio.create_task(disk.change_and_save()) for _ in range(2)]
    disk.gate.release()
    for task in tasks:
        with pytest.raises(OSError, match="disk full"):
            await task
    disk.fails = False
    disk.gate.release()
    assert await disk.change_and_save() == 3


async def test_cancelling_one_caller_does_not_cancel_the_call() -> None:
    disk = Disk()
    one, other = (asyncio.create_task(disk.change_and_save()) for _ in range(2))
    await settle()
    one.cancel()
    await settle()
    disk.gate.release()
    assert await other == 2
    assert one.cancelled()


# --- Signals. ---


async def test_a_signal_sets_the_event() -> None:
    stop = asyncio.Event()
    stop_on_signals(stop)
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(stop.wait(), 5)
    finally:
        remove_signal_handlers()


async def test_a_signal_sets_the_event_where_event_loops_have_no_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows."""

    def refuse(*_arguments: object) -> None:
        raise NotImplementedError

    before = {number: signal.getsignal(number) for number in SIGNALS}
    monkeypatch.setattr(asyncio.get_running_loop(), "add_signal_handler", refuse, raising=False)
    stop = asyncio.Event()
    try:
        stop_on_signals(stop)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(stop.wait(), 5)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.behaviour("EX-34")
async def test_children_do_not_inherit_that_signals_are_ignored() -> None:
    """As after nohup: a command would outlive its terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stop_on_signals(asyncio.Event())
        os.kill(os.getpid(), signal.SIGHUP)
        child = await asyncio.create_subprocess_exec("sh", "-c", "kill -HUP $$; exit 3")
        assert await child.wait() == -signal.SIGHUP
    finally:
        remove_signal_handlers()
        signal.signal(signal.SIGHUP, before)


async def test_work_that_is_run_to_completion_ends_before_the_cancellation_is_raised() -> None:
    going, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def write() -> str:
        going.set()
        await may_end.wait()
        ended.set()
        return "written"

    caller = asyncio.ensure_future(run_to_completion(write()))
    await going.wait()
    for _ in range(2):
        caller.cancel()
        await asyncio.sleep(0)
    assert not caller.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended.is_set()


async def test_work_that_is_run_to_completion_returns_or_raises() -> None:
    async def fail() -> None:
        raise ValueError("no")

    assert await run_to_completion(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(ValueError, match="no"):
        await run_to_completion(fail())


async def test_yielding_lets_other_tasks_run_once() -> None:
    order: list[str] = []

    async def work(name: str) -> None:
        for number in range(2):
            order.append(f"{name}{number}")
            await yield_to_others()

    await asyncio.gather(work("a"), work("b"))
    assert order == ["a0", "b0", "a1", "b1"]
