"""The guarantees of watches that etcd names, checked against the committed writes. Pure.

* ordered: events come in the order of revisions
* unique: no event comes twice
* atomic: the events of one revision come in one batch
* reliable: between two events that come there is none that does not
* resumable: a new watch from the last revision received continues without a gap
* bookmarkable: at a bookmark, everything up to its revision has come
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

E = TypeVar("E")


class WatchViolationError(AssertionError):
    """A watch broke a guarantee."""

    def __init__(self, guarantee: str, what: str) -> None:
        super().__init__(f"a watch is not {guarantee}: {what}")


@dataclass
class WatchRecord(Generic[E]):
    """What came over the watches of one watcher, each of which continued where the last one had ended.

    `expected` returns the events after a revision up to another one, as (revision, content).
    """

    start: int
    expected: Callable[[int, int], Sequence[tuple[int, E]]]
    # Everything up to here has come; the next watch starts here.
    position: int = field(init=False)
    events: int = 0
    bookmarks: int = 0

    def __post_init__(self) -> None:
        self.position = self.start

    def receive(self, batch: Sequence[tuple[int, E]]) -> None:
        """Check a batch of events as it comes."""
        if not batch:
            return
        revisions = [revision for revision, _ in batch]
        if revisions != sorted(revisions):
            raise WatchViolationError("ordered", f"revisions {revisions} in one batch")
        if revisions[0] <= self.position:
            known = self.expected(self.start, self.position)
            repeated = revisions[0] in {revision for revision, _ in known}
            guarantee = "ordered" if not repeated else "unique"
            raise WatchViolationError(guarantee, f"revision {revisions[0]} comes after {self.position}")
        expected = self.expected(self.position, revisions[-1])
        if list(batch) != list(expected):
            self._explain(batch, expected)
        self.events += len(batch)
        self.position = revisions[-1]

    def bookmark(self, revision: int) -> None:
        """Check that nothing up to the revision is still to come."""
        self.bookmarks += 1
        missing = [at for at, _ in self.expected(self.position, revision)]
        if missing:
            raise WatchViolationError("bookmarkable", f"bookmark {revision} before the events of {missing}")
        self.position = max(self.position, revision)

    def finish(self, revision: int) -> None:
        """Check, when all is quiet, that everything up to the newest revision has come."""
        missing = [at for at, _ in self.expected(self.position, revision)]
        if missing:
            raise WatchViolationError("resumable", f"the events of {missing} never came")

    def _explain(self, batch: Sequence[tuple[int, E]], expected: Sequence[tuple[int, E]]) -> None:
        came, due = [at for at, _ in batch], [at for at, _ in expected]
        if len(set(came)) < len(came) and len(set(due)) == len(due):
            raise WatchViolationError("unique", f"revisions {came}")
        if missing := [at for at in due if at not in set(came)]:
            guarantee = "atomic" if due[-1] == came[-1] and due.count(due[-1]) > came.count(came[-1]) else "reliable"
            raise WatchViolationError(guarantee, f"{came} came without {missing}")
        if came.count(came[-1]) < due.count(due[-1]):
            raise WatchViolationError("atomic", f"revision {came[-1]} came in part")
        differing = [(ours, theirs) for ours, theirs in zip(batch, expected, strict=False) if ours != theirs]
        raise WatchViolationError("reliable", f"events differ from what was written: {differing[:1] or came}")
