"""Whether a node takes new Pods, and if not, why: the part of "usable" that devices share with their nodes. Pure.

A new Pod is one without tolerations. What the controllers do to a node that is not ready is done here too, so that a
dump from the moment before has the same answer as one from the moment after.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from dray.api.document import Document
from dray.api.pod_claims import is_pod_done
from dray.api.types.core_v1 import Node, Pod
from dray.sim.snapshot import Snapshot

GONE: Final = "node gone"
NOT_READY: Final = "node not ready"
CORDONED: Final = "node cordoned"
FULL: Final = "node full of Pods"
UNSCHEDULABLE_TAINT: Final = "node.kubernetes.io/unschedulable"
# By the status of the condition Ready.
NOT_READY_TAINTS: Final[Mapping[str, str]] = {
    "False": "node.kubernetes.io/not-ready",
    "Unknown": "node.kubernetes.io/unreachable",
}
# On nodes that a rebalancing keeps other Pods from; also written to the cluster while it is applied.
HOLD_TAINT: Final = "rebalance.dray.dev/hold"
_HARD: Final = ("NoSchedule", "NoExecute")


def node_obstacle(node: Node, pods: int) -> str:
    """Return why a node with so many Pods takes no new Pod, in few words; empty if it does."""
    ready = next((item for item in node.status.conditions if item.type == "Ready"), None)
    if ready is not None and ready.status != "True":
        return NOT_READY
    hard = [taint for taint in node.spec.taints if taint.effect in _HARD]
    if any(taint.key in NOT_READY_TAINTS.values() for taint in hard):
        return NOT_READY
    if node.spec.unschedulable or any(taint.key == UNSCHEDULABLE_TAINT for taint in hard):
        return CORDONED
    if hard:
        return f"node taint {hard[0].key}"
    most = node.status.allocatable.get("pods", "")
    return FULL if most.isdigit() and pods >= int(most) else ""


def pods_on_nodes(pods: Iterable[Pod]) -> Counter[str]:
    """Return how many Pods each node has."""
    return Counter(pod.spec.node_name for pod in pods if pod.spec.node_name and not is_pod_done(pod))


class UsableNodes:
    """The obstacles of all nodes of a snapshot."""

    def __init__(self, obstacles: Mapping[str, str], *, is_known: bool) -> None:
        self.obstacles = obstacles
        # Without nodes in a dump, nothing is known about them.
        self._is_known = is_known

    @classmethod
    def of(cls, snapshot: Snapshot) -> UsableNodes:
        """Return those of a snapshot."""
        counts = pods_on_nodes(snapshot.pods)
        obstacles = {
            name: node_obstacle(node, counts[name]) for node in snapshot.nodes for name in [node.metadata.name or ""]
        }
        is_known = bool(obstacles) or "Node" in snapshot.listed
        return cls(obstacles, is_known=is_known and snapshot.covers("Node", "ResourceSlice"))

    def obstacle(self, name: str) -> str:
        """Return why a node takes no new Pod; that of no name is any of the cluster."""
        if not self._is_known:
            return ""
        if name:
            return self.obstacles.get(name, GONE)
        return "" if any(not text for text in self.obstacles.values()) else "no node takes Pods"


def with_condition_taints(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with the taints that controllers give to nodes which are not ready."""
    nodes = snapshot.documents.get("Node", ())
    tainted = [_tainted(node) for node in nodes]
    if all(new is old for new, old in zip(tainted, nodes, strict=True)):
        return snapshot
    return replace(snapshot, documents={**snapshot.documents, "Node": tainted})


def _tainted(node: Document) -> Document:
    conditions = (node.get("status") or {}).get("conditions") or ()
    status = next((item.get("status") for item in conditions if item.get("type") == "Ready"), "True")
    key, spec = NOT_READY_TAINTS.get(status), node.get("spec") or {}
    taints = spec.get("taints") or ()
    if key is None or any(item.get("key") == key and item.get("effect") == "NoSchedule" for item in taints):
        return node
    return {**node, "spec": {**spec, "taints": [*taints, {"key": key, "effect": "NoSchedule"}]}}
