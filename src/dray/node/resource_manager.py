"""How the node agent asks those who hand out devices: one `ResourceManager` each for claims and device plugins.

Order, for one Pod: `admit`, `prepare`, then for each start of a container `container_options` and `pre_start`, and
when all containers have stopped `release`. Pods are as the API server has them; a static Pod has its mirror's form.
The agent admits one Pod at a time. Everything but `admit` may be called again for the same Pod, also after a restart
of the agent (which admits running Pods again, `prepare`s them again, and does not start their containers again), and
must then answer as before.
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
    """Why a Pod may never run on this node: the Pod fails with this `status.reason` and `status.message`."""

    reason: str
    message: str


class ResourceError(Exception):
    """Something a Pod needs is not there yet: the agent tells it as a Warning event and tries again with backoff."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the host to show in a container."""

    container_path: str
    host_path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class HostDevice:
    """A device file of the host to give to a container; `permissions` is made of r, w and m."""

    container_path: str
    host_path: str
    permissions: str = "rwm"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a container gets in addition to what its Pod says."""

    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[HostDevice, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    # Full CDI names, `vendor/class=name`; may repeat.
    cdi_devices: tuple[str, ...] = ()


NO_OPTIONS: Final = RunOptions()


def merge_options(parts: Sequence[RunOptions]) -> RunOptions:
    """All of them together; the first to name an environment variable or annotation wins, CDI devices appear once."""
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
    """What a manager adds to the Node's status; an extended resource that went away stays with the amount "0"."""

    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)


class PodSource(Protocol):
    """The agent's Pods, for managers that must know which of their users still live."""

    def active(self) -> tuple[Pod, ...]:
        """Admitted Pods whose containers may still run, whether or not the API server still has them."""

    def all(self) -> tuple[Pod, ...]:
        """Every Pod the agent knows, finished ones too."""

    def get(self, uid: str) -> Pod | None:
        """Return one Pod."""


class ResourceManager(Protocol):
    """Hands out something scarce to Pods."""

    @property
    def name(self) -> str:
        """For logs."""

    async def admit(self, pod: Pod) -> Rejection | None:
        """Set aside what the Pod asks for; None when all is well. A rejected Pod holds nothing."""

    async def prepare(self, pod: Pod) -> None:
        """Make ready what the Pod's containers will use; raises `ResourceError`. Comes before any container."""

    def container_options(self, pod: Pod, container: str) -> RunOptions:
        """What the container gets; raises `ResourceError` when that is not known."""

    async def pre_start(self, pod: Pod, container: str) -> None:
        """The container is about to start; raises `ResourceError` to hold it back."""

    async def release(self, pod: Pod) -> None:
        """All containers of the Pod have stopped; raises `ResourceError` to be called again.

        Only after it has returned is the Pod reported as finished, or its API object removed.
        """

    def node_resources(self) -> NodeResources:
        """What the Node has of it now."""

    def container_resources(self, pod: Pod, container: str) -> Sequence[Document]:
        """Return the container's `allocatedResourcesStatus`."""

    def on_change(self, listener: Callable[[Sequence[str]], None]) -> None:
        """Call the listener with the UIDs of Pods whose status changed; none means that the Node's resources did."""
