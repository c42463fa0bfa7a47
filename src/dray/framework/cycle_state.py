"""The state of one scheduling attempt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dray.framework.pod_info import PodInfo


class CycleState(dict[str, Any]):
    """Values of plugins by key, from PreFilter to PostBind or Unreserve; each key is written by one plugin."""

    __slots__ = ("device_resources", "pod_info", "pod_version", "skip_filter", "skip_score")

    def __init__(self, pod_info: PodInfo) -> None:
        super().__init__()
        # The Pod, with the values computed from it.
        self.pod_info = pod_info
        # Plugins whose PreFilter (PreScore) returned Skip; written by the scheduler.
        self.skip_filter: set[str] = set()
        self.skip_score: set[str] = set()
        # Returns the Pod's extended resources that devices would serve on a node; set by DynamicResources.
        self.device_resources: Callable[[str], frozenset[str]] | None = None
        # The resourceVersion that the Pod must still have when it is bound; empty means any.
        self.pod_version = ""
