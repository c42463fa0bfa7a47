"""FPGAs that take long to program and then serve many Pods at once.

A node's boards are in its annotation `fpga.example.com/boards: "2"`. A claim names a `bitstream`; the class says how
many `seconds` programming takes. A board belongs to one claim until that is deleted, and then is reset.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dray.api.types.core_v1 import Node
from dray.client.interface import Resource
from dray.driver.classic import Allocation, Claim, ClassicController, ContainerEdits, NodePlugin, NoRoomError, main
from dray.runtime.clock import SystemClock

NAME = "fpga.example.com"
NODES = Resource("", "v1", "nodes", "Node", Node, namespaced=False)


class FpgaController(ClassicController):
    """Programs boards."""

    name = NAME
    # Others need not wait while a board is programmed.
    concurrency = 8

    def __init__(self) -> None:
        # Claim's UID -> node and board.
        self.held: dict[str, tuple[str, int]] = {}

    async def start(self, held: Sequence[Claim]) -> None:
        """Remember."""
        for claim in held:
            if claim.attributes:
                self.held[claim.uid] = (claim.attributes["node"], int(claim.attributes["board"]))

    async def free(self) -> list[tuple[str, int]]:
        """The boards that nobody has."""
        nodes = {node.metadata.name or "": node.metadata.annotations for node in (await self.client.list(NODES)).items}
        boards = [(name, board) for name in nodes for board in range(int(nodes[name].get(f"{NAME}/boards", "0")))]
        return sorted(set(boards) - set(self.held.values()))

    async def unsuitable_nodes(self, claims: Sequence[Claim], nodes: Sequence[str]) -> Iterable[str]:
        """Those without enough boards."""
        free = [node for node, _ in await self.free()]
        return [node for node in nodes if free.count(node) < len(claims)]

    async def allocate(
        self, claim: Claim, class_parameters: Mapping[str, Any], claim_parameters: Mapping[str, Any], node: str | None
    ) -> Allocation:
        """Take a board and program it; other claims do not get it meanwhile."""
        boards = [place for place in await self.free() if node in (None, place[0])]
        if not boards:
            raise NoRoomError("no free board")
        name, board = self.held[claim.uid] = boards[0]
        await SystemClock().sleep(float(class_parameters.get("seconds", 0)))
        bitstream = claim_parameters.get("bitstream", "")
        return Allocation({"node": name, "board": str(board), "bitstream": bitstream}, nodes=[name], shareable=True)

    async def deallocate(self, claim: Claim) -> None:
        """Reset the board, if there is one."""
        self.held.pop(claim.uid, None)


class FpgaPlugin(NodePlugin):
    """The board is programmed already: little is left to do when a Pod starts."""

    name = NAME

    def prepare(self, claim: Claim) -> ContainerEdits:
        """Say which board it is."""
        return ContainerEdits(
            env=(f"FPGA_BOARD={claim.attributes['board']}", f"FPGA_BITSTREAM={claim.attributes['bitstream']}")
        )


if __name__ == "__main__":
    sys.exit(main(FpgaController(), FpgaPlugin()))
