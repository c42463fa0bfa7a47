"""Builds PodResources messages from the sources; changes nothing."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

from dray.api.document import NamespacedName
from dray.api.pod_claims import TERMINAL_PHASES
from dray.api.types.core_v1 import Container, Pod
from dray.node.dra.claims import ClaimError, Device
from dray.node.pod_resources.sources import HeldDevice, MemoryBlock, Sources
from dray.node.topology.containers import is_restartable
from dray.rpc.pb.podresources.v1 import api_pb2 as v1
from dray.rpc.pb.podresources.v1alpha1 import api_pb2 as v1alpha1


def listed(sources: Sources, *, active_only: bool) -> tuple[Pod, ...]:
    """Return the Pods to list."""
    if not active_only:
        return sources.pods.all()
    return tuple([pod for pod in sources.pods.active() if not _is_finished(pod)])


def in_order(pods: Iterable[Pod]) -> list[Pod]:
    """Return the Pods in the order of their names."""
    return sorted(pods, key=lambda pod: (pod.metadata.namespace or "", pod.metadata.name or ""))


def find(sources: Sources, name: NamespacedName, *, active_only: bool) -> Pod | None:
    """Return the Pod of this name among the listed ones; a running one before finished ones."""
    same = [pod for pod in listed(sources, active_only=active_only) if _name(pod) == name]
    return min(same, key=_is_finished, default=None)


def _is_finished(pod: Pod) -> bool:
    return pod.status.phase in TERMINAL_PHASES


def _name(pod: Pod) -> NamespacedName:
    return NamespacedName(pod.metadata.namespace or "", pod.metadata.name or "")


def pod_resources(pod: Pod, sources: Sources, *, dynamic: bool, pod_level: bool = False) -> v1.PodResources:
    """Return the message of a Pod: its sidecars and containers; with `dynamic` also their claims.

    With `pod_level` it has the CPUs and memory of the Pod as a whole, which are those of its containers.
    """
    message = v1.PodResources(name=pod.metadata.name, namespace=pod.metadata.namespace)
    for container in (*filter(is_restartable, pod.spec.init_containers), *pod.spec.containers):
        entry = message.containers.add(name=container.name)
        uid = pod.metadata.uid or ""
        if sources.devices is not None:
            entry.devices.extend(_device(item) for item in sources.devices.container_devices(uid, container.name))
        if sources.cpus is not None:
            entry.cpu_ids.extend(sorted(sources.cpus.exclusive(uid, container.name)))
        if sources.memory is not None:
            entry.memory.extend(_memory(item) for item in sources.memory.blocks(uid, container.name))
        if dynamic:
            entry.dynamic_resources.extend(_dynamic(pod, container, sources))
    if pod_level:
        message.cpu_ids.extend(sorted({cpu for entry in message.containers for cpu in entry.cpu_ids}))
        message.memory.extend(item for entry in message.containers for item in entry.memory)
    return message


def alpha_pod_resources(pod: Pod, sources: Sources) -> v1alpha1.PodResources:
    """Return the v1alpha1 message of a Pod: only the devices of its containers."""
    message = v1alpha1.PodResources(name=pod.metadata.name, namespace=pod.metadata.namespace)
    for container in pod.spec.containers:
        entry = message.containers.add(name=container.name)
        held = (
            () if sources.devices is None else sources.devices.container_devices(pod.metadata.uid or "", container.name)
        )
        for resource, name in dict.fromkeys((item.resource, item.id) for item in held):
            entry.devices.add(resource_name=resource, device_ids=[name])
    return message


def allocatable(sources: Sources) -> v1.AllocatableResourcesResponse:
    """Return everything that can be allocated to containers, in use or not, except claims."""
    message = v1.AllocatableResourcesResponse()
    if sources.devices is not None:
        message.devices.extend(_device(item) for item in sources.devices.allocatable_devices())
    if sources.cpus is not None:
        message.cpu_ids.extend(sorted(sources.cpus.allocatable))
    if sources.memory is not None:
        message.memory.extend(_memory(item) for item in sources.memory.allocatable())
    return message


def _device(item: HeldDevice) -> v1.ContainerDevices:
    if item.numa_node is None:
        return v1.ContainerDevices(resource_name=item.resource, device_ids=(item.id,))
    return v1.ContainerDevices(
        resource_name=item.resource, device_ids=(item.id,), topology=_topology_of_one(item.numa_node)
    )


def _memory(block: MemoryBlock) -> v1.ContainerMemory:
    return v1.ContainerMemory(memory_type=block.kind, size=block.size, topology=_topology(block.nodes))


@functools.cache
def _topology_of_one(node: int) -> v1.TopologyInfo:
    """Return a cached message; protobuf copies it on use."""
    return _topology((node,))


def _topology(nodes: Iterable[int]) -> v1.TopologyInfo:
    return v1.TopologyInfo(nodes=[v1.NUMANode(id=node) for node in nodes])


def _dynamic(pod: Pod, container: Container, sources: Sources) -> Iterator[v1.DynamicResource]:
    """Yield the container's claims; none if one of them is not prepared yet."""
    try:
        held = [claim for source in sources.claims for claim in source.container_claims(pod, container)]
    except ClaimError:
        return
    for claim in held:
        yield v1.DynamicResource(
            class_name=claim.info.class_name,
            claim_name=claim.info.key.name,
            claim_namespace=claim.info.key.namespace,
            claim_resources=[_claim_resource(driver, device) for driver, device in claim.devices],
        )


def _claim_resource(driver: str, device: Device) -> v1.ClaimResource:
    return v1.ClaimResource(
        cdi_devices=[v1.CDIDevice(name=name) for name in device.cdi_device_ids],
        driver_name=driver,
        pool_name=device.pool_name,
        device_name=device.device_name,
        share_id=device.share_id,
    )
