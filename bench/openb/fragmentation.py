"""Fragmentation as defined for this trace: the expected amount of free GPU that a typical Pod cannot use. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from bench.openb.objects import Share
from bench.openb.trace import WHOLE, TraceNode, TracePod

# Typical Pods make up this share of all Pods.
TYPICAL_SHARE: Final = 0.95


@dataclass(slots=True)
class NodeUse:
    """Free resources of a node."""

    node: TraceNode
    milli_cpu: int
    memory_mib: int
    # Free thousandths of each GPU.
    milli_gpus: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, node: TraceNode) -> NodeUse:
        """Return an empty node."""
        return cls(node, node.milli_cpu, node.memory_mib, [WHOLE] * node.gpus)

    def place(self, pod: TracePod, indices: Iterable[int]) -> None:
        """Take what the Pod requests from the GPUs with these indices."""
        self.milli_cpu -= pod.milli_cpu
        self.memory_mib -= pod.memory_mib
        for index in indices:
            self.milli_gpus[index] -= pod.milli_gpu
        assert self.milli_cpu >= 0 <= self.memory_mib, f"{self.node.name} has more Pods than fit"
        assert min(self.milli_gpus, default=0) >= 0, f"a GPU of {self.node.name} is allocated beyond its capacity"

    def unusable_milli_gpu(self, pod: TracePod) -> int:
        """Return the free thousandths that the Pod cannot use."""
        free = sum(self.milli_gpus)
        usable = [milli for milli in self.milli_gpus if milli >= pod.milli_gpu]
        fits = pod.milli_cpu <= self.milli_cpu and pod.memory_mib <= self.memory_mib and len(usable) >= pod.gpus
        if not pod.gpus or not fits or (pod.models and self.node.model not in pod.models):
            return free
        return free - sum(usable)


def typical_pods(pods: Sequence[TracePod]) -> list[tuple[TracePod, float]]:
    """Return the most frequent kinds of Pods that together make up 95 % of all, with their shares of these."""
    counted = Counter(pods).most_common()
    found: list[tuple[TracePod, int]] = []
    seen = 0
    for pod, count in counted:
        if seen >= TYPICAL_SHARE * len(pods):
            break
        found.append((pod, count))
        seen += count
    return [(pod, count / seen) for pod, count in found]


def fragmentation(nodes: Iterable[NodeUse], typical: Sequence[tuple[TracePod, float]]) -> float:
    """Return the expected thousandths of free GPUs that a typical Pod cannot use."""
    return sum(share * node.unusable_milli_gpu(pod) for node in nodes if node.milli_gpus for pod, share in typical)


def unusable_percent(
    nodes: Sequence[TraceNode], placements: Sequence[tuple[TracePod, str | None]], shares: Iterable[Share]
) -> float:
    """Return the expected share of all GPUs that is free and cannot be used by a typical Pod, in percent."""
    used = {node.name: NodeUse.of(node) for node in nodes}
    for pod, node_name in placements:
        if node_name is not None:
            used[node_name].place(replace(pod, gpus=0, milli_gpu=0), ())
    for share in shares:
        used[share.node].milli_gpus[share.gpu] -= share.milli
    total = WHOLE * sum(node.gpus for node in nodes)
    return 100 * fragmentation(used.values(), typical_pods([pod for pod, _ in placements])) / total
