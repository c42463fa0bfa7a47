"""The base class of a device plugin: its author overrides `devices` and `allocate`.

Guarantees of the SDK: `allocate`, `prefer` and `pre_start` get only ids that `devices` returned last. Their errors are
reported to the Pod. Plain methods run in a thread and may block; coroutines run in the event loop and must not block.
`devices` is called every few seconds and after `changed`; kubelet is notified if the result changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Device:
    """One device; `numa_nodes` is its topology, empty if unknown."""

    id: str
    healthy: bool = True
    numa_nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or directory of the host to mount into the container."""

    container_path: str
    host_path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class HostDevice:
    """A device file of the host for the container; `permissions` consists of r, w and m."""

    container_path: str
    host_path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a container needs to use its devices."""

    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: Sequence[Mount] = ()
    devices: Sequence[HostDevice] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    # Full CDI names, `vendor/class=name`.
    cdi_devices: Sequence[str] = ()


class DevicePlugin:
    """Base of a device plugin; `resource_name` is what Pods request, such as `example.com/gpu`."""

    resource_name: str
    # Set by the SDK while the plugin is served.
    _on_changed: Callable[[], object] = staticmethod(lambda: None)

    def devices(self) -> Sequence[Device] | Awaitable[Sequence[Device]]:
        """Return all devices of this node."""
        raise NotImplementedError

    def allocate(self, ids: Sequence[str]) -> Allocation | Awaitable[Allocation]:
        """Prepare the devices for one container; return what it needs to use them."""
        raise NotImplementedError

    def prefer(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str] | Awaitable[Sequence[str]]:
        """Return the preferred `size` of the available devices; called only if a plugin defines it."""
        raise NotImplementedError

    def pre_start(self, ids: Sequence[str]) -> Awaitable[None] | None:
        """Called before a container with these devices starts, if a plugin defines it."""
        raise NotImplementedError

    def changed(self) -> None:
        """Have `devices` called again now; thread-safe."""
        self._on_changed()

    @property
    def has_preference(self) -> bool:
        """Whether the plugin defines `prefer`."""
        return type(self).prefer is not DevicePlugin.prefer

    @property
    def has_pre_start(self) -> bool:
        """Whether the plugin defines `pre_start`."""
        return type(self).pre_start is not DevicePlugin.pre_start
