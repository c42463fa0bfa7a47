"""A driver without devices of its own: containers get the environment variables that claim and class parameters name.

A claim's parameters are `{"env": {"NAME": "value"}}`; those of the claim win over those of the class.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from dray.driver import Claim, ClaimError, ContainerEdits, Device, Driver, PreparedDevice, device, run

DEVICES = 8


class EnvDriver(Driver):
    """Any number of claims, each of its slots holding one."""

    name = "env.example.com"

    def devices(self) -> Iterable[Device]:
        """Slots that a claim can have."""
        return [device(f"slot-{number}", attributes={"index": number}) for number in range(DEVICES)]

    def prepare(self, claim: Claim) -> Iterable[PreparedDevice]:
        """Turn parameters into variables."""
        for slot in claim.devices:
            variables = {"DEVICE": slot.name}
            for parameters in slot.parameters:
                wanted = parameters.get("env", {})
                if not isinstance(wanted, dict):
                    raise ClaimError(f"claim {claim.key}: parameter env must be a map of texts")
                variables.update({str(name): str(value) for name, value in wanted.items()})
            yield slot.prepared(
                ContainerEdits(env=tuple(f"{name}={value}" for name, value in sorted(variables.items())))
            )


if __name__ == "__main__":
    sys.exit(run(EnvDriver()))
