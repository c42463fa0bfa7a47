"""Writes conditions and Events in the background, so that scheduling never waits for them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from dray.api.document import Document
from dray.api.types.core_v1 import Node, Pod
from dray.api.types.resource_v1 import ResourceClaim
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.client.event_recorder import NORMAL, WARNING, EventRecord, EventRecorder, Source, reference_to
from dray.client.interface import Client
from dray.client.resources import NODES, POD_GROUPS, PODS, RESOURCE_CLAIMS
from dray.lib.clock import Clock
from dray.runtime.logs import fields
from dray.runtime.tasks import TaskGroup
from dray.scheduler.diagnosis import REASON_NOT_READY, plan_status
from dray.scheduler.queued_pod import QueuedPod
from dray.scheduler.status_writer import StatusWriter

_log = logging.getLogger(__name__)

# Concurrent event writes; several let the server commit them in one group.
EVENT_WRITERS: Final = 32
# Events queued for a profile; more are dropped and logged.
EVENTS_QUEUED_MAX: Final = 50_000
# Events given to the recorder at a time; fewer than its own queue holds.
EVENTS_PER_FLUSH: Final = 500
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
        # Pods, by uid, that wait to be bound to a node that is written to their status.
        self._announced: set[str] = set()
        self._statuses = StatusWriter(client)

    async def run(self) -> None:
        """Write until cancelled."""
        async with TaskGroup("reporter") as group:
            group.spawn(self._statuses.run(), "conditions")
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
        pending = self._statuses.pending(uid)
        if uid in self._announced:
            self._announced.discard(uid)
            pending = {"nominatedNodeName": None} | (pending or {})
        status = plan_status(pod, reason, message, self._clock.now(), nominated, pending)
        if status:
            self._statuses.write(pod, status)

    def report_gate(self, queued: QueuedPod, is_gated: Callable[[QueuedPod], bool]) -> None:
        """Write why a Pod is not in the queue, when there is nothing else to write, if it still is not then."""

        def status() -> tuple[Pod, Document] | None:
            if not is_gated(queued):
                return None
            pod, message = queued.pod, queued.gated_message
            self.event(pod, WARNING, REASON_NOT_READY, message)
            planned = plan_status(pod, REASON_NOT_READY, message, self._clock.now())
            return (pod, planned) if planned else None

        self._statuses.write_late(queued.uid, status)

    def announce(self, pod: Pod, node_name: str) -> None:
        """Start writing the node on which the Pod waits to be bound; a failure is no obstacle."""
        if pod.status.nominated_node_name != node_name:
            self._announced.add(pod.metadata.uid or "")
            self._statuses.write(pod, {"nominatedNodeName": node_name})

    def forget_announcement(self, uid: str) -> None:
        """Forget a Pod that is bound, so that the API server has removed its nominated node, or is gone."""
        self._announced.discard(uid)

    def clear_nomination(self, pod: Pod) -> None:
        """Start removing the nominated node."""
        self._statuses.write(pod, {"nominatedNodeName": None})

    async def settle_status(self, uid: str) -> None:
        """Leave the status to a binding, which must come after earlier writes: forget what was not sent."""
        await self._statuses.settle(uid)

    async def wait_for_status(self, uid: str) -> None:
        """Return when everything about the Pod is written."""
        await self._statuses.wait(uid)


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
            while not await self.recorder.flush():
                # Its queue is shorter than this one: it would drop events.
                _log.info("events are not written in time", extra=fields(profile=self.name))
