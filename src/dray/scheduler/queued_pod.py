"""A Pod on its way through the queue."""

from __future__ import annotations

from typing import Any, Final

from dray.api.types.core_v1 import Pod
from dray.framework.pod_info import PodInfo


class QueuedPod:
    """A pending Pod with the story of its attempts; changed only by the queue."""

    __slots__ = (
        "added_at",
        "attempts",
        "errors_in_a_row",
        "gated_by",
        "info",
        "pending_plugins",
        "queued_at",
        "rejected_times",
        "rejecting_plugins",
        "sort_key",
        "told",
        "told_at",
        "uid",
    )

    def __init__(self, info: PodInfo, now: float) -> None:
        # Of one Pod, whatever it is changed to.
        self.uid: Final = info.uid
        self.info = info
        # When it first appeared without a gate.
        self.added_at = now
        # When it was last put into the queue; backoff counts from here.
        self.queued_at = now
        self.attempts = 0
        # How often in all it was found unschedulable, and how often in a row an attempt broke.
        self.rejected_times = 0
        self.errors_in_a_row = 0
        # Who rejected it in the last attempt; `pending_plugins` asked for it not to back off.
        self.rejecting_plugins: frozenset[str] = frozenset()
        self.pending_plugins: frozenset[str] = frozenset()
        # The plugin that keeps it out of the queue; empty when none does.
        self.gated_by = ""
        self.sort_key: Any = None
        # What its user was last told about a failure, and when; changed by whoever tells.
        self.told = ""
        self.told_at = now

    @property
    def pod(self) -> Pod:
        """The Pod as last seen."""
        return self.info.pod
