"""A PodGroup in the scheduling queue, with the Pods that wait in it."""

from __future__ import annotations

from collections.abc import Sequence

from dray.api.document import NamespacedName
from dray.scheduler.queued_pod import QueuedPod


class QueuedGroup(QueuedPod):
    """The unit in which Pods of a group are queued; changed only by the queue.

    Its own Pod is one of its members: it decides about the profile, and members have the group's priority.
    """

    __slots__ = ("arrived", "gated_uid", "in_flight", "key", "members")

    def __init__(self, key: NamespacedName, first: QueuedPod, now: float) -> None:
        super().__init__(first.info, now)
        self.uid = f"podgroup {key}"  # type: ignore[misc]
        self.key = key
        self.members: dict[str, QueuedPod] = {}
        # Pods that were added while the group is being tried.
        self.arrived: dict[str, QueuedPod] = {}
        self.in_flight = False
        # The member that a PreEnqueue plugin rejects; empty if the group is not gated.
        self.gated_uid = ""

    def in_order(self) -> Sequence[QueuedPod]:
        """Return the members in the order in which they are tried."""
        return sorted(
            self.members.values(),
            key=lambda item: (-item.info.priority, -item.attempts, item.added_at, item.info.key.name),
        )
