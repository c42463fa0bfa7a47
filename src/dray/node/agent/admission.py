"""Admission checks of the node: requests and node selector, as in kubelet. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from dray.api.types.core_v1 import Container, Pod
from dray.framework.resources import CPU, PODS, pod_requests
from dray.node.devices.assignments import served_by_claims
from dray.node.resource_manager import Rejection

_NATIVE: Final = frozenset({CPU, "memory", "ephemeral-storage"})


Amounts = Mapping[str, int]


def check_fit(asked: Amounts, others: Iterable[Amounts], capacity: Amounts) -> Rejection | None:
    """Return why the requests do not fit beside those of the other Pods; None if they do. See `own_requests`."""
    used: dict[str, int] = {}
    count = 0
    for other in others:
        count += 1
        for name, amount in other.items():
            used[name] = used.get(name, 0) + amount
    if count + 1 > capacity.get(PODS, 0):
        return _out_of(PODS, 1, count, capacity.get(PODS, 0))
    for name, amount in sorted(asked.items()):
        # Unknown resources may be managed by another component.
        known = name in _NATIVE or name in capacity
        if amount and known and used.get(name, 0) + amount > capacity.get(name, 0):
            return _out_of(name, amount, used.get(name, 0), capacity.get(name, 0))
    return None


def own_requests(pod: Pod) -> dict[str, int]:
    """Return the Pod's requests for node resources, CPU in millicores.

    Extended resources that a claim provides are not included.
    """
    if pod.status.extended_resource_claim_status is None:
        return pod_requests(pod)

    def without(containers: Iterable[Container]) -> tuple[Container, ...]:
        return tuple(_without(item, served_by_claims(pod, item.name)) for item in containers)

    spec = msgspec.structs.replace(
        pod.spec, containers=without(pod.spec.containers), init_containers=without(pod.spec.init_containers)
    )
    # The allocated resources in the status include them too.
    status = msgspec.structs.replace(pod.status, container_statuses=(), init_container_statuses=())
    return pod_requests(msgspec.structs.replace(pod, spec=spec, status=status))


def _without(container: Container, names: frozenset[str]) -> Container:
    resources = container.resources
    requests = {name: amount for name, amount in resources.requests.items() if name not in names}
    return msgspec.structs.replace(container, resources=msgspec.structs.replace(resources, requests=requests))


def check_node_selector(pod: Pod, labels: Mapping[str, str]) -> Rejection | None:
    """Return why the Pod's node selector does not match the labels; None if it does."""
    if all(labels.get(name) == value for name, value in pod.spec.node_selector.items()):
        return None
    return Rejection("NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector")


def _out_of(name: str, requested: int, used: int, capacity: int) -> Rejection:
    return Rejection(
        f"OutOf{name}",
        f"Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}",
    )
