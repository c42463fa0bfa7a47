"""Why no node fits a Pod, and the condition PodScheduled that reports it, with Kubernetes' messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Final

from dray.api.document import Document
from dray.api.timestamps import format_time
from dray.api.types.core_v1 import Pod, PodCondition
from dray.framework.evaluation import Evaluation, RejectedNodes, group_rejections
from dray.framework.node_statuses import StatusCount, count_reasons, count_statuses
from dray.framework.status import Status

NO_NODES = "no nodes available to schedule pods"


@dataclass(frozen=True)
class Diagnosis:
    """The rejections of all nodes that were filtered, and the common rejection of the others."""

    node_count: int
    statuses: Mapping[str, Status] = field(default_factory=dict)
    # The rejection of nodes not in `statuses`; None if all were filtered.
    absent: Status | None = None
    # Set if PreFilter rejected the Pod.
    pre_filter_message: str = ""
    # The plugins that rejected the Pod.
    plugins: frozenset[str] = frozenset()
    pending_plugins: frozenset[str] = frozenset()

    @cached_property
    def counts(self) -> Sequence[StatusCount]:
        """Return the different statuses; counted once, since there may be thousands of nodes."""
        return count_statuses(self.statuses)

    def message(self, post_filter_message: str = "") -> str:
        """Return the message of the Pod's condition."""
        if not self.node_count:
            return NO_NODES
        text = f"0/{self.node_count} nodes are available:"
        if reasons := self.reasons:
            text += f" {reasons}"
        return f"{text} {post_filter_message}" if post_filter_message else text

    @property
    def reasons(self) -> str:
        """Return why the nodes are not feasible, with their numbers."""
        reasons = self.pre_filter_message or ", ".join(self._histogram())
        return f"{reasons}." if reasons else ""

    def evaluation(self) -> Evaluation:
        """Return the rejected nodes by plugin and reasons, for the record of decisions."""
        groups, unlisted = group_rejections(self.counts)
        others = self.node_count - len(self.statuses)
        if self.absent is not None and others > 0:
            plugin = self.absent.plugin or ", ".join(sorted(self.plugins))
            groups = (*groups, RejectedNodes(others, plugin, tuple(self.absent.reasons)))
        return Evaluation(self.node_count, self.node_count, 0, (), groups, unlisted)

    def _histogram(self) -> list[str]:
        others = self.node_count - len(self.statuses)
        absent = self.absent.reasons if self.absent is not None and others > 0 else ()
        return count_reasons(self.counts, dict.fromkeys(absent, others))


POD_SCHEDULED: Final = "PodScheduled"
REASON_UNSCHEDULABLE: Final = "Unschedulable"
REASON_ERROR: Final = "SchedulerError"
# Of a Pod that a PreEnqueue plugin keeps out of the queue.
REASON_NOT_READY: Final = "NotReadyForScheduling"


@dataclass(frozen=True, slots=True)
class Failure:
    """The end of an attempt without a binding."""

    # REASON_ERROR or REASON_UNSCHEDULABLE.
    reason: str
    message: str
    # The plugins that rejected the Pod, and those that asked not to back off.
    plugins: frozenset[str] = frozenset()
    pending: frozenset[str] = frozenset()
    # The new nominated node; None leaves the nomination as it is.
    nominated: str | None = None
    # Whether to retry after a backoff, because no event would requeue the Pod.
    is_error: bool = False
    # A node was chosen, and a driver has to do its part: no failure, as long as it does.
    is_wait: bool = False
    # Whether to retry without it.
    at_once: bool = False
    # The rejected nodes, for the record of decisions.
    evaluation: Evaluation | None = None


def plan_status(
    pod: Pod, reason: str, message: str, now: datetime, nominated: str | None = None, pending: Document | None = None
) -> Document:
    """Return the fields of the Pod's status that change. `nominated` None keeps that field.

    `pending` are fields that are being written, so that the Pod is outdated: then the nominated node is always written.
    """
    status: Document = {}
    if nominated is not None and (pending is not None or nominated != (pod.status.nominated_node_name or "")):
        status["nominatedNodeName"] = nominated or None
    old = next((item for item in pod.status.conditions if item.type == POD_SCHEDULED), None)
    known = None if old is None else (old.status, old.reason, old.message)
    for item in (pending or {}).get("conditions", ()):
        known = item["status"], item["reason"], item["message"]
    if known != ("False", reason, message):
        status["conditions"] = [_condition(old, reason, message, now)]
    return status


def _condition(old: PodCondition | None, reason: str, message: str, now: datetime) -> Document:
    changed = now
    if old is not None and old.status == "False" and old.last_transition_time is not None:
        changed = old.last_transition_time
    return {
        "type": POD_SCHEDULED,
        "status": "False",
        "lastProbeTime": None,
        "lastTransitionTime": format_time(changed),
        "reason": reason,
        "message": message,
    }
