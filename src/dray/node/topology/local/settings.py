"""How CPUs, memory and devices are aligned, as the node agent's settings have it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dray.api.quantity import Quantity, QuantityError
from dray.node.topology.books.state import StateError
from dray.node.topology.cpus.sets import parse_cpus
from dray.node.topology.policies import Policy, Scope

CPU_POLICIES: Final = ("none", "static")
MEMORY_POLICIES: Final = ("None", "Static")


@dataclass(frozen=True, slots=True)
class TopologySettings:
    """Kubelet's settings of the same names."""

    topology_manager_policy: Policy = Policy.NONE
    topology_manager_scope: Scope = Scope.CONTAINER
    cpu_manager_policy: str = "none"
    # CPUs that no container gets alone: `0,4-5`.
    reserved_cpus: str = ""
    memory_manager_policy: str = "None"
    # What the system keeps: `0:memory=1Gi,hugepages-2Mi=64Mi;1:memory=512Mi`.
    reserved_memory: str = ""
    # A YAML description of a machine to use in place of the one this runs on.
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
