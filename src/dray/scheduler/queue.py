"""The scheduling queue: which Pod is scheduled next, and which events requeue rejected Pods.

Pure; time is an argument. A pending Pod is in exactly one of these:

* active: ready, best first;
* backoff: ready at a known time; when nothing is active, rejected (not failed) Pods are tried early;
* unschedulable: until an event for which a rejecting plugin returns Queue, or the flush;
* gated: rejected by a PreEnqueue plugin;
* in flight: popped, until `done`. Events that arrive meanwhile are recorded, so that none is missed.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from dray.api.types.core_v1 import Pod
from dray.framework.events import (
    UNSCHEDULED_POD,
    WILDCARD,
    Action,
    ClusterEvent,
    EventRegistration,
    Hint,
    registered_for,
)
from dray.framework.pod_info import PodInfo
from dray.framework.status import Status
from dray.scheduler.plugins.queueing import SchedulingGates
from dray.scheduler.queued_pod import QueuedPod
from dray.scheduler.unschedulable_pods import UnschedulablePods

BACKOFF_FIRST_SECONDS: Final = 1.0
BACKOFF_MAX_SECONDS: Final = 10.0
# A Pod is retried after this time even if a plugin did not register the right event.
UNSCHEDULABLE_SECONDS_MAX: Final = 300.0
FLUSH_EVERY_SECONDS: Final = 30.0
# Failed attempts in a row that are repeated without a backoff, if they ask for it.
RETRIES_AT_ONCE_MAX: Final = 5
# How long a Pod is gated before its status says so: most claims exist sooner. The same as kube-scheduler's.
GATED_REPORT_SECONDS: Final = 5.0
# Gates that the API server reports.
_REPORTED_ELSEWHERE: Final = frozenset({SchedulingGates.name})
# Pods that an event requeues at once; the others follow, the first in the queue's order first, when fewer than
# `ACTIVE_FEW` are active, if the event still concerns them: a device that was freed may be in use again by then.
WOKEN_AT_ONCE_MAX: Final = 512
ACTIVE_FEW: Final = 64
# Events whose Pods follow later; of more, all Pods are requeued at once.
UNFINISHED_EVENTS_MAX: Final = 64
# Bounds the memory while a Pod waits long at Permit.
EVENTS_RECORDED_MAX: Final = 100_000
ADD: Final = ClusterEvent(UNSCHEDULED_POD, Action.ADD, "UnscheduledPodAdd")
RETRY: Final = ClusterEvent(WILDCARD, Action.ALL, "ScheduleAttemptFailure")
FLUSH: Final = ClusterEvent(WILDCARD, Action.ALL, "UnschedulableTimeout")
_EXPONENT_MAX: Final = 30


class Rules(Protocol):
    """The part of a profile that the queue uses."""

    def sort_key(self, priority: int, queued_at: float) -> Any:
        """Return the key that active Pods are ordered by, lowest first."""

    def pre_enqueue(self, pod: Pod) -> Status:
        """Return Success, or a rejection that names its plugin."""

    def registrations(self) -> Mapping[str, Sequence[EventRegistration]]:
        """Return the event registrations of each plugin."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The backoff of rejected and failed Pods."""

    first_seconds: float = BACKOFF_FIRST_SECONDS
    seconds_max: float = BACKOFF_MAX_SECONDS

    def seconds(self, failures: int) -> float:
        """Return the backoff, which doubles with every failure."""
        if failures <= 0:
            return 0.0
        return min(self.seconds_max, self.first_seconds * 2.0 ** min(failures - 1, _EXPONENT_MAX))


class _Heap:
    """A heap of Pods, lowest key first, with removal by uid."""

    def __init__(self) -> None:
        self._heap: list[tuple[Any, int, QueuedPod]] = []
        # uid -> the valid entry; others in the heap are stale. Read by the queue, which asks after every event.
        self.entries: dict[str, tuple[Any, int, QueuedPod]] = {}
        self._count = 0

    def push(self, key: Any, pod: QueuedPod) -> None:
        self._count += 1
        entry = (key, self._count, pod)
        self.entries[pod.uid] = entry
        heapq.heappush(self._heap, entry)

    def peek(self) -> tuple[Any, QueuedPod] | None:
        while self._heap:
            entry = self._heap[0]
            if self.entries.get(entry[2].uid) is entry:
                return entry[0], entry[2]
            heapq.heappop(self._heap)
        return None

    def pop(self) -> QueuedPod | None:
        first = self.peek()
        if first is None:
            return None
        self.remove(first[1].uid)
        return first[1]

    def remove(self, uid: str) -> QueuedPod | None:
        entry = self.entries.pop(uid, None)
        if not self.entries:
            # Only stale ones are left.
            self._heap.clear()
        return entry[2] if entry else None

    def pods(self) -> Iterable[QueuedPod]:
        return (entry[2] for entry in self.entries.values())


class _EventRecord(msgspec.Struct, frozen=True):
    number: int
    event: ClusterEvent
    old: Any
    new: Any


class _UnfinishedEvent(msgspec.Struct):
    """An event that has not requeued all Pods yet; Pods that were rejected after it are at later positions."""

    event: ClusterEvent
    old: Any
    new: Any
    priority_max: int | None
    newest: int
    # The last Pod that was looked at, in the queue's order.
    after: tuple[Any, str] | None = None


class SchedulingQueue:
    """The pending Pods of all profiles."""

    def __init__(
        self,
        rules: Callable[[Pod], Rules],
        all_rules: Iterable[Rules],
        *,
        backoff: Backoff | None = None,
        unschedulable_seconds_max: float = UNSCHEDULABLE_SECONDS_MAX,
        observe_incoming: Callable[[str, str], None] = lambda _queue, _event: None,
    ) -> None:
        self._rules = rules
        registrations = [item for one in all_rules for item in one.registrations().items()]
        self._backoff_rule = backoff or Backoff()
        self._unschedulable_seconds_max = unschedulable_seconds_max
        self._observe = observe_incoming
        self._active = _Heap()
        # Rejected Pods may be tried before their backoff ends, failed ones may not.
        self._backoff = _Heap()
        self._error_backoff = _Heap()
        self._unschedulable = UnschedulablePods(registrations)
        self._gated = UnschedulablePods(registrations)
        # The registrations of each profile for each kind of event, of which there are few.
        self._interested: dict[tuple[Rules, str, Action], tuple[tuple[str, EventRegistration], ...]] = {}
        # (time, uid) of gated Pods whose status is to be written; in order, since the delay is the same for all.
        self._gate_reports: deque[tuple[float, str]] = deque()
        self._unfinished: deque[_UnfinishedEvent] = deque()
        # uid -> number of the last event before the Pod was popped; never decreases.
        self._in_flight: dict[str, int] = {}
        self._events: deque[_EventRecord] = deque()
        self._event_number = 0
        # Number of the newest dropped event.
        self._dropped = 0

    # --- Pods. ---

    def add(self, info: PodInfo, now: float) -> None:
        """Add a Pod without a node."""
        self._remove(info.uid)
        self._enqueue(QueuedPod(info, now), now, ADD)

    def update(self, info: PodInfo, event: ClusterEvent, old: Pod, now: float) -> None:
        """Update a pending Pod; `event` describes the change."""
        uid = info.uid
        queued = self._waiting_for_attempt(uid)
        if queued is not None:
            queued.info = info
            return
        if uid in self._in_flight:
            self._record_event(event, old, info.pod)
            return
        queued = self._unschedulable.get(uid) or self._gated.get(uid)
        if queued is None:
            self.add(info, now)
            return
        queued.info = info
        if uid in self._gated.pods:
            if not self._ungate_if_helped(queued, event, old, info.pod, now):
                self._gated.changed(uid)
        elif not self._requeue_if_helped(queued, event, old, info.pod, now) and _may_change_keys(old, info.pod):
            self._unschedulable.changed(uid)

    def delete(self, uid: str) -> None:
        """Remove a Pod that was deleted or has a node."""
        self._remove(uid)

    # --- Attempts. ---

    def pop(self, now: float) -> QueuedPod | None:
        """Return the next Pod; it is in flight until `done` or `reject`."""
        self._release_due(now)
        if self._unfinished and len(self._active.entries) < ACTIVE_FEW:
            self._requeue_more(now)
        queued = self._active.pop()
        while queued is None and (early := self._backoff.pop()) is not None:
            # Of the Pods that are tried early, some may have been gated since.
            queued = None if self._gate(early, now, "BackoffComplete") else early
        if queued is None:
            return None
        queued.attempts += 1
        queued.rejecting_plugins = queued.pending_plugins = frozenset()
        self._in_flight[queued.uid] = self._event_number
        return queued

    def done(self, uid: str) -> None:
        """End an attempt that succeeded, or whose Pod was deleted."""
        self._in_flight.pop(uid, None)
        oldest = next(iter(self._in_flight.values()), None)
        if oldest is None:
            self._events.clear()
            return
        while self._events and self._events[0].number <= oldest:
            self._events.popleft()

    def reject(
        self,
        queued: QueuedPod,
        now: float,
        *,
        plugins: Iterable[str] = (),
        pending: Iterable[str] = (),
        is_error: bool = False,
        at_once: bool = False,
    ) -> None:
        """End an attempt without a node; without plugins it counts as failed, and may be repeated at once."""
        uid = queued.uid
        since = self._in_flight.get(uid)
        queued.rejecting_plugins, queued.pending_plugins = frozenset(plugins), frozenset(pending)
        without_rejecting_plugin = not (queued.rejecting_plugins or queued.pending_plugins)
        queued.queued_at = now
        if is_error or without_rejecting_plugin:
            queued.errors_in_a_row += 1
        else:
            queued.errors_in_a_row = 0
            queued.rejected_times += 1
        missed = self._missed_since(since)
        self.done(uid)
        if uid in self:
            # It was deleted and recreated, or added again, meanwhile.
            return
        if is_error or without_rejecting_plugin:
            if at_once and queued.errors_in_a_row <= RETRIES_AT_ONCE_MAX:
                self._enqueue(queued, now, RETRY)
            else:
                self._back_off(queued, now, RETRY.label)
            return
        for item in missed:
            if _concerns(item, uid) and self._requeue_if_helped(queued, item.event, item.old, item.new, now):
                return
        self._unschedulable.add(queued, queued.rejecting_plugins | queued.pending_plugins)
        self._observe("unschedulable", "ScheduleAttemptFailure")

    # --- Cluster events. ---

    def requeue_for_event(
        self, event: ClusterEvent, old: Any, new: Any, now: float, *, priority_max: int | None = None
    ) -> None:
        """Requeue the Pods that the event may make schedulable; with a bound, none of a higher priority."""
        if not self._unschedulable.registrations_for(event):
            return
        self._record_event(event, old, new)
        if self._unschedulable.pods:
            unfinished = _UnfinishedEvent(event, old, new, priority_max, self._unschedulable.newest)
            if not self._requeue_some(unfinished, WOKEN_AT_ONCE_MAX, now):
                self._unfinished.append(unfinished)
            if len(self._unfinished) > UNFINISHED_EVENTS_MAX:
                self._requeue_some(self._unfinished.popleft(), None, now)
        if self._gated.pods:
            for queued in self._gated.concerned(event, old, new):
                self._ungate_if_helped(queued, event, old, new, now)

    def _requeue_more(self, now: float) -> None:
        """Requeue some more Pods for the oldest event that has not requeued all."""
        if self._requeue_some(self._unfinished[0], WOKEN_AT_ONCE_MAX, now):
            self._unfinished.popleft()

    def _requeue_some(self, item: _UnfinishedEvent, count_max: int | None, now: float) -> bool:
        """Requeue the next Pods that an event concerns, in the queue's order; return whether they are the last ones."""
        concerned = self._unschedulable.concerned(item.event, item.old, item.new, item.newest)
        if item.priority_max is not None:
            limit, itself = item.priority_max, item.old
            concerned = [queued for queued in concerned if queued.info.priority <= limit and queued.pod is not itself]
        if item.after is not None:
            concerned = [queued for queued in concerned if self._order(queued) > item.after]
        is_all = count_max is None or len(concerned) <= count_max
        if not is_all:
            concerned = heapq.nsmallest(count_max or 0, concerned, key=self._order)
            item.after = self._order(concerned[-1])
        for queued in concerned:
            self._requeue_if_helped(queued, item.event, item.old, item.new, now)
        return is_all

    def _order(self, queued: QueuedPod) -> tuple[Any, str]:
        return self._sort_key(queued), queued.uid

    def _sort_key(self, queued: QueuedPod) -> Any:
        return self._rules(queued.info.pod).sort_key(queued.info.priority, queued.queued_at)

    def keys_changed(self, uid: str) -> None:
        """Update by which events a rejected Pod is concerned, after something besides the Pod itself has changed."""
        if uid in self._unschedulable.pods:
            self._unschedulable.changed(uid)

    def activate(self, uid: str, now: float) -> None:
        """Move a Pod to the active queue, unless it is gated."""
        queued = self._unschedulable.take(uid) or self._backoff.remove(uid) or self._error_backoff.remove(uid)
        if queued is not None:
            queued.queued_at = now
            self._enqueue(queued, now, ClusterEvent(WILDCARD, Action.ALL, "ForceActivate"))

    def retry_later(self, uid: str, now: float) -> None:
        """Try a Pod again after a backoff, as after a failed attempt."""
        queued = self._unschedulable.take(uid) or self._gated.take(uid)
        if queued is not None:
            queued.queued_at = now
            queued.errors_in_a_row += 1
            self._back_off(queued, now, RETRY.label)

    def recheck_gate(self, uid: str, now: float) -> None:
        """Run PreEnqueue again for a gated Pod."""
        queued = self._gated.take(uid)
        if queued is not None:
            self._enqueue(queued, now, ClusterEvent(WILDCARD, Action.ALL, "PreEnqueue"))

    def flush(self, now: float) -> None:
        """Requeue Pods that have been unschedulable for too long, and those that an earlier event concerns."""
        self._release_due(now)
        while self._unfinished:
            self._requeue_some(self._unfinished.popleft(), None, now)
        for queued in self._unschedulable:
            if now - queued.queued_at > self._unschedulable_seconds_max:
                self._requeue_if_helped(queued, FLUSH, None, None, now)

    def next_due(self) -> float | None:
        """Return when `pop` has something to do by itself, or a gated Pod is to be reported; None if there is none."""
        if self._unfinished:
            return 0.0
        # Most Pods are gated for a moment only, until their claims exist.
        while self._gate_reports and self._gated.get(self._gate_reports[0][1]) is None:
            self._gate_reports.popleft()
        due = self._gate_reports[0][0] if self._gate_reports else None
        for heap in (self._backoff, self._error_backoff):
            if heap.entries:
                first = heap.peek()
                if first is not None and (due is None or first[0][0] < due):
                    due = first[0][0]
        return due

    def gated_to_report(self, now: float) -> list[QueuedPod]:
        """Return the Pods that have been gated for a while, each once for the same reason."""
        found: list[QueuedPod] = []
        while self._gate_reports and self._gate_reports[0][0] <= now:
            queued = self._gated.get(self._gate_reports.popleft()[1])
            if queued is not None and queued.gated_message != queued.reported_gate:
                queued.reported_gate = queued.gated_message
                found.append(queued)
        return found

    def is_gated(self, queued: QueuedPod) -> bool:
        """Return whether a Pod that was to be reported still is."""
        return bool(queued.gated_message) and self._gated.get(queued.uid) is queued

    # --- State. ---

    def __contains__(self, uid: str) -> bool:
        return uid in self._unschedulable.pods or uid in self._gated.pods or self._waiting_for_attempt(uid) is not None

    def info_of(self, uid: str) -> PodInfo | None:
        """Return a Pod that is not in flight, as last updated."""
        queued = self._waiting_for_attempt(uid) or self._gated.get(uid) or self._unschedulable.get(uid)
        return None if queued is None else queued.info

    def _waiting_for_attempt(self, uid: str) -> QueuedPod | None:
        """Return a Pod that is active or backing off."""
        entry = self._active.entries.get(uid) or self._backoff.entries.get(uid) or self._error_backoff.entries.get(uid)
        return None if entry is None else entry[2]

    def has_work_before(self, due: float | None) -> bool:
        """Return whether `pop` may return a Pod, or has something to do before a time; None means never."""
        if self._active.entries or self._backoff.entries or self._unfinished:
            return True
        if self._error_backoff.entries:
            own = self.next_due()
            return own is not None and (due is None or own < due)
        return bool(self._gate_reports) and (due is None or self._gate_reports[0][0] < due)

    def counts(self) -> dict[str, int]:
        """Return the number of Pods by state."""
        return {
            "active": len(self._active.entries),
            "backoff": len(self._backoff.entries) + len(self._error_backoff.entries),
            "unschedulable": len(self._unschedulable.pods),
            "gated": len(self._gated.pods),
        }

    @property
    def recorded_events(self) -> int:
        """Return the number of events recorded for Pods in flight."""
        return len(self._events)

    def pending(self) -> tuple[QueuedPod, ...]:
        """Return all Pods that are not in flight."""
        heaps = (self._active, self._backoff, self._error_backoff)
        return (
            *(queued for heap in heaps for queued in heap.pods()),
            *self._unschedulable,
            *self._gated,
        )

    # --- Moving Pods. ---

    def _enqueue(self, queued: QueuedPod, now: float, event: ClusterEvent) -> None:
        """Add the Pod to the active or gated Pods."""
        if self._gate(queued, now, event.label):
            return
        queued.sort_key = self._sort_key(queued)
        self._active.push(queued.sort_key, queued)
        self._observe("active", event.label)

    def _gate(self, queued: QueuedPod, now: float, label: str) -> bool:
        """Run PreEnqueue; add the Pod to the gated ones if it is rejected, and return whether it is."""
        pod = queued.info.pod
        status = self._rules(pod).pre_enqueue(pod)
        if status.is_success:
            queued.gated_by = queued.gated_message = queued.reported_gate = ""
            return False
        queued.gated_by, queued.gated_message = status.plugin, status.message
        if queued.gated_message != queued.reported_gate and queued.gated_by not in _REPORTED_ELSEWHERE:
            self._gate_reports.append((now + GATED_REPORT_SECONDS, queued.uid))
        self._gated.add(queued, (queued.gated_by,))
        self._observe("gated", label)
        return True

    def _requeue_if_helped(self, queued: QueuedPod, event: ClusterEvent, old: Any, new: Any, now: float) -> bool:
        """Requeue a rejected Pod if a rejecting plugin returns Queue for the event."""
        waiting = queued.rejecting_plugins | queued.pending_plugins
        helped = self._helped(queued, waiting, event, old, new)
        if not helped:
            return False
        self._unschedulable.take(queued.uid)
        if helped & queued.pending_plugins:
            self._enqueue(queued, now, event)
        else:
            self._back_off(queued, now, event.label)
        return True

    def _ungate_if_helped(self, queued: QueuedPod, event: ClusterEvent, old: Any, new: Any, now: float) -> bool:
        """Run PreEnqueue again if the gating plugin returns Queue for the event."""
        if not self._helped(queued, frozenset((queued.gated_by,)), event, old, new):
            return False
        self._gated.take(queued.uid)
        if not queued.attempts:
            queued.added_at = now
        self._enqueue(queued, now, event)
        return True

    def _helped(
        self, queued: QueuedPod, plugins: frozenset[str], event: ClusterEvent, old: Any, new: Any
    ) -> frozenset[str]:
        """Return those of the plugins that return Queue for the event."""
        if event.resource == WILDCARD:
            return plugins
        pod = queued.info.pod
        helped: set[str] = set()
        for plugin, item in self._registrations_for(event, self._rules(pod)):
            is_asked = plugin in plugins and plugin not in helped
            if is_asked and (item.hint is None or item.hint(pod, old, new) is Hint.QUEUE):
                helped.add(plugin)
        return frozenset(helped)

    def _registrations_for(self, event: ClusterEvent, rules: Rules) -> tuple[tuple[str, EventRegistration], ...]:
        """Return the plugins of a profile that are registered for such events, with their registrations."""
        kind = (rules, event.resource, event.action)
        found = self._interested.get(kind)
        if found is None:
            found = self._interested[kind] = registered_for(event, rules.registrations())
        return found

    def _back_off(self, queued: QueuedPod, now: float, label: str) -> None:
        failed = queued.errors_in_a_row > 0
        failures = queued.errors_in_a_row if failed else queued.rejected_times
        due = queued.queued_at + self._backoff_rule.seconds(failures)
        if due <= now:
            self._enqueue(queued, now, ClusterEvent(WILDCARD, Action.ALL, label))
            return
        heap = self._error_backoff if failed else self._backoff
        heap.push((due, -queued.info.priority), queued)
        self._observe("backoff", label)

    def _release_due(self, now: float) -> None:
        for heap in (self._backoff, self._error_backoff):
            while heap.entries and (first := heap.peek()) is not None and first[0][0] <= now:
                heap.remove(first[1].uid)
                self._enqueue(first[1], now, ClusterEvent(WILDCARD, Action.ALL, "BackoffComplete"))

    def _missed_since(self, since: int | None) -> tuple[_EventRecord, ...]:
        """Return the events since a Pod was popped; a wildcard event if some were dropped."""
        if since is None:
            return ()
        if since < self._dropped:
            return (_EventRecord(self._dropped, FLUSH, None, None),)
        return tuple(item for item in self._events if item.number > since)

    def _record_event(self, event: ClusterEvent, old: Any, new: Any) -> None:
        if self._in_flight:
            self._event_number += 1
            self._events.append(_EventRecord(self._event_number, event, old, new))
            if len(self._events) > EVENTS_RECORDED_MAX:
                self._dropped = self._events.popleft().number

    def _remove(self, uid: str) -> None:
        for heap in (self._active, self._backoff, self._error_backoff):
            if uid in heap.entries:
                heap.remove(uid)
        for rejected in (self._unschedulable, self._gated):
            if uid in rejected.pods:
                rejected.take(uid)


def _concerns(item: _EventRecord, uid: str) -> bool:
    """Return whether an event concerns the Pod; a change of a pending Pod concerns only itself."""
    return item.event.resource != UNSCHEDULED_POD or item.new.metadata.uid == uid


def _may_change_keys(old: Pod, new: Pod) -> bool:
    """Return whether more of a rejected Pod has changed than the status that the scheduler writes after its attempt."""
    return (
        old.spec != new.spec
        or old.metadata.labels != new.metadata.labels
        or old.metadata.annotations != new.metadata.annotations
        or old.status.resource_claim_statuses != new.status.resource_claim_statuses
        or old.status.extended_resource_claim_status != new.status.extended_resource_claim_status
    )
