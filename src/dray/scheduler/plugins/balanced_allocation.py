"""Prefers nodes where cpu and memory would be used to like degrees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any, Final

from dray.api.types.core_v1 import Pod
from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import SCORE_MAX
from dray.framework.resources import CPU, MEMORY
from dray.framework.status import SKIP, SUCCESS, Status
from dray.scheduler.handle import Handle

_DEFAULT: Final = (CPU, MEMORY)
_PAIR: Final = 2


class BalancedAllocation:
    """Score only."""

    name = "NodeResourcesBalancedAllocation"

    def __init__(self, args: Mapping[str, Any], _handle: Handle) -> None:
        self._resources = tuple(item["name"] for item in args.get("resources") or ()) or _DEFAULT

    def pre_score(self, state: CycleState, _pod: Pod, _nodes: Sequence[NodeInfo]) -> Status:
        """A Pod that asks for nothing is at home everywhere."""
        requests = state.pod_info.requests
        return SUCCESS if any(requests.amount(name) for name in self._resources) else SKIP

    def score(self, state: CycleState, _pod: Pod, node: NodeInfo) -> int:
        """The less the shares differ, the better."""
        pod = state.pod_info
        if self._resources is _DEFAULT:
            allocatable, requested, wanted = node.allocatable, node.requested, pod.requests
            if allocatable.milli_cpu and allocatable.memory:
                cpu = min((requested.milli_cpu + wanted.milli_cpu) / allocatable.milli_cpu, 1.0)
                memory = min((requested.memory + wanted.memory) / allocatable.memory, 1.0)
                return int((1 - abs(cpu - memory) / 2) * SCORE_MAX)
        return int((1 - _deviation(self._shares(state, node))) * SCORE_MAX)

    def _shares(self, state: CycleState, node: NodeInfo) -> list[float]:
        wanted = state.pod_info.requests
        totals = ((name, node.allocatable.amount(name)) for name in self._resources)
        return [
            min((node.requested.amount(name) + wanted.amount(name)) / total, 1.0) for name, total in totals if total
        ]


def _deviation(shares: list[float]) -> float:
    if len(shares) < _PAIR:
        return 0.0
    if len(shares) == _PAIR:
        return abs(shares[0] - shares[1]) / 2
    mean = sum(shares) / len(shares)
    return sqrt(sum((share - mean) ** 2 for share in shares) / len(shares))
