"""The one interface by which the agent runs containers.

Promises of every runtime: containers outlive the agent's process; `records` tells of all that were ever run and not
removed, with the labels they were given; an exit is told once to the listener, and only after `run` has returned.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol, TypeAlias

from dray.node.resource_manager import HostDevice
from dray.runtime.tasks import ChildTasks

# What a container whose end nobody saw is said to have ended with, as containerd and kubelet do.
UNKNOWN_EXIT_CODE: Final = 255
# A container that could not even start counts as having ended so; the number is containerd's.
START_ERROR_CODE: Final = 128
START_ERROR: Final = "StartError"
OOM_KILLED: Final = "OOMKilled"


class RuntimeFailure(Exception):  # noqa: N818 - named for what it means to a container
    """The runtime could not do something; the message is shown to users."""


class ImageFailure(RuntimeFailure):
    """The image cannot be had; `reason` is kubelet's (ErrImagePull, ErrImageNeverPull, InvalidImageName)."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Exit:
    """How a container ended; reason is empty unless the runtime knows more than the code."""

    code: int
    finished_at: datetime
    signal: int = 0
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    """One run of a container; `exit` is None while it runs."""

    id: str
    pod_uid: str
    pod_namespace: str
    pod_name: str
    name: str
    # How often the container had been run before; the restart count.
    attempt: int
    image: str
    image_id: str
    started_at: datetime
    exit: Exit | None = None


class Propagation(enum.StrEnum):
    """Whether mounts made later on one side are seen on the other."""

    NONE = "None"
    HOST_TO_CONTAINER = "HostToContainer"
    BIDIRECTIONAL = "Bidirectional"


@dataclass(frozen=True, slots=True)
class BindMount:
    """A file or folder of the host in the container; `volume` names where it comes from, for messages."""

    host_path: str
    container_path: str
    read_only: bool = False
    propagation: Propagation = Propagation.NONE
    volume: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """Zero means none."""

    cpu_shares: int = 0
    cpu_quota_microseconds: int = 0
    memory_bytes: int = 0
    oom_score_adj: int = 0
    # As the kernel writes them; empty means all.
    cpus: str = ""
    memory_nodes: str = ""


@dataclass(frozen=True, slots=True)
class Security:
    """Whose rights the container has."""

    user: int | None = None
    group: int | None = None
    supplemental_groups: tuple[int, ...] = ()
    privileged: bool = False
    read_only_root: bool = False
    no_new_privileges: bool = False
    # The image's own user may be root, which is known only to who has the image.
    must_not_be_root: bool = False
    add_capabilities: tuple[str, ...] = ()
    drop_capabilities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What the containers of a Pod share."""

    uid: str
    namespace: str
    name: str
    hostname: str
    log_directory: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    host_network: bool = False
    host_pid: bool = False
    host_ipc: bool = False
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """Everything a runtime needs to run one container once."""

    sandbox: Sandbox
    name: str
    attempt: int
    image: str
    # Both empty: the image's own.
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: Sequence[tuple[str, str]] = ()
    working_dir: str = ""
    mounts: tuple[BindMount, ...] = ()
    devices: tuple[HostDevice, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = Limits()
    security: Security = Security()
    stop_signal: str = ""
    tty: bool = False

    @property
    def log_path(self) -> str:
        """The file its output goes to, in CRI's format."""
        return f"{self.sandbox.log_directory}/{self.name}/{self.attempt}.log"


@dataclass(frozen=True, slots=True)
class Image:
    """An image that is there."""

    reference: str
    id: str


@dataclass(frozen=True, slots=True)
class Started:
    """A container that runs, or one that was made and could not start: that counts as a run, ended with `StartError`.

    `warnings` says what the runtime could not do for it.
    """

    record: ContainerRecord
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a command in a container ended with; None when it took too long and was stopped."""

    code: int | None
    output: str


ExitListener: TypeAlias = Callable[[ContainerRecord], None]


class Runtime(Protocol):
    """Runs containers."""

    @property
    def name(self) -> str:
        """The scheme of container ids: `runc://…`."""

    @property
    def version(self) -> str:
        """For `nodeInfo.containerRuntimeVersion`."""

    async def start(self, on_exit: ExitListener, tasks: ChildTasks) -> Sequence[ContainerRecord]:
        """Connect, and return the known containers; background tasks run in `tasks`, whose owner supervises them."""

    async def stop(self) -> None:
        """Let go of everything; containers run on."""

    async def ensure_image(self, image: str, policy: str, sandbox: Sandbox) -> Image:
        """Have the image there, or raise `ImageFailure`."""

    async def ensure_sandbox(self, sandbox: Sandbox) -> tuple[str, ...]:
        """Make what a Pod's containers share; returns the Pod's addresses, none meaning the node's."""

    async def run(self, spec: ContainerSpec) -> Started:
        """Start a container; raises `RuntimeFailure` when it could not even be made."""

    async def stop_container(self, container_id: str, grace_seconds: float) -> None:
        """Ask it to end, and end it after the grace; returns when it has ended. Unknown ids are fine."""

    async def set_cpus(self, container_id: str, cpus: str) -> None:
        """Have the running container run on these CPUs from now on; raises `RuntimeFailure`."""

    async def execute(self, container_id: str, command: Sequence[str], timeout_seconds: float) -> ExecResult:
        """Run a command in the container and wait for it."""

    async def remove_container(self, container_id: str) -> None:
        """Forget an ended container; unknown ids are fine."""

    async def remove_sandbox(self, pod_uid: str) -> None:
        """Undo `ensure_sandbox`; all containers have been removed."""
