"""How long `dray plan` takes for many nodes and claims, from a snapshot to the answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from bench.rows import Row, Target
from dray.api.document import Document
from dray.scheduler.config import ProfileConfig
from dray.sim.capacity.addition import AdditionPlanner, PlanOptions
from dray.sim.capacity.plans import CapacityPlan
from dray.sim.capacity.shapes import existing_shapes
from dray.sim.headroom import headroom
from dray.sim.rebalance.planner import silent
from dray.sim.snapshot import Snapshot
from dray.sim.trial_cluster import TrialCluster

DRIVER: Final = "gpu.example.com"
NAMESPACE: Final = "default"
DEVICES: Final = 4
# Pending Pods request one to so many devices, in turn.
KINDS: Final = 4


@dataclass(frozen=True, slots=True)
class PlanSize:
    """The number of nodes, each full, and of pending Pods."""

    nodes: int
    pending: int


FULL: Final = PlanSize(5_000, 500)
QUICK: Final = PlanSize(500, 50)


def rows(size: PlanSize) -> Iterator[Row]:
    """Measure a plan, and the numbers of `dray top fragmentation`."""
    documents = list(_cluster(size))
    parameters = {"nodes": size.nodes, "claims": size.nodes * DEVICES, "pending": size.pending}
    started, used = time.perf_counter(), time.process_time()
    plan = _plan(documents)
    seconds, used = time.perf_counter() - started, time.process_time() - used
    assert not plan.unplaced, "every Pod fits on a new node"
    found = {"added": len(plan.added), "bound": plan.bound, "cpu_s": round(used, 2)}
    yield Row("plan: nodes to add", seconds, "s", parameters | found, Target(10))
    started = time.perf_counter()
    headroom(Snapshot.of(documents))
    yield Row("plan: fragmentation", time.perf_counter() - started, "s", parameters)


def _plan(documents: list[Document]) -> CapacityPlan:
    snapshot = Snapshot.of(documents)
    cluster = TrialCluster(snapshot, ProfileConfig())
    planner = AdditionPlanner(cluster, existing_shapes(snapshot), PlanOptions(), silent)
    return planner.plan(cluster.pending)


def _cluster(size: PlanSize) -> Iterator[Document]:
    selectors = [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]
    yield _object("resource.k8s.io/v1", "DeviceClass", "gpu", spec={"selectors": selectors})
    for count in range(1, KINDS + 1):
        spec = {"spec": {"devices": {"requests": [_request(count)]}}}
        yield _object("resource.k8s.io/v1", "ResourceClaimTemplate", f"gpus-{count}", NAMESPACE, spec=spec)
    for number in range(size.nodes):
        yield from _node(f"node-{number}")
        for device in range(DEVICES):
            yield from _running(f"pod-{number}-{device}", f"node-{number}", f"gpu-{device}")
    for number in range(size.pending):
        yield _pod(f"pending-{number}", number % KINDS + 1)


def _object(api_version: str, kind: str, name: str, namespace: str = "", **fields: object) -> Document:
    metadata = {"name": name, "uid": f"{kind}-{name}"} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}


def _request(count: int) -> Document:
    return {"name": "gpus", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}}


def _node(name: str) -> Iterator[Document]:
    allocatable = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    conditions = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
    node = _object("v1", "Node", name, status={"allocatable": allocatable, "conditions": conditions})
    node["metadata"]["labels"] = {"kubernetes.io/hostname": name}
    yield node
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"gpu-{number}"} for number in range(DEVICES)]
    spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices}
    yield _object("resource.k8s.io/v1", "ResourceSlice", name, spec=spec)


def _pod(name: str, count: int) -> Document:
    requests = {"cpu": "4", "memory": "8Gi"}
    spec = {
        "schedulerName": "default-scheduler",
        "containers": [{"name": "main", "image": "pause", "resources": {"requests": requests}}],
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": f"gpus-{count}"}],
    }
    return _object("v1", "Pod", name, NAMESPACE, spec=spec, status={"phase": "Pending"})


def _running(name: str, node: str, device: str) -> Iterator[Document]:
    pod = _pod(name, 1)
    pod["spec"]["nodeName"] = node
    claim_name = f"{name}-gpus"
    pod["status"] = {
        "phase": "Running",
        "resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": claim_name}],
    }
    yield pod
    user = {"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}
    result = {"request": "gpus", "driver": DRIVER, "pool": node, "device": device}
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}
    spec = {"devices": {"requests": [_request(1)]}}
    claim = _object("resource.k8s.io/v1", "ResourceClaim", claim_name, NAMESPACE, spec=spec, status=status)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod["metadata"]["uid"], "controller": True}
    claim["metadata"]["ownerReferences"] = [owner]
    yield claim
