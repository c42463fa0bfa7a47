"""The interface of container runtimes.

Guarantees of every runtime: containers outlive the agent; `start` returns all runs that were not removed; an exit is
reported to the listener once, and only after `run` has returned.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from dray.node.network.host_ports import HostPort
from dray.node.resource_manager import HostDevice
from dray.node.runtimes.streams import ContainerStreams, ForwardedPort
from dray.node.runtimes.usage import Usage
from dray.rpc.remote_command.messages import StreamOptions

if TYPE_CHECKING:
    from dray.runtime.tasks import ChildTasks

# The exit code of a container whose exit was not observed, as in containerd and kubelet.
UNKNOWN_EXIT_CODE: Final = 255
# The exit code of a container that could not start, as in containerd.
START_ERROR_CODE: Final = 128
START_ERROR: Final = "StartError"


class RuntimeFailure(Exception):  # noqa: N818 - named for what it means to a container
    """An operation of the runtime failed; the message is shown to users."""


class ImageFailure(RuntimeFailure):
    """The image is not available; `reason` is kubelet's, for example ErrImagePull or InvalidImageName."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Exit:
    """How a container exited; the reason is empty if only the code is known."""

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
    # The number of earlier runs: the restart count.
    attempt: int
    image: str
    image_id: str
    started_at: datetime
    exit: Exit | None = None
    # As in its spec.
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)
    # Of a container that was running when the agent started: its variables, and the names of CDI devices and the paths
    # of device files in its configuration. Not in logs: variables may be secrets.
    environment: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    device_names: tuple[str, ...] = ()


class Propagation(enum.StrEnum):
    """Mount propagation modes."""

    NONE = "None"
    HOST_TO_CONTAINER = "HostToContainer"
    BIDIRECTIONAL = "Bidirectional"


@dataclass(frozen=True, slots=True)
class BindMount:
    """A bind mount; `volume` is the name of its volume, for messages.

    `root` is set for a subPath: the host path is below it, and has no links unless a container has planted them since.
    """

    host_path: str
    container_path: str
    read_only: bool = False
    propagation: Propagation = Propagation.NONE
    volume: str = ""
    root: str = ""


# The period of CPU quotas, the kernel's default.
PERIOD_MICROSECONDS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits; zero means none."""

    cpu_shares: int = 0
    cpu_quota_microseconds: int = 0
    memory_bytes: int = 0
    oom_score_adj: int = 0
    # In the kernel's list format; empty means all.
    cpus: str = ""
    memory_nodes: str = ""
    # The kernel's name of each page size, and the bytes of such pages.
    huge_pages: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Security:
    """The security settings of a container."""

    user: int | None = None
    # The image's, if it has no number.
    user_name: str = ""
    group: int | None = None
    supplemental_groups: tuple[int, ...] = ()
    privileged: bool = False
    read_only_root: bool = False
    no_new_privileges: bool = False
    # The runtime checks the image's user, which may be root.
    must_not_be_root: bool = False
    add_capabilities: tuple[str, ...] = ()
    drop_capabilities: tuple[str, ...] = ()
    # procMount: Unmasked.
    unmasked_proc: bool = False
    # The types of seccompProfile and appArmorProfile, empty if none was asked for, and the profile of type Localhost.
    seccomp: str = ""
    seccomp_localhost: str = ""
    app_armor: str = ""
    app_armor_localhost: str = ""


@dataclass(frozen=True, slots=True)
class Dns:
    """The content of a resolv.conf."""

    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The sandbox of a Pod: what its containers share."""

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
    share_process_namespace: bool = False
    # Whether any of its containers is.
    privileged: bool = False
    # None means the node's.
    dns: Dns | None = None
    sysctls: Mapping[str, str] = field(default_factory=dict)
    host_ports: tuple[HostPort, ...] = ()
    # Of all containers together.
    limits: Limits = field(default_factory=Limits)
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """The spec of one run of a container."""

    sandbox: Sandbox
    name: str
    attempt: int
    image: str
    # If both are empty, the image's are used.
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
    stdin: bool = False
    stdin_once: bool = False
    # The container whose processes this one sees; empty for none.
    target_id: str = ""
    # The fields in use that not every runtime honours, by path. A runtime names those that it ignores in a warning.
    optional_fields: tuple[str, ...] = ()
    # The reasons and messages of Warning events about what the container does not get, whatever the runtime.
    notices: tuple[tuple[str, str], ...] = ()

    @property
    def log_path(self) -> str:
        """The container's log file, in the CRI format."""
        return f"{self.sandbox.log_directory}/{self.name}/{self.attempt}.log"


def _report_nothing(_reason: str, _message: str) -> None:
    """Record no event."""


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """The image that a container needs."""

    image: str
    # Always, IfNotPresent or Never.
    policy: str
    sandbox: Sandbox
    # Docker configuration files of the Pod's imagePullSecrets.
    credentials: tuple[Mapping[str, Any], ...] = ()
    # Records a Normal event of the container, by reason and message.
    report: Callable[[str, str], None] = _report_nothing


@dataclass(frozen=True, slots=True)
class Image:
    """An available image."""

    reference: str
    id: str


@dataclass(frozen=True, slots=True)
class NodeImage:
    """An image on the node: its names by tag and digest, and its size in bytes."""

    names: tuple[str, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Started:
    """A started container, or one that was created and could not start: a run that ended with `StartError`.

    `warnings` lists what the runtime does not support.
    """

    record: ContainerRecord
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExecResult:
    """The result of a command in a container; the code is None if it was killed after the timeout."""

    code: int | None
    output: str


def ignored_fields(spec: ContainerSpec, runtime: str, supported: Container[str]) -> tuple[str, ...]:
    """Return the warning about the fields that a runtime does not honour, or none."""
    ignored = [name for name in spec.optional_fields if name not in supported]
    return (f"the {runtime} runtime ignores {', '.join(ignored)}",) if ignored else ()


ExitListener: TypeAlias = Callable[[ContainerRecord], None]


class Runtime(Protocol):
    """A container runtime."""

    @property
    def name(self) -> str:
        """The scheme of container IDs, as in `containerd://…`."""

    @property
    def version(self) -> str:
        """The version in `nodeInfo.containerRuntimeVersion`."""

    async def start(self, on_exit: ExitListener, tasks: ChildTasks) -> Sequence[ContainerRecord]:
        """Connect, and return the known containers; background tasks run in `tasks`, whose owner supervises them."""

    async def stop(self) -> None:
        """Stop watching; containers keep running."""

    async def images(self) -> Sequence[NodeImage]:
        """Return the images that the node reports in its status; none if the runtime does not tell."""

    async def collect_images(self, warn: Callable[[str, str], None]) -> None:
        """Remove unused images until cancelled, and report problems; returns if that is not the agent's work."""

    async def ensure_image(self, request: ImageRequest) -> Image:
        """Pull the image if needed; raises `ImageFailure`."""

    async def ensure_sandbox(self, sandbox: Sandbox) -> tuple[str, ...]:
        """Create the Pod's sandbox unless it exists; return the Pod's addresses, none meaning the node's."""

    async def run(self, spec: ContainerSpec) -> Started:
        """Start a container; raises `RuntimeFailure` if it could not be created."""

    async def stop_container(self, container_id: str, grace_seconds: float) -> None:
        """Stop a container, and kill it after the grace period; returns when it has exited. Unknown IDs are ignored."""

    async def set_cpus(self, container_id: str, cpus: str) -> None:
        """Set the CPUs of a running container; raises `RuntimeFailure`."""

    async def usages(self, records: Sequence[ContainerRecord]) -> Mapping[str, Usage]:
        """Return what running containers have used, by ID; those of which it is not known are left out."""

    async def execute(self, container_id: str, command: Sequence[str], timeout_seconds: float) -> ExecResult:
        """Run a command in the container and wait for it."""

    async def exec_stream(self, container_id: str, command: Sequence[str], options: StreamOptions) -> ContainerStreams:
        """Start a command in the container for a client; raises `RuntimeFailure`."""

    async def attach(self, container_id: str, options: StreamOptions) -> ContainerStreams:
        """Connect a client with the streams of the container's own process; raises `RuntimeFailure`."""

    async def port_forward(self, pod_uid: str, container_ids: Sequence[str], port: int) -> ForwardedPort:
        """Connect to a port of a Pod, whose running containers are given; raises OSError or `RuntimeFailure`."""

    async def remove_container(self, container_id: str) -> None:
        """Remove an exited container; unknown IDs are ignored."""

    async def remove_sandbox(self, pod_uid: str) -> None:
        """Remove the Pod's sandbox; its containers have been removed."""
