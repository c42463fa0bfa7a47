"""Prefers nodes with balanced use of cpu and memory."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import sqrt
from typing import Any, Final

from dray.api.types.core_v1 import Pod
from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import SCORE_MAX
from dray.framework.resources import CPU, MEMORY, Resources
from dray.framework.status import SKIP, SUCCESS, Status
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.arguments import Arguments

_DEFAULT: Final = (CPU, MEMORY)
_PAIR: Final = 2


def _resource_names(items: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the names of resources, whose weights are all one; raises `ValueError` or `TypeError`."""
    names: list[str] = []
    for index, item in enumerate(items):
        path = f"resources[{index}]"
        given = Arguments(item, path)
        name, weight = given.text("name"), given.integer("weight", 1, 0, None)
        given.end()
        if not name:
            raise ValueError(f"{path}.name: Required value")
        if name in names:
            raise ValueError(f'{path}.name: Duplicate value: "{name}"')
        if weight != 1:
            raise ValueError(f"{path}.weight: Invalid value: {weight}: must be 1")
        names.append(name)
    return tuple(names)


class BalancedAllocation:
    """Scores nodes by how much the utilization of their resources differs."""

    name = "NodeResourcesBalancedAllocation"

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._extended_resources = handle.extended_resources
        given = Arguments(args)
        self._resources = _resource_names(given.items("resources")) or _DEFAULT
        given.end()

    def pre_score(self, state: CycleState, _pod: Pod, _nodes: Sequence[NodeInfo]) -> Status:
        """Skip Pods without requests."""
        requests = state.pod_info.requests
        for name in self._resources:
            if requests.amount(name):
                return SUCCESS
        return SKIP

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        """Return a higher score the less the utilizations differ."""
        return self.score_all(state, pod, (node,))[0]

    def score_all(self, state: CycleState, _pod: Pod, nodes: Sequence[NodeInfo]) -> list[int]:
        """Score all nodes, with a fast path for two resources."""
        wanted = state.pod_info.requests
        if self._resources is not _DEFAULT:
            return [int((1 - _deviation(self._shares(wanted, node))) * SCORE_MAX) for node in nodes]
        wanted_milli_cpu, wanted_memory = wanted.milli_cpu, wanted.memory
        scores: list[int] = []
        for node in nodes:
            allocatable, requested = node.allocatable, node.requested
            if not (allocatable.milli_cpu and allocatable.memory):
                scores.append(SCORE_MAX)
                continue
            cpu = (requested.milli_cpu + wanted_milli_cpu) / allocatable.milli_cpu
            memory = (requested.memory + wanted_memory) / allocatable.memory
            # An overcommitted resource counts as full.
            difference = (cpu if cpu < 1 else 1.0) - (memory if memory < 1 else 1.0)
            scores.append(int((1 - (difference if difference > 0 else -difference) / 2) * SCORE_MAX))
        return scores

    def score_cache_key(self, state: CycleState) -> Hashable | None:
        """Return the requests; None if devices count, since they are allocated without a change of the node."""
        if self._resources is not _DEFAULT and any(map(self._extended_resources.serves_resource, self._resources)):
            return None
        return state.pod_info.requests

    def _shares(self, wanted: Resources, node: NodeInfo) -> list[float]:
        shares: list[float] = []
        for name in self._resources:
            used, total = node.requested.amount(name), node.allocatable.amount(name)
            if not total:
                taken, total = self._extended_resources.device_usage(node, name)
                used += taken
            if total:
                shares.append(min((used + wanted.amount(name)) / total, 1.0))
        return shares


def _deviation(shares: list[float]) -> float:
    if len(shares) < _PAIR:
        return 0.0
    if len(shares) == _PAIR:
        return abs(shares[0] - shares[1]) / 2
    mean = sum(shares) / len(shares)
    return sqrt(sum((share - mean) ** 2 for share in shares) / len(shares))
