"""Changes of `reservedFor`, of either API group, written together.

If each of many Pods wrote the claim that they share, the writes of one scheduler would conflict with each other. Here
one write of a claim is in progress at a time, and the changes that arrive meanwhile go into the next one. Every change
has its own result.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from dray.api.errors import APIError, ConflictError
from dray.scheduler.plugins.claim_watch import HasMetadata

# Changes in one write: as many as a claim of resource.k8s.io can have consumers.
BATCH_MAX: Final = 256


C = TypeVar("C", bound=HasMetadata)
# Returns the version to write for the current one, or None if nothing is left to write; raises if it is impossible.
Change = Callable[[C], C | None]
# Writes a change of a claim, and returns the claim as it is then.
Write = Callable[[C, Change[C]], Awaitable[C]]


class _Entry(Generic[C]):
    """One change; `done` once it has a result: the claim, or why the change is impossible."""

    __slots__ = ("change", "claim", "done", "failure", "written")

    def __init__(self, claim: C, change: Change[C]) -> None:
        self.claim = claim
        self.change = change
        self.done = False
        self.failure: Exception | None = None
        self.written = claim


class _Queue(Generic[C]):
    """The changes of one claim that wait for the next write."""

    __slots__ = ("entries", "lock", "users")

    def __init__(self) -> None:
        self.entries: deque[_Entry[C]] = deque()
        # Held by the Pod that writes for all that wait; handed on in order.
        self.lock = asyncio.Lock()
        self.users = 0


class ClaimBatches(Generic[C]):
    """Collects the changes of each claim; errors of the type `impossible` concern one change only."""

    def __init__(self, write: Write[C], impossible: type[Exception]) -> None:
        self._write = write
        self._impossible = impossible
        # By uid of the claim, while changes wait or are written.
        self._queues: dict[str, _Queue[C]] = {}

    async def submit(self, claim: C, change: Change[C]) -> C:
        """Write the change, with those of other Pods; return the written claim, or raise the error of this change."""
        uid = claim.metadata.uid or ""
        queue = self._queues.setdefault(uid, _Queue())
        entry = _Entry(claim, change)
        queue.entries.append(entry)
        queue.users += 1
        try:
            async with queue.lock:
                if not entry.done:
                    await self._write_batch(queue)
        finally:
            if not entry.done and entry in queue.entries:
                queue.entries.remove(entry)
            queue.users -= 1
            if not queue.users:
                self._queues.pop(uid, None)
        if entry.failure is not None:
            raise entry.failure
        return entry.written

    async def _write_batch(self, queue: _Queue[C]) -> None:
        batch = [queue.entries.popleft() for _ in range(min(len(queue.entries), BATCH_MAX))]
        try:
            await self._write_all(batch)
        finally:
            # Cancelled: the others are written by the next of them.
            queue.entries.extendleft(reversed([entry for entry in batch if not entry.done]))

    async def _write_all(self, batch: list[_Entry[C]]) -> None:
        try:
            written = await self._write(batch[0].claim, lambda current: self._combined(batch, current))
        except Exception as failure:  # noqa: BLE001 - it is the result of every change
            if len(batch) > 1 and isinstance(failure, APIError) and _is_rejection(failure):
                # Perhaps one change is at fault.
                for entry in batch:
                    await self._write_all([entry])
                return
            for entry in batch:
                entry.failure, entry.done = failure, True
            return
        for entry in batch:
            entry.written, entry.done = written, True

    def _combined(self, batch: list[_Entry[C]], current: C) -> C | None:
        """Make all possible changes; called again with another version after a conflict."""
        result = current
        for entry in batch:
            entry.failure = None
            try:
                changed = entry.change(result)
            except self._impossible as why:
                entry.failure = why
            else:
                result = changed if changed is not None else result
        return None if result == current else result


def _is_rejection(failure: APIError) -> bool:
    """Return whether the server rejected the content."""
    return failure.code in (400, 403, 413, 422) and not isinstance(failure, ConflictError)
