"""Rejected and gated Pods, indexed by the events that may requeue them.

Pure. An event costs what it concerns: nothing when no plugin is interested, and only the Pods with a common key when
the plugin has declared how its events relate to Pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dray.framework.events import Action, ClusterEvent, EventRegistration, registered_for
from dray.scheduler.queued_pod import QueuedPod


class UnschedulablePods:
    """Pods by uid, by rejecting plugin, and by the keys of event registrations."""

    def __init__(self, registrations: Iterable[tuple[str, Sequence[EventRegistration]]]) -> None:
        self._registrations: dict[str, list[EventRegistration]] = {}
        for plugin, items in registrations:
            self._registrations.setdefault(plugin, []).extend(items)
        # The functions that return the keys of a Pod, each once: several registrations have the same one.
        self._key_functions = {
            plugin: tuple(dict.fromkeys(item.keys.of_pod for item in items if item.keys is not None))
            for plugin, items in self._registrations.items()
        }
        # In the order in which they were added; changed only here.
        self.pods: dict[str, tuple[int, QueuedPod, frozenset[str]]] = {}
        self._by_plugin: dict[str, dict[str, None]] = {}
        self._by_key: dict[tuple[str, str], dict[str, None]] = {}
        self._keys: dict[str, list[tuple[str, str]]] = {}
        self._count = 0
        # The registrations for each kind of event.
        self._interested: dict[tuple[str, Action], tuple[tuple[str, EventRegistration], ...]] = {}

    def add(self, queued: QueuedPod, plugins: Iterable[str]) -> None:
        """Add a Pod that the plugins rejected."""
        uid, names = queued.uid, frozenset(plugins)
        self.take(uid)
        self._count += 1
        self.pods[uid] = (self._count, queued, names)
        for name in names:
            self._by_plugin.setdefault(name, {})[uid] = None
        self._enter_keys(queued, names)

    def take(self, uid: str) -> QueuedPod | None:
        """Remove and return a Pod."""
        entry = self.pods.pop(uid, None)
        if entry is None:
            return None
        for name in entry[2]:
            self._by_plugin[name].pop(uid, None)
        self._leave_keys(uid)
        return entry[1]

    def changed(self, uid: str) -> None:
        """Update the keys of a changed Pod; it keeps its position."""
        _, queued, names = self.pods[uid]
        self._leave_keys(uid)
        self._enter_keys(queued, names)

    def get(self, uid: str) -> QueuedPod | None:
        """Return the Pod with the uid."""
        entry = self.pods.get(uid)
        return entry[1] if entry else None

    def registrations_for(self, event: ClusterEvent) -> tuple[tuple[str, EventRegistration], ...]:
        """Return the plugins that are registered for such events, with their registrations."""
        kind = (event.resource, event.action)
        found = self._interested.get(kind)
        if found is None:
            found = self._interested[kind] = registered_for(event, self._registrations)
        return found

    @property
    def newest(self) -> int:
        """Return the position of the Pod that was added last."""
        return self._count

    def concerned(self, event: ClusterEvent, old: Any, new: Any, newest: int | None = None) -> Sequence[QueuedPod]:
        """Return the Pods whose plugins are registered for the event, in the order in which they were added.

        With `newest`, those that were added later are left out.
        """
        if not self.pods:
            return ()
        uids: dict[str, None] = {}
        for plugin, item in self.registrations_for(event):
            waiting = self._by_plugin.get(plugin)
            if not waiting:
                continue
            keys = item.keys.of_change(old, new) if item.keys is not None else None
            if keys is None:
                uids |= waiting
                continue
            for key in keys:
                found = self._by_key.get((plugin, key))
                if found is not None:
                    uids |= found
        if not uids:
            return ()
        entries = [self.pods[uid] for uid in uids]
        if newest is not None:
            entries = [entry for entry in entries if entry[0] <= newest]
        entries.sort(key=_position)
        return [entry[1] for entry in entries]

    def __iter__(self) -> Iterator[QueuedPod]:
        return iter([entry[1] for entry in self.pods.values()])

    def _enter_keys(self, queued: QueuedPod, plugins: frozenset[str]) -> None:
        keys = self._keys[queued.uid] = self._keys_of(queued, plugins)
        for key in keys:
            self._by_key.setdefault(key, {})[queued.uid] = None

    def _leave_keys(self, uid: str) -> None:
        for key in dict.fromkeys(self._keys.pop(uid)):
            uids = self._by_key[key]
            del uids[uid]
            if not uids:
                del self._by_key[key]

    def _keys_of(self, queued: QueuedPod, plugins: frozenset[str]) -> list[tuple[str, str]]:
        pod = queued.info.pod
        return [
            (plugin, key)
            for plugin in plugins
            for keys_of_pod in self._key_functions.get(plugin, ())
            for key in keys_of_pod(pod)
        ]


def _position(entry: tuple[int, QueuedPod, frozenset[str]]) -> int:
    return entry[0]
