"""What Pods ask of device plugins: the limits of their containers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from dray.api.quantity import Quantity
from dray.api.types.core_v1 import Container, Pod
from dray.node.devices.assignments import is_restartable

Known = Callable[[str], bool]


def containers_of(pod: Pod) -> tuple[Container, ...]:
    """Init containers and containers, in the order they are admitted."""
    return (*pod.spec.init_containers, *pod.spec.containers)


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
    """How many devices of each resource the Pod needs at its peak.

    Containers run together, beside all restartable init containers; an ordinary init container runs beside the
    restartable ones before it.
    """
    peaks = dict(_init_peaks(pod, known))
    together = _sum(
        [*(item for item in pod.spec.init_containers if is_restartable(item)), *pod.spec.containers], pod, known
    )
    names = sorted(peaks.keys() | together.keys())
    return {name: max(peaks.get(name, 0), together.get(name, 0)) for name in names}


def _sum(containers: list[Container], pod: Pod, known: Known) -> dict[str, int]:
    totals: dict[str, int] = {}
    for container in containers:
        _add(totals, container_request(pod, container, known))
    return totals


def _add(totals: dict[str, int], more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        totals[name] = totals.get(name, 0) + amount


def _init_peaks(pod: Pod, known: Known) -> Iterator[tuple[str, int]]:
    beside: dict[str, int] = {}
    peaks: dict[str, int] = {}
    for container in pod.spec.init_containers:
        mine = container_request(pod, container, known)
        for name, amount in mine.items():
            peaks[name] = max(peaks.get(name, 0), amount + beside.get(name, 0))
        if is_restartable(container):
            _add(beside, mine)
    yield from peaks.items()
