"""A cluster in virtual time: the API server, the controllers that judge nodes, and nodes that live or do not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from dray.api.document import Document, GroupVersion
from dray.api.errors import NotFoundError
from dray.api.features import FeatureGates
from dray.api.timestamps import format_micro_time, format_time
from dray.client.in_process import InProcessTransport
from dray.client.interface import DeleteOptions, Patch, PatchType, WriteOptions, unstructured
from dray.client.rest import RestClient
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.device_taint_eviction.reconciler import DeviceTaintEvictionController
from dray.controllers.node_lifecycle.reconciler import NodeLifecycleController
from dray.controllers.node_lifecycle.zones import Rates
from dray.controllers.pod_garbage_collector.reconciler import PodGarbageCollector
from dray.controllers.reconciler import ControllerContext
from dray.controllers.resource_claim.reconciler import ResourceClaimController
from dray.controllers.taint_eviction.reconciler import TaintEvictionController
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup
from dray.sim.replica.virtual_time import LoopClock, run_virtually
from tests.in_process_server import in_process_server

CORE, DRA = GroupVersion("", "v1"), GroupVersion("resource.k8s.io", "v1")
PODS = unstructured(CORE, "pods", "Pod")
NODES = unstructured(CORE, "nodes", "Node", namespaced=False)
EVENTS = unstructured(CORE, "events", "Event")
LEASES = unstructured(GroupVersion("coordination.k8s.io", "v1"), "leases", "Lease")
CLAIMS = unstructured(DRA, "resourceclaims", "ResourceClaim")
SLICES = unstructured(DRA, "resourceslices", "ResourceSlice", namespaced=False)
RULES = unstructured(GroupVersion("resource.k8s.io", "v1"), "devicetaintrules", "DeviceTaintRule", namespaced=False)
TEAM = "team"
LEASE_NAMESPACE = "kube-node-lease"
HEARTBEAT_SECONDS = 10.0
# In virtual time; far beyond every period that a controller has.
SECONDS_MAX = 900.0
STATUS = WriteOptions(subresource="status")
CONDITIONS = (("Ready", "True"), ("MemoryPressure", "False"), ("DiskPressure", "False"), ("PIDPressure", "False"))


@dataclass
class Cluster:
    """What a test does and sees."""

    user: RestClient
    metrics: Metrics
    clock: LoopClock = field(default_factory=LoopClock)
    # Names of nodes that send heartbeats and finish deleted Pods.
    living: set[str] = field(default_factory=set)
    writes: list[tuple[str, str, str]] = field(default_factory=list)

    # --- Nodes. ---

    async def node(self, name: str, *, ready: str | None = "True", alive: bool = True, **labels: str) -> None:
        await self.user.create(NODES, {"metadata": {"name": name, "labels": labels}})
        if ready is not None:
            await self.report(name, Ready=ready)
        if alive:
            self.living.add(name)
            await self.renew(name)

    async def report(self, name: str, **statuses: str) -> None:
        """The node's own status."""
        now = format_time(self.clock.now())
        wanted = {**dict(CONDITIONS), **statuses}
        conditions = [
            {"type": kind, "status": status, "reason": "Said", "lastHeartbeatTime": now, "lastTransitionTime": now}
            for kind, status in wanted.items()
        ]
        patch = Patch(PatchType.STRATEGIC, {"status": {"conditions": conditions}})
        await self.user.patch(NODES, name, "", patch, STATUS)

    async def renew(self, name: str) -> None:
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": format_micro_time(self.clock.now())}
        try:
            await self.user.patch(LEASES, name, LEASE_NAMESPACE, Patch(PatchType.MERGE, {"spec": spec}))
        except NotFoundError:
            await self.user.create(LEASES, {"metadata": {"name": name, "namespace": LEASE_NAMESPACE}, "spec": spec})

    async def revive(self, name: str) -> None:
        self.living.add(name)
        await self.renew(name)
        await self.report(name)

    async def kubelets(self) -> None:
        """Heartbeats of those that live."""
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            for name in sorted(self.living):
                await self.renew(name)

    async def finisher(self) -> None:
        """Living nodes let go of deleted Pods."""
        while True:
            await asyncio.sleep(0.5)
            for pod in (await self.user.list(PODS, TEAM)).items:
                if pod["metadata"].get("deletionTimestamp") and pod["spec"].get("nodeName") in self.living:
                    options = DeleteOptions(uid=pod["metadata"]["uid"], grace_period_seconds=0)
                    await self.user.delete(PODS, pod["metadata"]["name"], TEAM, options)

    async def taints(self, name: str) -> list[str]:
        node = await self.user.get(NODES, name)
        return sorted(
            f"{item['key'].removeprefix('node.kubernetes.io/')}:{item['effect']}"
            for item in node["spec"].get("taints") or ()
        )

    async def taint(self, name: str, *texts: str) -> None:
        """As `kubectl taint` does; texts are `key:Effect`."""
        taints = [dict(zip(("key", "effect"), text.rsplit(":", 1), strict=True)) for text in texts]
        await self.user.patch(NODES, name, "", Patch(PatchType.MERGE, {"spec": {"taints": taints}}))

    async def conditions(self, name: str) -> dict[str, tuple[str, str]]:
        node = await self.user.get(NODES, name)
        return {item["type"]: (item["status"], item.get("reason", "")) for item in node["status"]["conditions"]}

    # --- Pods. ---

    async def pod(self, name: str, node: str = "", *, ready: bool = False, **spec: Any) -> Document:
        body = {
            "metadata": {"name": name, "namespace": TEAM},
            "spec": {"containers": [{"name": "c", "image": "i"}], **spec, **({"nodeName": node} if node else {})},
        }
        pod = await self.user.create(PODS, body)
        if node:
            conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
            patch = Patch(PatchType.STRATEGIC, {"status": {"phase": "Running", "conditions": conditions}})
            pod = await self.user.patch(PODS, name, TEAM, patch, STATUS)
        return pod

    async def find(self, name: str) -> Document | None:
        try:
            return await self.user.get(PODS, name, TEAM)
        except NotFoundError:
            return None

    async def terminating(self, name: str) -> bool:
        pod = await self.find(name)
        return pod is None or "deletionTimestamp" in pod["metadata"]

    async def gone(self, name: str) -> bool:
        return await self.find(name) is None

    async def condition(self, name: str, kind: str) -> Document:
        pod = await self.user.get(PODS, name, TEAM)
        return next((item for item in pod["status"].get("conditions") or () if item["type"] == kind), {})

    # --- Claims. ---

    async def claim(self, name: str, device: str, *users: Document, tolerations: Any = ()) -> Document:
        """A claim with its device, `driver/pool/device`, and its users."""
        exactly = {"deviceClassName": "gpu"}
        spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
        made = await self.user.create(CLAIMS, {"metadata": {"name": name, "namespace": TEAM}, "spec": spec})
        driver, pool, chosen = device.split("/")
        result = {"request": "r", "driver": driver, "pool": pool, "device": chosen, "tolerations": list(tolerations)}
        made["status"] = {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [
                {"resource": "pods", "name": user["metadata"]["name"], "uid": user["metadata"]["uid"]} for user in users
            ],
        }
        return await self.user.update_status(CLAIMS, made)

    async def slice(self, name: str = "s", *, taints: Any = (), generation: int = 1) -> Document:
        spec = {
            "driver": "gpu.example.com",
            "allNodes": True,
            "pool": {"name": "pool", "generation": generation, "resourceSliceCount": 1},
            "devices": [{"name": "d0", "taints": list(taints)}, {"name": "d1"}],
        }
        try:
            found = await self.user.get(SLICES, name)
        except NotFoundError:
            return await self.user.create(SLICES, {"metadata": {"name": name}, "spec": spec})
        return await self.user.update(SLICES, {**found, "spec": spec})

    # --- Looking. ---

    async def events(self, reason: str) -> list[tuple[str, str, str]]:
        items = (await self.user.list(EVENTS)).items
        return [
            (item["involvedObject"]["name"], item["type"], item["message"])
            for item in items
            if item["reason"] == reason
        ]

    async def until(self, condition: Callable[[], Awaitable[object]]) -> float:
        """Wait for a state; returns how long it took, in virtual seconds."""
        started = self.clock.monotonic()
        while not await condition():
            assert self.clock.monotonic() - started < SECONDS_MAX, "it never came"
            await asyncio.sleep(0.1)
        return self.clock.monotonic() - started


@asynccontextmanager
async def running_cluster(
    *, rates: Rates | None = None, gates: str = "", finished_max: int = 5
) -> AsyncIterator[Cluster]:
    clock, rng, metrics = LoopClock(), random.Random(7), Metrics()
    features = FeatureGates.parse(gates or "DRADeviceTaintRules=true")
    async with in_process_server(clock, random.Random(1), TEAM, LEASE_NAMESPACE, "default", gates=features) as server:

        def client(name: str) -> RestClient:
            return RestClient(InProcessTransport(server, user=name, groups=("system:masters",), user_agent=name))

        made = Cluster(client("user"), metrics)
        eyes = client("controller")
        informers = SharedInformerFactory(eyes, clock, rng)
        async with TaskGroup("cluster") as group:
            for controller in (
                NodeLifecycleController(ControllerContext(eyes, informers, clock, metrics=metrics), rates=rates),
                TaintEvictionController(ControllerContext(eyes, informers, clock, metrics=metrics)),
                PodGarbageCollector(
                    ControllerContext(eyes, informers, clock, metrics=metrics), finished_max=finished_max
                ),
                ResourceClaimController(ControllerContext(eyes, informers, clock, metrics=metrics)),
                DeviceTaintEvictionController(
                    ControllerContext(eyes, informers, clock, gates=features, metrics=metrics)
                ),
            ):
                group.spawn(controller.run(), type(controller).__name__)
            group.spawn(informers.run(), "informers")
            group.spawn(made.kubelets(), "heartbeats")
            group.spawn(made.finisher(), "finisher")
            yield made


def virtually(test: Callable[[Cluster], Coroutine[Any, Any, None]], **options: Any) -> None:
    """Run a test in a cluster of its own."""

    async def main() -> None:
        async with running_cluster(**options) as made:
            await test(made)

    run_virtually(main())
