"""What an agent works with, and what it keeps of each Pod."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dray.api.document import Document
from dray.api.types.core_v1 import Pod
from dray.client.events import ObjectReference
from dray.lib.clock import Clock
from dray.node.agent.building.loop import PodBuilder
from dray.node.agent.pod.events import KUBELET_TIMING, Timing
from dray.node.agent.pod.machine import PodMachine
from dray.node.agent.probes.http import Asker
from dray.node.agent.reporting.loop import StatusReporter
from dray.node.interface import Rejection, ResourceManager
from dray.node.runtimes.interface import Runtime


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What Pods are told of their node, and what they are measured against; asked anew each time."""

    name: str
    addresses: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)


class Recorder(Protocol):
    """Tells events; `EventRecorder` is one."""

    def event_at(self, about: ObjectReference, event_type: str, reason: str, message: str) -> None:
        """Tell something of an object."""


@dataclass(slots=True)
class PodWork:
    """One Pod in the agent's hands."""

    pod: Pod
    machine: PodMachine
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    preparing: asyncio.Task[Any] | None = None
    # By container name.
    probes: dict[str, list[asyncio.Task[Any]]] = field(default_factory=dict)
    stopping: dict[str, asyncio.Task[Any]] = field(default_factory=dict)
    timer: asyncio.Task[Any] | None = None
    told: Document | None = None
    delete: bool = False
    status_source: Callable[[PodWork], Document | None] = lambda _work: None

    @property
    def uid(self) -> str:
        """The Pod's uid."""
        return self.pod.metadata.uid or ""

    def status(self) -> Document | None:
        """What to report."""
        return self.status_source(self)

    def cancel(self) -> None:
        """Stop everything that is being done for the Pod; containers run on."""
        timer = [self.timer] if self.timer is not None else []
        for task in (*self.tasks, *timer):
            task.cancel()


@dataclass(frozen=True, slots=True)
class Parts:
    """What an agent works with."""

    clock: Clock
    runtime: Runtime
    builder: PodBuilder
    reporter: StatusReporter
    recorder: Recorder
    asker: Asker
    managers: Sequence[ResourceManager] = ()
    timing: Timing = KUBELET_TIMING
    # Asked of a running Pod when a manager says that it changed: why it has to be failed.
    verdicts: Sequence[Callable[[Pod], Rejection | None]] = ()
    # The CPUs and NUMA nodes of a container as the kernel writes them; empty means all.
    pinning: Callable[[Pod, str], tuple[str, str]] = lambda _pod, _container: ("", "")
