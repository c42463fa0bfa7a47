"""A classic driver in its own process; what it holds is in a file, as hardware would have it."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dray.driver.classic import Allocation, Claim, ClassicController, NoRoomError, run

HARDWARE = Path(sys.argv.pop(1))
BOARDS = {"node-1": 1, "node-2": 2}


class Boards(ClassicController):
    name = "board.example.com"

    def start(self, held: Sequence[Claim]) -> None:
        print("started with", sorted(str(claim) for claim in held), flush=True)

    def unsuitable_nodes(self, claims: Sequence[Claim], nodes: Sequence[str]) -> list[str]:
        return [node for node in nodes if self._free(node) < len(claims)]

    def allocate(
        self,
        claim: Claim,
        class_parameters: Mapping[str, Any],
        claim_parameters: Mapping[str, Any],
        node: str | None,
    ) -> Allocation:
        node = node or next(iter(BOARDS))
        if self._free(node) < 1:
            raise NoRoomError(f"no board on {node}")
        self._write({**self._read(), claim.uid: node})
        return Allocation({"node": node, **class_parameters, **claim_parameters}, nodes=[node])

    def deallocate(self, claim: Claim) -> None:
        self._write({uid: node for uid, node in self._read().items() if uid != claim.uid})

    def _free(self, node: str) -> int:
        return BOARDS.get(node, 0) - list(self._read().values()).count(node)

    def _read(self) -> dict[str, str]:
        held: dict[str, str] = json.loads(HARDWARE.read_text()) if HARDWARE.exists() else {}
        return held

    def _write(self, held: Mapping[str, str]) -> None:
        HARDWARE.write_text(json.dumps(held))


sys.exit(run(Boards()))
