"""Prefers nodes whose use of cpu and memory the Pod balances. The formula is that of Kubernetes 1.36 and later."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import sqrt
from typing import Any, Final

from dray.api.types.core_v1 import Pod
from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import SCORE_MAX
from dray.framework.resources import CPU, EPHEMERAL_STORAGE, MEMORY
from dray.framework.status import SKIP, SUCCESS, Status
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.arguments import Arguments

_DEFAULT: Final = (CPU, MEMORY)
# They count on every node, asked for or not.
_ALWAYS: Final = frozenset({CPU, MEMORY, EPHEMERAL_STORAGE})
_PAIR: Final = 2
# A Pod that changes nothing scores 75; the balance is a number from 50 to 100.
_HALF: Final = SCORE_MAX // 2


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
    """Scores nodes by how much the Pod changes the balance of their utilization."""

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
        """Return more than 75 if the node is more balanced with the Pod, less if it is less balanced."""
        return self.score_all(state, pod, (node,))[0]

    def score_all(self, state: CycleState, _pod: Pod, nodes: Sequence[NodeInfo]) -> list[int]:
        """Score all nodes."""
        requests = state.pod_info.requests
        asked = [(name, requests.amount(name)) for name in self._resources]
        counted = [(name, amount) for name, amount in asked if amount or name in _ALWAYS]
        return [self._score(counted, node) for node in nodes]

    def score_cache_key(self, state: CycleState) -> Hashable | None:
        """Return the requests; None if devices count, since they are allocated without a change of the node."""
        if self._resources is not _DEFAULT and any(map(self._extended_resources.serves_resource, self._resources)):
            return None
        return state.pod_info.requests

    def _score(self, requests: Sequence[tuple[str, int]], node: NodeInfo) -> int:
        before: list[float] = []
        after: list[float] = []
        for name, asked in requests:
            used, total = node.requested.amount(name), node.allocatable.amount(name)
            if not total:
                taken, total = self._extended_resources.device_usage(node, name)
                used += taken
            if total:
                # An overcommitted resource counts as full.
                before.append(used / total if used < total else 1.0)
                after.append((used + asked) / total if used + asked < total else 1.0)
        return _HALF + (_HALF + _balance(after) - _balance(before)) // 2


def _balance(shares: list[float]) -> int:
    """Return from 50 to 100, the more the less the shares deviate from their mean."""
    count = len(shares)
    if count == _PAIR:
        deviation = abs(shares[0] - shares[1]) / 2
    elif count < _PAIR:
        deviation = 0.0
    else:
        mean = sum(shares) / count
        deviation = sqrt(sum((share - mean) ** 2 for share in shares) / count)
    return int((1 - deviation) * SCORE_MAX)
