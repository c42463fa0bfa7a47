"""The trace as Kubernetes objects: nodes with shareable GPUs, and Pods whose claims request shares of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from bench.openb.trace import WHOLE, TraceNode, TracePod
from dray.api.document import Document
from dray.api.quantity import Quantity

DRIVER: Final = "gpu.openb.example"
CLASS: Final = "gpu"
NAMESPACE: Final = "default"
REQUEST: Final = "gpu"
CLAIM: Final = "gpus"
MILLI: Final = "milli"
# More than fit on any node: the trace has no limit.
_PODS_MAX: Final = "1000"


def device_class() -> Document:
    """Return the class of all GPUs."""
    selectors = [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]
    return {"metadata": {"name": CLASS}, "spec": {"selectors": selectors}}


def node(item: TraceNode) -> Document:
    """Return a ready node."""
    allocatable = {"cpu": f"{item.milli_cpu}m", "memory": f"{item.memory_mib}Mi", "pods": _PODS_MAX}
    return {
        "metadata": {"name": item.name, "labels": {"kubernetes.io/hostname": item.name}},
        "status": {
            "allocatable": allocatable,
            "capacity": allocatable,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def slices(item: TraceNode) -> Iterator[Document]:
    """Yield the slice of the node's GPUs, if it has any."""
    if not item.gpus:
        return
    policy = {"default": str(WHOLE), "validRange": {"min": "1", "step": "1", "max": str(WHOLE)}}
    devices = [
        {
            "name": f"gpu-{index}",
            "allowMultipleAllocations": True,
            "attributes": {"model": {"string": item.model}, "index": {"int": index}},
            "capacity": {MILLI: {"value": str(WHOLE), "requestPolicy": policy}},
        }
        for index in range(item.gpus)
    ]
    pool = {"name": item.name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": item.name, "pool": pool, "devices": devices}
    yield {"metadata": {"name": f"{item.name}-gpus"}, "spec": spec}


def claim_spec(item: TracePod) -> Document:
    """Return the spec of the claim for a Pod's GPUs."""
    exactly: dict[str, Any] = {
        "deviceClassName": CLASS,
        "allocationMode": "ExactCount",
        "count": item.gpus,
        "capacity": {"requests": {MILLI: str(item.milli_gpu)}},
    }
    if item.models:
        models = ", ".join(f'"{model}"' for model in item.models)
        exactly["selectors"] = [{"cel": {"expression": f'device.attributes["{DRIVER}"].model in [{models}]'}}]
    devices: dict[str, Any] = {"requests": [{"name": REQUEST, "exactly": exactly}]}
    if item.gpus > 1 and item.milli_gpu < WHOLE:
        # Whole GPUs differ anyway.
        devices["constraints"] = [{"requests": [REQUEST], "distinctAttribute": f"{DRIVER}/index"}]
    return {"devices": devices}


def template_name(item: TracePod) -> str:
    """Return the name of the template; Pods with equal requests share one."""
    models = "-".join(model.lower() for model in item.models)
    return f"{item.gpus}x{item.milli_gpu}" + (f"-{models}" if models else "")


def template(item: TracePod) -> Document:
    """Return the template for a Pod's claim."""
    return {
        "metadata": {"name": template_name(item), "namespace": NAMESPACE},
        "spec": {"spec": claim_spec(item)},
    }


class Share(NamedTuple):
    """A share of a GPU."""

    node: str
    gpu: int
    milli: int


def shares(claim: Document) -> Iterator[Share]:
    """Yield the shares of GPUs that are allocated to a claim."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    for result in (allocation.get("devices") or {}).get("results", ()):
        milli = Quantity.parse(result["consumedCapacity"][MILLI]).as_integer()
        yield Share(result["pool"], int(result["device"].removeprefix("gpu-")), milli)


def pod(number: int, item: TracePod, claim: Document | None) -> Document:
    """Return a Pod; `claim` says where its claim comes from."""
    requests = {"cpu": f"{item.milli_cpu}m", "memory": f"{item.memory_mib}Mi"}
    container: dict[str, Any] = {"name": "main", "image": "pause", "resources": {"requests": requests}}
    spec: dict[str, Any] = {"containers": [container], "schedulerName": "default-scheduler"}
    if claim is not None:
        container["resources"]["claims"] = [{"name": CLAIM}]
        spec["resourceClaims"] = [{"name": CLAIM, **claim}]
    return {"metadata": {"name": f"pod-{number}", "namespace": NAMESPACE}, "spec": spec}
