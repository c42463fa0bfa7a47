"""A classic driver for FPGAs that take long to program and then serve many Pods concurrently.

The node annotation `fpga.example.com/boards: "2"` declares the boards of a node. A claim names a `bitstream`, and the
class declares how many `seconds` programming takes. A board is allocated until its claim is deleted, and then reset.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dray.api.types.core_v1 import Node
from dray.client.interface import Resource
from dray.driver.classic import Allocation, Claim, ClassicController, ContainerEdits, NodePlugin, NoRoomError, main
from dray.runtime.system import SystemClock

NAME = "fpga.example.com"
NODES = Resource("", "v1", "nodes", "Node", Node, namespaced=False)


class FpgaController(ClassicController):
    """Programs boards."""

    name = NAME
    # Other claims are handled while a board is programmed.
    concurrency = 8

    def __init__(self) -> None:
        # UID of the claim -> node and board.
        self.held: dict[str, tuple[str, int]] = {}

    async def start(self, held: Sequence[Claim]) -> None:
        """Restore the allocations from the attributes of the claims."""
        for claim in held:
            if claim.attributes:
                self.held[claim.uid] = (claim.attributes["node"], int(claim.attributes["board"]))

    async def free(self) -> list[tuple[str, int]]:
        """Return the free boards."""
        nodes = {node.metadata.name or "": node.metadata.annotations for node in (await self.client.list(NODES)).items}
        boards = [(name, board) for name in nodes for board in range(int(nodes[name].get(f"{NAME}/boards", "0")))]
        return sorted(set(boards) - set(self.held.values()))

    async def unsuitable_nodes(self, claims: Sequence[Claim], nodes: Sequence[str]) -> Iterable[str]:
        """Return the nodes without enough free boards."""
        free = [node for node, _ in await self.free()]
        return [node for node in nodes if free.count(node) < len(claims)]

    async def allocate(
        self, claim: Claim, class_parameters: Mapping[str, Any], claim_parameters: Mapping[str, Any], node: str | None
    ) -> Allocation:
        """Reserve a board and program it."""
        boards = [item for item in await self.free() if node in (None, item[0])]
        if not boards:
            raise NoRoomError("no free board")
        name, board = self.held[claim.uid] = boards[0]
        await SystemClock().sleep(float(class_parameters.get("seconds", 0)))
        bitstream = claim_parameters.get("bitstream", "")
        return Allocation({"node": name, "board": str(board), "bitstream": bitstream}, nodes=[name], shareable=True)

    async def deallocate(self, claim: Claim) -> None:
        """Reset and free the board."""
        self.held.pop(claim.uid, None)


class FpgaPlugin(NodePlugin):
    """Passes the board to containers; it is already programmed."""

    name = NAME

    def prepare(self, claim: Claim) -> ContainerEdits:
        """Return the board and its bitstream."""
        return ContainerEdits(
            env=(f"FPGA_BOARD={claim.attributes['board']}", f"FPGA_BITSTREAM={claim.attributes['bitstream']}")
        )


if __name__ == "__main__":
    sys.exit(main(FpgaController(), FpgaPlugin()))
