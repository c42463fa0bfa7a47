"""What an agent works with, and what it keeps of each Pod."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from dray.api.document import Document, GroupVersionKind
from dray.api.types.core_v1 import Pod
from dray.client.event_recorder import ObjectReference, reference_to
from dray.lib.clock import Clock
from dray.node.agent.admission import own_requests
from dray.node.agent.cpuset_reconciler import CpusetLookup
from dray.node.agent.pod.machine import PodMachine
from dray.node.agent.pod.timing import KUBELET_TIMING, Timing
from dray.node.agent.pod_setup import PodSetup
from dray.node.agent.probes.prober import Prober
from dray.node.agent.status_manager import StatusManager
from dray.node.resource_manager import Rejection, ResourceManager
from dray.node.runtimes.runtime import Runtime
from dray.runtime.metrics import Metrics

CONTAINER: Final = "container"
INIT_CONTAINER: Final = "init_container"
POD_KIND: Final = GroupVersionKind("", "v1", "Pod")


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What Pods are told of their node, and what they are measured against; asked anew each time."""

    name: str
    addresses: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)


class Recorder(Protocol):
    """Tells events; `EventRecorder` is one."""

    def event_for(self, about: ObjectReference, event_type: str, reason: str, message: str) -> None:
        """Tell something of an object."""


@dataclass(slots=True)
class PodWorker:
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
    told_version: str = ""
    sent: Document | None = None
    contradicted: bool = False
    delete: bool = False
    _requests: Mapping[str, int] | None = None
    status_source: Callable[[PodWorker], Document | None] = lambda _work: None

    @property
    def uid(self) -> str:
        """The Pod's uid."""
        return self.pod.metadata.uid or ""

    def reference(self, container: str = "") -> ObjectReference:
        """What an event about the Pod, or about one of its containers, refers to."""
        path = ""
        if container:
            is_init = any(state.name == container for state in self.machine.containers.initial)
            path = f"spec.{'initContainers' if is_init else 'containers'}{{{container}}}"
        return reference_to(POD_KIND, self.pod, field_path=path)

    def requests(self) -> Mapping[str, int]:
        """What the Pod needs of the node; what it was admitted with does not change."""
        if self._requests is None:
            self._requests = own_requests(self.pod)
        return self._requests

    def status(self) -> Document | None:
        """What to report."""
        return self.status_source(self)

    def cancel(self) -> None:
        """Stop everything that is being done for the Pod; containers run on."""
        timer = [self.timer] if self.timer is not None else []
        for task in (*self.tasks, *timer):
            task.cancel()


class ContainerStartMetrics:
    """How often containers were started, and why they were not."""

    def __init__(self, metrics: Metrics) -> None:
        self._started = metrics.counter(
            "kubelet_started_containers_total", "Attempts to start a container", ["container_type"]
        )
        self._failed = metrics.counter(
            "kubelet_started_containers_errors_total",
            "Containers that could not be started",
            ["container_type", "code"],
        )

    def tried(self, kind: str, failure: str) -> None:
        """A container was to be started; `failure` is the reason that its status shows, empty when it runs."""
        self._started.labels(kind).inc()
        if failure:
            self._failed.labels(kind, failure).inc()


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What an agent works with."""

    clock: Clock
    runtime: Runtime
    builder: PodSetup
    reporter: StatusManager
    recorder: Recorder
    asker: Prober
    managers: Sequence[ResourceManager] = ()
    timing: Timing = KUBELET_TIMING
    # Asked of a running Pod when a manager says that it changed: why it has to be failed.
    verdicts: Sequence[Callable[[Pod], Rejection | None]] = ()
    # What the node has, when a Pod is measured against it: at least what the Pod has been given of it already.
    raised: Callable[[Pod, Mapping[str, int]], Mapping[str, int]] = lambda _pod, allocatable: allocatable
    # Where containers run; None when they run anywhere.
    pinning: CpusetLookup | None = None
    starts: ContainerStartMetrics | None = None
