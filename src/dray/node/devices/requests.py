"""What Pods ask of device plugins: the limits of their containers. Pure."""

from __future__ import annotations

from collections.abc import Callable

from dray.api.quantity import Quantity
from dray.api.types.core_v1 import Container, Pod
from dray.node.topology.containers import peak

Known = Callable[[str], bool]


def served_by_claims(pod: Pod, container: str) -> frozenset[str]:
    """The extended resources that the container gets through a claim, not from a device plugin."""
    special = pod.status.extended_resource_claim_status
    if special is None:
        return frozenset()
    return frozenset(item.resource_name for item in special.request_mappings if item.container_name == container)


def container_request(pod: Pod, container: Container, known: Known) -> dict[str, int]:
    """How many devices the container needs of each known resource, in the order of names."""
    elsewhere = served_by_claims(pod, container.name)
    amounts = {
        name: Quantity.parse(amount).value()
        for name, amount in container.resources.limits.items()
        if name not in elsewhere and known(name)
    }
    return {name: amounts[name] for name in sorted(amounts) if amounts[name] > 0}


def pod_request(pod: Pod, known: Known) -> dict[str, int]:
    """How many devices of each resource the Pod needs at its busiest moment."""
    return peak(pod, lambda container: container_request(pod, container, known))
