"""Resource amounts of Pods and nodes as integers; cpu in thousandths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from dray.api.quantity import Quantity
from dray.api.types.core_v1 import Container, ContainerStatus, Pod
from dray.framework.node_allocatable import integers, pod_amounts

CPU: Final = "cpu"
MEMORY: Final = "memory"
EPHEMERAL_STORAGE: Final = "ephemeral-storage"
PODS: Final = "pods"
# Requests assumed in scores for containers without any, so that such Pods are spread, too.
DEFAULT_MILLI_CPU: Final = 100
DEFAULT_MEMORY: Final = 200 * 1024 * 1024
_POD_LEVEL: Final = (CPU, MEMORY)


class Resources:
    """Amounts of resources. Immutable."""

    __slots__ = ("ephemeral_storage", "memory", "milli_cpu", "scalars")

    def __init__(
        self,
        milli_cpu: int = 0,
        memory: int = 0,
        ephemeral_storage: int = 0,
        scalars: Mapping[str, int] | None = None,
    ) -> None:
        self.milli_cpu = milli_cpu
        self.memory = memory
        self.ephemeral_storage = ephemeral_storage
        # Extended resources and huge pages.
        self.scalars: Mapping[str, int] = scalars or {}

    @classmethod
    def of(cls, amounts: Mapping[str, int]) -> Resources:
        """Return the amounts by name; `pods` and zero amounts are left out."""
        scalars = {name: amount for name, amount in amounts.items() if amount and name not in _NAMED}
        return cls(amounts.get(CPU, 0), amounts.get(MEMORY, 0), amounts.get(EPHEMERAL_STORAGE, 0), scalars)

    def plus(self, other: Resources, sign: int = 1) -> Resources:
        """Return the sum; with `sign` -1 the difference."""
        scalars = self.scalars
        if other.scalars:
            scalars = dict(scalars)
            for name, amount in other.scalars.items():
                scalars[name] = scalars.get(name, 0) + sign * amount
                if not scalars[name]:
                    del scalars[name]
        return Resources(
            self.milli_cpu + sign * other.milli_cpu,
            self.memory + sign * other.memory,
            self.ephemeral_storage + sign * other.ephemeral_storage,
            scalars,
        )

    def split(self, names: frozenset[str]) -> tuple[Resources, Resources]:
        """Return the amounts without these scalars, and these scalars alone."""
        if not names or names.isdisjoint(self.scalars):
            return self, NOTHING
        rest = {name: amount for name, amount in self.scalars.items() if name not in names}
        these = {name: amount for name, amount in self.scalars.items() if name in names}
        return Resources(self.milli_cpu, self.memory, self.ephemeral_storage, rest), Resources(scalars=these)

    def amount(self, name: str) -> int:
        """Return the amount of one resource."""
        if name == CPU:
            return self.milli_cpu
        if name == MEMORY:
            return self.memory
        if name == EPHEMERAL_STORAGE:
            return self.ephemeral_storage
        return self.scalars.get(name, 0)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Resources)
            and self.milli_cpu == other.milli_cpu
            and self.memory == other.memory
            and self.ephemeral_storage == other.ephemeral_storage
            and self.scalars == other.scalars
        )

    def __hash__(self) -> int:
        # Few amounts differ in their scalars alone.
        return hash((self.milli_cpu, self.memory, self.ephemeral_storage))

    def __repr__(self) -> str:
        scalars = tuple(sorted(self.scalars.items()))
        return f"Resources{(self.milli_cpu, self.memory, self.ephemeral_storage, scalars)}"


NOTHING: Final = Resources()
_NAMED: Final = frozenset({CPU, MEMORY, EPHEMERAL_STORAGE, PODS})


def amounts_of(quantities: Mapping[str, str]) -> dict[str, int]:
    """Return quantities as integers."""
    return {
        name: Quantity.parse(text).milli_value() if name == CPU else Quantity.parse(text).value()
        for name, text in quantities.items()
    }


def pod_requests(pod: Pod, defaults: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return the Pod's effective requests; `defaults` are used for containers without a request.

    Containers and sidecars run at the same time. An init container runs alone with the sidecars before it. What the
    devices of a scheduled Pod use of its node is included.
    """
    statuses = _statuses(pod)
    total: dict[str, int] = {}
    for container in pod.spec.containers:
        _add(total, _container_requests(container, statuses, defaults))
    if pod.spec.init_containers:
        _add_init_containers(
            total, pod.spec.init_containers, lambda item: _container_requests(item, statuses, defaults)
        )
    if pod.status.node_allocatable_resource_claim_statuses and pod.spec.node_name:
        # Without a node they are what an earlier attempt has left.
        _add(total, integers(pod_amounts(pod.status.node_allocatable_resource_claim_statuses)))
    if pod.spec.resources is not None:
        _apply_pod_level(total, pod.spec.resources.requests)
    if pod.spec.overhead:
        _add(total, amounts_of(pod.spec.overhead))
    return total


def container_requests(pod: Pod) -> dict[str, int]:
    """Return the requests of the Pod's containers, without those of the Pod as a whole."""
    return _combined(pod, lambda container: amounts_of(container.resources.requests))


def container_limits(pod: Pod) -> dict[str, int]:
    """Return the limits of the Pod's containers, without those of the Pod as a whole."""
    return _combined(pod, lambda container: amounts_of(container.resources.limits))


def declared_requests(pod: Pod) -> dict[str, int]:
    """Return the requests by the Pod's spec alone, without what a resize leaves in its status."""
    total = container_requests(pod)
    if pod.spec.resources is not None:
        _apply_pod_level(total, pod.spec.resources.requests)
    _add(total, amounts_of(pod.spec.overhead))
    return total


def declared_limits(pod: Pod) -> dict[str, int]:
    """Return the limits by the Pod's spec; the overhead counts for resources that have one."""
    total = container_limits(pod)
    if pod.spec.resources is not None:
        _apply_pod_level(total, pod.spec.resources.limits)
    _add(total, {name: amount for name, amount in amounts_of(pod.spec.overhead).items() if name in total})
    return total


def _combined(pod: Pod, amounts: Callable[[Container], dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for container in pod.spec.containers:
        _add(total, amounts(container))
    if pod.spec.init_containers:
        _add_init_containers(total, pod.spec.init_containers, amounts)
    return total


def _add_init_containers(
    total: dict[str, int], containers: Iterable[Container], amounts: Callable[[Container], dict[str, int]]
) -> None:
    sidecars: dict[str, int] = {}
    highest: dict[str, int] = {}
    for container in containers:
        requests = amounts(container)
        if container.restart_policy == "Always":
            _add(total, requests)
            _add(sidecars, requests)
            _raise_to(highest, sidecars)
        else:
            _add(requests, sidecars)
            _raise_to(highest, requests)
    _raise_to(total, highest)


def _container_requests(
    container: Container, statuses: Mapping[str, ContainerStatus], defaults: Mapping[str, int] | None
) -> dict[str, int]:
    requests = amounts_of(container.resources.requests)
    status = statuses.get(container.name)
    if status is not None:
        # During a resize the maximum of desired, allocated and actual resources counts.
        _raise_to(requests, amounts_of(status.allocated_resources))
        if status.resources is not None:
            _raise_to(requests, amounts_of(status.resources.requests))
    for name, amount in (defaults or {}).items():
        requests.setdefault(name, amount)
    return requests


def _statuses(pod: Pod) -> Mapping[str, ContainerStatus]:
    every = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    return {status.name: status for status in every if status.resources is not None or status.allocated_resources}


def _apply_pod_level(total: dict[str, int], quantities: Mapping[str, str]) -> None:
    """Replace the sum of the containers by the Pod-level requests or limits."""
    requested = amounts_of(quantities).items()
    total.update({name: amount for name, amount in requested if name in _POD_LEVEL or name.startswith("hugepages-")})


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _raise_to(total: dict[str, int], least: Mapping[str, int]) -> None:
    for name, amount in least.items():
        if amount > total.get(name, 0):
            total[name] = amount
