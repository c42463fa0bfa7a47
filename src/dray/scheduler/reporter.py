"""Writes conditions and Events beside the scheduling, never in its way."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final

from dray.api.document import Document
from dray.api.errors import APIError
from dray.api.types.core_v1 import Node, Pod
from dray.client.event_recorder import EventRecord, EventRecorder, Source, reference_to
from dray.client.interface import Client, Patch, PatchType, WriteOptions
from dray.client.resources import NODES, PODS
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.runtime.tasks import TaskGroup
from dray.scheduler.diagnosis import plan_status

_log = logging.getLogger(__name__)

# Events are many and small; several writers let the server commit them together.
EVENT_WRITERS: Final = 32
# A burst of Pods is told of in full, as long as it is not larger than this.
EVENTS_WAITING_MAX: Final = 50_000
# How many are handed to the recorder at once; less than it takes before it drops news.
EVENTS_AT_ONCE: Final = 500
# Conditions written at the same time.
STATUS_WRITES_MAX: Final = 64
_STATUS: Final = WriteOptions(subresource="status")
_POD: Final = PODS.group_version_kind
_NODE: Final = NODES.group_version_kind


class Reporter:
    """One per scheduler; recorders by profile."""

    def __init__(self, client: Client, clock: Clock, group: TaskGroup) -> None:
        self._client = client
        self._clock = clock
        self._group = group
        self._tellers: dict[str, _Teller] = {}
        # The last condition still to be written, by uid; a binding waits for it, so that it cannot be overwritten.
        self._writing: dict[str, asyncio.Task[None]] = {}
        self._seats = asyncio.Semaphore(STATUS_WRITES_MAX)

    def add_profile(self, scheduler_name: str) -> None:
        """Tell events in the profile's name."""
        recorder = EventRecorder(self._client, self._clock, Source(scheduler_name))
        teller = self._tellers[scheduler_name] = _Teller(recorder)
        self._group.spawn(teller.run(), f"events of {scheduler_name}")
        for number in range(EVENT_WRITERS):
            self._group.spawn(recorder.run(), f"events of {scheduler_name} {number}")

    def event(self, pod: Pod, event_type: str, reason: str, message: str) -> None:
        """Tell something of a Pod."""
        teller = self._tellers.get(pod.spec.scheduler_name or "")
        if teller is not None:
            about = reference_to(_POD, pod)
            teller.tell(EventRecord(about, event_type, reason, message))

    def node_event(self, node: Node, event_type: str, reason: str, message: str) -> None:
        """Tell something of a node, in the name of the first profile."""
        teller = next(iter(self._tellers.values()), None)
        if teller is not None:
            about = reference_to(_NODE, node)
            teller.tell(EventRecord(about, event_type, reason, message))

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


class _Teller:
    """Feeds a recorder no faster than it can write."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._waiting: deque[EventRecord] = deque()
        self._wake = asyncio.Event()

    def tell(self, happening: EventRecord) -> None:
        """Queue one thing to tell."""
        if len(self._waiting) >= EVENTS_WAITING_MAX:
            _log.warning("event dropped", extra=fields(object=happening.regarding.name, reason=happening.reason))
            return
        self._waiting.append(happening)
        self._wake.set()

    async def run(self) -> None:
        """Feed until cancelled."""
        while True:
            await self._wake.wait()
            for _ in range(min(len(self._waiting), EVENTS_AT_ONCE)):
                self._recorder.record(self._waiting.popleft())
            if not self._waiting:
                self._wake.clear()
            await self._recorder.flush()
