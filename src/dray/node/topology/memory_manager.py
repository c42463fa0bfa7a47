"""The memory manager with Kubernetes' static policy: memory of NUMA nodes for containers.

A container of a Guaranteed Pod gets its memory and huge pages from a group of NUMA nodes. A node belongs to one group
at a time: single-node and multi-node assignments never share a node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dray.api.quantity import Quantity
from dray.api.types.core_v1 import Container, Pod
from dray.node.topology.containers import is_guaranteed, is_ordinary_init, peak
from dray.node.topology.hint_provider import AllocationError
from dray.node.topology.hints import Hint, mask_of, nodes_of, subsets
from dray.node.topology.machine import MEMORY, Machine
from dray.node.topology.reserved_resource import Assignments
from dray.node.topology.state_file import StateError, decode, encode

FILE_NAME: Final = "memory_manager_state"
POLICY: Final = "Static"
_HUGE_PAGES: Final = "hugepages-"


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes of one kind of memory from a group of NUMA nodes."""

    nodes: tuple[int, ...]
    kind: str
    size: int


class MemoryManager(Assignments[tuple[Block, ...]]):
    """The memory assignments; changed only by `allocate`, `free` and `restore`."""

    def __init__(self, machine: Machine, reserved: Mapping[int, Mapping[str, int]]) -> None:
        """`reserved` is the memory of the system, in bytes by NUMA node and kind."""
        super().__init__()
        self._machine = machine
        self._reserved = reserved
        self._allocatable = {
            node.id: {kind: max(size - reserved.get(node.id, {}).get(kind, 0), 0) for kind, size in node.memory.items()}
            for node in machine.nodes
        }

    # --- What is. ---

    def blocks(self, pod_uid: str, container: str) -> tuple[Block, ...]:
        """Return the memory of the container."""
        return self._pods.get(pod_uid, {}).get(container, ())

    def allocatable(self) -> tuple[Block, ...]:
        """Return the memory that can be assigned to containers."""
        return tuple(
            Block((node,), kind, size)
            for node, kinds in sorted(self._allocatable.items())
            for kind, size in sorted(kinds.items())
            if size
        )

    # --- Handing out. ---

    def hints(self, pod: Pod, container: Container) -> dict[str, list[Hint]]:
        """Return hints for the container's memory, by kind."""
        request = _request(pod, container)
        held = self.blocks(pod.metadata.uid or "", container.name)
        if held:
            hint = Hint(mask_of(held[0].nodes), preferred=True)
            same = is_ordinary_init(pod, container.name) or _sizes(held) == request
            return dict.fromkeys(request, [hint] if same else [])
        found = self._hints(request, self._spare(pod, container.name))
        return dict.fromkeys(request, found)

    def pod_hints(self, pod: Pod) -> dict[str, list[Hint]]:
        """Return hints for the memory of all containers, by kind."""
        request = peak(pod, lambda container: _request(pod, container))
        containers = self._pods.get(pod.metadata.uid or "", {})
        groups = sorted({block.nodes for blocks in containers.values() for block in blocks})
        if groups:
            mask = mask_of(node for nodes in groups for node in nodes)
            return {kind: [Hint(mask, preferred=True)] for kind in request}
        return dict.fromkeys(request, self._hints(request, {}))

    def allocate(self, pod: Pod, container: Container, affinity: int | None) -> bool:
        """Assign the container's memory; return whether anything changed. Raises `AllocationError`."""
        request = _request(pod, container)
        uid = pod.metadata.uid or ""
        if not request or self.blocks(uid, container.name):
            return False
        spare = self._spare(pod, container.name)
        group = self._group(request, spare, affinity)
        self._take_over(pod, container.name, group, request)
        blocks = tuple(Block(nodes_of(group), kind, size) for kind, size in request.items())
        self._assign(uid, container.name, blocks)
        return True

    def _group(self, request: Mapping[str, int], spare: Mapping[int, Mapping[str, int]], affinity: int | None) -> int:
        """Return the wanted group of nodes, extended if it is too small; raises `AllocationError`."""
        wanted = affinity or 0
        hints = [hint for hint in self._hints(request, spare) if (hint.affinity or 0) & wanted == wanted]
        if not hints:
            raise AllocationError(
                "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
                if affinity is None
                else "[memorymanager] failed to find NUMA nodes to extend the current topology hint"
            )
        best = min(hints, key=lambda hint: (not hint.preferred, (hint.affinity or 0).bit_count(), hint.affinity))
        assert best.affinity is not None
        return best.affinity

    def _hints(self, request: Mapping[str, int], spare: Mapping[int, Mapping[str, int]]) -> list[Hint]:
        """Return every group with enough memory of all kinds; `spare` is reusable memory by group and kind."""
        width = self._machine.mask.bit_count()
        found = []
        for mask in subsets(self._machine.mask):
            nodes = nodes_of(mask)
            if mask.bit_count() < width and all(self._total(nodes, kind) >= size for kind, size in request.items()):
                width = mask.bit_count()
            if not self._may_be_group(mask):
                continue
            left = spare.get(mask, {})
            if all(self._free(mask, kind) + left.get(kind, 0) >= size for kind, size in request.items()):
                found.append(mask)
        return [Hint(mask, preferred=mask.bit_count() == width) for mask in found]

    def _total(self, nodes: tuple[int, ...], kind: str) -> int:
        return sum(self._allocatable.get(node, {}).get(kind, 0) for node in nodes)

    def _free(self, group: int, kind: str) -> int:
        used = sum(block.size for block in self._all_blocks() if mask_of(block.nodes) == group and block.kind == kind)
        return self._total(nodes_of(group), kind) - used

    def _may_be_group(self, mask: int) -> bool:
        groups = {mask_of(block.nodes) for block in self._all_blocks()}
        return all(group == mask or not group & mask for group in groups)

    def _all_blocks(self) -> list[Block]:
        return [block for containers in self._pods.values() for blocks in containers.values() for block in blocks]

    # --- What ordinary init containers leave. ---

    def _lenders(self, pod: Pod, container: str) -> list[str]:
        names = [item.name for item in pod.spec.init_containers]
        before = names[: names.index(container)] if container in names else names
        return [name for name in before if is_ordinary_init(pod, name)]

    def _spare(self, pod: Pod, container: str) -> dict[int, dict[str, int]]:
        spare: dict[int, dict[str, int]] = {}
        for name in self._lenders(pod, container):
            for block in self.blocks(pod.metadata.uid or "", name):
                kinds = spare.setdefault(mask_of(block.nodes), {})
                kinds[block.kind] = kinds.get(block.kind, 0) + block.size
        return spare

    def _take_over(self, pod: Pod, container: str, group: int, request: Mapping[str, int]) -> None:
        """Reduce the assignments of init containers by what is reused, so that it is counted once."""
        containers = self._pods.get(pod.metadata.uid or "", {})
        missing = dict(request)
        for name in self._lenders(pod, container):
            left = []
            for block in containers.get(name, ()):
                taken = min(block.size, missing.get(block.kind, 0)) if mask_of(block.nodes) == group else 0
                missing[block.kind] = missing.get(block.kind, 0) - taken
                left.append(Block(block.nodes, block.kind, block.size - taken))
            if name in containers:
                containers[name] = tuple(left)

    # --- The file. ---

    def encode(self) -> bytes:
        """Return the content of the state file."""
        return encode({"policyName": POLICY, "machineState": self._machine_state(), "entries": self._entries()})

    def restore(self, content: bytes) -> None:
        """Restore a state file; raises `StateError` if it is not of this machine and policy."""
        state = decode(content, POLICY, "memory", FILE_NAME)
        try:
            self._pods = {
                uid: {name: tuple(_block(item) for item in blocks) for name, blocks in containers.items()}
                for uid, containers in (state.get("entries") or {}).items()
            }
        except (AttributeError, TypeError, KeyError) as error:
            raise StateError(f"could not restore state from checkpoint: {error}") from error
        if state.get("machineState") != self._machine_state():
            raise StateError("[memorymanager] the expected machine state is different from the real one")

    def _entries(self) -> dict[str, Any]:
        return {
            uid: {
                name: [{"numaAffinity": list(item.nodes), "type": item.kind, "size": item.size} for item in blocks]
                for name, blocks in sorted(containers.items())
            }
            for uid, containers in sorted(self._pods.items())
        }

    def _machine_state(self) -> dict[str, Any]:
        return {str(node.id): self._node_state(node.id, node.memory) for node in self._machine.nodes}

    def _node_state(self, node: int, memory: Mapping[str, int]) -> dict[str, Any]:
        mine = [block for block in self._all_blocks() if node in block.nodes]
        return {
            "numberOfAssignments": len(mine),
            "memoryMap": {kind: self._table(node, kind, total) for kind, total in sorted(memory.items())},
            "cells": list(mine[0].nodes) if mine else [node],
        }

    def _table(self, node: int, kind: str, total: int) -> dict[str, int]:
        allocatable = self._allocatable[node][kind]
        used = self._used(node, kind)
        return {
            "total": total,
            "systemReserved": total - allocatable,
            "allocatable": allocatable,
            "reserved": used,
            "free": allocatable - used,
        }

    def _used(self, node: int, kind: str) -> int:
        """Return the used memory of a node; a group's memory is counted from its first node on."""
        blocks = [block for block in self._all_blocks() if node in block.nodes and block.kind == kind]
        if not blocks:
            return 0
        left = sum(block.size for block in blocks)
        for earlier in blocks[0].nodes:
            share = min(left, self._allocatable[earlier].get(kind, 0))
            if earlier == node:
                return share
            left -= share
        return 0


def _sizes(blocks: tuple[Block, ...]) -> dict[str, int]:
    return {block.kind: block.size for block in blocks}


def _block(item: Mapping[str, Any]) -> Block:
    return Block(tuple(item["numaAffinity"]), item["type"], item["size"])


def _request(pod: Pod, container: Container) -> dict[str, int]:
    """Return the bytes of each kind that the container requests."""
    if not is_guaranteed(pod):
        return {}
    amounts = {
        name: Quantity.parse(amount).value()
        for name, amount in container.resources.requests.items()
        if name == MEMORY or name.startswith(_HUGE_PAGES)
    }
    return {name: amounts[name] for name in sorted(amounts) if amounts[name] > 0}
