"""Keeps a book of CPUs or memory on the disk and frees what Pods hold that are gone; a hint provider."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Protocol

from dray.api.types.core_v1 import Container, Pod
from dray.node.checkpoint_file import CheckpointFile, read_checkpoint
from dray.node.topology.hint_provider import AllocationError
from dray.node.topology.hints import ResourceHints
from dray.runtime.logs import fields

_log = logging.getLogger(__name__)


class Reservations(Protocol):
    """Who has what."""

    def hints(self, pod: Pod, container: Container) -> ResourceHints:
        """See `HintProvider`."""

    def pod_hints(self, pod: Pod) -> ResourceHints:
        """See `HintProvider`."""

    def allocate(self, pod: Pod, container: Container, affinity: int | None) -> bool:
        """Note what the container gets; whether anything changed. Raises `AllocationError`."""

    def free(self, pod_uid: str) -> bool:
        """Take back what the Pod has; whether it had anything."""

    def pod_uids(self) -> tuple[str, ...]:
        """The Pods that have anything."""

    def encode(self) -> bytes:
        """The state file."""

    def restore(self, content: bytes) -> None:
        """Take over a state file's content; raises `StateError`."""


class ReservedResource:
    """A book at a path; raises `StateError` when the file there is of another machine, policy or damaged.

    `known_pods` tells the UIDs of Pods that may hold something, None while they are not all known.
    """

    def __init__(self, book: Reservations, path: str, known_pods: Callable[[], Collection[str] | None]) -> None:
        self._book = book
        self._path = path
        self._known_pods = known_pods
        # Admitted last: it is known to the agent, though perhaps not yet as admitted.
        self._admitting = ""
        self._saving = asyncio.Lock()
        self._file = CheckpointFile(path)
        content = read_checkpoint(path)
        if content is None:
            self._file.replace(book.encode())
        else:
            book.restore(content)

    async def refresh(self, admitting: str | None = None) -> None:
        """Free what Pods hold that are gone."""
        if admitting is not None:
            self._admitting = admitting
        known = self._known_pods()
        if known is None:
            return
        freed = [self._book.free(uid) for uid in self._book.pod_uids() if uid not in known and uid != self._admitting]
        if any(freed):
            await self._save_quietly()

    def hints(self, pod: Pod, container: Container) -> ResourceHints:
        """What the book says."""
        return self._book.hints(pod, container)

    def pod_hints(self, pod: Pod) -> ResourceHints:
        """What the book says."""
        return self._book.pod_hints(pod)

    async def allocate(self, pod: Pod, container: Container, affinity: int | None) -> None:
        """Note what the container gets; on the disk before it returns."""
        if self._book.allocate(pod, container, affinity):
            try:
                await self._save()
            except OSError as error:
                raise AllocationError(f"could not save checkpoint: {error}") from error

    def holds(self, pod_uid: str) -> bool:
        """Whether the Pod has anything."""
        return pod_uid in self._book.pod_uids()

    async def free(self, pod_uid: str) -> None:
        """Take back what the Pod has."""
        if self._book.free(pod_uid):
            await self._save_quietly()

    async def _save_quietly(self) -> None:
        try:
            await self._save()
        except OSError as error:
            _log.error("state not saved", extra=fields(path=self._path, error=error))

    async def _save(self) -> None:
        async with self._saving:
            await asyncio.to_thread(self._file.replace, self._book.encode())
