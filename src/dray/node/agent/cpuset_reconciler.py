"""Keeps running containers on their CPUs: the shared CPUs change whenever exclusive ones are assigned or freed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from dray.api.types.core_v1 import Pod
from dray.lib.clock import Clock
from dray.node.runtimes.runtime import Runtime, RuntimeFailure
from dray.runtime.logs import fields

_log = logging.getLogger(__name__)

# The CPUs and NUMA nodes of a container in the kernel's list format; empty means all.
CpusetLookup = Callable[[Pod, str], tuple[str, str]]
# kubelet's reconcile period.
LOOK_SECONDS: Final = 10.0
# Some runtimes start a process for each.
MOVES_AT_ONCE_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class RunningContainer:
    """A running container."""

    pod: Pod
    name: str
    id: str


class CpusetReconciler:
    """The CPUs last set for each running container; does nothing if no container is pinned."""

    def __init__(self, runtime: Runtime, clock: Clock, pinning: CpusetLookup | None) -> None:
        self._runtime = runtime
        self._clock = clock
        self._pinning = pinning
        # By container ID. Containers started before an agent restart are missing, and are updated once more.
        self._last_applied: dict[str, str] = {}
        # Concurrent reconciliations could overwrite newer CPUs by older ones.
        self._telling = asyncio.Lock()
        self._at_once = asyncio.Semaphore(MOVES_AT_ONCE_MAX)

    def lookup(self, pod: Pod, container: str) -> tuple[str, str]:
        """Return the CPUs and NUMA nodes of a container."""
        return ("", "") if self._pinning is None else self._pinning(pod, container)

    def started(self, container_id: str, cpus: str) -> None:
        """Note the CPUs that a container was started with."""
        if self._pinning is not None:
            self._last_applied[container_id] = cpus

    async def reconcile(self, running: Iterable[RunningContainer]) -> None:
        """Update the containers whose CPUs have changed."""
        if self._pinning is None:
            return
        async with self._telling:
            wanted = [(item, self._pinning(item.pod, item.name)[0]) for item in running]
            await asyncio.gather(*(self._move(item, cpus) for item, cpus in wanted))

    async def run(self, running: Callable[[], Iterable[RunningContainer]]) -> None:
        """Reconcile periodically until cancelled; failed updates are retried."""
        while self._pinning is not None:
            await self._clock.sleep(LOOK_SECONDS)
            found = tuple(running())
            here = {item.id for item in found}
            self._last_applied = {name: cpus for name, cpus in self._last_applied.items() if name in here}
            await self.reconcile(found)

    async def _move(self, item: RunningContainer, cpus: str) -> None:
        if not cpus or self._last_applied.get(item.id) == cpus:
            return
        try:
            async with self._at_once:
                await self._runtime.set_cpus(item.id, cpus)
        except (RuntimeFailure, OSError) as error:
            where = fields(pod=item.pod.metadata.name, container=item.name, cpus=cpus, error=str(error))
            _log.warning("cpuset not updated", extra=where)
        else:
            self._last_applied[item.id] = cpus
