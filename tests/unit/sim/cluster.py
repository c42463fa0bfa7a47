"""A small cluster in documents: two nodes with GPUs, one network-attached device, some claims."""

from __future__ import annotations

from typing import Any

from dray.api.document import Document
from dray.sim.holdings import HEADER
from dray.sim.snapshot import KINDS, Snapshot

GPU = "gpu.example.com"
NIC = "nic.example.com"


def device(name: str, **fields: Any) -> Document:
    return {
        "name": name,
        "attributes": {"model": {"string": "a100"}},
        "capacity": {"memory": {"value": "40Gi"}},
    } | fields


def resource_slice(name: str, driver: str, *devices: Document, count: int = 1, **spec: Any) -> Document:
    pool = {"name": name, "generation": 1, "resourceSliceCount": count}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": driver, "pool": pool, "devices": list(devices)} | spec,
    }


def device_class(name: str, expression: str) -> Document:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


def claim(name: str, *devices: str, namespace: str = "team", pods: tuple[str, ...] = (), **metadata: Any) -> Document:
    """A claim for a GPU; with devices (`driver/pool/device`) it is allocated."""
    status: Document = {}
    if devices:
        results = [
            dict(zip(("driver", "pool", "device"), key.split("/"), strict=True)) | {"request": "gpu"} for key in devices
        ]
        status["allocation"] = {"devices": {"results": results}, "allocationTimestamp": "2026-01-01T00:00:00Z"}
        status["reservedFor"] = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods]
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": 1, "allocationMode": "ExactCount"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace, "creationTimestamp": "2025-12-31T23:00:00Z"} | metadata,
        "spec": {"devices": {"requests": [request]}},
        "status": status,
    }


def pod(name: str, node: str = "") -> Document:
    spec = {"containers": [{"name": "c", "image": "i"}]} | ({"nodeName": node} if node else {})
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def taint_rule(name: str, **selector: str) -> Document:
    return {
        "apiVersion": "resource.k8s.io/v1beta2",
        "kind": "DeviceTaintRule",
        "metadata": {"name": name},
        "spec": {"deviceSelector": selector, "taint": {"key": "broken", "effect": "NoSchedule"}},
    }


def whole(*documents: Document) -> Document:
    """A list of all objects of a cluster: what it does not have does not exist."""
    metadata = {HEADER: dict.fromkeys(KINDS, "")}
    return {"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": list(documents)}


def cluster() -> Snapshot:
    return Snapshot.of(
        [
            device_class("gpu", f'device.driver == "{GPU}"'),
            device_class("any", "true"),
            resource_slice("node-a", GPU, device("gpu-0"), device("gpu-1"), device("gpu-2"), nodeName="node-a"),
            resource_slice("node-b", GPU, device("gpu-0"), count=2, nodeName="node-b"),
            resource_slice("fabric", NIC, device("nic-0", allowMultipleAllocations=True), allNodes=True),
            taint_rule("rule", driver=GPU, pool="node-a", device="gpu-2"),
            claim("one", f"{GPU}/node-a/gpu-0", pods=("p",)),
            claim("share", f"{NIC}/fabric/nic-0", namespace="other"),
            claim("waiting"),
            pod("p", "node-a"),
        ]
    )


def node(name: str, **spec: Any) -> Document:
    """A ready node with room for ten Pods."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def template(name: str, *requests: Document, **devices: Any) -> Document:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"spec": {"devices": {"requests": list(requests)} | devices}},
    }


def exactly(count: int, *expressions: str, name: str = "gpu") -> Document:
    """A request for so many GPUs."""
    wanted: Document = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}
    if expressions:
        wanted["selectors"] = [{"cel": {"expression": expression}} for expression in expressions]
    return {"name": name, "exactly": wanted}


def waiting_pod(name: str, template_name: str, **spec: Any) -> Document:
    """A Pod that the default scheduler is to place."""
    entry = {"name": "gpu", "resourceClaimTemplateName": template_name}
    given = pod(name)
    given["spec"] |= {"schedulerName": "default-scheduler", "resourceClaims": [entry]} | spec
    return given


CLASSIC_DRIVER = "acme.example.com"


def resource_class(name: str = "acme") -> Document:
    """A class of cdi.k8s.io."""
    return {
        "apiVersion": "cdi.k8s.io/v1alpha1",
        "kind": "ResourceClass",
        "metadata": {"name": name},
        "driverName": CLASSIC_DRIVER,
    }


def classic_claim(
    name: str, *pods: str, mode: str = "Delayed", metadata: Document | None = None, **status: Any
) -> Document:
    """A claim of cdi.k8s.io, reserved for the Pods."""
    if pods:
        status["reservedFor"] = [
            {"apiVersion": "v1", "kind": "Pod", "name": pod_name, "uid": f"uid-{pod_name}"} for pod_name in pods
        ]
    return {
        "apiVersion": "cdi.k8s.io/v1alpha1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "creationTimestamp": "2025-12-31T23:00:00Z",
        }
        | (metadata or {}),
        "spec": {"resourceClassName": "acme", "allocationMode": mode},
        "status": status,
    }
