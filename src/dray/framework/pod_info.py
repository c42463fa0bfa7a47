"""A Pod with the values that the scheduler computes from it once."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import msgspec

from dray.api.document import NamespacedName
from dray.api.types.core_v1 import Container, Pod, PodSpec, ResourceRequirements
from dray.framework.node_allocatable import Statuses
from dray.framework.pod_affinity import pod_affinity_terms
from dray.framework.resources import CPU, DEFAULT_MEMORY, DEFAULT_MILLI_CPU, MEMORY, Resources, pod_requests

# (address, protocol, port)
HostPort: TypeAlias = tuple[str, str, int]

ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - compared, not bound
NO_NAMES: Final[frozenset[str]] = frozenset()
# Requests of containers that are parsed once: Pods of one workload have the same, and a cluster has few more.
REQUESTS_MAX: Final = 1024
_DEFAULTS: Final = {CPU: DEFAULT_MILLI_CPU, MEMORY: DEFAULT_MEMORY}


class PodInfo:
    """A Pod and its requests. Immutable."""

    __slots__ = (
        "affinity",
        "device_requests",
        "device_resources",
        "host_ports",
        "key",
        "non_zero_memory",
        "non_zero_milli_cpu",
        "pod",
        "priority",
        "requests",
        "uid",
    )

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        self.uid: str = pod.metadata.uid or ""
        self.key = NamespacedName(pod.metadata.namespace or "", pod.metadata.name or "")
        self.priority: int = pod.spec.priority or 0
        total = _requests_of(pod)
        # Extended resources that devices serve on the Pod's node; they use nothing of the node's allocatable amounts.
        self.device_resources = device_resources(pod)
        self.requests, self.device_requests = total.requests.split(self.device_resources)
        # For scores only: containers without requests count with a default.
        self.non_zero_milli_cpu, self.non_zero_memory = total.non_zero_milli_cpu, total.non_zero_memory
        self.host_ports = host_ports(pod)
        # Its pod affinity terms; None if it has none.
        self.affinity = pod_affinity_terms(pod)

    def updated(self, pod: Pod) -> PodInfo:
        """Return the changed Pod; requests are computed again only if they may differ."""
        before, after = self.pod.status, pod.status
        if (
            self.pod.spec == pod.spec
            and before.container_statuses == after.container_statuses
            and before.init_container_statuses == after.init_container_statuses
            and before.extended_resource_claim_status == after.extended_resource_claim_status
            and before.node_allocatable_resource_claim_statuses == after.node_allocatable_resource_claim_statuses
        ):
            return self.with_pod(pod)
        return PodInfo(pod)

    def with_pod(self, pod: Pod) -> PodInfo:
        """Return the same requests for a Pod that differs in other fields only."""
        info = PodInfo.__new__(PodInfo)
        info.pod = pod
        info.uid, info.key, info.priority = self.uid, self.key, self.priority
        info.requests = self.requests
        info.device_resources, info.device_requests = self.device_resources, self.device_requests
        info.non_zero_milli_cpu, info.non_zero_memory = self.non_zero_milli_cpu, self.non_zero_memory
        info.host_ports, info.affinity = self.host_ports, self.affinity
        return info

    def on_node(
        self, node_name: str, served: frozenset[str] = NO_NAMES, claim_statuses: Statuses | None = None
    ) -> PodInfo:
        """Return the Pod as bound to the node.

        Devices serve extended resources there, and use resources of the node (None: as the Pod's status says).
        """
        spec = msgspec.structs.replace(self.pod.spec, node_name=node_name)
        pod = msgspec.structs.replace(self.pod, spec=spec)
        if claim_statuses is None or claim_statuses == pod.status.node_allocatable_resource_claim_statuses == ():
            info = self.with_pod(pod)
        else:
            status = msgspec.structs.replace(pod.status, node_allocatable_resource_claim_statuses=tuple(claim_statuses))
            info = PodInfo(msgspec.structs.replace(pod, status=status))
        if served:
            info.device_resources = served
            info.requests, info.device_requests = info.requests.split(served)
        return info


def device_resources(pod: Pod) -> frozenset[str]:
    """Return the resources of a scheduled Pod that its extended-resource claim serves."""
    status = pod.status.extended_resource_claim_status
    if status is None or not pod.spec.node_name:
        return NO_NAMES
    return frozenset(mapping.resource_name for mapping in status.request_mappings)


def host_ports(pod: Pod) -> tuple[HostPort, ...]:
    """Return the host ports of the Pod's containers and sidecars."""
    containers = pod.spec.containers
    if pod.spec.init_containers:
        containers += tuple(item for item in pod.spec.init_containers if item.restart_policy == "Always")
    found: list[HostPort] = []
    for container in containers:
        for port in container.ports:
            if port.host_port:
                address, protocol = port.host_ip or ANY_ADDRESS, port.protocol or "TCP"
                found.append((address, protocol, port.host_port))
    return tuple(found)


def ports_conflict(wanted: HostPort, taken: HostPort) -> bool:
    """Return whether two ports conflict on one node."""
    if wanted[1:] != taken[1:]:
        return False
    return wanted[0] == taken[0] or ANY_ADDRESS in (wanted[0], taken[0])


class _Requests(NamedTuple):
    requests: Resources
    non_zero_milli_cpu: int
    non_zero_memory: int


def _requests_of(pod: Pod) -> _Requests:
    """Return the Pod's effective requests; Pods whose containers request the same share one object."""
    spec, status = pod.spec, pod.status
    if (
        spec.init_containers
        or spec.resources is not None
        or spec.overhead
        or status.container_statuses
        or status.init_container_statuses
        or status.node_allocatable_resource_claim_statuses
    ):
        return _compute_requests(pod)
    return _container_requests(tuple([tuple(item.resources.requests.items()) for item in spec.containers]))


@lru_cache(maxsize=REQUESTS_MAX)
def _container_requests(requests: tuple[tuple[tuple[str, str], ...], ...]) -> _Requests:
    """Return the requests of a Pod that has nothing but containers with these requests."""
    containers = tuple([Container(resources=ResourceRequirements(requests=dict(items))) for items in requests])
    return _compute_requests(Pod(spec=PodSpec(containers=containers)))


def _compute_requests(pod: Pod) -> _Requests:
    requests = pod_requests(pod)
    return _Requests(Resources.of(requests), *_non_zero(pod, requests))


def _non_zero(pod: Pod, requests: dict[str, int]) -> tuple[int, int]:
    complete = all(CPU in item.resources.requests and MEMORY in item.resources.requests for item in pod.spec.containers)
    if not complete or pod.spec.init_containers:
        requests = pod_requests(pod, _DEFAULTS)
    return requests.get(CPU, 0), requests.get(MEMORY, 0)
