"""Writes conditions and Events in the background, so that scheduling never waits for them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import Final

from dray.api.document import Document
from dray.api.errors import APIError
from dray.api.types.core_v1 import Node, Pod
from dray.api.types.resource_v1 import ResourceClaim
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.client.event_recorder import NORMAL, EventRecord, EventRecorder, Source, reference_to
from dray.client.interface import Client, Patch, PatchType, WriteOptions
from dray.client.resources import NODES, POD_GROUPS, PODS, RESOURCE_CLAIMS
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.runtime.tasks import ChildTasks, TaskGroup
from dray.scheduler.diagnosis import plan_status

_log = logging.getLogger(__name__)

# Concurrent event writes; several let the server commit them in one group.
EVENT_WRITERS: Final = 32
# Events queued for a profile; more are dropped and logged.
EVENTS_QUEUED_MAX: Final = 50_000
# Events given to the recorder at a time; fewer than its own queue holds.
EVENTS_PER_FLUSH: Final = 500
# Concurrent writes of conditions.
STATUS_WRITES_MAX: Final = 64
_STATUS: Final = WriteOptions(subresource="status")
_POD: Final = PODS.group_version_kind
_NODE: Final = NODES.group_version_kind
_POD_GROUP: Final = POD_GROUPS.group_version_kind
_CLAIM: Final = RESOURCE_CLAIMS.group_version_kind


class Reporter:
    """Writes Pod conditions, and Events in the name of each profile; one per scheduler."""

    def __init__(self, client: Client, clock: Clock, scheduler_names: Iterable[str]) -> None:
        self._client = client
        self._clock = clock
        self._queues = {
            name: _EventQueue(EventRecorder(client, clock, Source(name), writers=EVENT_WRITERS), name)
            for name in scheduler_names
        }
        # The last write of each Pod's condition, by uid. A binding waits for it, so that the write cannot come later.
        self._writing: dict[str, asyncio.Task[None]] = {}
        # Pods, by uid, that wait to be bound to a node that is written to their status.
        self._announced: set[str] = set()
        self._writes = ChildTasks("pod conditions")
        self._write_slots = asyncio.Semaphore(STATUS_WRITES_MAX)

    async def run(self) -> None:
        """Write until cancelled."""
        async with TaskGroup("reporter") as group:
            group.spawn(self._writes.supervise(), "conditions")
            for queue in self._queues.values():
                group.spawn(queue.run(), f"events of {queue.name}")
                group.spawn(queue.recorder.run(), f"event recorder of {queue.name}")
            await group.wait()

    def event(self, pod: Pod, event_type: str, reason: str, message: str) -> None:
        """Record an Event of a Pod."""
        queue = self._queues.get(pod.spec.scheduler_name or "")
        if queue is not None:
            queue.add(EventRecord(reference_to(_POD, pod), event_type, reason, message))

    def preempted(self, victim: Pod, preemptor: Pod | PodGroup, scheduler_name: str, message: str) -> None:
        """Record that a Pod made room for another one, or for a group, in the name of the latter's profile."""
        queue = self._queues.get(scheduler_name)
        if queue is not None:
            kind = _POD if isinstance(preemptor, Pod) else _POD_GROUP
            regarding, related = reference_to(_POD, victim), reference_to(kind, preemptor)
            queue.add(EventRecord(regarding, NORMAL, "Preempted", message, action="Preempting", related=related))

    def node_event(self, node: Node, event_type: str, reason: str, message: str) -> None:
        """Record an Event of a node, in the name of the first profile."""
        self._add(EventRecord(reference_to(_NODE, node), event_type, reason, message))

    def claim_event(self, claim: ResourceClaim, event_type: str, reason: str, message: str) -> None:
        """Record an Event of a claim, in the name of the first profile."""
        self._add(EventRecord(reference_to(_CLAIM, claim), event_type, reason, message))

    def _add(self, record: EventRecord) -> None:
        queue = next(iter(self._queues.values()), None)
        if queue is not None:
            queue.add(record)

    def set_status(self, pod: Pod, reason: str, message: str, nominated: str | None = None) -> None:
        """Start writing the condition, if it differs."""
        uid = pod.metadata.uid or ""
        is_outdated = uid in self._writing or uid in self._announced
        self._announced.discard(uid)
        body = plan_status(pod, reason, message, self._clock.now(), nominated, is_outdated=is_outdated)
        if body is not None:
            self._start(pod, body)

    def announce(self, pod: Pod, node_name: str) -> None:
        """Start writing the node on which the Pod waits to be bound; a failure is no obstacle."""
        if pod.status.nominated_node_name != node_name:
            self._announced.add(pod.metadata.uid or "")
            self._start(pod, {"metadata": {"uid": pod.metadata.uid}, "status": {"nominatedNodeName": node_name}})

    def forget_announcement(self, uid: str) -> None:
        """Forget a Pod that is bound, so that the API server has removed its nominated node, or is gone."""
        self._announced.discard(uid)

    def clear_nomination(self, pod: Pod) -> None:
        """Start removing the nominated node."""
        self._start(pod, {"metadata": {"uid": pod.metadata.uid}, "status": {"nominatedNodeName": None}})

    def _start(self, pod: Pod, body: Document) -> None:
        """Start a write after earlier ones of the same Pod."""
        uid = pod.metadata.uid or ""
        previous = self._writing.get(uid)
        task = self._writes.spawn(self._write(pod, body, previous), f"status of {pod.metadata.name}")
        self._writing[uid] = task
        task.add_done_callback(lambda done: self._written(uid, done))

    async def wait_for_status(self, uid: str) -> None:
        """Return when no write of the Pod's condition is pending."""
        task = self._writing.get(uid)
        if task is not None:
            await asyncio.wait((task,))

    def _written(self, uid: str, task: asyncio.Task[None]) -> None:
        if self._writing.get(uid) is task:
            del self._writing[uid]

    async def _write(self, pod: Pod, body: Document, previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            await asyncio.wait((previous,))
        name, namespace = pod.metadata.name or "", pod.metadata.namespace or ""
        async with self._write_slots:
            try:
                await self._client.patch(PODS, name, namespace, Patch(PatchType.STRATEGIC, body), _STATUS)
            except APIError as error:
                # The next attempt writes it again; a deleted Pod needs none.
                _log.info("condition not written", extra=fields(pod=f"{namespace}/{name}", error=error))


class _EventQueue:
    """Events of one profile; passed to its recorder no faster than it writes them."""

    def __init__(self, recorder: EventRecorder, name: str) -> None:
        self.recorder = recorder
        self.name = name
        self._events: deque[EventRecord] = deque()
        self._wake = asyncio.Event()

    def add(self, event: EventRecord) -> None:
        """Queue an event."""
        if len(self._events) >= EVENTS_QUEUED_MAX:
            _log.warning("event dropped", extra=fields(object=event.regarding.name, reason=event.reason))
            return
        self._events.append(event)
        self._wake.set()

    async def run(self) -> None:
        """Pass events to the recorder until cancelled."""
        while True:
            await self._wake.wait()
            for _ in range(min(len(self._events), EVENTS_PER_FLUSH)):
                self.recorder.record(self._events.popleft())
            if not self._events:
                self._wake.clear()
            await self.recorder.flush()
