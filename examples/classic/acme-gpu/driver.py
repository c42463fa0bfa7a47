"""ACME's GPUs, of which a claim gets a part of the memory; the rest of a card is for others.

The administrator says what cards a node has by an annotation, `gpu.acme.com/cards: "8Gi,16Gi"`. A claim's parameter is
`memory`; the class's is `initCommand`, which the node runs as root for each claim, with the card and the claim's UID.
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
    """Bytes."""
    return Quantity.parse(text).value()


class AcmeController(ClassicController):
    """Keeps account of the memory of all cards."""

    name = NAME

    def __init__(self) -> None:
        # Claim's UID -> node, card and bytes.
        self.held: dict[str, tuple[str, int, int]] = {}

    async def start(self, held: Sequence[Claim]) -> None:
        """Remember: what a claim has is in its attributes."""
        for claim in held:
            if claim.attributes:
                place = claim.attributes
                self.held[claim.uid] = (place["node"], int(place["card"]), size(place["memory"]))

    async def cards(self) -> dict[str, list[int]]:
        """What is free on each card of each node."""
        free = {}
        for node in (await self.client.list(NODES)).items:
            cards = node.metadata.annotations.get(f"{NAME}/cards", "")
            free[node.metadata.name or ""] = [size(text) for text in cards.split(",") if text]
        for node_name, card, taken in self.held.values():
            if card < len(free.get(node_name, ())):
                free[node_name][card] -= taken
        return free

    async def unsuitable_nodes(self, claims: Sequence[Claim], nodes: Sequence[str]) -> Iterable[str]:
        """Those without a card that has room; that all claims of a Pod find room is seen when they are allocated."""
        free = await self.cards()
        largest = max(size(claim.parameters.get("memory", "1Gi")) for claim in claims)
        return [node for node in nodes if largest > max(free.get(node, ()), default=0)]

    async def allocate(
        self, claim: Claim, class_parameters: Mapping[str, Any], claim_parameters: Mapping[str, Any], node: str | None
    ) -> Allocation:
        """Take the fullest card that has room, so that large claims find room later."""
        memory = claim_parameters.get("memory", "1Gi")
        free = await self.cards()
        places = [
            (room, name, card)
            for name, rooms in free.items()
            if node in (None, name)
            for card, room in enumerate(rooms)
            if room >= size(memory)
        ]
        if not places:
            raise NoRoomError(f"no card with {memory} of free memory")
        _, name, card = min(places)
        self.held[claim.uid] = (name, card, size(memory))
        return Allocation({"node": name, "card": str(card), "memory": memory}, nodes=[name])

    async def deallocate(self, claim: Claim) -> None:
        """The memory is free again."""
        self.held.pop(claim.uid, None)


class AcmePlugin(NodePlugin):
    """Tells containers which card they have, and how much of it."""

    name = NAME

    def prepare(self, claim: Claim) -> ContainerEdits:
        """Run the cluster's own initialization first."""
        card, memory = claim.attributes["card"], claim.attributes["memory"]
        if command := claim.class_parameters.get("initCommand"):
            subprocess.run([*command, card, claim.uid], check=True, timeout=30)  # noqa: S603 - an administrator's
        return ContainerEdits(env=(f"ACME_CARD={card}", f"ACME_MEMORY={memory}", f"ACME_SHARE={claim.uid}"))


if __name__ == "__main__":
    sys.exit(main(AcmeController(), AcmePlugin()))
