"""The seam between aligned admission and those whose resources it aligns: device plugins, CPUs, memory."""

from __future__ import annotations

from typing import Protocol

from dray.api.types.core_v1 import Container, Pod
from dray.node.topology.hints import ResourceHints


class AllocationError(Exception):
    """A container cannot have what it asks for; the text ends up in the Pod's status."""


class HintProvider(Protocol):
    """Has a resource that is close to some NUMA nodes."""

    async def refresh(self, admitting: str | None = None) -> None:
        """Take back what Pods hold that are gone; comes before hints are asked for.

        From now on the Pod of this UID is the one being admitted: the agent may not know it yet, still it keeps what
        it is given.
        """

    def hints(self, pod: Pod, container: Container) -> ResourceHints:
        """Where the container's request could be served from."""

    def pod_hints(self, pod: Pod) -> ResourceHints:
        """Where the requests of all containers together could be served from."""

    async def allocate(self, pod: Pod, container: Container, affinity: int | None) -> None:
        """Give the container what it asks for, from these NUMA nodes if possible; raises `AllocationError`.

        A container that has it already keeps it.
        """

    def holds(self, pod_uid: str) -> bool:
        """Whether the Pod has anything."""

    async def free(self, pod_uid: str) -> None:
        """Take back everything the Pod holds."""
