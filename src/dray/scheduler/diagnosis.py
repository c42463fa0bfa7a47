"""Why no node fits a Pod, in Kubernetes' words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from dray.framework.status import Status

NO_NODES = "no nodes available to schedule pods"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The answers for every node that was tried, and the common answer for all others."""

    node_count: int
    statuses: Mapping[str, Status] = field(default_factory=dict)
    # The answer for nodes not in `statuses`; None when all were tried.
    absent: Status | None = None
    # Set when the Pod was rejected before any node was looked at.
    pre_filter_message: str = ""
    # Whose mind an event must change.
    plugins: frozenset[str] = frozenset()
    pending_plugins: frozenset[str] = frozenset()

    def message(self, post_filter_message: str = "") -> str:
        """What the Pod's condition says."""
        if not self.node_count:
            return NO_NODES
        text = f"0/{self.node_count} nodes are available:"
        reasons = self.pre_filter_message or ", ".join(self._histogram())
        if reasons:
            text += f" {reasons}."
        return f"{text} {post_filter_message}" if post_filter_message else text

    def _histogram(self) -> list[str]:
        counts = Counter(reason for status in self.statuses.values() for reason in status.reasons)
        others = self.node_count - len(self.statuses)
        if self.absent is not None and others > 0:
            for reason in self.absent.reasons:
                counts[reason] += others
        return sorted(f"{count} {reason}" for reason, count in counts.items())
