"""A classic driver for tests, without a resource: parameters of class and claim become environment variables.

The class has the parameters `userLimit`, `nodes` (names) and `env`. The claim has the parameters `env` and `fail`, the
message with which allocation is rejected.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from dray.driver.classic import Allocation, Claim, ClassicController, ContainerEdits, NodePlugin, NoRoomError, main


class MockController(ClassicController):
    """Allocates every claim on every node."""

    name = "mock.example.com"

    async def allocate(
        self, claim: Claim, class_parameters: Mapping[str, Any], claim_parameters: Mapping[str, Any], node: str | None
    ) -> Allocation:
        """Store the variables in the attributes, so that a change of the class does not affect them."""
        if reason := claim_parameters.get("fail"):
            raise NoRoomError(reason)
        variables = {
            **{f"CLASS_{name}": value for name, value in class_parameters.get("env", {}).items()},
            **{f"CLAIM_{name}": value for name, value in claim_parameters.get("env", {}).items()},
            "SELECTED_NODE": node or "",
        }
        limit = int(class_parameters.get("userLimit", 1))
        return Allocation({"env": json.dumps(variables)}, class_parameters.get("nodes"), limit)

    async def deallocate(self, claim: Claim) -> None:
        """Do nothing."""


class MockPlugin(NodePlugin):
    """Sets the variables."""

    name = "mock.example.com"

    def prepare(self, claim: Claim) -> ContainerEdits:
        """Return the variables, the claim and the node."""
        variables = {**json.loads(claim.attributes["env"]), "CLAIM": claim.key.name, "PREPARED_ON": self.node_name}
        return ContainerEdits(env=tuple(f"{name}={value}" for name, value in sorted(variables.items())))


if __name__ == "__main__":
    sys.exit(main(MockController(), MockPlugin()))
