"""The profiles that can be chosen by name instead of a configuration file. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dray.scheduler.config import ProfileConfig

SPREAD: Final = "spread"
PACK: Final = "pack"

NAMED_PROFILES: Final[Mapping[str, ProfileConfig]] = {
    # Kubernetes' default: prefers nodes with little allocated, and spreads Pods of a workload over nodes and zones.
    SPREAD: ProfileConfig(),
    # Fills nodes one after the other, so that others stay empty and can be removed.
    PACK: ProfileConfig(
        args={
            "NodeResourcesFit": {"scoringStrategy": {"type": "MostAllocated"}},
            "PodTopologySpread": {"defaultingType": "List", "defaultConstraints": []},
        }
    ),
}
