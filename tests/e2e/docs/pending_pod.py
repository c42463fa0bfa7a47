"""The cluster behind the first screen of README.md: three nodes, half of whose GPUs are in use."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

DRIVER = "gpu.nvidia.com"
NODES = ("gpu-a", "gpu-b", "gpu-c")
Document = dict[str, Any]


def dump(now: datetime) -> str:
    """Return the objects as `kubectl get -o json` prints them; the Pods that run have done so for three hours."""
    before, recently = (f"{now - timedelta(minutes=age):%Y-%m-%dT%H:%M:%SZ}" for age in (180, 10))
    device_class = {
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": DRIVER},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
    }  # fmt: skip
    running = [item for number, node in enumerate(NODES) for item in _running(f"serve-{number}", node, before)]
    train = [_claim("train-gpus", recently, count=2), _pod("train", "train-gpus", recently)]
    items = [device_class, *(item for name in NODES for item in _node(name, before)), *running, *train]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def _node(name: str, created: str) -> list[Document]:
    node = {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": name, "creationTimestamp": created},
        "status": {
            "allocatable": {"cpu": "32", "memory": "256Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }  # fmt: skip
    resource_slice = {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": f"{name}-gpus"},
        "spec": {
            "driver": DRIVER, "nodeName": name, "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0"}, {"name": "gpu-1"}],
        },
    }  # fmt: skip
    return [node, resource_slice]


def _claim(name: str, created: str, *, count: int) -> Document:
    request = {"name": "gpus", "exactly": {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": count}}
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "ml", "uid": name, "creationTimestamp": created},
        "spec": {"devices": {"requests": [request]}},
    }  # fmt: skip


def _pod(name: str, claim: str, created: str) -> Document:
    container = {"name": "main", "image": name, "resources": {"claims": [{"name": "gpus"}]}}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml", "uid": name, "creationTimestamp": created},
        "spec": {"resourceClaims": [{"name": "gpus", "resourceClaimName": claim}], "containers": [container]},
        "status": {"phase": "Pending"},
    }  # fmt: skip


def _running(name: str, node: str, created: str) -> list[Document]:
    claim, pod = _claim(f"{name}-gpu", created, count=1), _pod(name, f"{name}-gpu", created)
    pod["spec"]["nodeName"] = node
    pod["status"] = {"phase": "Running", "startTime": created}
    claim["status"] = {
        "reservedFor": [{"resource": "pods", "name": name, "uid": name}],
        "allocation": {
            "allocationTimestamp": created,
            "devices": {"results": [{"request": "gpus", "driver": DRIVER, "pool": node, "device": "gpu-0"}]},
        },
    }
    return [claim, pod]
