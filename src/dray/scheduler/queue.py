"""The scheduling queue: which Pod is tried next, and what wakes those that were rejected.

Pure; time is an argument. A pending Pod is in exactly one place:

* active: ready to be tried, best first;
* backoff: rejected or broken lately, ready at a known time; when nothing is active the rejected ones are tried early;
* unschedulable: rejected, until an event of which a rejecting plugin says that it may help, or the flush;
* gated: kept out by a PreEnqueue plugin;
* in flight: popped, until `done`. Events that arrive meanwhile are remembered, so that none is missed.
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
)
from dray.framework.pod_info import PodInfo
from dray.framework.status import SUCCESS, Status
from dray.scheduler.queued_pod import QueuedPod
from dray.scheduler.unschedulable_pods import UnschedulablePods

BACKOFF_FIRST_SECONDS: Final = 1.0
BACKOFF_MAX_SECONDS: Final = 10.0
# Nobody may wait forever for an event that a plugin forgot to register.
UNSCHEDULABLE_SECONDS_MAX: Final = 300.0
FLUSH_EVERY_SECONDS: Final = 30.0
# A Pod that is held at Permit for long must not fill the memory with events.
EVENTS_REMEMBERED_MAX: Final = 100_000
ADD: Final = ClusterEvent(UNSCHEDULED_POD, Action.ADD, "UnscheduledPodAdd")
FLUSH: Final = ClusterEvent(WILDCARD, Action.ALL, "UnschedulableTimeout")
_EXPONENT_MAX: Final = 30


class Rules(Protocol):
    """What the queue asks of a Pod's profile."""

    def sort_key(self, priority: int, queued_at: float) -> Any:
        """What active Pods are ordered by, lowest first."""

    def pre_enqueue(self, pod: Pod) -> Status:
        """Whether the Pod may be queued; a no names its plugin."""

    def registrations(self) -> Mapping[str, Sequence[EventRegistration]]:
        """The interests of each plugin."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a failed Pod waits."""

    first_seconds: float = BACKOFF_FIRST_SECONDS
    seconds_max: float = BACKOFF_MAX_SECONDS

    def seconds(self, failures: int) -> float:
        """Doubles with every failure."""
        if failures <= 0:
            return 0.0
        return min(self.seconds_max, self.first_seconds * 2.0 ** min(failures - 1, _EXPONENT_MAX))


class _Heap:
    """Pods by a key, lowest first; Pods may be taken out of the middle."""

    def __init__(self) -> None:
        self._heap: list[tuple[Any, int, QueuedPod]] = []
        # uid -> the entry that counts; others in the heap are leftovers.
        self._entries: dict[str, tuple[Any, int, QueuedPod]] = {}
        self._count = 0

    def push(self, key: Any, pod: QueuedPod) -> None:
        self._count += 1
        entry = (key, self._count, pod)
        self._entries[pod.uid] = entry
        heapq.heappush(self._heap, entry)

    def peek(self) -> tuple[Any, QueuedPod] | None:
        while self._heap:
            entry = self._heap[0]
            if self._entries.get(entry[2].uid) is entry:
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
        entry = self._entries.pop(uid, None)
        return entry[2] if entry else None

    def get(self, uid: str) -> QueuedPod | None:
        entry = self._entries.get(uid)
        return entry[2] if entry else None

    def pods(self) -> Iterable[QueuedPod]:
        return (entry[2] for entry in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)


class _EventRecord(msgspec.Struct, frozen=True):
    number: int
    event: ClusterEvent
    old: Any
    new: Any


class SchedulingQueue:
    """The pending Pods of all profiles; see the module's promises."""

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
        # Rejected Pods back off for courtesy, broken ones for safety: only the former may be tried early.
        self._backoff = _Heap()
        self._error_backoff = _Heap()
        self._unschedulable = UnschedulablePods(registrations)
        self._gated = UnschedulablePods(registrations)
        # uid -> number of the last event before the Pod was popped; numbers never fall.
        self._in_flight: dict[str, int] = {}
        self._events: deque[_EventRecord] = deque()
        self._event_number = 0
        # Number of the newest event that had to be forgotten.
        self._forgotten = 0

    # --- Pods come, change and go. ---

    def add(self, info: PodInfo, now: float) -> None:
        """A Pod without a node appeared."""
        self._remove(info.uid)
        self._enqueue(QueuedPod(info, now), now, ADD)

    def update(self, info: PodInfo, event: ClusterEvent, old: Pod, now: float) -> None:
        """A pending Pod changed; `event` says in what respect."""
        uid = info.uid
        for heap in (self._active, self._backoff, self._error_backoff):
            queued = heap.get(uid)
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
        if uid in self._gated:
            if not self._ungate_if_helped(queued, event, old, info.pod, now):
                self._gated.changed(uid)
        elif not self._requeue_if_helped(queued, event, old, info.pod, now):
            self._unschedulable.changed(uid)

    def delete(self, uid: str) -> None:
        """A pending Pod is gone, or has a node."""
        self._remove(uid)

    # --- Attempts. ---

    def pop(self, now: float) -> QueuedPod | None:
        """The next Pod to try; it is in flight until `done` or `reject`."""
        self._release_due(now)
        queued = self._active.pop() or self._backoff.pop()
        if queued is None:
            return None
        queued.attempts += 1
        queued.rejecting_plugins = queued.pending_plugins = frozenset()
        self._in_flight[queued.uid] = self._event_number
        return queued

    def done(self, uid: str) -> None:
        """The attempt ended well, or the Pod is gone."""
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
    ) -> None:
        """The attempt ended without a node; no plugins means that it broke."""
        uid = queued.uid
        since = self._in_flight.get(uid)
        queued.rejecting_plugins, queued.pending_plugins = frozenset(plugins), frozenset(pending)
        rejected_by_nobody = not (queued.rejecting_plugins or queued.pending_plugins)
        queued.queued_at = now
        if is_error or rejected_by_nobody:
            queued.errors_in_a_row += 1
        else:
            queued.errors_in_a_row = 0
            queued.rejected_times += 1
        missed = self._missed_since(since)
        self.done(uid)
        if uid in self:
            # It was deleted and made again meanwhile, or added back: that one counts.
            return
        if is_error or rejected_by_nobody:
            self._back_off(queued, now, "ScheduleAttemptFailure")
            return
        for item in missed:
            if _concerns(item, uid) and self._requeue_if_helped(queued, item.event, item.old, item.new, now):
                return
        self._unschedulable.park(queued, queued.rejecting_plugins | queued.pending_plugins)
        self._observe("unschedulable", "ScheduleAttemptFailure")

    # --- The cluster changes. ---

    def requeue_for_event(self, event: ClusterEvent, old: Any, new: Any, now: float) -> None:
        """Wake the Pods that the event may help."""
        if not self._unschedulable.interests(event):
            return
        self._record_event(event, old, new)
        for queued in self._unschedulable.concerned(event, old, new):
            self._requeue_if_helped(queued, event, old, new, now)
        for queued in self._gated.concerned(event, old, new):
            self._ungate_if_helped(queued, event, old, new, now)

    def activate(self, uid: str, now: float) -> None:
        """Have a Pod tried soon, whatever holds it back but a gate."""
        queued = self._unschedulable.take(uid) or self._backoff.remove(uid) or self._error_backoff.remove(uid)
        if queued is not None:
            queued.queued_at = now
            self._enqueue(queued, now, ClusterEvent(WILDCARD, Action.ALL, "ForceActivate"))

    def flush(self, now: float) -> None:
        """Let go of what has waited long enough."""
        self._release_due(now)
        for queued in self._unschedulable:
            if now - queued.queued_at > self._unschedulable_seconds_max:
                self._requeue_if_helped(queued, FLUSH, None, None, now)

    def next_due(self) -> float | None:
        """When the next backoff ends; None when nothing backs off."""
        firsts = (heap.peek() for heap in (self._backoff, self._error_backoff))
        return min((first[0][0] for first in firsts if first is not None), default=None)

    # --- What there is. ---

    def __contains__(self, uid: str) -> bool:
        heaps = (self._active, self._backoff, self._error_backoff)
        return uid in self._unschedulable or uid in self._gated or any(heap.get(uid) for heap in heaps)

    def info_of(self, uid: str) -> PodInfo | None:
        """A Pod that is not in flight, as last told of."""
        for heap in (self._active, self._backoff, self._error_backoff):
            queued = heap.get(uid)
            if queued is not None:
                return queued.info
        queued = self._gated.get(uid) or self._unschedulable.get(uid)
        return None if queued is None else queued.info

    @property
    def ready(self) -> bool:
        """Whether `pop` would give a Pod without looking at the time."""
        return bool(len(self._active) or len(self._backoff))

    def counts(self) -> dict[str, int]:
        """How many Pods each part has."""
        return {
            "active": len(self._active),
            "backoff": len(self._backoff) + len(self._error_backoff),
            "unschedulable": len(self._unschedulable),
            "gated": len(self._gated),
        }

    @property
    def remembered_events(self) -> int:
        """How many events are kept for Pods in flight."""
        return len(self._events)

    def pending(self) -> tuple[QueuedPod, ...]:
        """Every Pod that is not in flight."""
        heaps = (self._active, self._backoff, self._error_backoff)
        return (
            *(queued for heap in heaps for queued in heap.pods()),
            *self._unschedulable,
            *self._gated,
        )

    # --- Deciding. ---

    def _enqueue(self, queued: QueuedPod, now: float, event: ClusterEvent) -> None:
        """To the active part, or to the gate."""
        rules = self._rules(queued.pod)
        status = rules.pre_enqueue(queued.pod)
        if status is not SUCCESS and not status.is_success:
            queued.gated_by = status.plugin
            self._gated.park(queued, (queued.gated_by,))
            self._observe("gated", event.label)
            return
        queued.gated_by = ""
        queued.sort_key = rules.sort_key(queued.info.priority, queued.queued_at)
        self._active.push(queued.sort_key, queued)
        self._observe("active", event.label)

    def _requeue_if_helped(self, queued: QueuedPod, event: ClusterEvent, old: Any, new: Any, now: float) -> bool:
        """Queue a rejected Pod again if a rejecting plugin thinks that the event helps."""
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
        """Ask the gates of a Pod again if the one that keeps it out thinks that the event helps."""
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
        """Those of the plugins that think the event helps."""
        if event.resource == WILDCARD:
            return plugins
        registrations = self._rules(queued.pod).registrations()
        helped: list[str] = []
        for plugin in plugins:
            for item in registrations.get(plugin, ()):
                if _says_queue(item, queued.pod, event, old, new):
                    helped.append(plugin)
                    break
        return frozenset(helped)

    def _back_off(self, queued: QueuedPod, now: float, label: str) -> None:
        broken = queued.errors_in_a_row > 0
        failures = queued.errors_in_a_row if broken else queued.rejected_times
        due = queued.queued_at + self._backoff_rule.seconds(failures)
        if due <= now:
            self._enqueue(queued, now, ClusterEvent(WILDCARD, Action.ALL, label))
            return
        heap = self._error_backoff if broken else self._backoff
        heap.push((due, -queued.info.priority), queued)
        self._observe("backoff", label)

    def _release_due(self, now: float) -> None:
        for heap in (self._backoff, self._error_backoff):
            while (first := heap.peek()) is not None and first[0][0] <= now:
                heap.remove(first[1].uid)
                self._enqueue(first[1], now, ClusterEvent(WILDCARD, Action.ALL, "BackoffComplete"))

    def _missed_since(self, since: int | None) -> tuple[_EventRecord, ...]:
        """The events since a Pod was popped; one that stands for all when too many were to be remembered."""
        if since is None:
            return ()
        if since < self._forgotten:
            return (_EventRecord(self._forgotten, FLUSH, None, None),)
        return tuple(item for item in self._events if item.number > since)

    def _record_event(self, event: ClusterEvent, old: Any, new: Any) -> None:
        if self._in_flight:
            self._event_number += 1
            self._events.append(_EventRecord(self._event_number, event, old, new))
            if len(self._events) > EVENTS_REMEMBERED_MAX:
                self._forgotten = self._events.popleft().number

    def _remove(self, uid: str) -> None:
        self._active.remove(uid)
        self._backoff.remove(uid)
        self._error_backoff.remove(uid)
        self._unschedulable.take(uid)
        self._gated.take(uid)


def _concerns(item: _EventRecord, uid: str) -> bool:
    """A change of a pending Pod is news for that Pod alone."""
    return item.event.resource != UNSCHEDULED_POD or item.new.metadata.uid == uid


def _says_queue(item: EventRegistration, pod: Pod, event: ClusterEvent, old: Any, new: Any) -> bool:
    if not item.event.covers(event):
        return False
    return item.hint is None or item.hint(pod, old, new) is Hint.QUEUE
