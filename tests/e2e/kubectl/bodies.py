"""Minimal objects for the tests."""

from __future__ import annotations

from tests.e2e.kubectl.tool import Document


def config_map(name: str, **data: str) -> Document:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def pod(name: str, **labels: str) -> Document:
    """A Pod that no scheduler handles, so that its state does not change."""
    containers = [{"name": "main", "image": "example.com/image:1"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"schedulerName": "nobody", "containers": containers},
    }


def node(name: str) -> Document:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


def replica_set(name: str) -> Document:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod(name)["spec"]},
        },
    }


def event(name: str, involved: Document, **fields: object) -> Document:
    metadata = involved["metadata"]
    reference = {
        "apiVersion": involved["apiVersion"],
        "kind": involved["kind"],
        **{field: metadata[field] for field in ("namespace", "name", "uid") if field in metadata},
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": metadata.get("namespace", "default")},
        "involvedObject": reference,
        "source": {"component": "tester"},
        "type": "Normal",
        **fields,
    }


def device_class(name: str, expression: str = 'device.driver == "gpu.example.com"') -> Document:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


def claim(name: str, device_class_name: str = "gpu.example.com") -> Document:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": device_class_name}}]}},
    }


def claim_template(name: str) -> Document:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": claim(name)["spec"]},
    }


def resource_slice(name: str, *, node_name: str, driver: str = "gpu.example.com") -> Document:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "nodeName": node_name,
            "pool": {"name": node_name, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0", "attributes": {"model": {"string": "A"}}}],
        },
    }


def taint_rule(name: str) -> Document:
    return {
        "apiVersion": "resource.k8s.io/v1beta2",
        "kind": "DeviceTaintRule",
        "metadata": {"name": name},
        "spec": {
            "deviceSelector": {"driver": "gpu.example.com"},
            "taint": {"key": "example.com/broken", "value": "yes", "effect": "NoExecute"},
        },
    }


def classic_class(name: str) -> Document:
    return {
        "apiVersion": "cdi.k8s.io/v1alpha1",
        "kind": "ResourceClass",
        "metadata": {"name": name},
        "driverName": "gpu.acme.com",
    }


def classic_claim(name: str, class_name: str) -> Document:
    return {
        "apiVersion": "cdi.k8s.io/v1alpha1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"resourceClassName": class_name},
    }
