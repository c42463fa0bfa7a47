"""Runs hooks, and ends containers within their grace."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from dray.client.objects import key_of
from dray.node.agent.parts import Parts, PodWork
from dray.node.agent.pod.events import StopContainer, Tell
from dray.node.agent.pod.machine import WARNING
from dray.node.runtimes.interface import RuntimeFailure
from dray.runtime.logs import fields

_log = logging.getLogger(__name__)

# kubelet's: what is left for a container to end by itself after a hook that took long.
GRACE_AFTER_HOOK_SECONDS: Final = 2.0
# A hook after the start may take long; it is the container's own affair.
POST_START_SECONDS_MAX: Final = 600.0
STOP_RETRY_SECONDS: Final = 2.0


class Stopper:
    """Ends containers; `address` says where a Pod's containers are reached."""

    def __init__(self, parts: Parts, address: Callable[[PodWork], str], tell: Callable[[PodWork, Tell], None]) -> None:
        self._parts = parts
        self._clock = parts.clock
        self._address = address
        self._tell = tell

    async def post_start(self, work: PodWork, container: str, container_id: str) -> str:
        """Run the hook after the start; what went wrong, or nothing."""
        return await self._hook(work, container, container_id, "post_start", POST_START_SECONDS_MAX)

    async def stop(self, work: PodWork, action: StopContainer) -> None:
        """End a container, its hook first; returns when it has ended, however often that has to be tried."""
        begun = self._clock.monotonic()
        has_time = action.hook and action.grace_seconds > 0
        if has_time:
            failure = await self._hook(work, action.container, action.container_id, "pre_stop", action.grace_seconds)
            if failure:
                text = f"PreStopHook failed: {failure}"
                self._tell(work, Tell(WARNING, "FailedPreStopHook", text, action.container))
        left = action.grace_seconds - (self._clock.monotonic() - begun)
        if has_time:
            left = max(left, min(GRACE_AFTER_HOOK_SECONDS, action.grace_seconds))
        ends = self._clock.monotonic() + left
        while not await self._try(work, action, ends - self._clock.monotonic()):
            await self._clock.sleep(STOP_RETRY_SECONDS)

    async def _try(self, work: PodWork, action: StopContainer, grace_seconds: float) -> bool:
        """Whether the container has ended; nothing else can be done for its Pod before it has."""
        try:
            await self._parts.runtime.stop_container(action.container_id, max(grace_seconds, 0.0))
        except Exception as error:  # noqa: BLE001 - the outer edge: whatever it is, it is tried again
            if not isinstance(error, RuntimeFailure | OSError):
                _log.exception("stop", extra=fields(pod=str(key_of(work.pod)), container=action.container))
            self._tell(work, Tell(WARNING, "FailedKillPod", f"error killing pod: {error}", action.container))
            return False
        return True

    async def _hook(self, work: PodWork, name: str, container_id: str, which: str, seconds: float) -> str:
        container = work.machine.slots.by_name[name].spec
        hook = getattr(container.lifecycle, which) if container.lifecycle is not None else None
        if hook is None:
            return ""
        if hook.sleep is not None:
            await self._clock.sleep(min(float(hook.sleep.seconds), seconds))
            return ""
        answer = await self._parts.asker.ask(hook, container, container_id, self._address(work), seconds)
        return "" if answer.healthy else answer.text or "the hook failed"
