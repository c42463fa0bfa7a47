"""What PodTopologySpread and InterPodAffinity share: both filter nodes by numbers of Pods in topology domains.

`filter` and `filter_all` are theirs: a class that inherits one and overrides the other would lose it.
"""

from __future__ import annotations

from typing import Protocol

from dray.api.types.core_v1 import Pod
from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.framework.status import SUCCESS, Status


class CountedPods(Protocol):
    """The numbers that decide for one Pod."""

    def count(self, other: PodInfo, node: NodeInfo, sign: int) -> None:
        """Add (1) or subtract (-1) a Pod on the node."""


class CountingPlugin:
    """A filter by the `CountedPods` that its PreFilter keeps in the cycle state under the plugin's name."""

    name: str

    def add_pod(self, state: CycleState, _pod: Pod, other: PodInfo, node: NodeInfo) -> Status:
        """Count a Pod on the node."""
        counted: CountedPods = state[self.name]
        counted.count(other, node, 1)
        return SUCCESS

    def remove_pod(self, state: CycleState, _pod: Pod, other: PodInfo, node: NodeInfo) -> Status:
        """Do not count a Pod on the node any more."""
        counted: CountedPods = state[self.name]
        counted.count(other, node, -1)
        return SUCCESS
