"""The record of decisions: what the scheduler found out about the nodes when it placed or rejected a Pod.

A Pod has at most two entries, its last placement and its last rejection, so that a thousand Pods that are retried for
hours do not push out everything else. Nothing is written to the cluster: the record is lost when the process ends.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec

from dray.api.document import Document
from dray.api.timestamps import format_time
from dray.framework.evaluation import Evaluation
from dray.scheduler.binder import Attempt
from dray.scheduler.diagnosis import REASON_ERROR, REASON_UNSCHEDULABLE, Failure
from dray.scheduler.queued_pod import QueuedPod

# Entries that are kept, for all profiles of a scheduler; each has one to three kilobytes.
DECISIONS_MAX: Final = 1024
SCHEDULED: Final = "Scheduled"
UNSCHEDULABLE: Final = REASON_UNSCHEDULABLE
ERROR: Final = REASON_ERROR


class Decision(msgspec.Struct, frozen=True, rename="camel"):
    """One decision about one Pod."""

    time: datetime
    namespace: str
    pod: str
    uid: str
    scheduler: str
    # Scheduled, Unschedulable or SchedulerError.
    result: str
    # The node that the Pod was bound to, or is nominated to.
    node: str
    # How many times the Pod was tried, with this attempt.
    attempts: int
    # How long the scheduling cycle took.
    milliseconds: float
    message: str = ""
    evaluation: Evaluation | None = None


class DecisionLog:
    """The last decisions of a scheduler, at most `DECISIONS_MAX`."""

    def __init__(self, decisions_max: int = DECISIONS_MAX) -> None:
        self._max = decisions_max
        # By uid and whether the Pod was placed; the oldest first.
        self._entries: dict[tuple[str, bool], Decision] = {}
        # Decisions so far, those included that are no longer kept.
        self.total = 0

    def placed(self, attempt: Attempt, now: datetime, seconds: float) -> None:
        """Record that a Pod has a node; a failure to bind it is recorded as a rejection."""
        queued = attempt.queued
        self._add(
            Decision(
                time=now,
                namespace=queued.info.key.namespace,
                pod=queued.info.key.name,
                uid=queued.uid,
                scheduler=attempt.profile.scheduler_name,
                result=SCHEDULED,
                node=attempt.node_name,
                attempts=queued.attempts,
                milliseconds=round(seconds * 1000, 3),
                evaluation=attempt.state.evaluation,
            )
        )

    def rejected(self, queued: QueuedPod, scheduler: str, failure: Failure, now: datetime, seconds: float) -> None:
        """Record that a Pod got no node, and why."""
        self._add(
            Decision(
                time=now,
                namespace=queued.info.key.namespace,
                pod=queued.info.key.name,
                uid=queued.uid,
                scheduler=scheduler,
                result=failure.reason,
                node=failure.nominated or "",
                attempts=queued.attempts,
                milliseconds=round(seconds * 1000, 3),
                message=failure.message,
                evaluation=failure.evaluation,
            )
        )

    def _add(self, decision: Decision) -> None:
        key = decision.uid, decision.result == SCHEDULED
        self.total += 1
        # Removed first, so that it becomes the newest.
        self._entries.pop(key, None)
        self._entries[key] = decision
        if len(self._entries) > self._max:
            del self._entries[next(iter(self._entries))]

    def documents(self) -> list[Document]:
        """Return what is kept as JSON data, the newest first."""
        return [_document(decision) for decision in reversed(self._entries.values())]


def _document(decision: Decision) -> Document:
    document: Any = msgspec.to_builtins(decision)
    return {**document, "time": format_time(decision.time)}
