"""What a device plugin's author writes: a subclass of `DevicePlugin` with `devices` and `allocate`.

The SDK promises the author: `allocate`, `prefer` and `pre_start` get only ids that `devices` returned last. Whatever
they raise is told to the Pod. Plain methods run in a thread and may block; coroutines run in the event loop and must
not. `devices` is asked again every few seconds and after `changed`, and kubelet hears of it when the answer is another.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Device:
    """One device; `numa_nodes` says what it is close to, if anybody knows."""

    id: str
    healthy: bool = True
    numa_nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the host to show in the container."""

    container_path: str
    host_path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class HostDevice:
    """A device file of the host for the container; `permissions` is made of r, w and m."""

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
    """Base of a device plugin; `resource_name` is what Pods ask for, such as `example.com/gpu`."""

    resource_name: str
    # Set by the SDK while the plugin is served.
    _on_changed: Callable[[], object] = staticmethod(lambda: None)

    def devices(self) -> Sequence[Device] | Awaitable[Sequence[Device]]:
        """Every device of this node as it is now."""
        raise NotImplementedError

    def allocate(self, ids: Sequence[str]) -> Allocation | Awaitable[Allocation]:
        """Make the devices ready for one container and say what it needs to use them."""
        raise NotImplementedError

    def prefer(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str] | Awaitable[Sequence[str]]:
        """Which `size` of the available devices go well together; asked for only when a plugin defines it."""
        raise NotImplementedError

    def pre_start(self, ids: Sequence[str]) -> Awaitable[None] | None:
        """A container with these devices is about to start; called only when a plugin defines it."""
        raise NotImplementedError

    def changed(self) -> None:
        """Have `devices` asked again now; may be called from any thread."""
        self._on_changed()

    @property
    def has_preference(self) -> bool:
        """Whether `prefer` is defined."""
        return type(self).prefer is not DevicePlugin.prefer

    @property
    def has_pre_start(self) -> bool:
        """Whether `pre_start` is defined."""
        return type(self).pre_start is not DevicePlugin.pre_start
