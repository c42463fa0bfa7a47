"""The history of a store as its clients saw it, and what must hold for it. Pure.

Every written value is unique, so that a value that is read names the write it came from. `Truth` has the committed
writes themselves, as the simulated etcd or the database file has them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dray.store.interface import Entry, Event, EventType, Page
from tests.simulation.linearizability import Model, Operation, check


@dataclass(frozen=True, slots=True)
class Create:
    """Write a key that must not exist."""

    value: bytes


@dataclass(frozen=True, slots=True)
class Update:
    """Replace the value that was written at a revision."""

    value: bytes
    expected: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove what was written at a revision."""

    expected: int


@dataclass(frozen=True, slots=True)
class Read:
    """Read the key, alone or with others."""


@dataclass(frozen=True, slots=True)
class Written:
    """The write was done at a revision."""

    revision: int


@dataclass(frozen=True, slots=True)
class Seen:
    """The write was refused, or the read answered: the key was at a revision, 0 if it did not exist."""

    revision: int
    value: bytes = b""


@dataclass(frozen=True, slots=True)
class Deleted:
    """The key was removed, at a revision that the answer does not have."""


@dataclass(frozen=True, slots=True)
class Changed:
    """The write was refused: the key existed at another revision than the expected one."""


@dataclass(frozen=True, slots=True)
class Exists:
    """A creation was refused: the key existed."""


def step(at: int, operation: Operation) -> int | None:
    """Return the revision of the key after an operation; None if it cannot have this result there."""
    request, result = operation.request, operation.result
    expected = 0 if isinstance(request, Create) else getattr(request, "expected", None)
    if isinstance(result, Seen):
        return at if result.revision == at and (expected is None or at != expected) else None
    if isinstance(result, Exists | Changed):
        return at if at and at != expected else None
    if at != expected:
        return None
    if isinstance(request, Delete):
        return 0
    assert isinstance(result, Written)
    return result.revision


MODEL: Model[int] = Model(initial=0, step=step)


class StoreHistory:
    """Operations of all clients. Time is a count of calls and answers, so that no two are at once."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._time = 0
        # The revisions of values whose writes may be lost.
        self._assigned: dict[bytes, int] = {}
        # Revisions of whole-store answers: called, returned, revision.
        self._revisions: list[tuple[float, float, int]] = []

    def tick(self) -> int:
        self._time += 1
        return self._time

    def record(self, key: str, called: float, request: object, result: object) -> None:
        self.operations.append(Operation(key, called, self.tick(), request, result))

    def record_unknown(self, key: str, called: float, request: object, *, until: float = math.inf) -> None:
        """Record an operation without an answer; a read without an answer says nothing."""
        if not isinstance(request, Read):
            self.operations.append(Operation(key, called, until, request, unknown=True))

    def record_revision_of(self, value: bytes, revision: int) -> None:
        """Record the revision that a write without an answer has if it was committed."""
        self._assigned[value] = revision

    def record_page(self, prefix_keys: Iterable[str], called: float, page: Page) -> None:
        """Record a list of the newest state: a read of each key under the prefix."""
        found = {entry.key: entry for entry in page.entries}
        returned = self.tick()
        for key in prefix_keys:
            self.operations.append(Operation(key, called, returned, Read(), seen(found.get(key))))
        self._revisions.append((called, returned, page.revision))

    def record_revision(self, called: float, revision: int) -> None:
        self._revisions.append((called, self.tick(), revision))

    def check(self) -> None:
        """Raise unless the history is linearizable and its revisions follow the order of time."""
        violation = check(self._resolved(), MODEL)
        assert violation is None, str(violation)
        self._check_revisions()

    def _resolved(self) -> list[Operation]:
        """Return the operations; those without an answer get the revision at which their value was seen."""
        seen_at: dict[bytes, int] = {}
        for operation in self.operations:
            result = operation.result
            if isinstance(result, Seen) and result.revision:
                earlier = seen_at.setdefault(result.value, result.revision)
                assert earlier == result.revision, f"{result.value!r} at revisions {earlier} and {result.revision}"
        resolved = []
        for number, operation in enumerate(self.operations, start=1):
            if operation.unknown and not isinstance(operation.request, Delete):
                # What nobody has seen has a revision that nobody knows.
                value = operation.request.value
                revision = seen_at.get(value) or self._assigned.get(value, -number)
                resolved.append(replace(operation, result=Written(revision)))
            else:
                resolved.append(operation)
        return resolved

    def _check_revisions(self) -> None:
        """No revision is given twice, and what begins after an answer has a newer revision than that."""
        writes = [
            (item.called, item.returned, item.result.revision)
            for item in self.operations
            if isinstance(item.result, Written)
        ]
        revisions = [revision for *_, revision in writes]
        assert len(set(revisions)) == len(revisions), "a revision was given to two writes"
        self._check_order(writes, [*writes, *self._revisions], newer=0)
        self._check_order(self._revisions, [*writes, *self._revisions], newer=1)

    def _check_order(
        self, later: Sequence[tuple[float, float, int]], all_answers: Sequence[tuple[float, float, int]], *, newer: int
    ) -> None:
        returned = sorted((answer[1], answer[2]) for answer in all_answers)
        newest: list[int] = []
        for _, revision in returned:
            newest.append(max(revision, newest[-1] if newest else 0))
        for called, _, revision in later:
            place = bisect_right(returned, (called, math.inf))
            before = newest[place - 1] if place else 0
            assert before < revision + newer, f"revision {revision} answers a call after {before} was answered"


def seen(entry: Entry | None) -> Seen:
    return Seen(0) if entry is None else Seen(entry.revision, entry.value)


class Truth:
    """The committed events in order, and the newest revision that was compacted to."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.compacted = 0

    @property
    def revision(self) -> int:
        return self.events[-1].revision if self.events else 1

    def append(self, event: Event) -> None:
        assert event.revision > self.revision, f"revision {event.revision} was written after {self.revision}"
        self.events.append(event)

    def between(self, prefix: str, after: int, until: int) -> list[Event]:
        """Return the events of keys under the prefix with after < revision <= until."""
        return [
            event for event in self.events if after < event.revision <= until and event.entry.key.startswith(prefix)
        ]

    def state_at(self, revision: int) -> dict[str, Entry]:
        state: dict[str, Entry] = {}
        for event in self.events:
            if event.revision > revision:
                break
            if event.type is EventType.PUT:
                state[event.entry.key] = event.entry
            else:
                state.pop(event.entry.key, None)
        return state

    def check_page(self, prefix: str, page: Page) -> None:
        """A whole list is the state at its revision."""
        state = self.state_at(page.revision)
        expected = [state[key] for key in sorted(state) if key.startswith(prefix)]
        assert list(page.entries) == expected, f"the list of {prefix} at {page.revision} is not that state"
