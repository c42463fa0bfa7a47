"""Keeps running containers on the CPUs that are theirs: those of everybody change when someone gets CPUs alone."""

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

# The CPUs and NUMA nodes of a container as the kernel writes them; empty means all.
CpusetLookup = Callable[[Pod, str], tuple[str, str]]
# kubelet's: how often it looks whether containers are where they should be.
LOOK_SECONDS: Final = 10.0
# Some runtimes start a program for each.
MOVES_AT_ONCE_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class RunningContainer:
    """A container that runs."""

    pod: Pod
    name: str
    id: str


class CpusetReconciler:
    """What each running container was last told; without `pinning` there is nothing to tell anyone."""

    def __init__(self, runtime: Runtime, clock: Clock, pinning: CpusetLookup | None) -> None:
        self._runtime = runtime
        self._clock = clock
        self._pinning = pinning
        # By container ID. One that an earlier agent started is not in it, and is told once more.
        self._told: dict[str, str] = {}
        # Two that compare at once would both tell, and the older could come last.
        self._telling = asyncio.Lock()
        self._at_once = asyncio.Semaphore(MOVES_AT_ONCE_MAX)

    def lookup(self, pod: Pod, container: str) -> tuple[str, str]:
        """Where a container is to start."""
        return ("", "") if self._pinning is None else self._pinning(pod, container)

    def started(self, container_id: str, cpus: str) -> None:
        """The container has started there."""
        if self._pinning is not None:
            self._told[container_id] = cpus

    async def reconcile(self, running: Iterable[RunningContainer]) -> None:
        """Move those of the containers that are not where they should be."""
        if self._pinning is None:
            return
        async with self._telling:
            wanted = [(item, self._pinning(item.pod, item.name)[0]) for item in running]
            await asyncio.gather(*(self._move(item, cpus) for item, cpus in wanted))

    async def run(self, running: Callable[[], Iterable[RunningContainer]]) -> None:
        """Look now and then, until cancelled: a container that could not be moved is tried again."""
        while self._pinning is not None:
            await self._clock.sleep(LOOK_SECONDS)
            found = tuple(running())
            here = {item.id for item in found}
            self._told = {name: cpus for name, cpus in self._told.items() if name in here}
            await self.reconcile(found)

    async def _move(self, item: RunningContainer, cpus: str) -> None:
        if not cpus or self._told.get(item.id) == cpus:
            return
        try:
            async with self._at_once:
                await self._runtime.set_cpus(item.id, cpus)
        except (RuntimeFailure, OSError) as error:
            where = fields(pod=item.pod.metadata.name, container=item.name, cpus=cpus, error=str(error))
            _log.warning("the container was not moved to its CPUs", extra=where)
        else:
            self._told[item.id] = cpus
