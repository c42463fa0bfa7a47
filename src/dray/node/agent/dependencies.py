"""What the Pod workers of a node depend on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from dray.api.types.core_v1 import Pod
from dray.client.event_recorder import ObjectReference
from dray.lib.clock import Clock
from dray.node.agent.cpuset_reconciler import CpusetLookup
from dray.node.agent.pod.timing import KUBELET_TIMING, Timing
from dray.node.agent.pod_setup import PodSetup
from dray.node.agent.probes.prober import Prober
from dray.node.agent.status_manager import StatusManager
from dray.node.resource_manager import Rejection, ResourceManager
from dray.node.runtimes.runtime import Runtime
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import ChildTasks

CONTAINER: Final = "container"
INIT_CONTAINER: Final = "init_container"
EPHEMERAL_CONTAINER: Final = "ephemeral_container"


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """Attributes of the node that admission and Pod statuses use; they change over time."""

    name: str
    addresses: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)


class Recorder(Protocol):
    """Records events; implemented by `EventRecorder`."""

    def event_for(self, about: ObjectReference, event_type: str, reason: str, message: str) -> None:
        """Record an event about an object."""


class ContainerStartMetrics:
    """Counts container starts, and their failures by reason."""

    def __init__(self, metrics: Metrics) -> None:
        self._started = metrics.counter(
            "kubelet_started_containers_total", "Attempts to start a container", ["container_type"]
        )
        self._failed = metrics.counter(
            "kubelet_started_containers_errors_total",
            "Containers that could not be started",
            ["container_type", "code"],
        )

    def observe(self, kind: str, failure: str) -> None:
        """Count an attempt; `failure` is the reason that the container's status shows, empty if it runs."""
        self._started.labels(kind).inc()
        if failure:
            self._failed.labels(kind, failure).inc()


async def _nothing() -> None:
    """Do nothing: what is known about the node is current."""


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The dependencies of `PodWorkers`."""

    clock: Clock
    # Supervised by the owner: a failure ends the agent.
    tasks: ChildTasks
    runtime: Runtime
    pod_setup: PodSetup
    status_manager: StatusManager
    recorder: Recorder
    prober: Prober
    managers: Sequence[ResourceManager] = ()
    timing: Timing = KUBELET_TIMING
    # Return why a Pod must fail; called when a manager reports a change of the Pod's resources.
    health_checks: Sequence[Callable[[Pod], Rejection | None]] = ()
    # Return the allocatable resources that a Pod is admitted against, which include those it already holds.
    effective_allocatable: Callable[[Pod, Mapping[str, int]], Mapping[str, int]] = lambda _pod, allocatable: allocatable
    # Read the Node again.
    refresh_node: Callable[[], Awaitable[None]] = _nothing
    # The CPUs and NUMA nodes of containers; None if no container is pinned.
    cpusets: CpusetLookup | None = None
    start_metrics: ContainerStartMetrics | None = None
