"""The scoring strategies of NodeResourcesFit, with the formulas of Kubernetes 1.37."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from dray.framework.node_info import NodeInfo
from dray.framework.plugins import SCORE_MAX
from dray.framework.pod_info import PodInfo
from dray.framework.resources import CPU, MEMORY
from dray.scheduler.plugins.arguments import Arguments

Scorer: TypeAlias = Callable[[PodInfo, Sequence[NodeInfo]], list[int]]
# Scores nodes as a whole, on which the Pods are placed already.
PlacementScorer: TypeAlias = Callable[[Sequence[PodInfo], Sequence[NodeInfo]], int]
# Returns the score of resources, each with its use, its capacity and its weight; those without capacity do not count.
Rule: TypeAlias = Callable[[Iterable[tuple[int, int, int]]], int]
Weights: TypeAlias = Sequence[tuple[str, int]]
# Points (utilization in percent, score of a node), by increasing utilization.
Shape: TypeAlias = Sequence[tuple[int, int]]

LEAST_ALLOCATED: Final = "LeastAllocated"
MOST_ALLOCATED: Final = "MostAllocated"
REQUESTED_TO_CAPACITY_RATIO: Final = "RequestedToCapacityRatio"
STRATEGIES: Final = (LEAST_ALLOCATED, MOST_ALLOCATED, REQUESTED_TO_CAPACITY_RATIO)
SCORING_STRATEGY: Final = "scoringStrategy"
PLACEMENT_STRATEGY: Final = "placementScoringStrategy"
WEIGHT_MAX: Final = 100
UTILIZATION_MAX: Final = 100
# Of a point of the shape; scores of nodes are ten times as large.
SHAPE_SCORE_MAX: Final = 10
DEFAULT_WEIGHTS: Final[Weights] = ((CPU, 1), (MEMORY, 1))


# Called with (node, resource): how many devices that serve it are in use there, and how many there are.
DeviceUsage: TypeAlias = Callable[[NodeInfo, str], tuple[int, int]]


def no_devices(_node: NodeInfo, _name: str) -> tuple[int, int]:
    """Return no devices."""
    return 0, 0


def make_scorer(strategy: Mapping[str, Any], device_usage: DeviceUsage = no_devices) -> Scorer:
    """Return the scorer of a strategy; raises `ValueError` or `TypeError`."""
    kind, weights, rule = _parse(strategy, SCORING_STRATEGY, LEAST_ALLOCATED, DEFAULT_WEIGHTS)
    if kind == LEAST_ALLOCATED and weights == DEFAULT_WEIGHTS:
        return least_allocated_cpu_and_memory

    def score(pod: PodInfo, node: NodeInfo) -> int:
        return rule([(*usage(name, pod, node, device_usage), weight) for name, weight in weights])

    return lambda pod, nodes: [score(pod, node) for node in nodes]


def make_placement_scorer(
    placement: Mapping[str, Any], strategy: Mapping[str, Any], device_usage: DeviceUsage = no_devices
) -> PlacementScorer:
    """Return the scorer of domains; resources are by default those of the strategy for nodes.

    Raises `ValueError` or `TypeError`.
    """
    _, inherited, _ = _parse(strategy, SCORING_STRATEGY, LEAST_ALLOCATED, DEFAULT_WEIGHTS)
    _, weights, rule = _parse(placement, PLACEMENT_STRATEGY, MOST_ALLOCATED, inherited)

    def score(pods: Sequence[PodInfo], nodes: Sequence[NodeInfo]) -> int:
        return rule([(*_total_usage(name, pods, nodes, device_usage), weight) for name, weight in weights])

    return score


def _parse(strategy: Mapping[str, Any], path: str, default: str, weights: Weights) -> tuple[str, Weights, Rule]:
    """Return the type, the resources and the rule of a strategy."""
    given = Arguments(strategy, path)
    kind = given.choice("type", default, STRATEGIES)
    weights = _weights(given.items("resources"), path) or weights
    ratio = given.value("requestedToCapacityRatio")
    given.end()
    at = f"{path}.requestedToCapacityRatio"
    if kind == REQUESTED_TO_CAPACITY_RATIO:
        if ratio is None:
            raise ValueError(f"{at}: Required value: must be specified when type is {kind}")
        return kind, weights, partial(_ratio, parse_shape(ratio, at))
    if ratio is not None:
        raise ValueError(f"{at}: Forbidden: must be nil when type is not {REQUESTED_TO_CAPACITY_RATIO}")
    return kind, weights, partial(_average, _least if kind == LEAST_ALLOCATED else _most)


def _average(share: Callable[[int, int], int], resources: Iterable[tuple[int, int, int]]) -> int:
    total = weight_sum = 0
    for used, capacity, weight in resources:
        if capacity:
            total += share(used, capacity) * weight
            weight_sum += weight
    return total // weight_sum if weight_sum else 0


def _weights(resources: Sequence[Mapping[str, Any]], parent: str) -> Weights:
    found: list[tuple[str, int]] = []
    for index, item in enumerate(resources):
        path = f"{parent}.resources[{index}]"
        given = Arguments(item, path)
        name, weight = given.value("name"), given.value("weight") or 1
        given.end()
        if not isinstance(name, str) or not name:
            raise ValueError(f"{path}.name: Required value")
        if not isinstance(weight, int) or not 0 < weight <= WEIGHT_MAX:
            text = f"resource weight of {name} not in valid range (0, {WEIGHT_MAX}]"
            raise ValueError(f"{path}.weight: Invalid value: {weight}: {text}")
        found.append((name, weight))
    return tuple(found)


def parse_shape(ratio: Any, path: str) -> Shape:
    """Return the points (utilization, score of a node); raises `ValueError` or `TypeError`."""
    if not isinstance(ratio, dict):
        raise TypeError(f"{path}: must be a map")
    given = Arguments(ratio, path)
    points = given.items("shape")
    given.end()
    if not points:
        raise ValueError(f"{path}.shape: Required value: at least one point must be specified")
    found: list[tuple[int, int]] = []
    for index, point in enumerate(points):
        at = Arguments(point, f"{path}.shape[{index}]")
        utilization = at.integer("utilization", 0, 0, UTILIZATION_MAX)
        score = at.integer("score", 0, 0, SHAPE_SCORE_MAX)
        at.end()
        if found and utilization <= found[-1][0]:
            text = "values must be sorted in increasing order"
            raise ValueError(f"{path}.shape[{index}].utilization: Invalid value: {utilization}: {text}")
        found.append((utilization, score * SCORE_MAX // SHAPE_SCORE_MAX))
    return tuple(found)


def shape_value(shape: Shape, utilization: int) -> int:
    """Return the score at a utilization: linear between points, constant outside of them."""
    previous: tuple[int, int] | None = None
    for at, score in shape:
        if utilization <= at:
            if previous is None:
                return score
            rise, width = (score - previous[1]) * (utilization - previous[0]), at - previous[0]
            # As in Go, the quotient is rounded towards zero.
            return previous[1] + (rise // width if rise >= 0 else -(-rise // width))
        previous = at, score
    return shape[-1][1]


def _ratio(shape: Shape, resources: Iterable[tuple[int, int, int]]) -> int:
    total = weight_sum = 0
    for used, capacity, weight in resources:
        if not capacity:
            continue
        share = UTILIZATION_MAX if used > capacity else used * UTILIZATION_MAX // capacity
        value = shape_value(shape, share)
        if value:
            total += value * weight
            weight_sum += weight
    return int(total / weight_sum + 0.5) if weight_sum else 0


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


def _total_usage(
    name: str, pods: Sequence[PodInfo], nodes: Sequence[NodeInfo], device_usage: DeviceUsage
) -> tuple[int, int]:
    """Return the use of a resource on nodes that have the Pods, and its capacity; (0, 0) if it does not count."""
    if name == CPU:
        return sum(node.non_zero_milli_cpu for node in nodes), sum(node.allocatable.milli_cpu for node in nodes)
    if name == MEMORY:
        return sum(node.non_zero_memory for node in nodes), sum(node.allocatable.memory for node in nodes)
    if not any(pod.requests.amount(name) for pod in pods):
        return 0, 0
    used = capacity = 0
    for node in nodes:
        taken, total = 0, node.allocatable.amount(name)
        if total == 0:
            taken, total = device_usage(node, name)
        used += taken + node.requested.amount(name)
        capacity += total
    return used, capacity


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
