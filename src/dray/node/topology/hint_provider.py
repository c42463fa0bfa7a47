"""The interface of resources that the topology manager aligns: devices, CPUs, memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from dray.api.types.core_v1 import Container, Pod
from dray.node.topology.hints import ResourceHints

_log = logging.getLogger(__name__)


class AllocationError(Exception):
    """A container cannot have what it requests; the message is shown in the Pod's status."""


class PreferenceNeededError(Exception):
    """A provider must ask another process before it can reserve; after `ask`, everything is reserved anew."""


class HintProvider(Protocol):
    """Allocates a resource that has an affinity to NUMA nodes.

    Hints are valid only until the next reservation, so that a Pod's resources are reserved in one step, without
    awaiting anything. Slow work, such as calls of plugins, follows in `commit`, while other Pods are admitted.
    """

    async def refresh(self, admitting: Collection[str] = ()) -> None:
        """Free what deleted Pods hold; called before hints are requested.

        `admitting` are the UIDs of Pods that are being admitted: they keep what they are given, although the agent may
        not list them yet.
        """

    def hints(self, pod: Pod, container: Container) -> ResourceHints:
        """Return the NUMA nodes that could serve the container's request."""

    def pod_hints(self, pod: Pod) -> ResourceHints:
        """Return the NUMA nodes that could serve the requests of all containers."""

    def reserve(self, pod: Pod, container: Container, affinity: int | None) -> None:
        """Reserve what the container requests, from these NUMA nodes if possible.

        A container that has it already keeps it. Raises `AllocationError` or `PreferenceNeededError`.
        """

    def undo_point(self, pod_uid: str) -> Callable[[], None]:
        """Return a function that undoes the Pod's reservations since, unless they were committed."""

    async def ask(self, needed: PreferenceNeededError) -> None:
        """Ask what `reserve` needs to know; raises `AllocationError`."""

    async def commit(self, pod: Pod) -> None:
        """Allocate what is reserved for the Pod; it is on disk before this returns. Raises `AllocationError`."""

    def holds(self, pod_uid: str) -> bool:
        """Whether the Pod has anything."""

    async def free(self, pod_uid: str) -> None:
        """Free everything the Pod holds."""


class PodReservations:
    """The part of a hint provider that frees what Pods hold; the base of all of them.

    `known_pods` returns the UIDs of Pods that may hold something, None while they are not all known.
    """

    def __init__(self, known_pods: Callable[[], Collection[str] | None]) -> None:
        self._known_pods = known_pods

    # For subclasses.

    def _holders(self) -> Sequence[str]:
        """Return the UIDs of Pods that hold something."""
        raise NotImplementedError

    def _free(self, pod_uid: str) -> bool:
        """Free what the Pod holds; return whether it held anything."""
        raise NotImplementedError

    async def _save(self) -> None:
        """Write the checkpoint; raises `AllocationError`."""
        raise NotImplementedError

    # See `HintProvider`.

    async def refresh(self, admitting: Collection[str] = ()) -> None:
        """Free what deleted and finished Pods hold, once all Pods are known."""
        known = self._known_pods()
        if known is None:
            return
        freed = [self._free(uid) for uid in self._holders() if uid not in known and uid not in admitting]
        if any(freed):
            await self._save_or_log()

    async def ask(self, needed: PreferenceNeededError) -> None:
        """Raise an error: nothing needs to be asked."""
        raise AssertionError("nothing to ask") from needed

    async def free(self, pod_uid: str) -> None:
        """Free everything the Pod holds."""
        if self._free(pod_uid):
            await self._save_or_log()

    async def _save_or_log(self) -> None:
        try:
            await self._save()
        except AllocationError as error:
            _log.error("%s", error)
