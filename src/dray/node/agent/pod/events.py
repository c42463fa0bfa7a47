"""Events that a `PodMachine` handles, and actions that it returns. Values only."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from dray.api.types.core_v1 import Pod
from dray.node.resource_manager import Rejection
from dray.node.runtimes.runtime import ContainerRecord


class ProbeKind(enum.StrEnum):
    """The three kinds of probes."""

    STARTUP = "Startup"
    LIVENESS = "Liveness"
    READINESS = "Readiness"


# --- Events. ---


@dataclass(frozen=True, slots=True)
class PodAdded:
    """The agent has started to manage the Pod."""


@dataclass(frozen=True, slots=True)
class PodUpdated:
    """The API server has a newer version of the Pod."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class PodRemoved:
    """The Pod was deleted from the API server."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The node and every resource manager have admitted the Pod."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The node or a resource manager has rejected the Pod."""

    rejection: Rejection


@dataclass(frozen=True, slots=True)
class Prepared:
    """Devices, volumes and sandbox are ready; without addresses the Pod uses the node's."""

    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PrepareFailed:
    """Devices, volumes or sandbox are not ready; preparation is retried."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ContainerStarted:
    """A container runs; `warnings` lists what the runtime does not support."""

    record: ContainerRecord
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StartFailed:
    """A container was not created: it is Waiting with this reason, and the start is retried."""

    container: str
    reason: str
    message: str
    # The reason of the event to record; empty when it was recorded already.
    event: str = "Failed"


@dataclass(frozen=True, slots=True)
class ContainerExited:
    """A run ended; also reported for a container that was created but could not start."""

    record: ContainerRecord


@dataclass(frozen=True, slots=True)
class PostStartFinished:
    """The postStart hook ended; a message means that it failed."""

    container: str
    container_id: str
    failure: str = ""


@dataclass(frozen=True, slots=True)
class ProbeResultChanged:
    """The result of a probe changed, or a failing probe failed once more."""

    container: str
    container_id: str
    kind: ProbeKind
    healthy: bool


@dataclass(frozen=True, slots=True)
class Released:
    """Every resource manager has released the Pod's resources."""


@dataclass(frozen=True, slots=True)
class ReleaseFailed:
    """A resource manager has not released the Pod's resources; the release is retried."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class MustFail:
    """A resource that the Pod uses has failed, and the Pod fails with it."""

    failure: Rejection


@dataclass(frozen=True, slots=True)
class RetryNow:
    """A driver has registered: preparation or release may succeed now, without waiting for the end of the delay."""


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time of `wake_at` has come."""


Event: TypeAlias = (
    PodAdded
    | PodUpdated
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
    """Ask the node and the resource managers to admit the Pod; answered by `Admitted` or `Rejected`."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Prepare devices, volumes and sandbox; answered by `Prepared` or `PrepareFailed`."""


@dataclass(frozen=True, slots=True)
class StartContainer:
    """Start a container; answered by `ContainerStarted`, `StartFailed` or `ContainerExited`."""

    container: str
    attempt: int


@dataclass(frozen=True, slots=True)
class RunPostStart:
    """Run the postStart hook; answered by `PostStartFinished`."""

    container: str
    container_id: str


@dataclass(frozen=True, slots=True)
class StartProbes:
    """Probe the container until it exits."""

    container: str
    container_id: str
    started_at: datetime


@dataclass(frozen=True, slots=True)
class StopContainer:
    """Stop a container within the grace period, preStop hook included; answered by `ContainerExited`."""

    container: str
    container_id: str
    grace_seconds: float
    hook: bool = True


@dataclass(frozen=True, slots=True)
class RemoveContainer:
    """Remove an exited run and its log."""

    record: ContainerRecord


@dataclass(frozen=True, slots=True)
class Release:
    """Release the Pod's resources; answered by `Released` or `ReleaseFailed`."""


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """Record an event about the Pod or one of its containers."""

    type: str
    reason: str
    message: str
    container: str = ""


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete the Pod from the API server once its final status is written."""


@dataclass(frozen=True, slots=True)
class CleanUp:
    """Remove the Pod's containers, volumes and logs, and stop managing it."""


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
