"""When to compact: history is kept for a time and up to a number of revisions, whichever ends first."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

# kube-apiserver compacts every five minutes (its flag --etcd-compaction-interval).
AGE_SECONDS = 300.0
# Bounds the disk that superseded values take: 100,000 values of 1 KB are 100 MB.
REVISIONS_KEPT_MAX = 100_000
# Marks are this far apart, so there are at most AGE_SECONDS / MARK_SECONDS of them.
MARK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """How much history to keep."""

    age_seconds: float = AGE_SECONDS
    revisions_kept_max: int = REVISIONS_KEPT_MAX


class CompactionSchedule:
    """Remembers which revision was the newest when, to find the one that has become old enough."""

    def __init__(self, policy: CompactionPolicy) -> None:
        self._policy = policy
        self._marks: deque[tuple[float, int]] = deque()

    def due(self, now_seconds: float, *, revision: int, compacted: int) -> int:
        """The revision to compact to now; 0 for none."""
        if not self._marks or now_seconds - self._marks[-1][0] >= MARK_SECONDS:
            self._marks.append((now_seconds, revision))
        target = revision - self._policy.revisions_kept_max
        while self._marks and now_seconds - self._marks[0][0] >= self._policy.age_seconds:
            target = max(target, self._marks.popleft()[1])
        return target if target > compacted else 0
