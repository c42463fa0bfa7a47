"""The DeviceFragmentation plugin: prefers the node on which a Pod leaves most for the Pods that are typical."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dray.allocator.units import PodKind
from dray.api.types.core_v1 import Pod
from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import SCORE_MAX, PreFilterResult
from dray.framework.status import SKIP, SUCCESS, Status
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.dynamic_resources.device_filter import NAME as DYNAMIC_RESOURCES
from dray.scheduler.plugins.dynamic_resources.device_state import device_state_of
from dray.scheduler.plugins.dynamic_resources.pod_state import PodState

NAME: Final = "DeviceFragmentation"
# A node has one point less for this many thousandths of a device that it loses more than the best node.
THOUSANDTHS_PER_POINT: Final = 5


class DeviceFragmentation:
    """Scores nodes by the fragmentation of their devices; learns what is typical from the Pods that it sees."""

    name = NAME

    def __init__(self, handle: Handle) -> None:
        self._packing = device_state_of(handle).learn_packing()
        self._snapshot = handle.snapshot

    def pre_filter(self, state: CycleState, _pod: Pod) -> tuple[PreFilterResult | None, Status]:
        """Count the Pod."""
        own: PodState | None = state.get(DYNAMIC_RESOURCES)
        state[NAME] = self._packing.observe(state.pod_info, own.claims.all if own is not None else ())
        return None, SKIP

    def pre_score(self, state: CycleState, _pod: Pod, nodes: Sequence[NodeInfo]) -> Status:
        """Skip if there is nothing to choose."""
        return SUCCESS if len(nodes) > 1 and state.get(NAME) is not None else SKIP

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        """Return what is not lost, in thousandths of devices; negative."""
        return self.score_all(state, pod, (node,))[0]

    def score_all(self, state: CycleState, _pod: Pod, nodes: Sequence[NodeInfo]) -> list[int]:
        """Return what is not lost on each node, in thousandths of devices; negative."""
        kind: PodKind = state[NAME]
        return [-loss for loss in self._packing.losses(self._snapshot, kind, nodes)]

    def normalize_scores(self, _state: CycleState, _pod: Pod, scores: list[int]) -> None:
        """Give the best node all points, and the others less by what they lose more."""
        best = max(scores)
        # Many nodes have the same score.
        points = {score: max(0, SCORE_MAX - (best - score) // THOUSANDTHS_PER_POINT) for score in set(scores)}
        scores[:] = [points[score] for score in scores]
