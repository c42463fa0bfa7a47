"""Orders the queue: higher priority first, then who came first."""

from __future__ import annotations


class PrioritySort:
    """QueueSort only."""

    name = "PrioritySort"

    def sort_key(self, priority: int, queued_at: float) -> tuple[int, float]:
        """Lowest first."""
        return -priority, queued_at
