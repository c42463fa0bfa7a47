"""The scoring strategies of NodeResourcesFit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from dray.framework.node_info import NodeInfo
from dray.framework.plugins import SCORE_MAX
from dray.framework.pod_info import PodInfo
from dray.framework.resources import CPU, MEMORY

Scorer: TypeAlias = Callable[[PodInfo, Sequence[NodeInfo]], list[int]]
Weights: TypeAlias = Sequence[tuple[str, int]]

LEAST_ALLOCATED: Final = "LeastAllocated"
MOST_ALLOCATED: Final = "MostAllocated"
DEFAULT_WEIGHTS: Final[Weights] = ((CPU, 1), (MEMORY, 1))


# Called with (node, resource): how many devices that serve it are in use there, and how many there are.
DeviceUsage: TypeAlias = Callable[[NodeInfo, str], tuple[int, int]]


def no_devices(_node: NodeInfo, _name: str) -> tuple[int, int]:
    """Return no devices."""
    return 0, 0


def make_scorer(strategy: Mapping[str, Any], device_usage: DeviceUsage = no_devices) -> Scorer:
    """Return the scorer of a strategy; raise ValueError for an unknown one."""
    kind = strategy.get("type") or LEAST_ALLOCATED
    if kind not in (LEAST_ALLOCATED, MOST_ALLOCATED):
        raise ValueError(f'scoringStrategy.type "{kind}" is not supported; use {LEAST_ALLOCATED} or {MOST_ALLOCATED}')
    listed = tuple((item["name"], int(item.get("weight") or 1)) for item in strategy.get("resources") or ())
    weights = listed or DEFAULT_WEIGHTS
    if kind == LEAST_ALLOCATED and weights == DEFAULT_WEIGHTS:
        return least_allocated_cpu_and_memory
    share = _least if kind == LEAST_ALLOCATED else _most

    def score(pod: PodInfo, node: NodeInfo) -> int:
        total = weight_sum = 0
        for name, weight in weights:
            used, capacity = usage(name, pod, node, device_usage)
            if capacity == 0:
                continue
            total += share(used, capacity) * weight
            weight_sum += weight
        return total // weight_sum if weight_sum else 0

    return lambda pod, nodes: [score(pod, node) for node in nodes]


def usage(name: str, pod: PodInfo, node: NodeInfo, device_usage: DeviceUsage = no_devices) -> tuple[int, int]:
    """Return the use of a resource with the Pod, and its capacity; (0, 0) if it does not count."""
    if name == CPU:
        return node.non_zero_milli_cpu + pod.non_zero_milli_cpu, node.allocatable.milli_cpu
    if name == MEMORY:
        return node.non_zero_memory + pod.non_zero_memory, node.allocatable.memory
    wanted = pod.requests.amount(name)
    if wanted == 0:
        # A resource that the Pod does not request does not count.
        return 0, 0
    total = node.allocatable.amount(name)
    if total == 0:
        taken, total = device_usage(node, name)
        return taken + node.requested.amount(name) + wanted, total
    return node.requested.amount(name) + wanted, total


def least_allocated_cpu_and_memory(pod: PodInfo, nodes: Sequence[NodeInfo]) -> list[int]:
    """Score by the default strategy; specialized, because it runs for every feasible node."""
    pod_milli_cpu, pod_memory = pod.non_zero_milli_cpu, pod.non_zero_memory
    scores: list[int] = []
    for node in nodes:
        allocatable = node.allocatable
        milli_cpu, memory = allocatable.milli_cpu, allocatable.memory
        free_milli_cpu = milli_cpu - node.non_zero_milli_cpu - pod_milli_cpu
        free_memory = memory - node.non_zero_memory - pod_memory
        if milli_cpu and memory:
            cpu_score = free_milli_cpu * SCORE_MAX // milli_cpu if free_milli_cpu > 0 else 0
            memory_score = free_memory * SCORE_MAX // memory if free_memory > 0 else 0
            scores.append((cpu_score + memory_score) // 2)
        elif milli_cpu:
            scores.append(max(free_milli_cpu, 0) * SCORE_MAX // milli_cpu)
        else:
            scores.append(max(free_memory, 0) * SCORE_MAX // memory if memory else 0)
    return scores


def _least(used: int, capacity: int) -> int:
    return (capacity - used) * SCORE_MAX // capacity if used <= capacity else 0


def _most(used: int, capacity: int) -> int:
    # Default requests may exceed the capacity.
    return min(used, capacity) * SCORE_MAX // capacity
