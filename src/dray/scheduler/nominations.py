"""Nominated Pods, for which other Pods must leave resources on their nodes."""

from __future__ import annotations

from collections.abc import Callable

from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo


class Nominations:
    """Pending Pods by the node in their `status.nominatedNodeName`."""

    def __init__(self) -> None:
        # Node -> uid -> Pod; no node without Pods. Read by the search for each node.
        self.by_node: dict[str, dict[str, PodInfo]] = {}
        self._node_of: dict[str, str] = {}
        # Called with the uid of a Pod whose nomination has ended, and whether the Pod gets the node.
        self._listeners: list[Callable[[str, bool], None]] = []

    def on_end(self, listener: Callable[[str, bool], None]) -> None:
        """Call a function when a nomination ends: with the Pod's uid, and whether the Pod is placed now."""
        self._listeners.append(listener)

    def set(self, info: PodInfo, node_name: str) -> None:
        """Set the Pod's nominated node; an empty name removes it."""
        if node_name and self._node_of.get(info.uid) == node_name:
            self.update(info)
            return
        self._end(info.uid, placed=False)
        if node_name:
            self.by_node.setdefault(node_name, {})[info.uid] = info
            self._node_of[info.uid] = node_name

    def update(self, info: PodInfo) -> None:
        """Update a Pod that keeps its nomination."""
        node_name = self._node_of.get(info.uid)
        if node_name is not None:
            self.by_node[node_name][info.uid] = info

    def remove(self, uid: str) -> None:
        """Remove a Pod that has a node now."""
        self._end(uid, placed=True)

    def _end(self, uid: str, *, placed: bool) -> None:
        node_name = self._node_of.pop(uid, None)
        if node_name is None:
            return
        for listener in self._listeners:
            listener(uid, placed)
        pods = self.by_node[node_name]
        del pods[uid]
        if not pods:
            del self.by_node[node_name]

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

    def respected_by(self, pod: PodInfo, node: NodeInfo) -> list[PodInfo]:
        """Return the Pods nominated to the node for which another Pod leaves room: those of at least its priority."""
        return [
            other
            for other in self.by_node.get(node.name, {}).values()
            if other.uid != pod.uid and other.uid not in node.pods and other.priority >= pod.priority
        ]
