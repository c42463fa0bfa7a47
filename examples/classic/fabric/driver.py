"""Accelerators that every node reaches over the network: only their number is limited, not where they are used.

The class lists them, `accelerators: [acc-0, acc-1]`. When a node dies its Pods' accelerators are used by others.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dray.driver.classic import Allocation, Claim, ClassicController, ContainerEdits, NodePlugin, NoRoomError, main


class FabricController(ClassicController):
    """Hands out accelerators."""

    name = "fabric.example.com"

    def __init__(self) -> None:
        # Claim's UID -> accelerator.
        self.held: dict[str, str] = {}

    async def start(self, held: Sequence[Claim]) -> None:
        """Remember."""
        self.held = {claim.uid: claim.attributes["accelerator"] for claim in held if claim.attributes}

    def free(self, class_parameters: Mapping[str, Any]) -> list[str]:
        """Those that nobody has."""
        return [name for name in class_parameters.get("accelerators", ()) if name not in self.held.values()]

    async def unsuitable_nodes(self, claims: Sequence[Claim], nodes: Sequence[str]) -> Iterable[str]:
        """All nodes or none."""
        enough = all(len(self.free(claim.class_parameters)) >= len(claims) for claim in claims)
        return () if enough else nodes

    async def allocate(
        self, claim: Claim, class_parameters: Mapping[str, Any], claim_parameters: Mapping[str, Any], node: str | None
    ) -> Allocation:
        """Any will do, on any node."""
        free = self.free(class_parameters)
        if not free:
            raise NoRoomError("all accelerators are in use")
        self.held[claim.uid] = free[0]
        return Allocation({"accelerator": free[0]})

    async def deallocate(self, claim: Claim) -> None:
        """Back to the others."""
        self.held.pop(claim.uid, None)


class FabricPlugin(NodePlugin):
    """Attaches an accelerator to the node."""

    name = "fabric.example.com"

    def prepare(self, claim: Claim) -> ContainerEdits:
        """A real one would set up a link; containers learn what it is called."""
        return ContainerEdits(env=(f"ACCELERATOR={claim.attributes['accelerator']}", f"ATTACHED_TO={self.node_name}"))

    def unprepare(self, claim: Claim) -> None:
        """A real one would take the link down."""


if __name__ == "__main__":
    sys.exit(main(FabricController(), FabricPlugin()))
