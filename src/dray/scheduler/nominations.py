"""Nominated Pods, for which other Pods must leave resources on their nodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from dray.api.types.core_v1 import Pod
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo

# Length of the log of changes; a reader that falls further behind has to read everything.
CHANGES_MAX: Final = 10_000


class Nominations:
    """Pending Pods by the node in their `status.nominatedNodeName`."""

    def __init__(self) -> None:
        # Node -> uid -> Pod; no node without Pods. Read by the search for each node.
        self.by_node: dict[str, dict[str, PodInfo]] = {}
        self._node_of: dict[str, str] = {}
        # Grows with each change; the log has the nodes concerned, newest last.
        self.version = 0
        self._changes: deque[str] = deque(maxlen=CHANGES_MAX)
        # Called with the uid of a Pod whose nomination has ended, the node, and whether the Pod is placed now.
        self._listeners: list[Callable[[str, str, bool], None]] = []

    def on_end(self, listener: Callable[[str, str, bool], None]) -> None:
        """Call a function when a nomination ends: with the Pod's uid, the node, and whether the Pod is placed now."""
        self._listeners.append(listener)

    def changed_since(self, version: int) -> Iterable[str] | None:
        """Return the nodes whose nominations have changed after the version; None if the log is too short."""
        count = self.version - version
        return None if count > len(self._changes) else islice(reversed(self._changes), count)

    def set(self, info: PodInfo, node_name: str) -> None:
        """Set the Pod's nominated node; an empty name removes it."""
        if node_name and self._node_of.get(info.uid) == node_name:
            self.update(info)
            return
        self._end(info.uid, placed=False)
        if node_name:
            self.by_node.setdefault(node_name, {})[info.uid] = info
            self._node_of[info.uid] = node_name
            self._changed(node_name)

    def update(self, info: PodInfo) -> None:
        """Update a Pod that keeps its nomination."""
        node_name = self._node_of.get(info.uid)
        if node_name is not None:
            known = self.by_node[node_name][info.uid]
            self.by_node[node_name][info.uid] = info
            if not _same_to_filters(known.pod, info.pod):
                self._changed(node_name)

    def remove(self, uid: str) -> None:
        """Remove a Pod that has a node now."""
        if uid in self._node_of:
            self._end(uid, placed=True)

    def _end(self, uid: str, *, placed: bool) -> None:
        node_name = self._node_of.pop(uid, None)
        if node_name is None:
            return
        for listener in self._listeners:
            listener(uid, node_name, placed)
        self._changed(node_name)
        pods = self.by_node[node_name]
        del pods[uid]
        if not pods:
            del self.by_node[node_name]

    def _changed(self, node_name: str) -> None:
        self.version += 1
        self._changes.append(node_name)

    def __bool__(self) -> bool:
        return bool(self.by_node)

    def get(self, uid: str) -> PodInfo | None:
        """Return a nominated Pod."""
        return self.by_node.get(self._node_of.get(uid, ""), {}).get(uid)

    def node_of(self, uid: str) -> str:
        """Return the Pod's nominated node; empty if it has none."""
        return self._node_of.get(uid, "")

    def on(self, node_name: str) -> tuple[PodInfo, ...]:
        """Return the Pods nominated to the node."""
        return tuple(self.by_node.get(node_name, {}).values())

    def all(self) -> tuple[PodInfo, ...]:
        """Return all nominated Pods."""
        return tuple(info for pods in self.by_node.values() for info in pods.values())

    def respected_by(self, pod: PodInfo, node: NodeInfo) -> list[PodInfo]:
        """Return the Pods nominated to the node for which another Pod leaves room: those of at least its priority."""
        return [
            other
            for other in self.by_node.get(node.name, {}).values()
            if other.uid != pod.uid and other.uid not in node.pods and other.priority >= pod.priority
        ]


def _same_to_filters(old: Pod, new: Pod) -> bool:
    """Return whether a change of a nominated Pod is irrelevant to others, such as a new condition."""
    return (
        old.spec == new.spec
        and old.metadata.labels == new.metadata.labels
        and old.status.resource_claim_statuses == new.status.resource_claim_statuses
    )
