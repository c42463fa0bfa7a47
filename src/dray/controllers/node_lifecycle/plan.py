"""What a Node must look like, given its conditions; thinks only."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.timestamps import format_time
from dray.api.types.core_v1 import Node, NodeCondition, Pod, Taint
from dray.controllers.eviction import condition_of

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
# Reasons that this controller writes: no sign that the node lives.
OWN_REASONS: Final = frozenset({STATUS_UNKNOWN, NEVER_UPDATED})
# Conditions that only the node itself can know; in the order they are written.
_HEARTBEAT_CONDITIONS: Final = (READY, "MemoryPressure", "DiskPressure", "PIDPressure")

# Condition -> its status -> the key of the taint that keeps new Pods away.
CONDITION_TAINTS: Final[Mapping[str, Mapping[str, str]]] = {
    READY: {FALSE: NOT_READY, UNKNOWN: UNREACHABLE},
    "MemoryPressure": {TRUE: "node.kubernetes.io/memory-pressure"},
    "DiskPressure": {TRUE: "node.kubernetes.io/disk-pressure"},
    "PIDPressure": {TRUE: "node.kubernetes.io/pid-pressure"},
    "NetworkUnavailable": {TRUE: "node.kubernetes.io/network-unavailable"},
}
_OWN_KEYS: Final = frozenset(key for keys in CONDITION_TAINTS.values() for key in keys.values()) | {UNSCHEDULABLE}
_EVICTING_KEYS: Final = frozenset({NOT_READY, UNREACHABLE})
# A label that the agent may lack, and the one that says the same.
_LABEL_TWINS: Final = (
    ("beta.kubernetes.io/os", "kubernetes.io/os"),
    ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
)
_ZONE_LABELS: Final = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
_REGION_LABELS: Final = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")


def condition(node: Node, name: str) -> NodeCondition | None:
    """The Node's condition of that type."""
    return next((item for item in node.status.conditions if item.type == name), None)


def ready_status(node: Node) -> str | None:
    """True, False or Unknown; None while the node has never said anything."""
    ready = condition(node, READY)
    return ready.status if ready is not None else None


def zone_of(node: Node) -> str:
    """The failure domain, by the name that Kubernetes' metrics give it."""
    labels = node.metadata.labels
    region = next((labels[name] for name in _REGION_LABELS if name in labels), "")
    zone = next((labels[name] for name in _ZONE_LABELS if name in labels), "")
    return f"{region}:\x00:{zone}" if region or zone else ""


def unknown_conditions(node: Node, now: datetime) -> list[Document]:
    """The conditions to write when the node has been silent for too long; empty when they are written already."""
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
    """The strategic patch that holds only if the node has said nothing meanwhile."""
    return {"metadata": _this_version(node), "status": {"conditions": conditions}}


class Emptying(enum.Enum):
    """What is to become of the taints that empty a node."""

    # As they are: nothing is known of the node yet, or its turn has not come.
    KEEP = enum.auto()
    WAIT = enum.auto()
    REMOVE = enum.auto()
    HAVE = enum.auto()


def plan_emptying(node: Node, *, stopped: bool, has_turn: bool, is_done: bool) -> Emptying:
    """Whether Pods must leave the node; `stopped` is set while no zone has a healthy node."""
    status = ready_status(node)
    if status is None:
        return Emptying.KEEP
    if status == TRUE or stopped:
        return Emptying.REMOVE
    if has_turn or any(_is_emptying(taint) for taint in node.spec.taints):
        return Emptying.HAVE
    # Whoever took the taint away after us wants the Pods to stay.
    return Emptying.KEEP if is_done else Emptying.WAIT


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What to change; None and empty mean nothing."""

    taints: tuple[Taint, ...] | None
    labels: Mapping[str, str]

    @property
    def empty(self) -> bool:
        """Whether the Node is as it must be."""
        return self.taints is None and not self.labels


def plan_node(node: Node, emptying: Emptying, now: datetime) -> NodePlan:
    """The taints and labels that the conditions ask for."""
    wanted = {(key, NO_SCHEDULE) for key in _scheduling_keys(node)}
    if emptying is Emptying.HAVE:
        wanted.add((CONDITION_TAINTS[READY][ready_status(node) or UNKNOWN], NO_EXECUTE))
    before = node.spec.taints
    kept = tuple(taint for taint in before if not _is_superfluous(taint, wanted, emptying))
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


def _is_superfluous(taint: Taint, wanted: set[tuple[str, str]], emptying: Emptying) -> bool:
    if (taint.key, taint.effect) in wanted:
        return False
    if taint.effect == NO_SCHEDULE:
        return taint.key in _OWN_KEYS
    return _is_emptying(taint) and emptying in (Emptying.REMOVE, Emptying.HAVE)


def _is_emptying(taint: Taint) -> bool:
    return taint.effect == NO_EXECUTE and taint.key in _EVICTING_KEYS


def _labels(node: Node) -> dict[str, str]:
    labels = node.metadata.labels
    return {
        copy: labels[original]
        for copy, original in _LABEL_TWINS
        if original in labels and labels.get(copy) != labels[original]
    }


def node_patch(node: Node, plan: NodePlan) -> Document:
    """The merge patch that holds only for the Node as it was seen."""
    metadata = _this_version(node)
    body: Document = {"metadata": metadata}
    if plan.labels:
        metadata["labels"] = dict(plan.labels)
    if plan.taints is not None:
        body["spec"] = {"taints": [_taint_document(taint) for taint in plan.taints] or None}
    return body


def _this_version(node: Node) -> Document:
    return {"uid": node.metadata.uid, "resourceVersion": node.metadata.resource_version}


def _taint_document(taint: Taint) -> Document:
    document: Document = {"key": taint.key, "effect": taint.effect}
    if taint.value:
        document["value"] = taint.value
    if taint.time_added is not None:
        document["timeAdded"] = format_time(taint.time_added)
    return document


def not_ready_patch(pod: Pod, now: datetime) -> Document | None:
    """The strategic patch that takes the Pod's readiness away; None when it is not ready anyway."""
    ready = condition_of(pod, READY)
    if ready is None or ready.status != TRUE:
        return None
    changed: Document = {"type": READY, "status": FALSE, "lastTransitionTime": format_time(now)}
    return {"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [changed]}}
