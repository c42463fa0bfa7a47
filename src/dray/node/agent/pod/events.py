"""What a Pod's life is told, and what it asks to be done; values only."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from dray.api.types.core_v1 import Pod
from dray.node.resource_manager import Rejection
from dray.node.runtimes.runtime import ContainerRecord


class ProbeKind(enum.StrEnum):
    """The three questions asked of a container."""

    STARTUP = "Startup"
    LIVENESS = "Liveness"
    READINESS = "Readiness"


# --- Events. ---


@dataclass(frozen=True, slots=True)
class PodUpdated:
    """The API server has a newer form of the Pod."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class PodRemoved:
    """The API server no longer has the Pod."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """Everyone asked agrees that the Pod may run here."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Someone does not."""

    rejection: Rejection


@dataclass(frozen=True, slots=True)
class Prepared:
    """Devices, volumes and sandbox are there; no addresses means the node's."""

    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PrepareFailed:
    """Something is not there yet."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ContainerStarted:
    """A container runs; `warnings` is what the runtime could not do for it."""

    record: ContainerRecord
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StartFailed:
    """A container was not even made: it waits with this reason and is tried again."""

    container: str
    reason: str
    message: str
    # Said as an event of this reason; empty when it has been said.
    event: str = "Failed"


@dataclass(frozen=True, slots=True)
class ContainerExited:
    """A run ended; also told for a container that was made but could not start."""

    record: ContainerRecord


@dataclass(frozen=True, slots=True)
class PostStartFinished:
    """The hook after a start ended; a message means that it failed."""

    container: str
    container_id: str
    failure: str = ""


@dataclass(frozen=True, slots=True)
class ProbeResultChanged:
    """A probe's verdict changed, or a failing one failed again."""

    container: str
    container_id: str
    kind: ProbeKind
    healthy: bool


@dataclass(frozen=True, slots=True)
class Released:
    """Devices are given back."""


@dataclass(frozen=True, slots=True)
class ReleaseFailed:
    """Not yet."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class MustFail:
    """Something the Pod needs broke: it must be failed."""

    verdict: Rejection


@dataclass(frozen=True, slots=True)
class RetryNow:
    """Someone has come without whom preparation or release may have failed: there is no need to wait longer."""


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The moment asked for by `wake_at` has come."""


Event: TypeAlias = (
    PodUpdated
    | PodRemoved
    | Admitted
    | Rejected
    | Prepared
    | PrepareFailed
    | ContainerStarted
    | StartFailed
    | ContainerExited
    | PostStartFinished
    | ProbeResultChanged
    | Released
    | ReleaseFailed
    | MustFail
    | RetryNow
    | TimerFired
)


# --- Actions. ---


@dataclass(frozen=True, slots=True)
class Admit:
    """Ask whether the Pod may run; answered by `Admitted` or `Rejected`."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make devices, volumes and sandbox ready; answered by `Prepared` or `PrepareFailed`."""


@dataclass(frozen=True, slots=True)
class StartContainer:
    """Run a container; answered by `ContainerStarted`, `StartFailed` or `ContainerExited`."""

    container: str
    attempt: int


@dataclass(frozen=True, slots=True)
class RunPostStart:
    """Run the hook; answered by `PostStartDone`."""

    container: str
    container_id: str


@dataclass(frozen=True, slots=True)
class StartProbes:
    """Ask the container's probes until it ends."""

    container: str
    container_id: str
    started_at: datetime


@dataclass(frozen=True, slots=True)
class StopContainer:
    """End a container within the grace, its hook included; answered by `ContainerExited`."""

    container: str
    container_id: str
    grace_seconds: float
    hook: bool = True


@dataclass(frozen=True, slots=True)
class RemoveContainer:
    """Forget an ended run, its log included."""

    record: ContainerRecord


@dataclass(frozen=True, slots=True)
class Release:
    """Give devices back; answered by `Released` or `ReleaseFailed`."""


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """Write an event about the Pod, or about one of its containers."""

    type: str
    reason: str
    message: str
    container: str = ""


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Remove the Pod from the API server, once its final status is there."""


@dataclass(frozen=True, slots=True)
class CleanUp:
    """Nothing is left to do: remove containers, volumes and logs."""


Action: TypeAlias = (
    Admit
    | Prepare
    | StartContainer
    | RunPostStart
    | StartProbes
    | StopContainer
    | RemoveContainer
    | Release
    | RecordEvent
    | DeletePod
    | CleanUp
)


@dataclass(frozen=True, slots=True)
class Timing:
    """The pauses of a Pod's life, in seconds; kubelet's numbers unless an administrator says otherwise."""

    restart_backoff: float = 10.0
    restart_backoff_max: float = 300.0
    # An image or a configuration that was not there.
    start_retry: float = 10.0
    image_backoff_max: float = 300.0
    # Devices and volumes; kubelet looks again every sync.
    prepare_retry: float = 2.0
    prepare_retry_max: float = 60.0
    release_retry: float = 2.0
    # What a sidecar gets at least when the others used up the grace.
    grace_least: float = 2.0


KUBELET_TIMING = Timing()
