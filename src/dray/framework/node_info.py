"""A node with its Pods. Immutable, so that the cache and the snapshot share it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from dray.api.types.core_v1 import Node, Taint
from dray.framework.pod_info import HostPort, PodInfo
from dray.framework.resources import NOTHING, PODS, Resources, amounts_of

NO_SCHEDULE: Final = "NoSchedule"
NO_EXECUTE: Final = "NoExecute"
PREFER_NO_SCHEDULE: Final = "PreferNoSchedule"
# Higher than the priority of any Pod, which has 32 bits.
NO_PRIORITY: Final = 1 << 31


class NodeInfo:
    """The aggregated state of a node that plugins read. Immutable: a change creates a new object."""

    __slots__ = (
        "affinity_pods",
        "allocatable",
        "device_requested",
        "free_ephemeral_storage",
        "free_memory",
        "free_milli_cpu",
        "free_pods",
        "hard_taints",
        "image_sizes",
        "labels",
        "name",
        "node",
        "non_zero_memory",
        "non_zero_milli_cpu",
        "pods",
        "ports",
        "priority_floor",
        "requested",
        "soft_taints",
        "unschedulable",
    )

    def __init__(self, node: Node, pods: Mapping[str, PodInfo] | None = None) -> None:
        self.node = node
        self.name: str = node.metadata.name or ""
        self.labels: Mapping[str, str] = node.metadata.labels
        self.unschedulable = bool(node.spec.unschedulable)
        taints = node.spec.taints
        self.hard_taints: tuple[Taint, ...] = tuple(t for t in taints if t.effect in (NO_SCHEDULE, NO_EXECUTE))
        self.soft_taints: tuple[Taint, ...] = tuple(t for t in taints if t.effect == PREFER_NO_SCHEDULE)
        amounts = amounts_of(node.status.allocatable)
        self.allocatable = Resources.of(amounts)
        self.image_sizes: Mapping[str, int] = {
            name: image.size_bytes or 0 for image in node.status.images for name in image.names
        }
        # Allocatable amounts that are not requested; negative on an overcommitted node.
        self.free_milli_cpu = self.allocatable.milli_cpu
        self.free_memory = self.allocatable.memory
        self.free_ephemeral_storage = self.allocatable.ephemeral_storage
        self.free_pods = amounts.get(PODS, 0)
        self.requested = NOTHING
        # The Pods' extended resources that devices serve; not included in `requested`.
        self.device_requested = NOTHING
        self.non_zero_milli_cpu = 0
        self.non_zero_memory = 0
        # By uid, in the order of arrival.
        self.pods: Mapping[str, PodInfo] = {}
        self.ports: Mapping[HostPort, int] = {}
        # No Pod has a lower priority; all may have a higher one, after others were removed.
        self.priority_floor = NO_PRIORITY
        # The Pods with pod affinity terms.
        self.affinity_pods: tuple[PodInfo, ...] = ()
        if pods:
            for pod in pods.values():
                _count(self, pod, 1)
            self.pods = dict(pods)

    def with_pod(self, pod: PodInfo) -> NodeInfo:
        """Return the node with the Pod; a Pod with the same uid is replaced."""
        base = self.without_pod(pod.uid) if pod.uid in self.pods else self
        info = _copy_of(base)
        _count(info, pod, 1)
        info.pods = {**base.pods, pod.uid: pod}
        return info

    def with_pods(self, pods: Iterable[PodInfo]) -> NodeInfo:
        """Return the node with several Pods, none of which it has."""
        info = _copy_of(self)
        more = {pod.uid: pod for pod in pods}
        _count_all(info, more.values(), 1)
        info.pods = {**self.pods, **more}
        return info

    def without_pod(self, uid: str) -> NodeInfo:
        """Return the node without the Pod."""
        pod = self.pods[uid]
        info = _copy_of(self)
        _count(info, pod, -1)
        pods = dict(self.pods)
        del pods[uid]
        info.pods = pods
        return info

    def without_pods(self, uids: Iterable[str]) -> NodeInfo:
        """Return the node without several Pods."""
        info = _copy_of(self)
        pods = dict(self.pods)
        _count_all(info, [pods.pop(uid) for uid in uids], -1)
        info.pods = pods
        return info

    def with_node(self, node: Node) -> NodeInfo:
        """Return the changed node with the same Pods."""
        return NodeInfo(node, self.pods)


def _copy_of(node: NodeInfo) -> NodeInfo:
    # One by one: a loop over the names takes three times as long, and this runs for each Pod that comes or goes.
    info = NodeInfo.__new__(NodeInfo)
    info.affinity_pods = node.affinity_pods
    info.allocatable = node.allocatable
    info.device_requested = node.device_requested
    info.free_ephemeral_storage = node.free_ephemeral_storage
    info.free_memory = node.free_memory
    info.free_milli_cpu = node.free_milli_cpu
    info.free_pods = node.free_pods
    info.hard_taints = node.hard_taints
    info.image_sizes = node.image_sizes
    info.labels = node.labels
    info.name = node.name
    info.node = node.node
    info.non_zero_memory = node.non_zero_memory
    info.non_zero_milli_cpu = node.non_zero_milli_cpu
    info.pods = node.pods
    info.ports = node.ports
    info.priority_floor = node.priority_floor
    info.requested = node.requested
    info.soft_taints = node.soft_taints
    info.unschedulable = node.unschedulable
    return info


def _count(info: NodeInfo, pod: PodInfo, sign: int) -> None:
    """Add or subtract the Pod's requests; only while `info` is constructed."""
    needs = pod.requests
    info.requested = info.requested.plus(needs, sign)
    info.free_milli_cpu -= sign * needs.milli_cpu
    info.free_memory -= sign * needs.memory
    info.free_ephemeral_storage -= sign * needs.ephemeral_storage
    info.free_pods -= sign
    info.non_zero_milli_cpu += sign * pod.non_zero_milli_cpu
    info.non_zero_memory += sign * pod.non_zero_memory
    info.priority_floor = min(info.priority_floor, pod.priority)
    if pod.device_resources or pod.host_ports or pod.affinity is not None:
        _count_rare(info, pod, sign)


def _count_all(info: NodeInfo, pods: Collection[PodInfo], sign: int) -> None:
    """Do the same for several Pods at once."""
    milli_cpu = memory = ephemeral_storage = non_zero_milli_cpu = non_zero_memory = 0
    for pod in pods:
        needs = pod.requests
        milli_cpu += needs.milli_cpu
        memory += needs.memory
        ephemeral_storage += needs.ephemeral_storage
        if needs.scalars:
            info.requested = info.requested.plus(Resources(scalars=needs.scalars), sign)
        non_zero_milli_cpu += pod.non_zero_milli_cpu
        non_zero_memory += pod.non_zero_memory
        info.priority_floor = min(info.priority_floor, pod.priority)
        if pod.device_resources or pod.host_ports or pod.affinity is not None:
            _count_rare(info, pod, sign)
    info.requested = info.requested.plus(Resources(milli_cpu, memory, ephemeral_storage), sign)
    info.free_milli_cpu -= sign * milli_cpu
    info.free_memory -= sign * memory
    info.free_ephemeral_storage -= sign * ephemeral_storage
    info.free_pods -= sign * len(pods)
    info.non_zero_milli_cpu += sign * non_zero_milli_cpu
    info.non_zero_memory += sign * non_zero_memory


def _count_rare(info: NodeInfo, pod: PodInfo, sign: int) -> None:
    """Add or subtract what few Pods have."""
    if pod.device_resources:
        info.device_requested = info.device_requested.plus(pod.device_requests, sign)
    if pod.host_ports:
        info.ports = _count_ports(info.ports, pod.host_ports, sign)
    if pod.affinity is not None:
        others = tuple(other for other in info.affinity_pods if other.uid != pod.uid)
        info.affinity_pods = (*others, pod) if sign > 0 else others


def _count_ports(ports: Mapping[HostPort, int], more: tuple[HostPort, ...], sign: int) -> dict[HostPort, int]:
    counts = dict(ports)
    for port in more:
        counts[port] = counts.get(port, 0) + sign
        if not counts[port]:
            del counts[port]
    return counts
