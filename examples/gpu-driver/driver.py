"""A driver for simulated GPUs, and for partitions that share the memory and slices of a GPU through counters.

The environment variable `GPUS` sets their number, and `GPU_MODELS` their models. Containers get GPU_* variables and
/dev/gpu-*. A file named after a GPU in the folder `GPU_FAULTS` makes that GPU unhealthy.
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
# Profile: number of the GPU's seven slices, and eighths of its memory.
PROFILES = {"1g": (1, 1), "2g": (2, 2), "3g": (3, 4)}
FAULT = sdk.DeviceTaint(key="gpu.example.com/fault", effect="NoExecute")
POLL_SECONDS = 1.0


class GPUDriver(sdk.Driver):
    """GPUs alternate between the models and between two NUMA nodes; four share a PCIe root."""

    name = "gpu.example.com"
    reports_health = True

    def __init__(self, count: int, faults: str = "", models: Sequence[tuple[str, int, str]] = MODELS) -> None:
        self.count, self.faults, self.models = count, faults, models
        self.broken: frozenset[str] = frozenset()

    def start(self) -> None:
        """Watch for faults in the background."""
        self.host.report_health(self.healths())
        if self.faults:
            threading.Thread(target=self.watch_faults, daemon=True).start()

    def watch_faults(self) -> None:
        """Publish devices and report health when a GPU becomes unhealthy or healthy."""
        pause = threading.Event()
        while not pause.wait(POLL_SECONDS):
            broken = frozenset(path.name for path in Path(self.faults).glob("gpu-*"))
            if broken != self.broken:
                self.broken = broken
                self.host.report_health(self.healths())
                self.host.publish()

    def healths(self) -> Iterable[DeviceHealth]:
        """Return the health of all devices; a partition has the health of its GPU."""
        for item in self.pools()[self.host.node_name].devices:
            health, message = (Health.UNHEALTHY, "card has fallen off the bus") if item.taints else (Health.HEALTHY, "")
            yield DeviceHealth(self.host.node_name, item.name, health, message)

    def pools(self) -> Mapping[str, Pool]:
        """Return one pool with a counter set for each GPU, the GPU itself, and its partitions."""
        cards = range(self.count)
        models = [self.models[n % len(self.models)] for n in cards]
        counters = tuple(counter_set(f"gpu-{n}", {"memory": f"{models[n][1]}Gi", "slices": 7}) for n in cards)
        return {self.host.node_name: Pool(tuple(item for n in cards for item in self.card(n)), counters)}

    def card(self, number: int) -> Iterable[sdk.Device]:
        """Return a GPU, which consumes all of its counters, and its partitions, which consume a share."""
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
        """Return the edits; a real driver would create the partition here."""
        for gpu in claim.devices:
            mode = next((p["sharing"] for p in reversed(gpu.parameters) if "sharing" in p), "exclusive")
            names = (f"GPU_{gpu.name.upper().replace('-', '_')}={mode}", f"GPU_CLAIM={claim.uid}")
            # /dev/null stands for the GPU. Only containers with the claim have it.
            node = sdk.DeviceNode(path=f"/dev/{gpu.name}", host_path="/dev/null", permissions="rw")
            yield gpu.prepared(ContainerEdits(env=names, device_nodes=(node,)))


if __name__ == "__main__":
    chosen = [model for model in MODELS if model[0] in os.environ.get("GPU_MODELS", "A100,H100").split(",")]
    sys.exit(sdk.run(GPUDriver(int(os.environ.get("GPUS", "4")), os.environ.get("GPU_FAULTS", ""), chosen)))
