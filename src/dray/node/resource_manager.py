"""The interface of resource managers: claims, devices, CPUs and memory.

The order of calls for a Pod is `admit`, `prepare`, then for each start of a container `container_options` and
`pre_start`, and `release` when all containers have stopped. Calls for different Pods run concurrently. Every method but
`admit` may be called repeatedly for a Pod, and must then return the same result. After a restart, the agent admits and
prepares running Pods again, and does not start their containers: what a Pod was given before, it keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from dray.api.document import Document
from dray.api.types.core_v1 import Pod

UNEXPECTED_ADMISSION_ERROR: Final = "UnexpectedAdmissionError"


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a Pod cannot run on this node: the Pod fails with this `status.reason` and `status.message`."""

    reason: str
    message: str


class ResourceError(Exception):
    """A resource is not ready yet: the agent records a Warning event and retries with back-off."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the host to mount into a container."""

    container_path: str
    host_path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class HostDevice:
    """A device file of the host for a container; `permissions` consists of r, w and m."""

    container_path: str
    host_path: str
    permissions: str = "rwm"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What resource managers add to a container."""

    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[HostDevice, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    # Full CDI names, `vendor/class=name`; may repeat.
    cdi_devices: tuple[str, ...] = ()


NO_OPTIONS: Final = RunOptions()


def merge_options(parts: Sequence[RunOptions]) -> RunOptions:
    """Merge options; the first value of a variable or annotation is used, CDI devices appear once."""
    envs: dict[str, str] = {}
    annotations: dict[str, str] = {}
    for part in reversed(parts):
        envs.update(part.envs)
        annotations.update(part.annotations)
    return RunOptions(
        envs=envs,
        mounts=tuple(dict.fromkeys(mount for part in parts for mount in part.mounts)),
        devices=tuple(dict.fromkeys(device for part in parts for device in part.devices)),
        annotations=annotations,
        cdi_devices=tuple(dict.fromkeys(name for part in parts for name in part.cdi_devices)),
    )


@dataclass(frozen=True, slots=True)
class NodeResources:
    """What a manager adds to the Node's status; an extended resource that is gone stays with the amount "0"."""

    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)


class PodSource(Protocol):
    """The agent's Pods, for managers that free resources of deleted Pods."""

    def active(self) -> tuple[Pod, ...]:
        """Return the admitted Pods whose containers may still run, including deleted ones."""

    def all(self) -> tuple[Pod, ...]:
        """Return every Pod, including finished ones."""

    def get(self, uid: str) -> Pod | None:
        """Return one Pod."""


class ResourceManager(Protocol):
    """Allocates a resource to Pods."""

    @property
    def name(self) -> str:
        """The name in logs."""

    async def admit(self, pod: Pod) -> Rejection | None:
        """Reserve what the Pod requests; return why it is rejected, or None. A rejected Pod holds nothing."""

    def waits_for(self, pod: Pod) -> str:
        """Return whom a pending call for the Pod waits for, in the words of an event; empty if nobody."""

    async def prepare(self, pod: Pod) -> None:
        """Prepare the Pod's resources before any container starts; raises `ResourceError`."""

    def container_options(self, pod: Pod, container: str) -> RunOptions:
        """Return what the container gets; raises `ResourceError`."""

    async def pre_start(self, pod: Pod, container: str) -> None:
        """Called before the container starts; raises `ResourceError` to delay it."""

    async def release(self, pod: Pod) -> None:
        """Release the resources of a Pod whose containers have stopped; raises `ResourceError` to be called again.

        The Pod's final phase is reported, and the Pod deleted, only after this has returned.
        """

    def node_resources(self) -> NodeResources:
        """Return what the manager adds to the Node's status."""

    def container_resources(self, pod: Pod, container: str) -> Sequence[Document]:
        """Return the container's `allocatedResourcesStatus`."""

    def on_change(self, listener: Callable[[Sequence[str]], None]) -> None:
        """Call the listener with the UIDs of Pods whose status changed; none means that the Node's resources did."""
