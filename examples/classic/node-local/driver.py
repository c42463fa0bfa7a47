"""A classic driver for scratch space on the disks of nodes, in which each node tracks its own allocations.

A node publishes a `ScratchDisk` named after it. The controller reads these objects and reports full nodes to the
scheduler. The controller on the node allocates claims that select the node, or rejects them if the disk is full.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dray.api.document import Document, GroupVersion
from dray.api.errors import NotFoundError
from dray.api.quantity import Quantity
from dray.client.interface import unstructured
from dray.driver.classic import Allocation, Claim, ClassicController, ContainerEdits, NodePlugin, NoRoomError, main

NAMESPACE = "scratch"
DISKS = unstructured(GroupVersion("scratch.example.com", "v1"), "scratchdisks", "ScratchDisk")


def size(text: str) -> int:
    """Return the number of bytes."""
    return Quantity.parse(text).value()


def free(disk: Document) -> int:
    """Return the free bytes of a disk."""
    return size(disk["capacity"]) - sum(size(text) for text in disk.get("allocated", {}).values())


class ScratchController(ClassicController):
    """Evaluates nodes by their published disks; allocates nothing."""

    name = "scratch.example.com"
    node_local = True

    async def free_by_node(self) -> dict[str, int]:
        """Return the free bytes by node."""
        return {disk["metadata"]["name"]: free(disk) for disk in (await self.client.list(DISKS, NAMESPACE)).items}

    async def unsuitable_nodes(self, claims: Sequence[Claim], nodes: Sequence[str]) -> Iterable[str]:
        """Return the nodes with too little free space."""
        available, wanted = await self.free_by_node(), sum(size(claim.parameters["size"]) for claim in claims)
        return [node for node in nodes if available.get(node, 0) < wanted]

    async def choose_node(self, claim: Claim, refused: Sequence[str]) -> str:
        """Choose a node with enough space for an Immediate claim."""
        available, wanted = await self.free_by_node(), size(claim.parameters["size"])
        return max((node for node in available if node not in refused and available[node] >= wanted), default="")


class ScratchNode(ClassicController, NodePlugin):
    """Allocates claims of one node, and passes the folder to containers."""

    name = ScratchController.name

    def __init__(self, folder: str, capacity: str) -> None:
        self.folder, self.capacity = Path(folder), capacity

    async def start(self, held: Sequence[Claim] = ()) -> None:
        """Publish the disk if it does not exist."""
        try:
            await self.client.get(DISKS, self.node_name, NAMESPACE)
        except NotFoundError:
            disk = {"metadata": {"name": self.node_name}, "capacity": self.capacity, "allocated": {}}
            await self.client.create(DISKS, disk, NAMESPACE)

    async def allocate(
        self, claim: Claim, class_parameters: Mapping[str, Any], claim_parameters: Mapping[str, Any], node: str | None
    ) -> Allocation:
        """Record the allocation in the disk object, which only this node writes."""
        disk = await self.client.get(DISKS, self.node_name, NAMESPACE)
        if free(disk) < size(claim_parameters["size"]):
            raise NoRoomError(f"less than {claim_parameters['size']} left on {self.node_name}")
        taken = {**disk.get("allocated", {}), claim.uid: claim_parameters["size"]}
        await self.client.update(DISKS, {**disk, "allocated": taken})
        return Allocation({"node": self.node_name}, nodes=[self.node_name])

    async def deallocate(self, claim: Claim) -> None:
        """Delete the folder and free its space."""
        shutil.rmtree(self.folder / claim.uid, ignore_errors=True)
        disk = await self.client.get(DISKS, self.node_name, NAMESPACE)
        if disk.get("allocated", {}).pop(claim.uid, None):
            await self.client.update(DISKS, disk)

    def prepare(self, claim: Claim) -> ContainerEdits:
        """Create the folder, which exists until the claim is deallocated."""
        os.makedirs(self.folder / claim.uid, exist_ok=True)
        return ContainerEdits(env=(f"SCRATCH={self.folder / claim.uid}",))


if __name__ == "__main__":
    own = ScratchNode(os.environ.get("SCRATCH_FOLDER", "/var/lib/scratch"), os.environ.get("SCRATCH_SIZE", "10Gi"))
    sys.exit(main(ScratchController(), own, local=own))
