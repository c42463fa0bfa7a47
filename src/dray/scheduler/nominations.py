"""Nominated Pods, for which other Pods must leave resources on their nodes."""

from __future__ import annotations

from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo


class Nominations:
    """Pending Pods by the node in their `status.nominatedNodeName`."""

    def __init__(self) -> None:
        self._nodes: dict[str, dict[str, PodInfo]] = {}
        self._node_of: dict[str, str] = {}

    def set(self, info: PodInfo, node_name: str) -> None:
        """Set the Pod's nominated node; an empty name removes it."""
        self.remove(info.uid)
        if node_name:
            self._nodes.setdefault(node_name, {})[info.uid] = info
            self._node_of[info.uid] = node_name

    def remove(self, uid: str) -> None:
        """Remove a scheduled or deleted Pod."""
        node_name = self._node_of.pop(uid, None)
        if node_name is None:
            return
        pods = self._nodes[node_name]
        del pods[uid]
        if not pods:
            del self._nodes[node_name]

    def __bool__(self) -> bool:
        return bool(self._nodes)

    def with_nominated(self, node: NodeInfo, pod: PodInfo) -> NodeInfo | None:
        """Return the node with the Pods nominated to it of at least the same priority; None if there are none."""
        others = [
            other
            for other in self._nodes.get(node.name, {}).values()
            if other.uid != pod.uid and other.uid not in node.pods and other.priority >= pod.priority
        ]
        for other in others:
            node = node.with_pod(other)
        return node if others else None
