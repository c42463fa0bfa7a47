"""The profiles that can be chosen by name instead of a configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dray.allocator.device_policy import BEST_FIT, FRAGMENTATION
from dray.scheduler.config import PERCENTAGE_MAX, PluginSet, ProfileConfig

SPREAD: Final = "spread"
PACK: Final = "pack"

# Fragmentation outweighs what Kubernetes' plugins score by default, which decides among nodes that are about as good.
_FRAGMENTATION: Final = PluginSet(enabled=(("DeviceFragmentation", 10),))
_NO_SPREADING: Final = {"defaultingType": "List", "defaultConstraints": []}
_MOST_ALLOCATED: Final = {"scoringStrategy": {"type": "MostAllocated"}}

NAMED_PROFILES: Final[Mapping[str, ProfileConfig]] = {
    # Kubernetes' default: prefers nodes with little allocated, and spreads Pods of a workload over nodes and zones.
    SPREAD: ProfileConfig(),
    # Fills nodes one after the other and keeps devices usable for the Pods that are typical, so that more of them fit.
    PACK: ProfileConfig(
        multi_point=_FRAGMENTATION,
        args={
            "NodeResourcesFit": _MOST_ALLOCATED,
            "PodTopologySpread": _NO_SPREADING,
            "DynamicResources": {"devicePolicy": FRAGMENTATION},
        },
        percentage_of_nodes_to_score=PERCENTAGE_MAX,
    ),
    # Kubernetes' default, but takes the fullest devices of a node.
    BEST_FIT: ProfileConfig(args={"DynamicResources": {"devicePolicy": BEST_FIT}}),
    # Kubernetes' default, but keeps devices usable for the Pods that are typical.
    FRAGMENTATION: ProfileConfig(
        multi_point=_FRAGMENTATION, args={"DynamicResources": {"devicePolicy": FRAGMENTATION}}
    ),
}
