"""Prefers nodes that have the Pod's images already, by the formula of Kubernetes 1.37."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dray.api.types.core_v1 import Pod
from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import SCORE_MAX
from dray.framework.status import SKIP, SUCCESS, Status
from dray.scheduler.handle import Handle

_MEBIBYTE: Final = 1024 * 1024
# The minimum size that counts, and the maximum for each container.
_LEAST_BYTES: Final = 23 * _MEBIBYTE
_MOST_BYTES: Final = 1000 * _MEBIBYTE
_IMAGES: Final = "ImageLocality/images"


class ImageLocality:
    """Scores the bytes that need not be pulled, scaled by how many nodes have the image."""

    name = "ImageLocality"

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def pre_score(self, state: CycleState, pod: Pod, nodes: Sequence[NodeInfo]) -> Status:
        """Skip if no node reports images."""
        if not self._handle.snapshot.image_counts or not any(node.image_sizes for node in nodes):
            return SKIP
        containers = (*pod.spec.containers, *pod.spec.init_containers)
        names = [normalized_image_name(item.image) for item in containers if item.image]
        counts, total = self._handle.snapshot.image_counts, len(self._handle.snapshot)
        shares = {name: counts[name] / total for name in names}
        state[_IMAGES] = (names, shares)
        return SUCCESS

    def score(self, state: CycleState, _pod: Pod, node: NodeInfo) -> int:
        """Return a score between no image and all images present."""
        names, shares = state[_IMAGES]
        if not names:
            return 0
        there = int(sum(node.image_sizes.get(name, 0) * shares[name] for name in names))
        most = _MOST_BYTES * len(names)
        return SCORE_MAX * (min(max(there, _LEAST_BYTES), most) - _LEAST_BYTES) // (most - _LEAST_BYTES)


def normalized_image_name(name: str) -> str:
    """Return the image's name with its tag, as nodes report it."""
    return name if name.rfind(":") > name.rfind("/") else f"{name}:latest"
