"""A classic driver for ACME's GPUs. A claim gets part of a GPU's memory; the rest is available to others.

The administrator declares the GPUs of a node in an annotation, `gpu.acme.com/cards: "8Gi,16Gi"`. Claims have the
parameter `memory`, classes `initCommand`: the node runs it as root for each claim, with the GPU and the claim's UID.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dray.api.quantity import Quantity
from dray.api.types.core_v1 import Node
from dray.client.interface import Resource
from dray.driver.classic import Allocation, Claim, ClassicController, ContainerEdits, NodePlugin, NoRoomError, main

NAME = "gpu.acme.com"
NODES = Resource("", "v1", "nodes", "Node", Node, namespaced=False)


def size(text: str) -> int:
    """Return the number of bytes."""
    return Quantity.parse(text).value()


class AcmeController(ClassicController):
    """Tracks the memory of all GPUs."""

    name = NAME

    def __init__(self) -> None:
        # UID of the claim -> node, GPU and bytes.
        self.held: dict[str, tuple[str, int, int]] = {}

    async def start(self, held: Sequence[Claim]) -> None:
        """Restore the allocations from the attributes of the claims."""
        for claim in held:
            if claim.attributes:
                attributes = claim.attributes
                self.held[claim.uid] = (attributes["node"], int(attributes["card"]), size(attributes["memory"]))

    async def cards(self) -> dict[str, list[int]]:
        """Return the free memory of each GPU by node."""
        free = {}
        for node in (await self.client.list(NODES)).items:
            cards = node.metadata.annotations.get(f"{NAME}/cards", "")
            free[node.metadata.name or ""] = [size(text) for text in cards.split(",") if text]
        for node_name, card, taken in self.held.values():
            if card < len(free.get(node_name, ())):
                free[node_name][card] -= taken
        return free

    async def unsuitable_nodes(self, claims: Sequence[Claim], nodes: Sequence[str]) -> Iterable[str]:
        """Return the nodes without a GPU for the largest claim; `allocate` checks the claims in combination."""
        free = await self.cards()
        largest = max(size(claim.parameters.get("memory", "1Gi")) for claim in claims)
        return [node for node in nodes if largest > max(free.get(node, ()), default=0)]

    async def allocate(
        self, claim: Claim, class_parameters: Mapping[str, Any], claim_parameters: Mapping[str, Any], node: str | None
    ) -> Allocation:
        """Choose the fullest GPU with enough memory, to leave space for large claims."""
        memory = claim_parameters.get("memory", "1Gi")
        free = await self.cards()
        candidates = [
            (free_bytes, name, card)
            for name, cards in free.items()
            if node in (None, name)
            for card, free_bytes in enumerate(cards)
            if free_bytes >= size(memory)
        ]
        if not candidates:
            raise NoRoomError(f"no card with {memory} of free memory")
        _, name, card = min(candidates)
        self.held[claim.uid] = (name, card, size(memory))
        return Allocation({"node": name, "card": str(card), "memory": memory}, nodes=[name])

    async def deallocate(self, claim: Claim) -> None:
        """Free the memory."""
        self.held.pop(claim.uid, None)


class AcmePlugin(NodePlugin):
    """Passes the GPU and the amount of memory to containers."""

    name = NAME

    def prepare(self, claim: Claim) -> ContainerEdits:
        """Run the class's initCommand, and return the environment."""
        card, memory = claim.attributes["card"], claim.attributes["memory"]
        if command := claim.class_parameters.get("initCommand"):
            subprocess.run([*command, card, claim.uid], check=True, timeout=30)  # noqa: S603 - set by an administrator
        return ContainerEdits(env=(f"ACME_CARD={card}", f"ACME_MEMORY={memory}", f"ACME_SHARE={claim.uid}"))


if __name__ == "__main__":
    sys.exit(main(AcmeController(), AcmePlugin()))
