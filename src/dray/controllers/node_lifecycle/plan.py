"""The taints, labels and conditions of a Node, given its heartbeats. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.timestamps import format_time
from dray.api.types.core_v1 import Node, NodeCondition, Pod, Taint
from dray.controllers.disruption_target import condition_of

READY: Final = "Ready"
TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"
NO_SCHEDULE, NO_EXECUTE = "NoSchedule", "NoExecute"
NOT_READY: Final = "node.kubernetes.io/not-ready"
UNREACHABLE: Final = "node.kubernetes.io/unreachable"
UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
EXCLUDED_FROM_DISRUPTION: Final = "node.kubernetes.io/exclude-disruption"

STATUS_UNKNOWN: Final = "NodeStatusUnknown"
STATUS_UNKNOWN_MESSAGE: Final = "Kubelet stopped posting node status."
NEVER_UPDATED: Final = "NodeStatusNeverUpdated"
NEVER_UPDATED_MESSAGE: Final = "Kubelet never posted node status."
# Reasons written by this controller: conditions with them are no heartbeats.
OWN_REASONS: Final = frozenset({STATUS_UNKNOWN, NEVER_UPDATED})
# Conditions that only the node itself reports, in the order they are written.
_HEARTBEAT_CONDITIONS: Final = (READY, "MemoryPressure", "DiskPressure", "PIDPressure")

# Condition -> its status -> key of the NoSchedule taint.
CONDITION_TAINTS: Final[Mapping[str, Mapping[str, str]]] = {
    READY: {FALSE: NOT_READY, UNKNOWN: UNREACHABLE},
    "MemoryPressure": {TRUE: "node.kubernetes.io/memory-pressure"},
    "DiskPressure": {TRUE: "node.kubernetes.io/disk-pressure"},
    "PIDPressure": {TRUE: "node.kubernetes.io/pid-pressure"},
    "NetworkUnavailable": {TRUE: "node.kubernetes.io/network-unavailable"},
}
_OWN_KEYS: Final = frozenset(key for keys in CONDITION_TAINTS.values() for key in keys.values()) | {UNSCHEDULABLE}
_EVICTING_KEYS: Final = frozenset({NOT_READY, UNREACHABLE})
# A deprecated label that the kubelet may not set, and the label it is copied from.
_COPIED_LABELS: Final = (
    ("beta.kubernetes.io/os", "kubernetes.io/os"),
    ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
)
_ZONE_LABELS: Final = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
_REGION_LABELS: Final = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")


def condition(node: Node, name: str) -> NodeCondition | None:
    """Return the Node's condition of that type."""
    return next((item for item in node.status.conditions if item.type == name), None)


def ready_status(node: Node) -> str | None:
    """Return True, False or Unknown; None while the node has never posted a status."""
    ready = condition(node, READY)
    return ready.status if ready is not None else None


def zone_of(node: Node) -> str:
    """Return the failure domain, as the Kubernetes metrics name it."""
    labels = node.metadata.labels
    region = next((labels[name] for name in _REGION_LABELS if name in labels), "")
    zone = next((labels[name] for name in _ZONE_LABELS if name in labels), "")
    return f"{region}:\x00:{zone}" if region or zone else ""


def unknown_conditions(node: Node, now: datetime) -> list[Document]:
    """Return the conditions to write when heartbeats are missing; empty if they are written already."""
    written = (_unknown_condition(node, name, now) for name in _HEARTBEAT_CONDITIONS)
    return [item for item in written if item is not None]


def _unknown_condition(node: Node, name: str, now: datetime) -> Document | None:
    old = condition(node, name)
    if old is not None and old.status == UNKNOWN:
        return None
    heartbeat = node.metadata.creation_timestamp if old is None else old.last_heartbeat_time
    return {
        "type": name,
        "status": UNKNOWN,
        "reason": NEVER_UPDATED if old is None else STATUS_UNKNOWN,
        "message": NEVER_UPDATED_MESSAGE if old is None else STATUS_UNKNOWN_MESSAGE,
        "lastHeartbeatTime": format_time(heartbeat) if heartbeat is not None else None,
        "lastTransitionTime": format_time(now),
    }


def status_patch(node: Node, conditions: list[Document]) -> Document:
    """Return the strategic patch; it fails if the Node has changed meanwhile."""
    return {"metadata": _precondition(node), "status": {"conditions": conditions}}


class NoExecute(enum.Enum):
    """What to do with the taints that evict Pods from a node."""

    KEEP = enum.auto()
    # Wait for a permit of the eviction limiter.
    QUEUE = enum.auto()
    REMOVE = enum.auto()
    SET = enum.auto()


def plan_no_execute(node: Node, *, stopped: bool, permitted: bool, done: bool) -> NoExecute:
    """Decide whether to evict from the node; `stopped` is set while no zone has a healthy node."""
    status = ready_status(node)
    if status is None:
        return NoExecute.KEEP
    if status == TRUE or stopped:
        return NoExecute.REMOVE
    if permitted or any(_is_eviction_taint(taint) for taint in node.spec.taints):
        return NoExecute.SET
    # If the taint was removed after this controller set it, that is respected.
    return NoExecute.KEEP if done else NoExecute.QUEUE


@dataclass(frozen=True, slots=True)
class NodePlan:
    """Changes of a Node; None and empty mean no change."""

    taints: tuple[Taint, ...] | None
    labels: Mapping[str, str]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to change."""
        return self.taints is None and not self.labels


def plan_node(node: Node, no_execute: NoExecute, now: datetime) -> NodePlan:
    """Compare the Node's taints and labels with what its conditions require."""
    wanted = {(key, NO_SCHEDULE) for key in _scheduling_keys(node)}
    if no_execute is NoExecute.SET:
        wanted.add((CONDITION_TAINTS[READY][ready_status(node) or UNKNOWN], NO_EXECUTE))
    before = node.spec.taints
    kept = tuple(taint for taint in before if not _is_superfluous(taint, wanted, no_execute))
    have = {(taint.key, taint.effect) for taint in kept}
    added = tuple(
        Taint(key=key, effect=effect, time_added=now.replace(microsecond=0)) for key, effect in sorted(wanted - have)
    )
    return NodePlan(kept + added if added or len(kept) != len(before) else None, _labels(node))


def _scheduling_keys(node: Node) -> Iterable[str]:
    for item in node.status.conditions:
        key = CONDITION_TAINTS.get(item.type, {}).get(item.status)
        if key is not None:
            yield key
    if node.spec.unschedulable:
        yield UNSCHEDULABLE


def _is_superfluous(taint: Taint, wanted: set[tuple[str, str]], no_execute: NoExecute) -> bool:
    if (taint.key, taint.effect) in wanted:
        return False
    if taint.effect == NO_SCHEDULE:
        return taint.key in _OWN_KEYS
    return _is_eviction_taint(taint) and no_execute in (NoExecute.REMOVE, NoExecute.SET)


def _is_eviction_taint(taint: Taint) -> bool:
    return taint.effect == NO_EXECUTE and taint.key in _EVICTING_KEYS


def _labels(node: Node) -> dict[str, str]:
    labels = node.metadata.labels
    return {
        copy: labels[original]
        for copy, original in _COPIED_LABELS
        if original in labels and labels.get(copy) != labels[original]
    }


def node_patch(node: Node, plan: NodePlan) -> Document:
    """Return the merge patch; it fails if the Node has changed meanwhile."""
    metadata = _precondition(node)
    body: Document = {"metadata": metadata}
    if plan.labels:
        metadata["labels"] = dict(plan.labels)
    if plan.taints is not None:
        body["spec"] = {"taints": [_taint_document(taint) for taint in plan.taints] or None}
    return body


def _precondition(node: Node) -> Document:
    return {"uid": node.metadata.uid, "resourceVersion": node.metadata.resource_version}


def _taint_document(taint: Taint) -> Document:
    document: Document = {"key": taint.key, "effect": taint.effect}
    if taint.value:
        document["value"] = taint.value
    if taint.time_added is not None:
        document["timeAdded"] = format_time(taint.time_added)
    return document


def not_ready_patch(pod: Pod, now: datetime) -> Document | None:
    """Return the strategic patch that sets the condition Ready to False; None if the Pod is not ready."""
    ready = condition_of(pod, READY)
    if ready is None or ready.status != TRUE:
        return None
    changed: Document = {"type": READY, "status": FALSE, "lastTransitionTime": format_time(now)}
    return {"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [changed]}}
