"""The story as data: which nodes there are, and what is asked of them in which order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

RESOURCE: Final = "example.com/gpu"
# Device files that every machine has stand for two cards: /dev/null and /dev/zero.
PLUGIN_PATTERN: Final = "/dev/[nz][eu][lr][lo]"
PLUGIN_DEVICES: Final = 2
DRIVER: Final = "gpu.example.com"
DRA_DRIVER: Final = "DRA driver"
DEVICE_PLUGIN: Final = "device plugin"


@dataclass(frozen=True, slots=True)
class DemoNode:
    """A node and what offers its devices: a DRA driver with cards of a model, or a device plugin."""

    name: str
    model: str = ""
    cards: int = 0
    # Also runs the node's part of the classic driver.
    classic: bool = False

    @property
    def served_by(self) -> str:
        """In words."""
        return DRA_DRIVER if self.model else DEVICE_PLUGIN


NODES: Final = (
    DemoNode("h100-node", "H100", 1),
    DemoNode("a100-node-1", "A100", 2),
    DemoNode("a100-node-2", "A100", 1, classic=True),
    DemoNode("plugin-node"),
)


@dataclass(frozen=True, slots=True)
class Step:
    """A manifest to apply, and what must come of it."""

    title: str
    source: str
    # A file of examples/demo; empty when nothing is applied.
    manifest: str = ""
    # The Pods it is about, by their label `story`.
    story: str = ""
    running: int = 0
    waiting: int = 0
    # Show what each node said.
    explained: bool = False
    # Show what scheduler and driver told each other.
    negotiated: bool = False
    # Nodes whose PodResources are read.
    pod_resources: tuple[str, ...] = ()


STEPS: Final = (
    Step(
        "A claim from a template: a slice of an H100",
        "KEP-4381",
        "2-template.yaml",
        "template",
        running=1,
        explained=True,
    ),
    Step(
        "Prioritized alternatives: the first choice is taken, so the second it is",
        "KEP-4816",
        "3-alternatives.yaml",
        "alternatives",
        running=1,
        explained=True,
    ),
    Step(
        "A device plugin, the way it always was",
        "KEP-3573",
        "4-device-plugin.yaml",
        "device-plugin",
        running=1,
        explained=True,
    ),
    Step(
        f"One request, {RESOURCE}: 1, served by DRA here and by the device plugin there",
        "KEP-5004",
        "5-extended-resource.yaml",
        "extended-resource",
        running=3,
    ),
    Step(
        "A classic claim: scheduler and driver negotiate, and the driver allocates",
        "KEP-3063",
        "6-classic.yaml",
        "classic",
        running=1,
        negotiated=True,
    ),
    Step(
        "PodResources: what monitoring asks a node about its devices",
        "KEP-3695",
        pod_resources=("plugin-node", "a100-node-1", "a100-node-2"),
    ),
    Step(
        "Nothing is left: why a Pod waits, and what would help",
        "dray explain",
        "7-latecomer.yaml",
        "latecomer",
        waiting=1,
        explained=True,
    ),
)
CLASSES: Final = "1-classes.yaml"
