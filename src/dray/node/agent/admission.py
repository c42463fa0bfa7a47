"""Whether a Pod fits on the node, as kubelet checks it once more after the scheduler did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dray.api.types.core_v1 import Pod
from dray.framework.resources import CPU, PODS, amounts_of, pod_requests
from dray.node.interface import Rejection

_NATIVE: Final = frozenset({CPU, "memory", "ephemeral-storage"})


def check_fit(pod: Pod, others: Iterable[Pod], allocatable: Mapping[str, str]) -> Rejection | None:
    """Why the Pod has no room besides the others; None when it has."""
    capacity = amounts_of(allocatable)
    used: dict[str, int] = {}
    count = 0
    for other in others:
        count += 1
        for name, amount in pod_requests(other).items():
            used[name] = used.get(name, 0) + amount
    if count + 1 > capacity.get(PODS, 0):
        return _out_of(PODS, 1, count, capacity.get(PODS, 0))
    for name, amount in sorted(pod_requests(pod).items()):
        # Resources the node does not know may be handed out by someone else.
        known = name in _NATIVE or name in capacity
        if amount and known and used.get(name, 0) + amount > capacity.get(name, 0):
            return _out_of(name, amount, used.get(name, 0), capacity.get(name, 0))
    return None


def check_place(pod: Pod, labels: Mapping[str, str]) -> Rejection | None:
    """Whether the node is one that the Pod selects."""
    if all(labels.get(name) == value for name, value in pod.spec.node_selector.items()):
        return None
    return Rejection("NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector")


def _out_of(name: str, requested: int, used: int, capacity: int) -> Rejection:
    return Rejection(
        f"OutOf{name}",
        f"Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}",
    )
