"""Where PodResources takes its answers from; parts of the node agent fit without knowing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dray.api.types.core_v1 import Container, Pod
from dray.node.dra.claims import ClaimInfo
from dray.node.resource_manager import PodSource


class HeldDevice(Protocol):
    """A device and one NUMA node it is close to."""

    @property
    def resource(self) -> str:
        """The extended resource."""

    @property
    def id(self) -> str:
        """The device."""

    @property
    def numa_node(self) -> int | None:
        """None when the plugin did not say."""


class Devices(Protocol):
    """Devices of plugins."""

    @property
    def revision(self) -> int:
        """Another number whenever a container may have something else."""

    async def refresh(self) -> None:
        """Free what Pods hold that are gone."""

    def container_devices(self, pod_uid: str, container: str) -> Sequence[HeldDevice]:
        """What a container has."""

    def allocatable_devices(self) -> Sequence[HeldDevice]:
        """What there is that is healthy."""


class CPUs(Protocol):
    """CPUs that containers have alone."""

    @property
    def revision(self) -> int:
        """Another number whenever a container may have something else."""

    @property
    def allocatable(self) -> frozenset[int]:
        """What there is."""

    def exclusive(self, pod_uid: str, container: str) -> frozenset[int]:
        """What a container has."""


class MemoryBlock(Protocol):
    """Bytes of one kind from a group of NUMA nodes."""

    @property
    def nodes(self) -> tuple[int, ...]:
        """The group."""

    @property
    def kind(self) -> str:
        """`memory` or `hugepages-…`."""

    @property
    def size(self) -> int:
        """Bytes."""


class Memory(Protocol):
    """Memory pinned to NUMA nodes."""

    @property
    def revision(self) -> int:
        """Another number whenever a container may have something else."""

    def allocatable(self) -> Sequence[MemoryBlock]:
        """What there is."""

    def blocks(self, pod_uid: str, container: str) -> Sequence[MemoryBlock]:
        """What a container has."""


class Claims(Protocol):
    """Claims in use on the node."""

    @property
    def revision(self) -> int:
        """Another number whenever a container may have something else."""

    def claim_infos(self, pod: Pod, container: Container) -> Sequence[ClaimInfo]:
        """The claims a container uses, each once; raises `ClaimError` when one is not known."""


@dataclass(frozen=True, slots=True)
class Sources:
    """All of them; None for what the node does not have."""

    pods: PodSource
    devices: Devices | None = None
    cpus: CPUs | None = None
    memory: Memory | None = None
    claims: Claims | None = None

    @property
    def revision(self) -> tuple[int, ...]:
        """Something else whenever a container may have something else."""
        return tuple(
            -1 if part is None else part.revision for part in (self.devices, self.cpus, self.memory, self.claims)
        )
