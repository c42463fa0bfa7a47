"""Scratch space on the disks of nodes: each node accounts for its own, in an object that everybody can read.

A node publishes a `ScratchDisk` named after it. The controller reads those to tell the scheduler which nodes are full;
the node's own part allocates when a claim selects its node, and refuses when it knows better.
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
    """Bytes."""
    return Quantity.parse(text).value()


def free(disk: Document) -> int:
    """What is left of a disk."""
    return size(disk["capacity"]) - sum(size(text) for text in disk.get("allocated", {}).values())


class ScratchController(ClassicController):
    """Reads what nodes publish; allocates nothing."""

    name = "scratch.example.com"
    node_local = True

    async def room(self) -> dict[str, int]:
        """What is free on each node."""
        return {disk["metadata"]["name"]: free(disk) for disk in (await self.client.list(DISKS, NAMESPACE)).items}

    async def unsuitable_nodes(self, claims: Sequence[Claim], nodes: Sequence[str]) -> Iterable[str]:
        """Those that are full."""
        room, wanted = await self.room(), sum(size(claim.parameters["size"]) for claim in claims)
        return [node for node in nodes if room.get(node, 0) < wanted]

    async def choose_node(self, claim: Claim, refused: Sequence[str]) -> str:
        """Any with room, for claims that no Pod waits for."""
        room, wanted = await self.room(), size(claim.parameters["size"])
        return max((node for node in room if node not in refused and room[node] >= wanted), default="")


class ScratchNode(ClassicController, NodePlugin):
    """A node's own part: allocates, and gives containers their folder."""

    name = ScratchController.name

    def __init__(self, folder: str, capacity: str) -> None:
        self.folder, self.capacity = Path(folder), capacity

    async def start(self, held: Sequence[Claim] = ()) -> None:
        """Publish the disk, once; what is allocated on it stays."""
        try:
            await self.client.get(DISKS, self.node_name, NAMESPACE)
        except NotFoundError:
            disk = {"metadata": {"name": self.node_name}, "capacity": self.capacity, "allocated": {}}
            await self.client.create(DISKS, disk, NAMESPACE)

    async def allocate(
        self, claim: Claim, class_parameters: Mapping[str, Any], claim_parameters: Mapping[str, Any], node: str | None
    ) -> Allocation:
        """Only this node writes its object, so nobody can be faster."""
        disk = await self.client.get(DISKS, self.node_name, NAMESPACE)
        if free(disk) < size(claim_parameters["size"]):
            raise NoRoomError(f"less than {claim_parameters['size']} left on {self.node_name}")
        taken = {**disk.get("allocated", {}), claim.uid: claim_parameters["size"]}
        await self.client.update(DISKS, {**disk, "allocated": taken})
        return Allocation({"node": self.node_name}, nodes=[self.node_name])

    async def deallocate(self, claim: Claim) -> None:
        """Nothing of one user is left for the next."""
        shutil.rmtree(self.folder / claim.uid, ignore_errors=True)
        disk = await self.client.get(DISKS, self.node_name, NAMESPACE)
        if disk.get("allocated", {}).pop(claim.uid, None):
            await self.client.update(DISKS, disk)

    def prepare(self, claim: Claim) -> ContainerEdits:
        """The folder, which is kept as long as the claim is."""
        os.makedirs(self.folder / claim.uid, exist_ok=True)
        return ContainerEdits(env=(f"SCRATCH={self.folder / claim.uid}",))


if __name__ == "__main__":
    own = ScratchNode(os.environ.get("SCRATCH_FOLDER", "/var/lib/scratch"), os.environ.get("SCRATCH_SIZE", "10Gi"))
    sys.exit(main(ScratchController(), own, local=own))
