"""The binding cycle: Reserve, Permit, PreBind, Bind and PostBind, and Unreserve when one of them fails."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Final

import msgspec

from dray.api.timestamps import format_duration
from dray.api.types.core_v1 import Pod
from dray.framework.cycle_state import CycleState
from dray.framework.plugins import BIND, PERMIT, POST_BIND, PRE_BIND, RESERVE, AsyncUnreservePlugin
from dray.framework.status import SKIP, SUCCESS, Code, Status, error, unschedulable
from dray.lib.clock import Clock
from dray.runtime.tasks import first_completed
from dray.scheduler.gang_binding import NOT_TOGETHER, GangBinding
from dray.scheduler.profile import Profile
from dray.scheduler.queued_pod import QueuedPod

_log = logging.getLogger(__name__)

# Concurrent Bind calls: enough for a full group commit, few enough not to starve other clients.
BINDS_MAX: Final = 512
# The longest time that a Permit plugin can make a Pod wait.
PERMIT_SECONDS_MAX: Final = 900.0
POD_DELETED: Final = "the pod was deleted while it was being bound"


class Attempt(msgspec.Struct, frozen=True):
    """One attempt to schedule one Pod; `started` is monotonic."""

    queued: QueuedPod
    profile: Profile
    state: CycleState
    pod: Pod
    node_name: str
    started: float
    # Of a Pod of a gang: the Pods that are bound together with it.
    gang: GangBinding | None = None


class PermitWaiter:
    """Implements `dray.scheduler.handle.WaitingPod`."""

    def __init__(self, pod: Pod, node_name: str, waits: dict[str, float], now: float) -> None:
        self.pod = pod
        self.node_name = node_name
        # Plugin -> seconds until the Pod is rejected on its behalf, and when that is.
        self._waits = waits
        self._deadlines = {plugin: now + seconds for plugin, seconds in waits.items()}
        self._decided: asyncio.Future[Status] = asyncio.get_running_loop().create_future()

    @property
    def pending_plugins(self) -> tuple[str, ...]:
        """Return the plugins that have not allowed it yet."""
        return tuple(self._deadlines)

    @property
    def is_decided(self) -> bool:
        """Return whether it is allowed or rejected."""
        return self._decided.done()

    def allow(self, plugin: str) -> None:
        """Allow the Pod on behalf of a plugin; it proceeds when all have."""
        self._deadlines.pop(plugin, None)
        if not self._deadlines:
            self._decide(SUCCESS)

    def reject(self, plugin: str, message: str) -> None:
        """Reject the Pod on behalf of a plugin."""
        self._decide(unschedulable(message).with_plugin(plugin))

    def preempt(self, message: str) -> None:
        """End the attempt with an error."""
        self._decide(error(message))

    async def wait(self, clock: Clock) -> Status:
        """Return the decision, or a rejection when a plugin exceeds its deadline."""
        while not self._decided.done():
            plugin, deadline = min(self._deadlines.items(), key=lambda item: item[1])
            remaining = deadline - clock.monotonic()
            if remaining <= 0:
                waited = format_duration(timedelta(seconds=self._waits[plugin]))
                text = f"rejected due to timeout after waiting {waited} at plugin {plugin}"
                return unschedulable(text).with_plugin(plugin)
            await first_completed(self._decided, clock.sleep(remaining))
        return self._decided.result()

    def _decide(self, status: Status) -> None:
        if not self._decided.done():
            self._decided.set_result(status)


class WaitingPodsMap:
    """Implements `dray.scheduler.handle.WaitingPods`."""

    def __init__(self) -> None:
        self._waiting: dict[str, PermitWaiter] = {}

    def get(self, uid: str) -> PermitWaiter | None:
        """Return the Pod with the uid."""
        return self._waiting.get(uid)

    def all(self) -> tuple[PermitWaiter, ...]:
        """Return all of them."""
        return tuple(self._waiting.values())

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, pod: Pod, node_name: str, waits: dict[str, float], now: float) -> None:
        """Make a Pod wait, for some seconds on behalf of each plugin."""
        self._waiting[pod.metadata.uid or ""] = PermitWaiter(pod, node_name, waits, now)

    async def wait(self, uid: str, clock: Clock) -> Status:
        """Wait for the decision on a Pod, if it waits."""
        waiter = self._waiting.get(uid)
        if waiter is None:
            return SUCCESS
        try:
            return await waiter.wait(clock)
        finally:
            self.remove(uid)

    def remove(self, uid: str) -> None:
        """Forget a Pod that does not wait any more."""
        self._waiting.pop(uid, None)


def _event(*, is_set: bool) -> asyncio.Event:
    event = asyncio.Event()
    if is_set:
        event.set()
    return event


class RunningBinding:
    """An attempt from Reserve to Bind, which can be cancelled until Bind begins."""

    __slots__ = ("_cancelled", "_ended", "_gang", "_has_ended", "_state", "_uid", "bind_begun", "message")

    def __init__(self, uid: str = "", gang: GangBinding | None = None, state: CycleState | None = None) -> None:
        self._uid = uid
        self._gang = gang
        self._state = state
        # Why it was cancelled; empty if it was not.
        self.message = ""
        self.bind_begun = False
        self._has_ended = False
        # Few bindings are waited for: created when they are asked for.
        self._cancelled: asyncio.Event | None = None
        self._ended: asyncio.Event | None = None

    @property
    def cancelled(self) -> asyncio.Event:
        """Return the event that is set when it is cancelled, for plugins that wait in PreBind."""
        if self._cancelled is None:
            self._cancelled = _event(is_set=bool(self.message))
        return self._cancelled

    @property
    def ended(self) -> asyncio.Event:
        """Return the event that is set when the Pod is bound, or everything is undone."""
        if self._ended is None:
            self._ended = _event(is_set=self._has_ended)
        return self._ended

    def end(self) -> None:
        """Tell those who wait that it has ended."""
        self._has_ended = True
        if self._ended is not None:
            self._ended.set()

    def cancel(self, message: str) -> asyncio.Event | None:
        """Cancel it, and return the event of its end; None if it is too late: others of its gang are being bound."""
        if self.bind_begun or (self._gang is not None and self._gang.is_bound(self._uid)):
            return None
        if self._gang is not None:
            self._gang.cancelled(self._uid)
        if self._state is not None:
            # Also for an attempt that has failed already and is being undone.
            self._state.preempted = True
        self.message = message
        if self._cancelled is not None:
            self._cancelled.set()
        return self.ended

    def cancel_with_gang(self) -> None:
        """Cancel it as soon as it is known that its gang cannot be bound, unless it fails itself."""
        if self._gang is not None:
            self._gang.on_failure(self._uid, lambda: self.cancel(NOT_TOGETHER))


class Binder:
    """Runs the extension points from Reserve to the end of an attempt."""

    def __init__(self, clock: Clock, waiting: WaitingPodsMap) -> None:
        self._clock = clock
        self._waiting = waiting
        self._bind_slots = asyncio.Semaphore(BINDS_MAX)
        # By uid of the Pod.
        self._running: dict[str, RunningBinding] = {}

    def reserve(self, attempt: Attempt) -> Status:
        """Run Reserve and Permit."""
        for plugin in attempt.profile.at(RESERVE):
            status = plugin.reserve(attempt.state, attempt.pod, attempt.node_name)
            if not status.is_success:
                return _failed(status, "Reserve", plugin.name)
        return self.permit(attempt)

    def begin(self, attempt: Attempt) -> None:
        """Register an attempt whose `bind` is about to run."""
        uid = attempt.queued.uid
        self._running[uid] = RunningBinding(uid, attempt.gang, attempt.state)

    def end(self, attempt: Attempt) -> None:
        """Forget an attempt that has ended, with or without a binding."""
        uid = attempt.queued.uid
        if attempt.gang is not None:
            attempt.gang.ended(uid)
        # It may have failed before it waited.
        self._waiting.remove(uid)
        running = self._running.pop(uid, None)
        if running is not None:
            running.end()

    def cancel(self, uid: str, message: str) -> asyncio.Event | None:
        """End the attempt of a Pod with an error; None if it is being bound, or not at all.

        The returned event is set when everything is undone.
        """
        running = self._running.get(uid)
        return None if running is None else running.cancel(message)

    def pod_deleted(self, uid: str) -> None:
        """End the attempt of a deleted Pod, unless it is being bound: the others of its gang must not rely on it."""
        waiter = self._waiting.get(uid)
        if waiter is None or waiter.is_decided:
            self.cancel(uid, POD_DELETED)
        else:
            waiter.reject("", "removed")

    def cancellation(self, uid: str) -> asyncio.Event | None:
        """Return the event that is set when the attempt of a Pod is cancelled, or its gang cannot be bound."""
        running = self._running.get(uid)
        if running is None:
            return None
        running.cancel_with_gang()
        return running.cancelled

    def will_wait(self, attempt: Attempt) -> bool:
        """Return whether `bind` is going to wait at Permit, or in PreBind for what others do."""
        if self._waiting.get(attempt.queued.uid) is not None:
            return True
        state, pod, node_name = attempt.state, attempt.pod, attempt.node_name
        for plugin in attempt.profile.pre_flights:
            status = plugin.pre_bind_pre_flight(state, pod, node_name)
            if status is not SKIP and status.is_success:
                return True
        return False

    async def bind(self, attempt: Attempt) -> Status:
        """Wait for Permit, then run PreBind and Bind."""
        running = self._running.get(attempt.queued.uid) or RunningBinding()
        if attempt.gang is None:
            status = await self._pre_bind(attempt, running)
        else:
            status = await self._pre_bind_in_gang(attempt, attempt.gang, running)
        if status.is_success and not running.message:
            status = await self._bind(attempt, running)
        return error(running.message) if running.message else status

    async def _pre_bind_in_gang(self, attempt: Attempt, gang: GangBinding, running: RunningBinding) -> Status:
        """Wait after PreBind until enough Pods of the gang can be bound; what one that cannot has is for others."""
        succeeded = False
        try:
            status = await self._pre_bind(attempt, running)
            succeeded = status.is_success and not running.message
        finally:
            if not succeeded:
                attempt.state.preempted = True
                gang.ended(attempt.queued.uid)
        if not succeeded:
            return status
        is_bound = await gang.ready(attempt.queued.uid)
        if running.message or is_bound:
            return SUCCESS
        attempt.state.preempted = True
        return error(NOT_TOGETHER)

    async def _pre_bind(self, attempt: Attempt, running: RunningBinding) -> Status:
        state, pod, node_name = attempt.state, attempt.pod, attempt.node_name
        waiter = self._waiting.get(attempt.queued.uid)
        if waiter is not None:
            status = await self._wait_at_permit(attempt, waiter)
            if not status.is_success:
                return status
        for plugin in attempt.profile.at(PRE_BIND):
            if running.message:
                return SUCCESS
            status = await plugin.pre_bind(state, pod, node_name)
            if not status.is_success:
                return _failed(status, "PreBind", plugin.name)
        return SUCCESS

    async def _wait_at_permit(self, attempt: Attempt, waiter: PermitWaiter) -> Status:
        uid = attempt.queued.uid
        if attempt.gang is not None:
            attempt.gang.on_failure(uid, lambda: waiter.preempt(NOT_TOGETHER))
        return await self._waiting.wait(uid, self._clock)

    async def _bind(self, attempt: Attempt, running: RunningBinding) -> Status:
        async with self._bind_slots:
            if running.message:
                return SUCCESS
            running.bind_begun = True
            return await self._run_bind(attempt)

    async def _run_bind(self, attempt: Attempt) -> Status:
        for plugin in attempt.profile.at(BIND):
            status = await plugin.bind(attempt.state, attempt.pod, attempt.node_name)
            if status.code is Code.SKIP:
                continue
            return status if status.is_success else _failed(status, "Bind", plugin.name)
        return error("no bind plugin took the pod")

    def post_bind(self, attempt: Attempt) -> None:
        """Run PostBind; a failure is only logged, since the Pod is bound."""
        for plugin in attempt.profile.at(POST_BIND):
            try:
                plugin.post_bind(attempt.state, attempt.pod, attempt.node_name)
            except Exception:  # noqa: BLE001 - a plugin's bug must not fail a bound Pod
                _log.exception("PostBind plugin %s", plugin.name)

    async def unreserve(self, attempt: Attempt) -> None:
        """Run Unreserve in reverse order; a failure of one plugin does not keep the others from running."""
        plugins = tuple(reversed(attempt.profile.at(RESERVE)))
        for plugin in plugins:
            try:
                plugin.unreserve(attempt.state, attempt.pod, attempt.node_name)
            except Exception:  # noqa: BLE001 - see the docstring
                _log.exception("Unreserve of plugin %s", plugin.name)
        for plugin in plugins:
            if not isinstance(plugin, AsyncUnreservePlugin):
                continue
            try:
                await plugin.unreserve_writes(attempt.state, attempt.pod, attempt.node_name)
            except Exception:  # noqa: BLE001 - see the docstring
                _log.exception("Unreserve of plugin %s", plugin.name)

    def permit(self, attempt: Attempt) -> Status:
        """Run Permit."""
        waits: dict[str, float] = {}
        for plugin in attempt.profile.at(PERMIT):
            status, seconds = plugin.permit(attempt.state, attempt.pod, attempt.node_name)
            if status.code is Code.WAIT:
                waits[plugin.name] = min(seconds, PERMIT_SECONDS_MAX)
            elif not status.is_success:
                return _failed(status, "Permit", plugin.name)
        if waits:
            self._waiting.add(attempt.pod, attempt.node_name, waits, self._clock.monotonic())
        return SUCCESS


def _failed(status: Status, point: str, plugin: str) -> Status:
    """Return a rejection as it is, and anything else as an error that names the extension point."""
    if status.is_rejected:
        return status.with_plugin(plugin)
    return Status(Code.ERROR, (f'running {point} plugin "{plugin}": {status.message}',), plugin, status.at_once)
