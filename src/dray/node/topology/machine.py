"""The NUMA nodes, CPUs and memory of a machine, and CPU lists. Pure; `machine_reader` reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dray.api.quantity import Quantity
from dray.node.topology.hints import NUMA_NODES_MAX, mask_of

MEMORY: Final = "memory"


class TopologyError(ValueError):
    """An invalid description of a machine."""


@dataclass(frozen=True, slots=True)
class CPU:
    """A logical CPU."""

    id: int
    core: int
    socket: int
    numa_node: int


@dataclass(frozen=True, slots=True)
class NUMANode:
    """A NUMA node; `memory` is bytes by kind, such as `memory` and `hugepages-2Mi`."""

    id: int
    memory: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine."""

    cpus: tuple[CPU, ...] = ()
    nodes: tuple[NUMANode, ...] = ()

    @property
    def mask(self) -> int:
        """The set of the machine's NUMA nodes."""
        return mask_of(node.id for node in self.nodes)

    @property
    def cpu_ids(self) -> frozenset[int]:
        """The IDs of all CPUs."""
        return frozenset(cpu.id for cpu in self.cpus)


def machine_of(document: Any) -> Machine:
    """Read a description: `nodes`, each with `id`, `cpus` and `memory`, `hugepages` and `cores` if it has them.

    `cores` lists the CPUs of each core, such as [[0, 4], [1, 5]]; without it every CPU is a core of its own.
    """
    try:
        entries = document["nodes"]
        cpus = tuple(cpu for entry in entries for cpu in _cpus(entry))
        nodes = tuple(NUMANode(int(entry["id"]), _memory(entry)) for entry in entries)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise TopologyError(f"not a description of a machine: {type(error).__name__}: {error}") from error
    return checked(Machine(tuple(sorted(cpus, key=lambda cpu: cpu.id)), nodes))


def checked(machine: Machine) -> Machine:
    """Return the machine; raises `TopologyError` if it is inconsistent."""
    if len({cpu.id for cpu in machine.cpus}) != len(machine.cpus):
        raise TopologyError("a CPU is listed twice")
    if len({node.id for node in machine.nodes}) != len(machine.nodes):
        raise TopologyError("a NUMA node is listed twice")
    if len(machine.nodes) > NUMA_NODES_MAX:
        raise TopologyError(f"unsupported on machines with more than {NUMA_NODES_MAX} NUMA Nodes")
    return machine


def _cpus(entry: Mapping[str, Any]) -> list[CPU]:
    node = int(entry["id"])
    cores = {cpu: min(group) for group in entry.get("cores") or () for cpu in group}
    listed = parse_cpus(str(entry.get("cpus") if entry.get("cpus") is not None else ""))
    socket = int(entry.get("socket", node))
    return [CPU(cpu, cores.get(cpu, cpu), socket, node) for cpu in sorted(listed)]


def _memory(entry: Mapping[str, Any]) -> dict[str, int]:
    pages = {f"hugepages-{size}": amount for size, amount in (entry.get("hugepages") or {}).items()}
    return {name: Quantity.parse(amount).value() for name, amount in {MEMORY: entry.get("memory", 0), **pages}.items()}


# The kernel's limit for x86 is 8192; a longer list is a mistake in a file.
CPUS_MAX: Final = 65536


def parse_cpus(text: str) -> frozenset[int]:
    """Read a list of numbers and ranges; raises ValueError."""
    found: set[int] = set()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        first, separator, last = part.partition("-")
        start, end = int(first), int(last if separator else first)
        if not 0 <= start <= end < CPUS_MAX:
            raise ValueError(f'invalid range of CPUs "{part}"')
        found.update(range(start, end + 1))
    return frozenset(found)


def format_cpus(cpus: Iterable[int]) -> str:
    """Write a list with ranges."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
