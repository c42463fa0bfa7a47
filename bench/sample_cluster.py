"""A cluster as the dashboard shows it: nodes in zones and racks, whole and partitioned devices, claims and Pods.

The same seed gives the same cluster; time is fixed where the API lets a client choose it.
"""

from __future__ import annotations

import asyncio
import os
import random
import uuid
from collections.abc import Iterator
from typing import Any

from dray.api.document import Document, GroupVersion
from dray.client.credentials import load_access
from dray.client.http import http_client
from dray.client.interface import Client, Resource, unstructured
from dray.runtime.system import SystemClock
from tests.servers import Server

GPU = "gpu.example.com"
DRA = GroupVersion("resource.k8s.io", "v1")
NODES = unstructured(GroupVersion("", "v1"), "nodes", "Node", namespaced=False)
PODS = unstructured(GroupVersion("", "v1"), "pods", "Pod")
SERVICE_ACCOUNTS = unstructured(GroupVersion("", "v1"), "serviceaccounts", "ServiceAccount")
NAMESPACES = unstructured(GroupVersion("", "v1"), "namespaces", "Namespace", namespaced=False)
CLASSES = unstructured(DRA, "deviceclasses", "DeviceClass", namespaced=False)
SLICES = unstructured(DRA, "resourceslices", "ResourceSlice", namespaced=False)
CLAIMS = unstructured(DRA, "resourceclaims", "ResourceClaim")
RULES = unstructured(DRA, "devicetaintrules", "DeviceTaintRule", namespaced=False)
TEAMS = ("research", "serving", "batch")
CARDS = 8
PARTITIONS = 4
WRITERS = 32
WAITING = "0/{nodes} nodes are available: {nodes} cannot allocate all claims. no new claims to deallocate"


class SampleCluster:
    """Objects of a cluster with so many nodes; with `uuids`, each device has an attribute that no other one has."""

    def __init__(self, nodes: int, seed: int = 1, *, uuids: bool = False) -> None:
        self.nodes = nodes
        self._uuids = uuids
        self._rng = random.Random(seed)

    def fixtures(self) -> Iterator[tuple[Resource[Document], Document]]:
        """Yield namespaces and classes."""
        for team in TEAMS:
            yield NAMESPACES, {**_core("Namespace"), "metadata": {"name": team}}
            # No controller creates it here.
            yield SERVICE_ACCOUNTS, {**_core("ServiceAccount"), "metadata": {"name": "default", "namespace": team}}
        for name, model in (("h100", "H100"), ("a100-mig", "A100")):
            expression = f"device.driver == '{GPU}' && device.attributes['{GPU}'].model == '{model}'"
            spec = {"selectors": [{"cel": {"expression": expression}}]}
            yield CLASSES, {**_typed("DeviceClass"), "metadata": {"name": name}, "spec": spec}

    def node_objects(self, number: int) -> Iterator[tuple[Resource[Document], Document]]:
        """Yield a node and its slices."""
        name = f"node-{number:04}"
        labels = {
            "topology.kubernetes.io/zone": f"zone-{'abc'[number % 3]}",
            "example.com/rack": f"rack-{number // 20:03}",
            "node.kubernetes.io/instance-type": "mig-4" if number % 4 == 3 else "h100-8",
        }
        ready = "False" if number % 97 == 96 else "True"
        status = {"conditions": [{"type": "Ready", "status": ready}], "allocatable": {"cpu": "64", "pods": "110"}}
        spec = {"unschedulable": True} if number % 61 == 60 else {}
        yield NODES, {**_core("Node"), "metadata": {"name": name, "labels": labels}, "spec": spec, "status": status}
        if number % 4 == 3:
            counters = [{"name": f"card-{card}", "counters": {"memory": {"value": "80Gi"}}} for card in range(CARDS)]
            yield SLICES, self._slice(name, "counters", 2, sharedCounters=counters)
            devices = [_partition(card, part) for card in range(CARDS) for part in range(PARTITIONS)]
            yield SLICES, self._slice(name, "devices", 2, devices=devices)
        else:
            devices = [_device(f"gpu-{card}", "H100") for card in range(CARDS)]
            yield SLICES, self._slice(name, "devices", 1, devices=devices)

    def workloads(self, number: int) -> Iterator[tuple[Resource[Document], Document]]:
        """Yield the claims and Pods of a node; about two thirds of it are in use."""
        node = f"node-{number:04}"
        names = [f"gpu-{card}" for card in range(CARDS)]
        if number % 4 == 3:
            names = [f"card-{card}-{part}" for card in range(CARDS) for part in range(PARTITIONS)]
        share = self._rng.choice((0.0, 0.5, 0.75, 1.0)) if number % 4 != 3 else 0.5
        for device in names:
            if self._rng.random() < share:
                yield from self._held(node, device)

    def _held(self, node: str, device: str) -> Iterator[tuple[Resource[Document], Document]]:
        team = self._rng.choice(TEAMS)
        name = f"{node}-{device}"
        result = {"request": "gpu", "driver": GPU, "pool": node, "device": device}
        request = {"name": "gpu", "exactly": {"deviceClassName": "h100" if device.startswith("gpu") else "a100-mig"}}
        user = {"resource": "pods", "name": name, "uid": f"uid-{name}"}
        status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}
        metadata = {"name": name, "namespace": team}
        spec = {"devices": {"requests": [request]}}
        yield CLAIMS, {**_typed("ResourceClaim"), "metadata": metadata, "spec": spec, "status": status}
        yield PODS, _pod(name, team, phase="Running", node=node)

    def waiting(self) -> Iterator[tuple[Resource[Document], Document]]:
        """Yield Pods that fit nowhere, and one that does not start."""
        message = WAITING.format(nodes=self.nodes)
        conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]
        for number in range(3):
            yield PODS, _pod(f"train-{number}", "research", conditions=conditions)
        waiting = {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}
        statuses = [{"name": "main", "restartCount": 7, "state": {"waiting": waiting}, "image": "i", "imageID": ""}]
        broken = _pod("web-0", "serving", phase="Running", node="node-0000", containerStatuses=statuses)
        yield PODS, broken
        for number in (1, 2):
            selector = {"driver": GPU, "pool": f"node-{number % self.nodes:04}", "device": f"gpu-{number}"}
            spec = {"deviceSelector": selector, "taint": {"key": "example.com/ecc", "effect": "NoSchedule"}}
            yield RULES, {**_typed("DeviceTaintRule"), "metadata": {"name": f"ecc-{number}"}, "spec": spec}

    def _slice(self, node: str, what: str, count: int, **content: Any) -> Document:
        pool = {"name": node, "generation": 1, "resourceSliceCount": count}
        for device in content.get("devices", ()) if self._uuids else ():
            device["attributes"]["uuid"] = {"string": str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{node}/{device['name']}"))}
        spec = {"driver": GPU, "nodeName": node, "pool": pool, **content}
        return {**_typed("ResourceSlice"), "metadata": {"name": f"{node}-{what}"}, "spec": spec}

    def objects(self) -> Iterator[tuple[Resource[Document], Document]]:
        """Yield all objects but the fixtures."""
        for number in range(self.nodes):
            yield from self.node_objects(number)
        for number in range(self.nodes):
            yield from self.workloads(number)
        yield from self.waiting()


def _typed(kind: str) -> Document:
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind}


def _core(kind: str) -> Document:
    return {"apiVersion": "v1", "kind": kind}


def _device(name: str, model: str, **more: Any) -> Document:
    return {"name": name, "attributes": {"model": {"string": model}}, "capacity": {"memory": {"value": "80Gi"}}, **more}


def _partition(card: int, part: int) -> Document:
    consumed = [{"counterSet": f"card-{card}", "counters": {"memory": {"value": "20Gi"}}}]
    return _device(f"card-{card}-{part}", "A100", consumesCounters=consumed)


def _pod(name: str, namespace: str, *, phase: str = "Pending", node: str = "", **status: Any) -> Document:
    spec: Document = {
        "containers": [{"name": "main", "image": "example.com/image:1"}],
        "terminationGracePeriodSeconds": 0,
    }
    if node:
        spec["nodeName"] = node
    metadata = {"name": name, "namespace": namespace}
    return {**_core("Pod"), "metadata": metadata, "spec": spec, "status": {"phase": phase, **status}}


async def populate(client: Client, cluster: SampleCluster) -> None:
    """Create the objects with their status."""
    for resource, document in cluster.fixtures():
        await client.create(resource, document)
    waiting = iter(cluster.objects())

    async def write() -> None:
        for resource, document in waiting:
            created = await client.create(resource, document)
            if resource in (PODS, CLAIMS) and document.get("status"):
                await client.update_status(resource, {**created, "status": document["status"]})

    await asyncio.gather(*(write() for _ in range(WRITERS)))


def fill(server: Server, nodes: int, *, uuids: bool = False) -> None:
    """Create a sample cluster on a server."""

    async def run() -> None:
        client = http_client(load_access(os.environ, path=str(server.kubeconfig)), SystemClock())
        try:
            await populate(client, SampleCluster(nodes, uuids=uuids))
        finally:
            await client.close()

    asyncio.run(run())
