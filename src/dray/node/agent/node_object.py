"""Builds the Node object, its status and its Lease. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.extended_resources import is_extended_resource_name
from dray.api.features import KUBERNETES_RELEASE, FeatureGates
from dray.api.timestamps import format_micro_time, format_time
from dray.node.resource_manager import NodeResources

LEASE_NAMESPACE: Final = "kube-node-lease"
LEASE_SECONDS: Final = 40
KUBELET_VERSION: Final = KUBERNETES_RELEASE

# The features that an agent can have, in order; Kubernetes' names, which are also those of the gates.
DECLARED_FEATURES: Final = ("DRANodeAllocatableResources", "DRAOptionalNodeOperations")
# Features without a gate: the agent speaks WebSocket with clients, for which the API server passes bytes on.
ALWAYS_DECLARED: Final = ("ExtendWebSocketsToKubelet",)
# kubelet's bounds of the list of images.
IMAGES_MAX: Final = 50
IMAGE_NAMES_MAX: Final = 5
# Type, status, reason and message, as in kubelet.
_CONDITIONS: Final = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
)
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}


@dataclass(frozen=True, slots=True)
class MachineInfo:
    """The properties of the machine."""

    hostname: str
    addresses: tuple[str, ...]
    architecture: str
    cpus: int
    memory_bytes: int
    disk_bytes: int
    kernel: str
    os_image: str
    machine_id: str = ""
    system_uuid: str = ""
    boot_id: str = ""
    swap_bytes: int = 0


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """The configured properties of the node."""

    name: str
    machine: MachineInfo
    runtime_version: str
    port: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Document, ...] = ()
    # The largest images, as in the Node's status.
    images: tuple[Document, ...] = ()
    pods_max: int = 110
    # Extended resources of an earlier Node object; zero until a device plugin registers them.
    stale: tuple[str, ...] = ()
    # Optional features that the scheduler must know of.
    declared_features: tuple[str, ...] = ()
    # Further conditions: type, status, reason and message.
    conditions: tuple[tuple[str, str, str, str], ...] = ()


def own_labels(spec: NodeSpec) -> dict[str, str]:
    """Return the labels that the agent sets."""
    architecture = _ARCHITECTURES.get(spec.machine.architecture, spec.machine.architecture)
    return {
        "beta.kubernetes.io/arch": architecture,
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/arch": architecture,
        "kubernetes.io/hostname": spec.machine.hostname,
        "kubernetes.io/os": "linux",
        **spec.labels,
    }


def capacity(spec: NodeSpec) -> dict[str, str]:
    """Return the capacity of the machine."""
    machine = spec.machine
    return {
        "cpu": str(machine.cpus),
        "ephemeral-storage": f"{machine.disk_bytes // 1024}Ki",
        "memory": f"{machine.memory_bytes // 1024}Ki",
        "pods": str(spec.pods_max),
    }


def stale_resources(status: Document) -> tuple[str, ...]:
    """Return the extended resources in the status of an existing Node object."""
    return tuple(sorted(extended_resources(status.get("capacity") or {})))


def extended_resources(amounts: Mapping[str, str]) -> dict[str, str]:
    """Return only the amounts of extended resources."""
    return {name: amount for name, amount in amounts.items() if is_extended_resource_name(name)}


def allocatable(spec: NodeSpec, added: Iterable[NodeResources]) -> dict[str, str]:
    """Return the allocatable resources."""
    result = capacity(spec) | dict.fromkeys(spec.stale, "0")
    for part in added:
        result.update(part.allocatable)
    return result


def node_document(spec: NodeSpec) -> Document:
    """Return the Node object for registration."""
    metadata: Document = {"name": spec.name, "labels": own_labels(spec)}
    if spec.annotations:
        metadata["annotations"] = dict(spec.annotations)
    body: Document = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}}
    if spec.taints:
        body["spec"]["taints"] = [dict(taint) for taint in spec.taints]
    return body


def node_status(spec: NodeSpec, added: Iterable[NodeResources], known: Document, now: datetime) -> Document:
    """Return the status to report; `known` is the status that the API server has."""
    machine = spec.machine
    parts = tuple(added)
    has = capacity(spec) | dict.fromkeys(spec.stale, "0")
    for part in parts:
        has.update(part.capacity)
    status: Document = {
        "capacity": has,
        "allocatable": allocatable(spec, parts),
        "conditions": _conditions((*_CONDITIONS, *spec.conditions), known, format_time(now)),
        "addresses": [
            *({"type": "InternalIP", "address": address} for address in machine.addresses),
            {"type": "Hostname", "address": machine.hostname},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": spec.port}},
        "nodeInfo": {
            "machineID": machine.machine_id,
            "systemUUID": machine.system_uuid,
            "bootID": machine.boot_id,
            "kernelVersion": machine.kernel,
            "osImage": machine.os_image,
            "containerRuntimeVersion": spec.runtime_version,
            "kubeletVersion": KUBELET_VERSION,
            "kubeProxyVersion": "",
            "operatingSystem": "linux",
            "architecture": _ARCHITECTURES.get(machine.architecture, machine.architecture),
        },
    }
    if spec.images or known.get("images"):
        status["images"] = list(spec.images)
    if spec.declared_features or known.get("declaredFeatures"):
        # An empty list removes those of an earlier agent.
        status["declaredFeatures"] = sorted(spec.declared_features)
    return status


def reported_images(images: Iterable[tuple[Sequence[str], int]]) -> tuple[Document, ...]:
    """Return the largest images, each by names and size; names by digest come first."""
    largest = sorted(images, key=lambda item: (-item[1], item[0]))[:IMAGES_MAX]
    return tuple(
        {"names": sorted(names, key=lambda name: "@" not in name)[:IMAGE_NAMES_MAX], "sizeBytes": size}
        for names, size in largest
    )


def declared_features(gates: FeatureGates) -> tuple[str, ...]:
    """Return the optional features of the agent that are enabled, in order."""
    if not gates.enabled("NodeDeclaredFeatures"):
        return ()
    return (*(name for name in DECLARED_FEATURES if gates.enabled(name)), *ALWAYS_DECLARED)


def _conditions(wanted: Iterable[tuple[str, str, str, str]], known: Document, now: str) -> list[Document]:
    before = {item.get("type"): item for item in known.get("conditions") or ()}
    result = []
    for name, status, reason, message in wanted:
        old = before.get(name) or {}
        changed = old.get("lastTransitionTime") if old.get("status") == status else None
        result.append(
            {
                "type": name,
                "status": status,
                "lastHeartbeatTime": now,
                "lastTransitionTime": changed or now,
                "reason": reason,
                "message": message,
            }
        )
    return result


def without_heartbeats(status: Document) -> Document:
    """Return the status without heartbeat times, for comparison."""
    conditions = [
        {name: value for name, value in item.items() if name != "lastHeartbeatTime"} for item in status["conditions"]
    ]
    return {**status, "conditions": conditions}


def lease_document(name: str, node_uid: str, now: datetime, *, seconds: int = LEASE_SECONDS) -> Document:
    """Return the node's Lease."""
    metadata: Document = {"name": name, "namespace": LEASE_NAMESPACE}
    if node_uid:
        metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": node_uid}]
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": {"holderIdentity": name, "leaseDurationSeconds": seconds, "renewTime": format_micro_time(now)},
    }


def parse_labels(texts: Iterable[str]) -> dict[str, str]:
    """Parse labels of the form name=value; raises ValueError."""
    result = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ValueError(f'invalid label "{text}", must be name=value')
        result[name] = value
    return result


def parse_taints(texts: Iterable[str]) -> tuple[Document, ...]:
    """Parse taints of the form key=value:effect or key:effect; raises ValueError."""
    result: list[Document] = []
    for text in texts:
        rest, colon, effect = text.rpartition(":")
        if not colon or effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
            raise ValueError(f'invalid taint "{text}", must be key[=value]:effect')
        key, equals, value = rest.partition("=")
        result.append({"key": key, **({"value": value} if equals else {}), "effect": effect})
    return tuple(result)
