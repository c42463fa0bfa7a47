"""Simulated GPUs: whole cards, and partitions that share a card's memory and slices through counters.

`GPUS` in the environment sets how many there are, and `GPU_MODELS` of which models. Containers see what they got in
GPU_* variables and as /dev/gpu-*. A file named after a card in the folder `GPU_FAULTS` makes that card unhealthy.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dray import driver as sdk
from dray.driver import Claim, ContainerEdits, DeviceHealth, Health, Pool, PreparedDevice, Version, counter_set

MODELS = (("A100", 40, "8.0.0"), ("H100", 80, "9.0.0"))
# Profile: slices of the card's seven, and the share of its memory in eighths.
PROFILES = {"1g": (1, 1), "2g": (2, 2), "3g": (3, 4)}
FAULT = sdk.DeviceTaint(key="gpu.example.com/fault", effect="NoExecute")
LOOK_SECONDS = 1.0


class GPUDriver(sdk.Driver):
    """Cards alternate between the models and two NUMA nodes; four hang on one PCIe root."""

    name = "gpu.example.com"
    reports_health = True

    def __init__(self, count: int, faults: str = "", models: Sequence[tuple[str, int, str]] = MODELS) -> None:
        self.count, self.faults, self.models = count, faults, models
        self.broken: frozenset[str] = frozenset()

    def start(self) -> None:
        """Watch for faults in the background."""
        self.host.report_health(self.healths())
        if self.faults:
            threading.Thread(target=self.look, daemon=True).start()

    def look(self) -> None:
        """Publish again, and report, when a card breaks or is mended."""
        pause = threading.Event()
        while not pause.wait(LOOK_SECONDS):
            broken = frozenset(path.name for path in Path(self.faults).glob("gpu-*"))
            if broken != self.broken:
                self.broken = broken
                self.host.report_health(self.healths())
                self.host.publish()

    def healths(self) -> Iterable[DeviceHealth]:
        """A partition is as healthy as its card."""
        for item in self.pools()[self.host.node_name].devices:
            health, message = (Health.UNHEALTHY, "card has fallen off the bus") if item.taints else (Health.HEALTHY, "")
            yield DeviceHealth(self.host.node_name, item.name, health, message)

    def pools(self) -> Mapping[str, Pool]:
        """One pool: a counter set for each card, the card itself, and its partitions."""
        cards = range(self.count)
        models = [self.models[n % len(self.models)] for n in cards]
        counters = tuple(counter_set(f"gpu-{n}", {"memory": f"{models[n][1]}Gi", "slices": 7}) for n in cards)
        return {self.host.node_name: Pool(tuple(item for n in cards for item in self.card(n)), counters)}

    def card(self, number: int) -> Iterable[sdk.Device]:
        """The card takes all of its counters, a partition its share."""
        model, memory, version = self.models[number % len(self.models)]
        card = f"gpu-{number}"
        shares = {card: ("full", 7, memory)}
        for profile, (slices, eighths) in PROFILES.items():
            for copy in range(7 // slices):
                shares[f"{card}-{profile}-{copy}"] = (profile, slices, memory * eighths // 8)
        for name, (profile, slices, gibibytes) in shares.items():
            amounts: dict[str, str | int] = {"memory": f"{gibibytes}Gi", "slices": slices}
            yield sdk.device(
                name,
                attributes={
                    "model": model,
                    "profile": profile,
                    "architecture": Version(version),
                    "numa": number % 2,
                    "resource.kubernetes.io/pcieRoot": f"pci0000:{number // 4:02x}",
                },
                capacity=amounts,
                consumes={card: amounts},
                taints=[FAULT] if card in self.broken else [],
            )

    def prepare(self, claim: Claim) -> Iterable[PreparedDevice]:
        """A real driver would make the partition here."""
        for gpu in claim.devices:
            mode = next((p["sharing"] for p in reversed(gpu.parameters) if "sharing" in p), "exclusive")
            names = (f"GPU_{gpu.name.upper().replace('-', '_')}={mode}", f"GPU_CLAIM={claim.uid}")
            # Not much of a GPU, but only containers with the claim have it.
            node = sdk.DeviceNode(path=f"/dev/{gpu.name}", host_path="/dev/null", permissions="rw")
            yield gpu.prepared(ContainerEdits(env=names, device_nodes=(node,)))


if __name__ == "__main__":
    chosen = [model for model in MODELS if model[0] in os.environ.get("GPU_MODELS", "A100,H100").split(",")]
    sys.exit(sdk.run(GPUDriver(int(os.environ.get("GPUS", "4")), os.environ.get("GPU_FAULTS", ""), chosen)))
