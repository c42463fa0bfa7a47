"""A hint provider for CPUs or memory, with its state in a file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Generic, Protocol, TypeVar

from dray.api.types.core_v1 import Container, Pod
from dray.node.checkpoint_file import CheckpointFile, read_checkpoint
from dray.node.topology.hint_provider import AllocationError, PodReservations
from dray.node.topology.hints import ResourceHints

Assigned = TypeVar("Assigned")


class Assignments(Generic[Assigned]):
    """What the containers of each Pod have."""

    def __init__(self) -> None:
        self._pods: dict[str, dict[str, Assigned]] = {}
        # Changes whenever an assignment does.
        self.revision = 0

    def pod_uids(self) -> tuple[str, ...]:
        """Return the UIDs of Pods that have anything."""
        return tuple(sorted(self._pods))

    def free(self, pod_uid: str) -> bool:
        """Free what the Pod has; return whether it had anything."""
        if self._pods.pop(pod_uid, None) is None:
            return False
        self.revision += 1
        return True

    def undo_point(self, pod_uid: str) -> Callable[[], None]:
        """Return a function that restores what the Pod has now."""
        before = dict(self._pods.get(pod_uid, {}))

        def undo() -> None:
            if before == self._pods.get(pod_uid, {}):
                return
            self.free(pod_uid)
            if before:
                self._pods[pod_uid] = before

        return undo

    def _assign(self, pod_uid: str, container: str, assigned: Assigned) -> None:
        self._pods.setdefault(pod_uid, {})[container] = assigned
        self.revision += 1


class Policy(Protocol):
    """A static policy and its assignments."""

    def hints(self, pod: Pod, container: Container) -> ResourceHints:
        """See `HintProvider`."""

    def pod_hints(self, pod: Pod) -> ResourceHints:
        """See `HintProvider`."""

    def allocate(self, pod: Pod, container: Container, affinity: int | None) -> bool:
        """Assign what the container requests; return whether anything changed. Raises `AllocationError`."""

    def undo_point(self, pod_uid: str) -> Callable[[], None]:
        """See `HintProvider`."""

    def free(self, pod_uid: str) -> bool:
        """Free what the Pod has; return whether it had anything."""

    def pod_uids(self) -> tuple[str, ...]:
        """Return the UIDs of Pods that have anything."""

    def encode(self) -> bytes:
        """Return the content of the state file."""

    def restore(self, content: bytes) -> None:
        """Restore the content of a state file; raises `StateError`."""


class ReservedResource(PodReservations):
    """A policy with its state file; raises `StateError` if the file is damaged or of another machine or policy."""

    def __init__(self, policy: Policy, path: str, known_pods: Callable[[], Collection[str] | None]) -> None:
        super().__init__(known_pods)
        self._policy = policy
        self._saving = asyncio.Lock()
        # The UIDs of Pods whose reservations are not on disk yet.
        self._unsaved: set[str] = set()
        self._file = CheckpointFile(path)
        content = read_checkpoint(path)
        if content is None:
            self._file.replace(policy.encode())
        else:
            policy.restore(content)

    def hints(self, pod: Pod, container: Container) -> ResourceHints:
        """Return the policy's hints."""
        return self._policy.hints(pod, container)

    def pod_hints(self, pod: Pod) -> ResourceHints:
        """Return the policy's hints."""
        return self._policy.pod_hints(pod)

    def reserve(self, pod: Pod, container: Container, affinity: int | None) -> None:
        """Assign what the container requests."""
        if self._policy.allocate(pod, container, affinity):
            self._unsaved.add(pod.metadata.uid or "")

    def undo_point(self, pod_uid: str) -> Callable[[], None]:
        """Return a function that undoes the Pod's reservations since."""
        return self._policy.undo_point(pod_uid)

    async def commit(self, pod: Pod) -> None:
        """Write the state if it has anything new of the Pod."""
        uid = pod.metadata.uid or ""
        if uid in self._unsaved:
            self._unsaved.discard(uid)
            await self._save()

    def holds(self, pod_uid: str) -> bool:
        """Whether the Pod has anything."""
        return pod_uid in self._policy.pod_uids()

    def _holders(self) -> Sequence[str]:
        return self._policy.pod_uids()

    def _free(self, pod_uid: str) -> bool:
        self._unsaved.discard(pod_uid)
        return self._policy.free(pod_uid)

    async def _save(self) -> None:
        try:
            async with self._saving:
                await asyncio.to_thread(self._file.replace, self._policy.encode())
        except OSError as error:
            raise AllocationError(f"could not save checkpoint: {error}") from error
