"""The container manager: the topology, device, CPU and memory managers of a node, built from its settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dray.api.quantity import Quantity, QuantityError
from dray.api.types.core_v1 import Pod
from dray.lib.clock import Clock
from dray.node.devices.device_manager import DeviceManager, DeviceSettings, NodePods
from dray.node.topology import cpu_manager, memory_manager
from dray.node.topology.cpu_manager import CPUManager
from dray.node.topology.hints import Policy, Scope
from dray.node.topology.machine import Machine, format_cpus, parse_cpus
from dray.node.topology.machine_reader import read_file, read_machine
from dray.node.topology.memory_manager import MemoryManager
from dray.node.topology.reserved_resource import ReservedResource
from dray.node.topology.state_file import StateError, decode
from dray.node.topology.topology_manager import Alignment, TopologyManager
from dray.runtime.metrics import Metrics

DEVICES_FOLDER: Final = "device-plugins"


@dataclass(frozen=True, slots=True)
class TopologySettings:
    """Settings with kubelet's names."""

    topology_manager_policy: Policy = Policy.NONE
    topology_manager_scope: Scope = Scope.CONTAINER
    cpu_manager_policy: str = "none"
    # CPUs that no container gets exclusively: `0,4-5`.
    reserved_cpus: str = ""
    memory_manager_policy: str = "None"
    # Memory reserved for the system: `0:memory=1Gi,hugepages-2Mi=64Mi;1:memory=512Mi`.
    reserved_memory: str = ""
    # A YAML description of a machine, used in place of this one.
    topology_file: str = ""

    @property
    def reserved_cpu_ids(self) -> frozenset[int]:
        """The reserved CPUs; raises `StateError`."""
        try:
            return parse_cpus(self.reserved_cpus)
        except ValueError as error:
            raise StateError(f'reserved CPUs "{self.reserved_cpus}": {error}') from error

    @property
    def reserved_bytes(self) -> dict[int, dict[str, int]]:
        """The reserved memory by NUMA node and kind; raises `StateError`."""
        reserved: dict[int, dict[str, int]] = {}
        for part in filter(None, self.reserved_memory.split(";")):
            node, _, amounts = part.partition(":")
            try:
                items = [item.partition("=") for item in amounts.split(",")]
                reserved[int(node)] = {kind.strip(): Quantity.parse(size).value() for kind, _, size in items}
            except (ValueError, QuantityError) as error:
                raise StateError(f'reserved memory "{part}": must be like "0:memory=1Gi"') from error
        return reserved


DEFAULT_DEVICES: Final = DeviceSettings()
DEFAULT_TOPOLOGY: Final = TopologySettings()


@dataclass(frozen=True, slots=True)
class ContainerManager:
    """The managers; `cpus` and `memory` are None if disabled."""

    manager: TopologyManager
    devices: DeviceManager
    cpus: CPUManager | None
    memory: MemoryManager | None

    def cpuset(self, pod: Pod, container: str) -> str:
        """Return the CPUs of the container in the kernel's list format; empty means all.

        The shared CPUs change whenever exclusive CPUs are assigned or freed.
        """
        if self.cpus is None:
            return ""
        return format_cpus(self.cpus.exclusive(pod.metadata.uid or "", container) or self.cpus.shared)

    def cpuset_and_nodes(self, pod: Pod, container: str) -> tuple[str, str]:
        """Return the container's CPUs and NUMA nodes; empty means all."""
        return self.cpuset(pod, container), self.memory_nodes(pod, container)

    def memory_nodes(self, pod: Pod, container: str) -> str:
        """Return the NUMA nodes of the container's memory; empty means all."""
        blocks = () if self.memory is None else self.memory.blocks(pod.metadata.uid or "", container)
        return format_cpus(node for block in blocks for node in block.nodes)


def make_container_manager(
    root: str,
    pods: NodePods,
    clock: Clock,
    metrics: Metrics,
    *,
    devices: DeviceSettings = DEFAULT_DEVICES,
    topology: TopologySettings = DEFAULT_TOPOLOGY,
) -> ContainerManager:
    """Return the managers with their state below the root folder.

    Raises `StateError` or `TopologyError` if the state or the machine does not allow the agent to start.
    """
    machine = read_file(topology.topology_file) if topology.topology_file else read_machine()
    here = replace(devices, machine=machine.mask)
    plugins = DeviceManager(str(Path(root) / DEVICES_FOLDER), pods, clock, metrics, here)
    cpus = _cpus(root, machine, topology)
    memory = _memory(root, machine, topology)
    booked = [
        ReservedResource(book, str(Path(root) / name), pods.holders)
        for book, name in ((cpus, cpu_manager.FILE_NAME), (memory, memory_manager.FILE_NAME))
        if book is not None
    ]
    alignment = Alignment(topology.topology_manager_policy, topology.topology_manager_scope, machine.mask)
    manager = TopologyManager(plugins, booked, alignment, pods.admitted_before)
    return ContainerManager(manager, plugins, cpus, memory)


def _cpus(root: str, machine: Machine, settings: TopologySettings) -> CPUManager | None:
    if settings.cpu_manager_policy != cpu_manager.POLICY:
        _refuse_state_of(root, cpu_manager.FILE_NAME, "none", "CPU")
        return None
    return CPUManager(machine, settings.reserved_cpu_ids)


def _memory(root: str, machine: Machine, settings: TopologySettings) -> MemoryManager | None:
    if settings.memory_manager_policy != memory_manager.POLICY:
        _refuse_state_of(root, memory_manager.FILE_NAME, "None", "memory")
        return None
    return MemoryManager(machine, settings.reserved_bytes)


def _refuse_state_of(root: str, name: str, policy: str, what: str) -> None:
    """Raise `StateError` if a static policy was in use: the node must be drained before the policy is changed."""
    try:
        content = (Path(root) / name).read_bytes()
    except FileNotFoundError:
        return
    decode(content, policy, what, name)
