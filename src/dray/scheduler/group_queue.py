"""The scheduling queue with PodGroups as units. Pure; time is an argument.

A group is one entry with all its queued Pods. It is gated as long as a PreEnqueue plugin rejects one of them; that one
is among the gated Pods, so that the events which may help it are looked for there. Pods that arrive while the group is
being tried join it when it comes back. A rejected group is tried again after a backoff: there are no queueing hints for
groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from dray.api.document import NamespacedName
from dray.api.pod_groups import group_key_of
from dray.api.types.core_v1 import Pod
from dray.framework.events import WILDCARD, Action, ClusterEvent
from dray.framework.pod_info import PodInfo
from dray.scheduler.queue import ADD, RETRIES_AT_ONCE_MAX, RETRY, Backoff, Rules, SchedulingQueue
from dray.scheduler.queued_group import QueuedGroup
from dray.scheduler.queued_pod import QueuedPod


class GroupQueue(SchedulingQueue):
    """The pending Pods of all profiles, those of groups together."""

    def __init__(
        self,
        rules: Callable[[Pod], Rules],
        all_rules: Iterable[Rules],
        *,
        has_group: Callable[[NamespacedName], bool],
        backoff: Backoff | None = None,
        observe_incoming: Callable[[str, str], None] = lambda _queue, _event: None,
    ) -> None:
        super().__init__(rules, all_rules, backoff=backoff, observe_incoming=observe_incoming)
        self._has_group = has_group
        # Groups with Pods that wait, or that are being tried.
        self._groups: dict[NamespacedName, QueuedGroup] = {}
        # By uid of the Pods.
        self._group_of: dict[str, QueuedGroup] = {}

    # --- Pods. ---

    def add(self, info: PodInfo, now: float) -> None:
        """Add a Pod without a node, alone or to its group."""
        key = group_key_of(info.pod)
        if key is None:
            super().add(info, now)
            return
        self.delete(info.uid)
        queued = QueuedPod(info, now)
        group = self._group(key, queued, now)
        self._put(group, queued)
        if group.in_flight:
            return
        if self._is_queued(group):
            if self._gate_member(group, queued, now, ADD.label):
                self._remove(group.uid)
        elif self._may_be_ungated_by(group, queued):
            self._consider(group, now, ADD)

    def update(self, info: PodInfo, event: ClusterEvent, old: Pod, now: float) -> None:
        """Update a pending Pod; `event` describes the change."""
        if info.pod.spec.scheduling_group is None:
            super().update(info, event, old, now)
            return
        group = self._group_of.get(info.uid)
        if group is None:
            self.add(info, now)
            return
        queued = group.members.get(info.uid) or group.arrived[info.uid]
        queued.info = info
        if group.info.uid == info.uid:
            group.info = info
        if info.uid == group.gated_uid and not self._ungate_if_helped(queued, event, old, info.pod, now):
            self._gated.changed(info.uid)

    def delete(self, uid: str) -> None:
        """Remove a Pod that was deleted or has a node; `group_changed` follows if it belongs to a group."""
        group = self._group_of.pop(uid, None)
        if group is None:
            super().delete(uid)
            return
        group.arrived.pop(uid, None)
        group.members.pop(uid, None)
        if group.gated_uid == uid:
            self._gated.take(uid)
            group.gated_uid = ""
        if group.members:
            if group.info.uid == uid:
                group.info = next(iter(group.members.values())).info
        elif not group.in_flight:
            self._remove(group.uid)
            del self._groups[group.key]

    def info_of(self, uid: str) -> PodInfo | None:
        """Return a Pod that is not in flight, as last updated."""
        group = self._group_of.get(uid)
        if group is None:
            return super().info_of(uid)
        return (group.members.get(uid) or group.arrived[uid]).info

    def _group(self, key: NamespacedName, first: QueuedPod, now: float) -> QueuedGroup:
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = QueuedGroup(key, first, now)
        return group

    def _may_be_ungated_by(self, group: QueuedGroup, added: QueuedPod) -> bool:
        """Return whether the plugin that gates a group may let it go because of a new member; True if none gates it."""
        gated = group.members.get(group.gated_uid)
        return gated is None or bool(self._helped(gated, frozenset((gated.gated_by,)), ADD, None, added.pod))

    def _put(self, group: QueuedGroup, queued: QueuedPod) -> None:
        """Add a Pod to a group; while the group is being tried, to those that join it afterwards."""
        (group.arrived if group.in_flight else group.members)[queued.uid] = queued
        self._group_of[queued.uid] = group

    # --- Groups. ---

    def group_changed(self, key: NamespacedName, now: float) -> None:
        """Look again whether a group can be tried, after a change of the PodGroup or of its scheduled Pods."""
        group = self._groups.get(key)
        if group is None or group.in_flight:
            return
        is_queued = self._is_queued(group)
        if is_queued and self._has_group(key):
            return
        if is_queued:
            self._remove(group.uid)
        self._consider(group, now, ClusterEvent(WILDCARD, Action.ALL, "PodGroupChange"))

    def finish_group(
        self, group: QueuedGroup, remaining: Iterable[QueuedPod], now: float, *, placed: bool, is_error: bool = False
    ) -> None:
        """End an attempt; the Pods that have no place yet wait again, together with those that arrived meanwhile."""
        self.done(group.uid)
        group.in_flight = False
        left = {queued.uid: queued for queued in remaining if queued.uid in self._group_of}
        for uid in group.members.keys() - left.keys():
            self._group_of.pop(uid, None)
        group.members = left | group.arrived
        group.arrived = {}
        if not group.members:
            del self._groups[group.key]
            return
        group.info = next(iter(group.members.values())).info
        if placed:
            group.rejected_times = group.errors_in_a_row = 0
            # A group of which some Pods failed keeps its time, so that it is next.
            group.queued_at = group.queued_at if left else now
            self._enqueue(group, now, RETRY)
            return
        group.queued_at = now
        if is_error:
            group.errors_in_a_row += 1
        else:
            group.errors_in_a_row = 0
            group.rejected_times += 1
        self._back_off(group, now, RETRY.label)

    def pop(self, now: float) -> QueuedPod | None:
        """Return the next Pod or group; it is in flight until it is done, rejected or finished."""
        queued = super().pop(now)
        if isinstance(queued, QueuedGroup):
            queued.in_flight = True
            for member in queued.members.values():
                member.attempts += 1
        return queued

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
        """End an attempt without a node; a member whose binding failed goes back to its group."""
        key = group_key_of(queued.pod)
        if key is None:
            super().reject(queued, now, plugins=plugins, pending=pending, is_error=is_error, at_once=at_once)
            return
        queued.queued_at = now
        group = self._group(key, queued, now)
        waits = group.in_flight or self._is_queued(group) or bool(group.gated_uid)
        self._put(group, queued)
        if waits:
            return
        group.queued_at = now
        group.errors_in_a_row += 1
        if at_once and group.errors_in_a_row <= RETRIES_AT_ONCE_MAX:
            self._enqueue(group, now, RETRY)
        else:
            self._back_off(group, now, RETRY.label)

    # --- Moving. ---

    def activate(self, uid: str, now: float) -> None:
        """Move a Pod, or its group, to the active queue, unless it is gated."""
        group = self._group_of.get(uid)
        super().activate(uid if group is None else group.uid, now)

    def activate_group(self, key: NamespacedName, now: float) -> None:
        """Move the waiting Pods of a group to the active queue, unless they are gated."""
        group = self._groups.get(key)
        if group is not None and not group.in_flight:
            super().activate(group.uid, now)

    def retry_later(self, uid: str, now: float) -> None:
        """Try a Pod, or its group, again after a backoff, as after a failed attempt."""
        group = self._group_of.get(uid)
        if group is None:
            super().retry_later(uid, now)
        elif group.gated_uid:
            self._gated.take(group.gated_uid)
            group.gated_uid = ""
            group.queued_at = now
            group.errors_in_a_row += 1
            self._back_off(group, now, RETRY.label)

    def recheck_gate(self, uid: str, now: float) -> None:
        """Run PreEnqueue again for a gated Pod, or for the group of the Pod."""
        group = self._group_of.get(uid)
        if group is None:
            super().recheck_gate(uid, now)
        elif group.gated_uid:
            self._consider(group, now, ClusterEvent(WILDCARD, Action.ALL, "PreEnqueue"))

    def _consider(self, group: QueuedGroup, now: float, event: ClusterEvent) -> None:
        self._gated.take(group.gated_uid)
        super()._enqueue(group, now, event)

    def _enqueue(self, queued: QueuedPod, now: float, event: ClusterEvent) -> None:
        """Add a Pod or a group to the active or gated ones; a member that is ungated stands for its group."""
        group = None if isinstance(queued, QueuedGroup) else self._group_of.get(queued.uid)
        super()._enqueue(queued if group is None else group, now, event)

    def _back_off(self, queued: QueuedPod, now: float, label: str) -> None:
        """Let a Pod or a group wait; a group is never tried early: without hints, it would be tried all the time."""
        if not isinstance(queued, QueuedGroup):
            super()._back_off(queued, now, label)
            return
        failures = queued.errors_in_a_row or queued.rejected_times
        due = queued.queued_at + self._backoff_rule.seconds(failures)
        if due <= now:
            self._enqueue(queued, now, ClusterEvent(WILDCARD, Action.ALL, label))
            return
        self._error_backoff.push((due, -queued.info.priority), queued)
        self._observe("backoff", label)

    def _gate(self, queued: QueuedPod, now: float, label: str) -> bool:
        """Run PreEnqueue, for a group until it rejects a member, starting at the one it rejected the last time.

        Those after it come next: claims are created in the order of the Pods, so that one of them is likely rejected.
        """
        if not isinstance(queued, QueuedGroup):
            return super()._gate(queued, now, label)
        members = list(queued.members.values())
        gated = queued.members.get(queued.gated_uid)
        queued.gated_uid = ""
        if gated is not None:
            position = members.index(gated)
            members = members[position:] + members[:position]
        return any(self._gate_member(queued, member, now, label) for member in members)

    def _gate_member(self, group: QueuedGroup, member: QueuedPod, now: float, label: str) -> bool:
        if super()._gate(member, now, label):
            group.gated_uid = member.uid
            return True
        return False

    def _is_queued(self, group: QueuedGroup) -> bool:
        return self._waiting_for_attempt(group.uid) is not None

    # --- State. ---

    def __contains__(self, uid: str) -> bool:
        return uid in self._group_of or super().__contains__(uid)

    def gated_to_report(self, now: float) -> list[QueuedPod]:
        """Return the Pods that have been gated for a while, each once for the same reason; groups with all members."""
        found: list[QueuedPod] = []
        for queued in super().gated_to_report(now):
            group = self._group_of.get(queued.uid)
            found.append(queued)
            for other in group.members.values() if group is not None else ():
                if other.reported_gate != queued.gated_message:
                    other.reported_gate = queued.gated_message
                    other.gated_message = queued.gated_message
                    found.append(other)
        return found

    def is_gated(self, queued: QueuedPod) -> bool:
        """Return whether a Pod that was to be reported still is; the members of a gated group are."""
        group = self._group_of.get(queued.uid)
        if group is None:
            return super().is_gated(queued)
        return bool(queued.gated_message and group.gated_uid) and group.members.get(queued.uid) is queued

    def counts(self) -> dict[str, int]:
        """Return the number of Pods by state."""
        counts = super().counts() | {"incomplete": 0, "pending": 0}
        places = {"active": (self._active,), "backoff": (self._backoff, self._error_backoff)}
        for group in self._groups.values():
            size = len(group.members)
            counts["pending"] += len(group.arrived)
            if group.gated_uid:
                # The gating Pod is counted already.
                counts["gated"] -= 1
                counts["gated" if self._has_group(group.key) else "incomplete"] += size
            for name, heaps in places.items():
                if any(group.uid in heap.entries for heap in heaps):
                    counts[name] += size - 1
        return counts

    def pending(self) -> tuple[QueuedPod, ...]:
        """Return all Pods that are not in flight."""
        alone = (queued for queued in super().pending() if queued.uid not in self._group_of)
        return tuple(self._members_and(queued for queued in alone if not isinstance(queued, QueuedGroup)))

    def _members_and(self, alone: Iterable[QueuedPod]) -> Iterator[QueuedPod]:
        yield from alone
        for group in self._groups.values():
            yield from group.members.values() if not group.in_flight else ()
            yield from group.arrived.values()
