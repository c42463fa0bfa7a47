"""How containers of a Pod share what they are given over time. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Final, TypeVar

from dray.api.types.core_v1 import Container, Pod

_Item = TypeVar("_Item", bound=Hashable)

GUARANTEED: Final = "Guaranteed"


def containers_of(pod: Pod) -> tuple[Container, ...]:
    """Init containers and containers, in the order they are admitted."""
    return (*pod.spec.init_containers, *pod.spec.containers)


def is_restartable(container: Container) -> bool:
    """Whether an init container goes on beside those after it."""
    return container.restart_policy == "Always"


def is_ordinary_init(pod: Pod, container: str) -> bool:
    """Whether the container is an init container that ends before others begin."""
    return any(item.name == container and not is_restartable(item) for item in pod.spec.init_containers)


def is_guaranteed(pod: Pod) -> bool:
    """Whether all limits equal requests."""
    return pod.status.qos_class == GUARANTEED


def reusable(pod: Pod, container: str, held: Callable[[str], frozenset[_Item]]) -> frozenset[_Item]:
    """What the container may take over; `held` says what each container has.

    Ordinary init containers leave what they had to those after them; whoever keeps running keeps its own.
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
    """What the Pod needs at its busiest moment; `amounts` says what one container needs.

    Containers run together, beside all restartable init containers; an ordinary init container runs beside the
    restartable ones before it.
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
