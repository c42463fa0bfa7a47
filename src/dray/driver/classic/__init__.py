"""What the author of a classic driver imports: claims of cdi.k8s.io, allocated by the driver itself.

Write a class with `allocate`, `deallocate` and perhaps `unsuitable_nodes` for the cluster, and one with `prepare` and
perhaps `unprepare` for nodes; `main` runs either. docs/classic-claims.md is the manual.
"""

from dray.api.cdi import ContainerEdits, DeviceNode, Hook, Mount
from dray.driver.classic.controller_runner import Options, run, serve
from dray.driver.classic.interface import Allocation, Claim, ClassicController, NodePlugin, NoRoomError
from dray.driver.classic.node_runner import NodeOptions, NodePluginRunner, main, run_node

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
