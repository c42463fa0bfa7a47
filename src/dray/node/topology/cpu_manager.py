"""The CPU manager with Kubernetes' static policy: exclusive CPUs of containers.

A container of a Guaranteed Pod that requests whole CPUs gets them exclusively; all others share the rest, which always
includes the reserved CPUs.
"""

from __future__ import annotations

from typing import Any, Final

from dray.api.quantity import Quantity
from dray.api.types.core_v1 import Container, Pod
from dray.node.topology.containers import is_guaranteed, peak, reusable
from dray.node.topology.cpu_assignment import take
from dray.node.topology.hint_provider import AllocationError
from dray.node.topology.hints import Hint, item_hints, mask_of, nodes_of
from dray.node.topology.machine import Machine, format_cpus, parse_cpus
from dray.node.topology.reserved_resource import Assignments
from dray.node.topology.state_file import StateError, decode, encode

FILE_NAME: Final = "cpu_manager_state"
POLICY: Final = "static"
CPU_RESOURCE: Final = "cpu"


class CPUManager(Assignments[frozenset[int]]):
    """The CPU assignments; changed only by `allocate`, `free` and `restore`."""

    def __init__(self, machine: Machine, reserved: frozenset[int]) -> None:
        if not reserved:
            raise StateError(
                "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero"
            )
        if not reserved <= machine.cpu_ids:
            raise StateError(
                f"[cpumanager] the machine has no CPUs {format_cpus(reserved - machine.cpu_ids)} to reserve"
            )
        super().__init__()
        self._machine = machine
        self._reserved = reserved

    # --- What is. ---

    @property
    def allocatable(self) -> frozenset[int]:
        """The CPUs that can be assigned exclusively."""
        return self._machine.cpu_ids - self._reserved

    @property
    def shared(self) -> frozenset[int]:
        """The CPUs of containers without exclusive ones."""
        taken = (cpus for containers in self._pods.values() for cpus in containers.values())
        return self._machine.cpu_ids.difference(*taken)

    def exclusive(self, pod_uid: str, container: str) -> frozenset[int]:
        """Return the container's exclusive CPUs."""
        return self._pods.get(pod_uid, {}).get(container, frozenset())

    # --- Handing out. ---

    def hints(self, pod: Pod, container: Container) -> dict[str, list[Hint]]:
        """Return hints for the container's CPUs."""
        request = _request(pod, container).get(CPU_RESOURCE, 0)
        if not request:
            return {}
        held = self.exclusive(pod.metadata.uid or "", container.name)
        return {CPU_RESOURCE: self._hints(request, held, self._reusable(pod, container.name))}

    def pod_hints(self, pod: Pod) -> dict[str, list[Hint]]:
        """Return hints for the CPUs of all containers."""
        request = peak(pod, lambda container: _request(pod, container)).get(CPU_RESOURCE, 0)
        if not request:
            return {}
        held = frozenset[int]().union(*self._pods.get(pod.metadata.uid or "", {}).values())
        return {CPU_RESOURCE: self._hints(request, held, frozenset())}

    def allocate(self, pod: Pod, container: Container, affinity: int | None) -> bool:
        """Assign the container's CPUs; return whether anything changed. Raises `AllocationError`."""
        request = _request(pod, container).get(CPU_RESOURCE, 0)
        uid = pod.metadata.uid or ""
        if not request or self.exclusive(uid, container.name):
            return False
        spare = self._reusable(pod, container.name)
        free = (self.shared - self._reserved) | spare
        if len(free) < request:
            raise AllocationError(
                f"not enough cpus available to satisfy request: requested={request}, available={len(free)}"
            )
        wanted = frozenset(nodes_of(self._machine.mask if affinity is None else affinity))
        aligned = free & {cpu.id for cpu in self._machine.cpus if cpu.numa_node in wanted}
        chosen: frozenset[int] = frozenset()
        # CPUs of finished init containers come first: no other Pod can have them.
        for source in (spare & aligned, aligned, free):
            left = source - chosen
            chosen |= take(self._machine, left, min(request - len(chosen), len(left)))
        self._assign(uid, container.name, chosen)
        return True

    def _reusable(self, pod: Pod, container: str) -> frozenset[int]:
        uid = pod.metadata.uid or ""
        return reusable(pod, container, lambda name: self.exclusive(uid, name))

    def _hints(self, request: int, held: frozenset[int], spare: frozenset[int]) -> list[Hint]:
        if held and len(held) != request:
            return []
        available = held or (self.shared - self._reserved)
        masks = {cpu.id: mask_of([cpu.numa_node]) for cpu in self._machine.cpus}
        return item_hints(
            self._machine.mask,
            list(masks.values()),
            [masks[cpu] for cpu in available],
            [] if held else [masks[cpu] for cpu in spare],
            request,
        )

    # --- The file. ---

    def encode(self) -> bytes:
        """Return the content of the state file."""
        entries = {
            uid: {name: format_cpus(cpus) for name, cpus in sorted(containers.items())}
            for uid, containers in sorted(self._pods.items())
        }
        return encode({"policyName": POLICY, "defaultCpuSet": format_cpus(self.shared), "entries": entries})

    def restore(self, content: bytes) -> None:
        """Restore a state file; raises `StateError` if it is not of this machine and policy."""
        state: dict[str, Any] = decode(content, POLICY, "CPU", FILE_NAME)
        try:
            self._pods = {
                uid: {name: parse_cpus(cpus) for name, cpus in containers.items()}
                for uid, containers in (state.get("entries") or {}).items()
            }
            shared = parse_cpus(state.get("defaultCpuSet") or "")
        except (AttributeError, TypeError, ValueError) as error:
            raise StateError(f"could not restore state from checkpoint: {error}") from error
        self._check(shared)

    def _check(self, shared: frozenset[int]) -> None:
        if not self._reserved <= shared:
            raise StateError(
                f'not all reserved cpus: "{format_cpus(self._reserved)}" are present in defaultCpuSet: '
                f'"{format_cpus(shared)}"'
            )
        if shared != self.shared:
            raise StateError(
                f'current set of available CPUs "{format_cpus(self._machine.cpu_ids)}" '
                "doesn't match with CPUs in state"
            )


def _request(pod: Pod, container: Container) -> dict[str, int]:
    """Return the number of the container's exclusive CPUs."""
    amount = Quantity.parse(container.resources.requests.get(CPU_RESOURCE, "0"))
    if not is_guaranteed(pod) or not amount.is_integer() or not amount:
        return {}
    return {CPU_RESOURCE: amount.as_integer()}
