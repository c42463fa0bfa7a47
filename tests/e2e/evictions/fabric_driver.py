"""A driver of devices that every node can reach: somebody else publishes them, it only prepares."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from dray.driver import Claim, ContainerEdits, Driver, PreparedDevice, run
from dray.driver.devices import Pool


class FabricDriver(Driver):
    """Tells containers which port they have."""

    name = "fabric.example.com"

    def pools(self) -> Mapping[str, Pool]:
        """None of its own."""
        return {}

    def prepare(self, claim: Claim) -> Iterable[PreparedDevice]:
        """One variable."""
        for port in claim.devices:
            yield port.prepared(ContainerEdits(env=(f"PORT={port.name}",)))


if __name__ == "__main__":
    sys.exit(run(FabricDriver()))
