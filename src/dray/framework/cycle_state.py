"""What plugins keep for one attempt to place one Pod."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dray.framework.pod_info import PodInfo


class CycleState(dict[str, Any]):
    """Values by key, each key written by one plugin; lives from PreFilter to PostBind or Unreserve."""

    __slots__ = ("device_resources", "pod_info", "pod_version", "skip_filter", "skip_score")

    def __init__(self, pod_info: PodInfo) -> None:
        super().__init__()
        # The Pod of the attempt with what is computed from it once.
        self.pod_info = pod_info
        # Plugins whose PreFilter (PreScore) answered Skip; changed by the scheduler alone.
        self.skip_filter: set[str] = set()
        self.skip_score: set[str] = set()
        # Told a node, the Pod's resources that devices of a claim would serve there; set by DynamicResources.
        self.device_resources: Callable[[str], frozenset[str]] | None = None
        # The version that the Pod must still have when it is bound; any when empty.
        self.pod_version = ""
