"""Which Pods are garbage: unscheduled, on a node out of service, or finished and too many. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from dray.api.types.core_v1 import Node, Pod

OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
CONDITION_REASON: Final = "DeletionByPodGC"
NODE_GONE_MESSAGE: Final = "PodGC: node no longer exists"

# Why a Pod is deleted: label values of the Kubernetes metrics.
TERMINATED: Final = "terminated"
TERMINATING_OUT_OF_SERVICE: Final = "out-of-service"
ORPHANED: Final = "orphaned"
TERMINATING_UNSCHEDULED: Final = "unscheduled"

_UNFINISHED_PHASES: Final = frozenset({"Pending", "Running", "Unknown", None})
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


def is_finished(pod: Pod) -> bool:
    """Return whether the Pod has terminated."""
    return pod.status.phase not in _UNFINISHED_PHASES


def is_terminating(pod: Pod) -> bool:
    """Return whether the Pod is being deleted."""
    return pod.metadata.deletion_timestamp is not None


def is_unscheduled_and_terminating(pod: Pod) -> bool:
    """Return whether the Pod was deleted before it was scheduled."""
    return pod.metadata.deletion_timestamp is not None and not pod.spec.node_name


def is_out_of_service(node: Node) -> bool:
    """Return whether the node is tainted as out of service and not ready."""
    ready = any(item.type == "Ready" and item.status == "True" for item in node.status.conditions)
    return not ready and any(taint.key == OUT_OF_SERVICE for taint in node.spec.taints)


def surplus(finished: Iterable[Pod], threshold: int) -> list[Pod]:
    """Return the finished Pods above the threshold: evicted ones first, then the oldest."""
    ordered = sorted(finished, key=_worth)
    return ordered[: max(len(ordered) - threshold, 0)]


def _worth(pod: Pod) -> tuple[bool, datetime, str]:
    evicted = pod.status.phase == "Failed" and pod.status.reason == "Evicted"
    return not evicted, pod.metadata.creation_timestamp or _LONG_AGO, pod.metadata.name or ""
