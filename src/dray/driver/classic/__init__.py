"""What the author of a classic driver imports: claims of cdi.k8s.io, allocated by the driver itself.

Write a class with `allocate`, `deallocate` and perhaps `unsuitable_nodes` for the cluster, and one with `prepare` and
perhaps `unprepare` for nodes; `main` runs either. docs/classic-dra.md is the manual.
"""

from dray.api.cdi import ContainerEdits, DeviceNode, Hook, Mount
from dray.driver.classic.interface import Allocation, Claim, ClassicController, NoRoomError
from dray.driver.classic.loop import Options, run, serve
from dray.driver.classic.node.interface import NodePlugin
from dray.driver.classic.node.loop import NodeOptions, NodePluginRunner, run_node
from dray.driver.classic.node.program import main

__all__ = [
    "Allocation",
    "Claim",
    "ClassicController",
    "ContainerEdits",
    "DeviceNode",
    "Hook",
    "Mount",
    "NoRoomError",
    "NodeOptions",
    "NodePlugin",
    "NodePluginRunner",
    "Options",
    "main",
    "run",
    "run_node",
    "serve",
]
