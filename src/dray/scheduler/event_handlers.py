"""Handlers of informers that update the queue, the cache and the nominations."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from dray.api.document import NamespacedName
from dray.api.pod_groups import group_key_of
from dray.api.types.core_v1 import Node, Pod
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.client.informer import Handler
from dray.client.objects import key_of
from dray.framework.events import Action, ClusterEvent
from dray.framework.pod_info import PodInfo
from dray.scheduler.cache import Cache
from dray.scheduler.cluster_events import (
    ASSIGNED_POD_ADD,
    ASSIGNED_POD_DELETE,
    NODE_ADD,
    NODE_DELETE,
    node_event,
    pod_event,
)
from dray.scheduler.group_queue import GroupQueue
from dray.scheduler.nominations import Nominations
from dray.scheduler.pod_groups import PodGroups
from dray.scheduler.queue import SchedulingQueue


class EventHandlers:
    """Translates changes of objects to cluster events; `now` reads the monotonic clock."""

    def __init__(
        self,
        queue: SchedulingQueue,
        cache: Cache,
        nominations: Nominations,
        scheduler_names: Container[str],
        now: Callable[[], float],
        pod_groups: PodGroups | None = None,
    ) -> None:
        self._queue = queue
        self._cache = cache
        self._nominations = nominations
        self._scheduler_names = scheduler_names
        self._now = now
        # None while there are no groups.
        self._pod_groups = pod_groups

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Handle a change of an unfinished Pod."""
        if self._pod_groups is not None and (new or old).spec.scheduling_group is not None:  # type: ignore[union-attr]
            self._member_changed(self._pod_groups, old, new)
            return
        self._pod_changed(old, new)

    def _member_changed(self, groups: PodGroups, old: Pod | None, new: Pod | None) -> None:
        """Handle a change of a Pod of a group: of how many Pods the group has, or how many are scheduled."""
        pod = new if new is not None else old
        assert pod is not None
        if new is None:
            groups.remove_pod(pod)
        elif old is None:
            groups.add_pod(new)
        self._pod_changed(old, new)
        if pod.spec.node_name:
            groups.pod_bound(pod)
        if old is not None and new is not None and bool(old.spec.node_name) == bool(new.spec.node_name):
            return
        # A Pod that was queued just now has been counted by the queue.
        if new is None or new.spec.node_name or (new.metadata.uid or "") not in self._queue:
            self._group_changed(group_key_of(pod))

    def group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        """Handle a change of a PodGroup."""
        assert self._pod_groups is not None
        group = new if new is not None else old
        assert group is not None
        key = key_of(group)
        self._pod_groups.set(key, new)
        self._group_changed(key)

    def _group_changed(self, key: NamespacedName | None) -> None:
        if key is not None and isinstance(self._queue, GroupQueue):
            self._queue.group_changed(key, self._now())

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            assert old is not None
            self._pod_gone(old)
        elif new.spec.node_name:
            self._assigned_pod_changed(old, new)
        elif new.spec.scheduler_name in self._scheduler_names:
            self._pending_pod_changed(old, new)

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        """Handle a change of a node."""
        if new is None:
            assert old is not None
            self._cache.remove_node(old.metadata.name or "")
            self._queue.requeue_for_event(NODE_DELETE, old, None, self._now())
            return
        self._cache.set_node(new)
        event = NODE_ADD if old is None else node_event(old, new)
        self._queue.requeue_for_event(event, old, new, self._now())

    def handler_of(self, resource: str) -> Handler[Any]:
        """Return a handler for a kind that only plugins use."""
        added = ClusterEvent(resource, Action.ADD, f"{resource}Add")
        updated = ClusterEvent(resource, Action.UPDATE, f"{resource}Update")
        deleted = ClusterEvent(resource, Action.DELETE, f"{resource}Delete")

        def changed(old: Any, new: Any) -> None:
            event = added if old is None else deleted if new is None else updated
            self._queue.requeue_for_event(event, old, new, self._now())

        return changed

    def nominate(self, info: PodInfo, node_name: str) -> None:
        """Set or clear a nomination; Pods that left room for it may have more of it now."""
        before = self._nominations.node_of(info.uid)
        self._nominations.set(info, node_name)
        if before and before != node_name:
            # What plugins keep for a Pod from their decision on, they drop when its nomination ends.
            self._queue.keys_changed(info.uid)
            event, priority = ASSIGNED_POD_DELETE, info.priority
            self._queue.requeue_for_event(event, info.pod, None, self._now(), priority_max=priority)

    def _pod_gone(self, pod: Pod) -> None:
        uid = pod.metadata.uid or ""
        if self._nominations.node_of(uid):
            self.nominate(PodInfo(pod), "")
        # A Pod that was bound and deleted during an outage of the watch is still assumed.
        if pod.spec.node_name or self._cache.is_assumed(uid):
            self._cache.remove_pod(uid)
            self._queue.requeue_for_event(ASSIGNED_POD_DELETE, pod, None, self._now())
        else:
            self._queue.delete(uid)

    def _assigned_pod_changed(self, old: Pod | None, new: Pod) -> None:
        uid = new.metadata.uid or ""
        self._cache.set_pod(new)
        if old is not None and old.spec.node_name:
            self._queue.requeue_for_event(pod_event(old, new), old, new, self._now())
            return
        self._nominations.remove(uid)
        self._queue.delete(uid)
        self._queue.requeue_for_event(ASSIGNED_POD_ADD, None, new, self._now())

    def _pending_pod_changed(self, old: Pod | None, new: Pod) -> None:
        uid = new.metadata.uid or ""
        if self._cache.is_assumed(uid):
            # It is being bound; the attempt is not repeated for a later change.
            return
        # A new Pod is not in the queue.
        known = None if old is None else self._queue.info_of(uid)
        info = PodInfo(new) if known is None else known.updated(new)
        nominated = new.status.nominated_node_name or ""
        if old is not None and nominated == (old.status.nominated_node_name or ""):
            # A nomination counts from the decision on, before it is written.
            self._nominations.update(info)
        elif nominated or self._nominations.by_node:
            self.nominate(info, nominated)
        if old is None:
            self._queue.add(info, self._now())
        else:
            self._queue.update(info, pod_event(old, new), old, self._now())
