"""Clusters of nodes with whole GPUs and Pods that use some of them, for plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dray.api.document import Document
from dray.sim.snapshot import Snapshot
from tests.unit.sim.cluster import GPU, claim, device, device_class, exactly, node, pod, resource_slice, template

COUNTS_MAX = 8


def gpu_node(name: str, gpus: int, **spec: Any) -> list[Document]:
    """A node with so many GPUs, and its slice."""
    devices = [device(f"gpu-{number}") for number in range(gpus)]
    found = [node(name, **spec)]
    return [*found, resource_slice(name, GPU, *devices, nodeName=name)] if gpus else found


def gpu_pod(
    name: str, gpus: int, on: str = "", devices: Iterable[int] = (), owner: str = "ReplicaSet"
) -> list[Document]:
    """A Pod with a claim for so many GPUs; on a node it has these devices."""
    document = pod(name, on)
    document["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": f"gpus-{gpus}"}]
    if owner:
        reference = {
            "apiVersion": "apps/v1",
            "kind": owner,
            "name": f"of-{name}",
            "uid": f"of-{name}",
            "controller": True,
        }
        document["metadata"]["ownerReferences"] = [reference]
    if not on:
        return [document]
    document["status"] = {
        "phase": "Running",
        "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": f"{name}-gpu"}],
    }
    owners = [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": f"uid-{name}", "controller": True}]
    allocated = claim(
        f"{name}-gpu",
        *(f"{GPU}/{on}/gpu-{number}" for number in devices),
        pods=(name,),
        ownerReferences=owners,
        uid=f"uid-{name}-gpu",
    )
    allocated["spec"]["devices"]["requests"] = [exactly(gpus)]
    return [document, allocated]


def gpu_cluster(nodes: Mapping[str, int], *pods: list[Document], others: Iterable[Document] = ()) -> Snapshot:
    """A cluster of nodes with so many GPUs each."""
    documents = [
        device_class("gpu", f'device.driver == "{GPU}"'),
        *(template(f"gpus-{count}", exactly(count)) for count in range(1, COUNTS_MAX + 1)),
        *(document for name, gpus in nodes.items() for document in gpu_node(name, gpus)),
        *(document for documents in pods for document in documents),
        *others,
    ]
    return Snapshot.of(documents)
