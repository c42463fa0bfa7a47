"""A small cluster with users, kubelets and faults; everything that happens follows from one seed."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from dray.api.document import Document, GroupVersion
from dray.api.errors import APIError
from dray.client.interface import DeleteOptions, unstructured
from tests.simulation import checks
from tests.simulation.network import FaultRates
from tests.simulation.processes import Program, SchedulerProgram, controller_program
from tests.simulation.scheduling_simulation import (
    ACTIONS,
    NODES,
    POD_NAMES,
    PODS,
    SHARED_NAMES,
    TEAM,
    SchedulingSimulation,
)

DRA = GroupVersion("resource.k8s.io", "v1")
CLAIMS = unstructured(DRA, "resourceclaims", "ResourceClaim")
TEMPLATES = unstructured(DRA, "resourceclaimtemplates", "ResourceClaimTemplate")
CLASSES = unstructured(DRA, "deviceclasses", "DeviceClass", namespaced=False)
SLICES = unstructured(DRA, "resourceslices", "ResourceSlice", namespaced=False)

DRIVER = "gpu.example.com"
RESOURCE = "example.com/gpu"
PLUGIN_NODE = "plugin"
PLUGIN_DEVICES = 2
NODE_COUNT = 3
DEVICES_PER_NODE = 2
_NOW = DeleteOptions(grace_period_seconds=0)


class ClusterSimulation(SchedulingSimulation):
    """Nodes with devices, and claims that schedulers allocate."""

    claims = CLAIMS

    def __init__(
        self,
        seed: int,
        *,
        schedulers: int,
        extended: bool = False,
        exclusive: bool = False,
        rates: FaultRates | None = None,
        actions: int = ACTIONS,
    ) -> None:
        names = ("default-scheduler", "other-scheduler")[:schedulers]
        super().__init__(seed, rates or FaultRates(), actions, {name: SchedulerProgram(name) for name in names})
        # With Pods that ask for an extended resource, and a node where a device plugin has it.
        self.extended = extended
        # Whether the server refuses to allocate a device twice; a kube-apiserver does not.
        self.exclusive = exclusive
        # What runs beside each scheduler.
        self.controller_program: Program = controller_program
        # Uids of Pods that run with a device of the plugin.
        self.on_plugin: set[str] = set()

    def prepare(self, inner: Any) -> None:
        if not self.exclusive:
            inner._server.cache.devices.check = lambda *_: None
        self.rates.evict = self._evict

    def other_programs(self) -> Iterable[tuple[str, Program]]:
        return [(f"controller-{number}", self.controller_program) for number in range(len(self.scheduler_names))]

    # --- Safety. ---

    async def check(self) -> None:
        claims, pods = await self.state()
        checks.no_device_used_twice(claims, pods)
        if len(self.scheduler_names) == 1 or self.exclusive:
            checks.no_device_allocated_twice(claims)
        checks.reservations_are_allowed(claims)
        checks.bound_pods_are_reserved(claims, pods)
        checks.one_special_claim_per_pod(claims)
        checks.running_pods_keep_their_devices(self.running, claims, pods)

    # --- Users. ---

    async def create_objects(self, pods_per_node: int = 110) -> None:
        expression = f'device.driver == "{DRIVER}"'
        class_spec: Document = {"selectors": [{"cel": {"expression": expression}}]}
        if self.extended:
            class_spec["extendedResourceName"] = RESOURCE
        await self.user.create(CLASSES, {"metadata": {"name": "gpu"}, "spec": class_spec})
        await self.create_template("template", _request())
        for number in range(NODE_COUNT):
            amounts = {"cpu": "8", "memory": "8Gi", "pods": str(pods_per_node)}
            status = {"allocatable": amounts, "capacity": amounts}
            await self.user.create(NODES, {"metadata": {"name": f"node-{number}"}, "status": status})
            await self.user.create(SLICES, _slice(f"node-{number}"))
        if self.extended:
            amounts = {"cpu": "8", "memory": "8Gi", "pods": "110", RESOURCE: str(PLUGIN_DEVICES)}
            status = {"allocatable": amounts, "capacity": amounts}
            await self.user.create(NODES, {"metadata": {"name": PLUGIN_NODE}, "status": status})

    async def create_template(self, name: str, request: Document) -> None:
        spec = {"spec": {"devices": {"requests": [request]}}}
        await self.user.create(TEMPLATES, {"metadata": {"name": name, "namespace": TEAM}, "spec": spec})

    async def _step(self) -> None:
        name = self._rng.choice(POD_NAMES)
        match self._rng.choices(
            ("create", "create shared", "delete", "finish", "shared claim", "delete claim", "crash", "extended"),
            (2, 1, 3, 3, 1, 1, 1, 9) if self.extended else (8, 3, 3, 3, 2, 1, 1, 0),
        )[0]:
            case "create":
                await self.user.create(PODS, self._pod(name, {"name": "gpu", "resourceClaimTemplateName": "template"}))
            case "extended":
                await self.user.create(PODS, self._extended_pod(name))
            case "create shared":
                entry = {"name": "gpu", "resourceClaimName": self._rng.choice(SHARED_NAMES)}
                await self.user.create(PODS, self._pod(name, entry))
            case "delete":
                await self.user.delete(PODS, name, TEAM)
            case "finish":
                await self._finish(name)
            case "shared claim":
                metadata = {"name": self._rng.choice(SHARED_NAMES), "namespace": TEAM}
                await self.user.create(CLAIMS, {"metadata": metadata, "spec": {"devices": {"requests": [_request()]}}})
            case "delete claim":
                await self.user.delete(CLAIMS, self._rng.choice(SHARED_NAMES), TEAM)
            case _:
                self._crash_one()

    def _extended_pod(self, name: str) -> Document:
        container = {"name": "c", "image": "i", "resources": {"limits": {RESOURCE: "1"}}}
        spec = {"schedulerName": self._rng.choice(self.scheduler_names), "containers": [container]}
        return {"metadata": {"name": name, "namespace": TEAM}, "spec": spec}

    async def _evict(self, namespace: str, name: str) -> None:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
        with suppress(APIError):
            await self.user.create_subresource(PODS, name, namespace, "eviction", body)

    async def _finish(self, name: str) -> None:
        pod = await self.user.get(PODS, name, TEAM)
        if self.running.pop(pod["metadata"]["uid"], None) is not None:
            self.on_plugin.discard(pod["metadata"]["uid"])
            await self._set_phase(name, "Succeeded")

    async def _sync_pod(self, pod: Document, claims: list[Document]) -> None:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        if not pod["spec"].get("nodeName"):
            return
        if pod["metadata"].get("deletionTimestamp"):
            self.running.pop(uid, None)
            self.on_plugin.discard(uid)
            await self.user.delete(PODS, name, TEAM, DeleteOptions(uid=uid, grace_period_seconds=0))
        elif uid not in self.running and pod["status"].get("phase") == "Pending":
            if checks.is_extended(pod) and not checks.special_name(pod):
                await self._admit(pod)
                return
            mine = checks.claims_ready_for(pod, claims)
            if mine is not None:
                self.running[uid] = {claim["metadata"]["uid"]: checks.devices_of(claim) for claim in mine}
                await self._set_phase(name, "Running")

    async def _admit(self, pod: Document) -> None:
        """A Pod that wants devices of the plugin runs if there are any, and has failed if not."""
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        if pod["spec"]["nodeName"] == PLUGIN_NODE and len(self.on_plugin) < PLUGIN_DEVICES:
            self.running[uid] = {}
            self.on_plugin.add(uid)
            await self._set_phase(name, "Running")
        else:
            await self._set_phase(name, "Failed")

    async def check_settled(self) -> None:
        claims, pods = await self.state()
        room = PLUGIN_DEVICES - len(self.on_plugin) if self.extended else 0
        checks.everything_is_settled(claims, pods, NODE_COUNT * DEVICES_PER_NODE, room)
        checks.running_pods_are_reserved(self.running, claims)
        checks.bound_pods_run(self.running, claims, pods)
        for program in self.programs:
            assert program.current is not None
            checks.scheduler_agrees(program.current, claims)


def _request() -> Document:
    return {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}


def _slice(node: str) -> Document:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"gpu-{number}"} for number in range(DEVICES_PER_NODE)]
    return {"metadata": {"name": node}, "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}}
