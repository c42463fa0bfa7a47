"""The managers that PodResources reads from, as protocols."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dray.api.types.core_v1 import Container, Pod
from dray.node.dra.claims import ContainerClaim
from dray.node.resource_manager import PodSource


class HeldDevice(Protocol):
    """A device and one of its NUMA nodes."""

    @property
    def resource(self) -> str:
        """The resource name."""

    @property
    def id(self) -> str:
        """The device ID."""

    @property
    def numa_node(self) -> int | None:
        """The NUMA node; None if the plugin reported none."""


class Devices(Protocol):
    """The device manager."""

    @property
    def revision(self) -> int:
        """A number that changes whenever an assignment may have changed."""

    async def refresh(self) -> None:
        """Free what deleted Pods hold."""

    def container_devices(self, pod_uid: str, container: str) -> Sequence[HeldDevice]:
        """Return what a container has."""

    def allocatable_devices(self) -> Sequence[HeldDevice]:
        """Return the healthy devices."""


class CPUs(Protocol):
    """The CPU manager."""

    @property
    def revision(self) -> int:
        """A number that changes whenever an assignment may have changed."""

    @property
    def allocatable(self) -> frozenset[int]:
        """Return what can be allocated."""

    def exclusive(self, pod_uid: str, container: str) -> frozenset[int]:
        """Return what a container has."""


class MemoryBlock(Protocol):
    """Bytes of one kind of memory from a group of NUMA nodes."""

    @property
    def nodes(self) -> tuple[int, ...]:
        """The NUMA nodes."""

    @property
    def kind(self) -> str:
        """`memory` or `hugepages-…`."""

    @property
    def size(self) -> int:
        """The size in bytes."""


class Memory(Protocol):
    """The memory manager."""

    @property
    def revision(self) -> int:
        """A number that changes whenever an assignment may have changed."""

    def allocatable(self) -> Sequence[MemoryBlock]:
        """Return what can be allocated."""

    def blocks(self, pod_uid: str, container: str) -> Sequence[MemoryBlock]:
        """Return what a container has."""


class Claims(Protocol):
    """A manager of claims: that of DRA, or of classic claims."""

    @property
    def revision(self) -> int:
        """A number that changes whenever an assignment may have changed."""

    def container_claims(self, pod: Pod, container: Container) -> Sequence[ContainerClaim]:
        """Return the claims that a container uses, each once; raises `ClaimError` if one is not known yet."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The managers; None for those that are disabled."""

    pods: PodSource
    devices: Devices | None = None
    cpus: CPUs | None = None
    memory: Memory | None = None
    claims: tuple[Claims, ...] = ()

    @property
    def revision(self) -> tuple[int, ...]:
        """A value that changes whenever an assignment may have changed."""
        parts = (self.devices, self.cpus, self.memory, *self.claims)
        return tuple(-1 if part is None else part.revision for part in parts)
