"""The binding cycle when it is cancelled, or its gang cannot be bound."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dray.api.types.core_v1 import Pod
from dray.framework.cycle_state import CycleState
from dray.framework.status import SUCCESS, Code, Status, unschedulable
from dray.runtime.system import SystemClock
from dray.scheduler.binder import POD_DELETED, Attempt, Binder, RunningBinding, WaitingPodsMap
from dray.scheduler.gang_binding import NOT_TOGETHER, GangBinding
from dray.scheduler.queued_pod import QueuedPod
from tests.unit.scheduler.builders import pod_info
from tests.unit.scheduler.test_cycle import profile

PreBind = Callable[[Pod], Awaitable[Status]]


async def succeed(_pod: Pod) -> Status:
    return SUCCESS


class Plugin:
    """Calls a function in PreBind, and writes down what runs; `permit_seconds` lets Pods wait at Permit."""

    name = "Plugin"

    def __init__(self, pre_bind: PreBind = succeed, permit_seconds: float = 0.0) -> None:
        self.calls: list[str] = []
        self._pre_bind = pre_bind
        self._permit_seconds = permit_seconds
        # Unreserve waits for it.
        self.may_unreserve = asyncio.Event()

    def reserve(self, _state: CycleState, _pod: Pod, _node_name: str) -> Status:
        return SUCCESS

    def unreserve(self, _state: CycleState, _pod: Pod, _node_name: str) -> None:
        pass

    async def unreserve_writes(self, state: CycleState, pod: Pod, _node_name: str) -> None:
        await self.may_unreserve.wait()
        self.calls.append(f"unreserve {pod.metadata.name}, for others: {state.preempted}")

    def permit(self, _state: CycleState, _pod: Pod, _node_name: str) -> tuple[Status, float]:
        return (Status(Code.WAIT), self._permit_seconds) if self._permit_seconds else (SUCCESS, 0.0)

    async def pre_bind(self, _state: CycleState, pod: Pod, _node_name: str) -> Status:
        self.calls.append(f"pre_bind {pod.metadata.name}")
        return await self._pre_bind(pod)

    async def bind(self, _state: CycleState, pod: Pod, _node_name: str) -> Status:
        self.calls.append(f"bind {pod.metadata.name}")
        return SUCCESS


class Parts:
    """A binder with one plugin, and what the scheduler does with an attempt."""

    def __init__(self, plugin: Plugin, gang: GangBinding | None = None) -> None:
        self.plugin, self.gang = plugin, gang
        self.waiting = WaitingPodsMap()
        self.binder = Binder(SystemClock(), self.waiting)

    def attempt(self, name: str) -> Attempt:
        info = pod_info(name)
        attempt = Attempt(
            QueuedPod(info, 0.0), profile(self.plugin), CycleState(info), info.pod, "n", 0.0, gang=self.gang
        )
        if self.gang is not None:
            self.gang.expect(info.uid)
        assert self.binder.reserve(attempt).is_success
        self.binder.begin(attempt)
        return attempt

    async def bind(self, attempt: Attempt) -> Status:
        try:
            return await self.binder.bind(attempt)
        finally:
            self.binder.end(attempt)


def test_a_cancellation_is_seen_whether_it_is_waited_for_before_or_afterwards() -> None:
    async def run() -> None:
        for is_asked_before in (True, False):
            running = RunningBinding("uid")
            before = running.cancelled if is_asked_before else None
            ended = running.cancel("preempted")
            assert running.cancelled.is_set()
            assert before in (None, running.cancelled)
            assert ended is not None
            assert not ended.is_set()
            running.end()
            assert ended.is_set()

    asyncio.run(run())


def test_the_end_is_seen_whether_it_is_waited_for_before_or_afterwards() -> None:
    async def run() -> None:
        for is_asked_before in (True, False):
            running = RunningBinding("uid")
            before = running.ended if is_asked_before else None
            running.end()
            assert running.ended.is_set()
            assert before in (None, running.ended)

    asyncio.run(run())


def test_nothing_is_written_for_a_pod_that_was_deleted_before_pre_bind() -> None:
    async def run() -> None:
        parts = Parts(Plugin())
        attempt = parts.attempt("a")
        parts.binder.pod_deleted("uid-a")
        status = await parts.bind(attempt)
        assert (status.code, status.message) == (Code.ERROR, POD_DELETED)
        assert parts.plugin.calls == []

    asyncio.run(run())


@pytest.mark.behaviour("PE-33")
def test_a_pod_that_is_cancelled_while_its_attempt_is_undone_leaves_its_claims_to_others() -> None:
    async def run() -> None:
        async def fail(_pod: Pod) -> Status:
            return unschedulable("driver says no")

        parts = Parts(Plugin(fail))
        attempt = parts.attempt("a")
        assert not (await parts.binder.bind(attempt)).is_success
        undone = asyncio.ensure_future(parts.binder.unreserve(attempt))
        await asyncio.sleep(0)
        assert parts.binder.cancel("uid-a", "preempted") is not None
        parts.plugin.may_unreserve.set()
        await undone
        assert parts.plugin.calls[-1] == "unreserve a, for others: True"

    asyncio.run(run())


@pytest.mark.behaviour("GW-58")
def test_a_pod_that_fails_in_pre_bind_keeps_its_own_reason_and_ends_the_wait_of_its_gang() -> None:
    async def run() -> None:
        first_waits = asyncio.Event()

        async def pre_bind(pod: Pod) -> Status:
            cancelled = parts.binder.cancellation(pod.metadata.uid or "")
            assert cancelled is not None
            if pod.metadata.name == "a":
                first_waits.set()
                await cancelled.wait()
            else:
                await first_waits.wait()
            return unschedulable(f"{pod.metadata.name} is not ready")

        parts = Parts(Plugin(pre_bind), GangBinding(2))
        statuses = await asyncio.gather(*(parts.bind(parts.attempt(name)) for name in ("a", "b")))
        assert [(status.code, status.message) for status in statuses] == [
            (Code.ERROR, NOT_TOGETHER),
            (Code.UNSCHEDULABLE, "b is not ready"),
        ]

    asyncio.run(run())


@pytest.mark.behaviour("GW-58")
def test_a_pod_does_not_wait_at_permit_for_a_gang_that_cannot_be_bound() -> None:
    async def run() -> None:
        parts = Parts(Plugin(permit_seconds=600.0), GangBinding(2))
        one, other = parts.attempt("a"), parts.attempt("b")
        waiting = asyncio.ensure_future(parts.bind(one))
        await asyncio.sleep(0)
        parts.binder.pod_deleted("uid-b")
        assert (await parts.bind(other)).message == "removed"
        status = await asyncio.wait_for(waiting, 1.0)
        assert (status.code, status.message) == (Code.ERROR, NOT_TOGETHER)
        assert parts.plugin.calls == []

    asyncio.run(run())


def test_an_attempt_that_ends_before_it_waits_at_permit_does_not_let_the_next_one_wait() -> None:
    async def run() -> None:
        parts = Parts(Plugin(permit_seconds=600.0))
        attempt = parts.attempt("a")
        assert parts.binder.will_wait(attempt)
        parts.binder.end(attempt)
        assert not len(parts.waiting)

    asyncio.run(run())
