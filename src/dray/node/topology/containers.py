"""How the containers of a Pod share resources over time. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Final, TypeVar

from dray.api.types.core_v1 import Container, Pod

_Item = TypeVar("_Item", bound=Hashable)

GUARANTEED: Final = "Guaranteed"


def containers_of(pod: Pod) -> tuple[Container, ...]:
    """Return init containers and containers, in the order of admission."""
    return (*pod.spec.init_containers, *pod.spec.containers)


def is_restartable(container: Container) -> bool:
    """Whether an init container is a sidecar."""
    return container.restart_policy == "Always"


def is_ordinary_init(pod: Pod, container: str) -> bool:
    """Whether the container is an init container that is not a sidecar."""
    return any(item.name == container and not is_restartable(item) for item in pod.spec.init_containers)


def is_guaranteed(pod: Pod) -> bool:
    """Whether the Pod's QoS class is Guaranteed."""
    return pod.status.qos_class == GUARANTEED


def reusable(pod: Pod, container: str, held: Callable[[str], frozenset[_Item]]) -> frozenset[_Item]:
    """Return what the container may take over; `held` returns what each container has.

    Later containers may reuse what ordinary init containers had, but not what running containers have.
    """
    left: set[_Item] = set()
    kept: set[_Item] = set()
    after = False
    for init in pod.spec.init_containers:
        after = after or init.name == container
        if init.name == container:
            continue
        if is_restartable(init):
            kept |= held(init.name)
        elif not after:
            left |= held(init.name)
    for other in pod.spec.containers:
        if other.name != container:
            kept |= held(other.name)
    return frozenset(left - kept)


def peak(pod: Pod, amounts: Callable[[Container], Mapping[str, int]]) -> dict[str, int]:
    """Return the largest amounts that the Pod needs at the same time; `amounts` returns those of one container.

    Containers and sidecars run at the same time; an ordinary init container runs with the sidecars before it.
    """
    peaks: dict[str, int] = {}
    beside: dict[str, int] = {}
    for container in pod.spec.init_containers:
        mine = amounts(container)
        for name, amount in mine.items():
            peaks[name] = max(peaks.get(name, 0), amount + beside.get(name, 0))
        if is_restartable(container):
            _add(beside, [mine])
    together = dict(beside)
    _add(together, map(amounts, pod.spec.containers))
    names = sorted(peaks.keys() | together.keys())
    return {name: max(peaks.get(name, 0), together.get(name, 0)) for name in names}


def _add(totals: dict[str, int], parts: Iterable[Mapping[str, int]]) -> None:
    for part in parts:
        for name, amount in part.items():
            totals[name] = totals.get(name, 0) + amount
