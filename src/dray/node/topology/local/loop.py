"""Builds the `AlignedResources` of a node from its settings, and answers what else the agent asks of its parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dray.api.types.core_v1 import Pod
from dray.lib.clock import Clock
from dray.node.devices.loop import DeviceSettings, NodePods, PluginDevices
from dray.node.topology.books.loop import BookedResource
from dray.node.topology.books.state import decode
from dray.node.topology.cpus import book as cpu_book
from dray.node.topology.cpus.book import CPUBook
from dray.node.topology.cpus.sets import format_cpus
from dray.node.topology.files import read_file, read_machine
from dray.node.topology.local.settings import TopologySettings
from dray.node.topology.loop import AlignedResources, Alignment
from dray.node.topology.machine import Machine
from dray.node.topology.memory import book as memory_book
from dray.node.topology.memory.book import MemoryBook
from dray.runtime.metrics import Metrics

DEVICES_FOLDER: Final = "device-plugins"


@dataclass(frozen=True, slots=True)
class LocalResources:
    """The parts; `manager` is what the agent admits Pods with. `devices`, `cpus` and `memory` are None when off."""

    manager: AlignedResources
    devices: PluginDevices | None
    cpus: CPUBook | None
    memory: MemoryBook | None

    def cpuset(self, pod: Pod, container: str) -> str:
        """The CPUs the container may run on, as the kernel writes them; empty when all.

        Those of a container without any of its own change whenever another takes or gives back CPUs.
        """
        if self.cpus is None:
            return ""
        return format_cpus(self.cpus.exclusive(pod.metadata.uid or "", container) or self.cpus.shared)

    def memory_nodes(self, pod: Pod, container: str) -> str:
        """The NUMA nodes the container's memory comes from; empty when all."""
        blocks = () if self.memory is None else self.memory.blocks(pod.metadata.uid or "", container)
        return format_cpus(node for block in blocks for node in block.nodes)


def local_resources(
    root: str,
    pods: NodePods,
    clock: Clock,
    metrics: Metrics,
    *,
    devices: DeviceSettings | None = DeviceSettings(),  # noqa: B008 - immutable
    topology: TopologySettings = TopologySettings(),  # noqa: B008 - immutable
) -> LocalResources:
    """The node's own resources below kubelet's root folder; without device settings there are no device plugins.

    Raises `StateError` or `TopologyError` when the node must not start so.
    """
    machine = read_file(topology.topology_file) if topology.topology_file else read_machine()
    plugins = None
    if devices is not None:
        here = replace(devices, machine=machine.mask)
        plugins = PluginDevices(str(Path(root) / DEVICES_FOLDER), pods, clock, metrics, here)
    cpus = _cpus(root, machine, topology)
    memory = _memory(root, machine, topology)
    booked = [
        BookedResource(book, str(Path(root) / name), pods.holders)
        for book, name in ((cpus, cpu_book.FILE_NAME), (memory, memory_book.FILE_NAME))
        if book is not None
    ]
    alignment = Alignment(topology.topology_manager_policy, topology.topology_manager_scope, machine.mask)
    return LocalResources(AlignedResources(plugins, booked, alignment), plugins, cpus, memory)


def _cpus(root: str, machine: Machine, settings: TopologySettings) -> CPUBook | None:
    if settings.cpu_manager_policy != cpu_book.POLICY:
        _refuse_state_of(root, cpu_book.FILE_NAME, "none", "CPU")
        return None
    return CPUBook(machine, settings.reserved_cpu_ids)


def _memory(root: str, machine: Machine, settings: TopologySettings) -> MemoryBook | None:
    if settings.memory_manager_policy != memory_book.POLICY:
        _refuse_state_of(root, memory_book.FILE_NAME, "None", "memory")
        return None
    return MemoryBook(machine, settings.reserved_bytes)


def _refuse_state_of(root: str, name: str, policy: str, what: str) -> None:
    """A node whose containers have CPUs or memory alone must be drained before it stops giving them so."""
    try:
        content = (Path(root) / name).read_bytes()
    except FileNotFoundError:
        return
    decode(content, policy, what, name)
