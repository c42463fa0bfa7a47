"""A pending Pod in the scheduling queue."""

from __future__ import annotations

from typing import Any, Final

from dray.api.types.core_v1 import Pod
from dray.framework.pod_info import PodInfo


class QueuedPod:
    """A pending Pod with the history of its attempts; changed only by the queue."""

    __slots__ = (
        "added_at",
        "attempts",
        "errors_in_a_row",
        "gated_by",
        "gated_message",
        "info",
        "last_message",
        "last_recorded_at",
        "pending_plugins",
        "queued_at",
        "rejected_times",
        "rejecting_plugins",
        "reported_gate",
        "sort_key",
        "uid",
    )

    def __init__(self, info: PodInfo, now: float) -> None:
        # Stays the same when the Pod is updated.
        self.uid: Final = info.uid
        self.info = info
        # When it was first added to the active queue.
        self.added_at = now
        # When it was last queued; the backoff starts here.
        self.queued_at = now
        self.attempts = 0
        # How often it was unschedulable, and how many of its last attempts failed in a row.
        self.rejected_times = 0
        self.errors_in_a_row = 0
        # The plugins that rejected it in the last attempt; `pending_plugins` asked for no backoff.
        self.rejecting_plugins: frozenset[str] = frozenset()
        self.pending_plugins: frozenset[str] = frozenset()
        # The PreEnqueue plugin that gates it, and why; empty if none does.
        self.gated_by = ""
        self.gated_message = ""
        # The reason that was last reported in the Pod's status.
        self.reported_gate = ""
        self.sort_key: Any = None
        # The message of the last FailedScheduling Event, and when it was recorded; set by the scheduler.
        self.last_message = ""
        self.last_recorded_at = now

    @property
    def pod(self) -> Pod:
        """Return the Pod as last observed."""
        return self.info.pod
