"""A classic driver for accelerators that every node can reach over the network.

The class lists them, `accelerators: [acc-0, acc-1]`. When a node fails, other nodes can use its accelerators.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dray.driver.classic import Allocation, Claim, ClassicController, ContainerEdits, NodePlugin, NoRoomError, main


class FabricController(ClassicController):
    """Allocates accelerators."""

    name = "fabric.example.com"

    def __init__(self) -> None:
        # UID of the claim -> accelerator.
        self.held: dict[str, str] = {}

    async def start(self, held: Sequence[Claim]) -> None:
        """Restore the allocations from the attributes of the claims."""
        self.held = {claim.uid: claim.attributes["accelerator"] for claim in held if claim.attributes}

    def free(self, class_parameters: Mapping[str, Any]) -> list[str]:
        """Return the free accelerators of a class."""
        return [name for name in class_parameters.get("accelerators", ()) if name not in self.held.values()]

    async def unsuitable_nodes(self, claims: Sequence[Claim], nodes: Sequence[str]) -> Iterable[str]:
        """Return all nodes if too few accelerators are free, otherwise none."""
        enough = all(len(self.free(claim.class_parameters)) >= len(claims) for claim in claims)
        return () if enough else nodes

    async def allocate(
        self, claim: Claim, class_parameters: Mapping[str, Any], claim_parameters: Mapping[str, Any], node: str | None
    ) -> Allocation:
        """Choose any free accelerator, for any node."""
        free = self.free(class_parameters)
        if not free:
            raise NoRoomError("all accelerators are in use")
        self.held[claim.uid] = free[0]
        return Allocation({"accelerator": free[0]})

    async def deallocate(self, claim: Claim) -> None:
        """Free the accelerator."""
        self.held.pop(claim.uid, None)


class FabricPlugin(NodePlugin):
    """Attaches an accelerator to the node."""

    name = "fabric.example.com"

    def prepare(self, claim: Claim) -> ContainerEdits:
        """Return the accelerator's name; a real driver would set up a connection."""
        return ContainerEdits(env=(f"ACCELERATOR={claim.attributes['accelerator']}", f"ATTACHED_TO={self.node_name}"))

    def unprepare(self, claim: Claim) -> None:
        """Do nothing; a real driver would close the connection."""


if __name__ == "__main__":
    sys.exit(main(FabricController(), FabricPlugin()))
