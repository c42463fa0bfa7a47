"""Runs the binding cycle of one Pod: waits at Permit, PreBind, Bind; many run at the same time."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from dray.api.types.core_v1 import Pod
from dray.framework.cycle_state import CycleState
from dray.framework.plugins import BIND, PERMIT, POST_BIND, PRE_BIND, RESERVE, AsyncUnreservePlugin
from dray.framework.status import SUCCESS, Code, Status, error, unschedulable
from dray.lib.clock import Clock
from dray.scheduler.profile import Profile
from dray.scheduler.queued_pod import QueuedPod

_log = logging.getLogger(__name__)

# Bindings written at the same time: enough for a full group commit, few enough not to starve other clients.
BINDS_MAX: Final = 512
# Nobody may hold a Pod longer, whatever the plugin says.
PERMIT_SECONDS_MAX: Final = 900.0


class Attempt(msgspec.Struct, frozen=True):
    """One try to place one Pod; `started` is monotonic."""

    queued: QueuedPod
    profile: Profile
    state: CycleState
    pod: Pod
    node_name: str
    started: float


class HeldPod:
    """Implements `dray.scheduler.handle.WaitingPod`."""

    def __init__(self, pod: Pod, node_name: str, deadlines: dict[str, float]) -> None:
        self.pod = pod
        self.node_name = node_name
        # Plugin -> when waiting for it is a no.
        self._deadlines = deadlines
        self._decided: asyncio.Future[Status] = asyncio.get_running_loop().create_future()

    @property
    def pending_plugins(self) -> tuple[str, ...]:
        """Who has not yet allowed it."""
        return tuple(self._deadlines)

    def allow(self, plugin: str) -> None:
        """The plugin agrees; the last one lets the Pod go on."""
        self._deadlines.pop(plugin, None)
        if not self._deadlines:
            self._decide(SUCCESS)

    def reject(self, plugin: str, message: str) -> None:
        """The plugin refuses."""
        self._decide(unschedulable(message).with_plugin(plugin))

    async def wait(self, clock: Clock) -> Status:
        """The decision, or a no when a plugin took too long."""
        while not self._decided.done():
            plugin, deadline = min(self._deadlines.items(), key=lambda item: item[1])
            remaining = deadline - clock.monotonic()
            if remaining <= 0:
                return unschedulable(f"rejected due to timeout after waiting at plugin {plugin}").with_plugin(plugin)
            timer = asyncio.ensure_future(clock.sleep(remaining))
            try:
                await asyncio.wait((timer, self._decided), return_when=asyncio.FIRST_COMPLETED)
            finally:
                timer.cancel()
        return self._decided.result()

    def _decide(self, status: Status) -> None:
        if not self._decided.done():
            self._decided.set_result(status)


class HeldPods:
    """Implements `dray.scheduler.handle.WaitingPods`."""

    def __init__(self) -> None:
        self._held: dict[str, HeldPod] = {}

    def get(self, uid: str) -> HeldPod | None:
        """One of them."""
        return self._held.get(uid)

    def all(self) -> tuple[HeldPod, ...]:
        """All of them."""
        return tuple(self._held.values())

    def hold(self, pod: Pod, node_name: str, deadlines: dict[str, float]) -> None:
        """Keep a Pod until it is decided."""
        self._held[pod.metadata.uid or ""] = HeldPod(pod, node_name, deadlines)

    async def wait(self, uid: str, clock: Clock) -> Status:
        """Wait for the decision on a Pod, if it is held."""
        held = self._held.get(uid)
        if held is None:
            return SUCCESS
        try:
            return await held.wait(clock)
        finally:
            del self._held[uid]


class Binder:
    """Everything between Reserve and the end of an attempt."""

    def __init__(self, clock: Clock, held: HeldPods) -> None:
        self._clock = clock
        self._held = held
        self._seats = asyncio.Semaphore(BINDS_MAX)

    def reserve(self, attempt: Attempt) -> Status:
        """Reserve, then Permit; a Pod that must wait is held."""
        for plugin in attempt.profile.at(RESERVE):
            status = plugin.reserve(attempt.state, attempt.pod, attempt.node_name)
            if status is not SUCCESS and not status.is_success:
                return _failed(status, "Reserve", plugin.name)
        return self._permit(attempt)

    async def bind(self, attempt: Attempt) -> Status:
        """Wait at Permit, then PreBind and Bind."""
        state, pod, node_name = attempt.state, attempt.pod, attempt.node_name
        if self._held.get(attempt.queued.uid) is not None:
            status = await self._held.wait(attempt.queued.uid, self._clock)
            if not status.is_success:
                return status
        for plugin in attempt.profile.at(PRE_BIND):
            status = await plugin.pre_bind(state, pod, node_name)
            if status is not SUCCESS and not status.is_success:
                return _failed(status, "PreBind", plugin.name)
        async with self._seats:
            return await self._run_bind(attempt)

    async def _run_bind(self, attempt: Attempt) -> Status:
        for plugin in attempt.profile.at(BIND):
            status = await plugin.bind(attempt.state, attempt.pod, attempt.node_name)
            if status.code is Code.SKIP:
                continue
            return status if status.is_success else _failed(status, "Bind", plugin.name)
        return error("no bind plugin took the pod")

    def post_bind(self, attempt: Attempt) -> None:
        """Tell the plugins; one that breaks is only logged, since the Pod is bound."""
        for plugin in attempt.profile.at(POST_BIND):
            try:
                plugin.post_bind(attempt.state, attempt.pod, attempt.node_name)
            except Exception:  # noqa: BLE001 - a bound Pod stays bound
                _log.exception("PostBind plugin %s", plugin.name)

    async def unreserve(self, attempt: Attempt) -> None:
        """Undo Reserve in reverse order, whatever breaks on the way."""
        plugins = tuple(reversed(attempt.profile.at(RESERVE)))
        for plugin in plugins:
            try:
                plugin.unreserve(attempt.state, attempt.pod, attempt.node_name)
            except Exception:  # noqa: BLE001 - the others' reservations must go too
                _log.exception("Unreserve of plugin %s", plugin.name)
        for plugin in plugins:
            if not isinstance(plugin, AsyncUnreservePlugin):
                continue
            try:
                await plugin.unreserve_writes(attempt.state, attempt.pod, attempt.node_name)
            except Exception:  # noqa: BLE001 - the others' writes must be undone too
                _log.exception("Unreserve of plugin %s", plugin.name)

    def _permit(self, attempt: Attempt) -> Status:
        deadlines: dict[str, float] = {}
        for plugin in attempt.profile.at(PERMIT):
            status, seconds = plugin.permit(attempt.state, attempt.pod, attempt.node_name)
            if status.code is Code.WAIT:
                deadlines[plugin.name] = self._clock.monotonic() + min(seconds, PERMIT_SECONDS_MAX)
            elif not status.is_success:
                return _failed(status, "Permit", plugin.name)
        if deadlines:
            self._held.hold(attempt.pod, attempt.node_name, deadlines)
        return SUCCESS


def _failed(status: Status, point: str, plugin: str) -> Status:
    """A no is passed on as it is; anything else is an error that says where it happened."""
    if status.is_rejected:
        return status.with_plugin(plugin)
    return Status(Code.ERROR, (f'running {point} plugin "{plugin}": {status.message}',), plugin)
