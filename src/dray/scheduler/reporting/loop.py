"""Writes conditions and Events beside the scheduling, never in its way."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from dray.api.document import Document
from dray.api.errors import APIError
from dray.api.types.core_v1 import Pod
from dray.client.events import Source
from dray.client.interface import Client, Patch, PatchType, WriteOptions
from dray.client.recorder.loop import EventRecorder
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.runtime.tasks import TaskGroup
from dray.scheduler.conditions import plan_status
from dray.scheduler.kinds import PODS

_log = logging.getLogger(__name__)

# Events are many and small; several writers let the server commit them together.
EVENT_WRITERS: Final = 32
# Conditions written at the same time.
STATUS_WRITES_MAX: Final = 64
_STATUS: Final = WriteOptions(subresource="status")


class Reporter:
    """One per scheduler; recorders by profile."""

    def __init__(self, client: Client, clock: Clock, group: TaskGroup) -> None:
        self._client = client
        self._clock = clock
        self._group = group
        self._recorders: dict[str, EventRecorder] = {}
        # The last condition still to be written, by uid; a binding waits for it, so that it cannot be overwritten.
        self._writing: dict[str, asyncio.Task[None]] = {}
        self._seats = asyncio.Semaphore(STATUS_WRITES_MAX)

    def add_profile(self, scheduler_name: str) -> None:
        """Tell events in the profile's name."""
        recorder = EventRecorder(self._client, self._clock, Source(scheduler_name))
        self._recorders[scheduler_name] = recorder
        for number in range(EVENT_WRITERS):
            self._group.spawn(recorder.run(), f"events of {scheduler_name} {number}")

    def event(self, pod: Pod, event_type: str, reason: str, message: str) -> None:
        """Tell something of a Pod."""
        recorder = self._recorders.get(pod.spec.scheduler_name or "")
        if recorder is not None:
            recorder.event(PODS.group_version_kind, pod, event_type, reason, message)

    def set_status(self, pod: Pod, reason: str, message: str, nominated: str | None = None) -> None:
        """Have the condition written, if it differs."""
        body = plan_status(pod, reason, message, self._clock.now(), nominated)
        if body is None:
            return
        uid = pod.metadata.uid or ""
        earlier = self._writing.get(uid)
        task = self._group.spawn(self._write(pod, body, earlier), f"status of {pod.metadata.name}")
        self._writing[uid] = task
        task.add_done_callback(lambda done: self._written(uid, done))

    async def settled(self, uid: str) -> None:
        """Return when no condition of the Pod is still to be written."""
        task = self._writing.get(uid)
        if task is not None:
            await asyncio.wait((task,))

    def _written(self, uid: str, task: asyncio.Task[None]) -> None:
        if self._writing.get(uid) is task:
            del self._writing[uid]

    async def _write(self, pod: Pod, body: Document, earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            await asyncio.wait((earlier,))
        name, namespace = pod.metadata.name or "", pod.metadata.namespace or ""
        async with self._seats:
            try:
                await self._client.patch(PODS, name, namespace, Patch(PatchType.STRATEGIC, body), _STATUS)
            except APIError as error:
                # The next attempt writes it again; a Pod that is gone needs none.
                _log.info("condition not written", extra=fields(pod=f"{namespace}/{name}", error=error))
