"""A driver without hardware: containers get environment variables from the parameters of claim and class.

The parameters are `{"env": {"NAME": "value"}}`; those of the claim take precedence over those of the class.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from dray.driver import Claim, ClaimError, ContainerEdits, Device, Driver, PreparedDevice, device, run

DEVICES = 8


class EnvDriver(Driver):
    """Offers slots, one for each claim."""

    name = "env.example.com"

    def devices(self) -> Iterable[Device]:
        """Return the slots."""
        return [device(f"slot-{number}", attributes={"index": number}) for number in range(DEVICES)]

    def prepare(self, claim: Claim) -> Iterable[PreparedDevice]:
        """Return the parameters as environment variables."""
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
