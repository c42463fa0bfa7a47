"""The scenario as data: the nodes of the cluster, and the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

RESOURCE: Final = "example.com/gpu"
# Device files that exist on every machine represent two cards: /dev/null and /dev/zero.
PLUGIN_PATTERN: Final = "/dev/[nz][eu][lr][lo]"
PLUGIN_DEVICES: Final = 2
DRIVER: Final = "gpu.example.com"
DRA_DRIVER: Final = "DRA driver"
DEVICE_PLUGIN: Final = "device plugin"


@dataclass(frozen=True, slots=True)
class DemoNode:
    """A node, with a DRA driver for cards of a model, or with a device plugin."""

    name: str
    model: str = ""
    cards: int = 0
    # Also runs the node part of the classic driver.
    classic: bool = False

    @property
    def served_by(self) -> str:
        """Return what provides the node's devices."""
        return DRA_DRIVER if self.model else DEVICE_PLUGIN


NODES: Final = (
    DemoNode("h100-node", "H100", 1),
    DemoNode("a100-node-1", "A100", 2),
    DemoNode("a100-node-2", "A100", 1, classic=True),
    DemoNode("plugin-node"),
)


@dataclass(frozen=True, slots=True)
class Step:
    """A manifest to apply, and the expected result."""

    title: str
    source: str
    # A file of examples/demo; empty if nothing is applied.
    manifest: str = ""
    # The value of the label `story` of the step's Pods.
    story: str = ""
    running: int = 0
    pending: int = 0
    # Show the filter result of each node.
    explained: bool = False
    # Show the negotiation between scheduler and driver.
    negotiated: bool = False
    # Show who was preempted, and for whom.
    preempts: bool = False
    # Nodes whose PodResources are read.
    pod_resources: tuple[str, ...] = ()


STEPS: Final = (
    Step(
        "A claim from a template: a partition of an H100",
        "KEP-4381",
        "2-template.yaml",
        "template",
        running=1,
        explained=True,
    ),
    Step(
        "Prioritized alternatives: the first one is in use, so the second is allocated",
        "KEP-4816",
        "3-alternatives.yaml",
        "alternatives",
        running=1,
        explained=True,
    ),
    Step(
        "A resource of a device plugin",
        "KEP-3573",
        "4-device-plugin.yaml",
        "device-plugin",
        running=1,
        explained=True,
    ),
    Step(
        f"One request, {RESOURCE}: 1, served by DRA on some nodes and by a device plugin on others",
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
        "PodResources: how monitoring agents list the devices of a node",
        "KEP-3695",
        pod_resources=("plugin-node", "a100-node-1", "a100-node-2"),
    ),
    Step(
        "No devices left: why a Pod is pending, and what would help",
        "dray explain",
        "7-latecomer.yaml",
        "latecomer",
        pending=1,
        explained=True,
    ),
    Step(
        "An urgent Pod takes a device from a batch Pod, which gives way by its priority",
        "KEP-5690",
        "8-urgent.yaml",
        "urgent",
        running=1,
        preempts=True,
    ),
)
CLASSES: Final = "1-classes.yaml"
