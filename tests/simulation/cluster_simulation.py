"""A small cluster with users, kubelets and faults; everything that happens follows from one seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Any

from dray.api.document import Document, GroupVersion
from dray.api.errors import APIError, NotFoundError
from dray.api.features import FeatureGates
from dray.client.in_process import InProcessTransport
from dray.client.interface import DeleteOptions, LocalRequest, Patch, PatchType, WatchBatch, WriteOptions, unstructured
from dray.client.rest import RestClient
from dray.sim.replica.virtual_time import LoopClock
from tests.in_process_server import in_process_server
from tests.simulation import checks
from tests.simulation.network import FaultRates
from tests.simulation.processes import Process, Program, SchedulerProgram, controller_program

CORE, DRA = GroupVersion("", "v1"), GroupVersion("resource.k8s.io", "v1")
PODS = unstructured(CORE, "pods", "Pod")
NODES = unstructured(CORE, "nodes", "Node", namespaced=False)
CLAIMS = unstructured(DRA, "resourceclaims", "ResourceClaim")
TEMPLATES = unstructured(DRA, "resourceclaimtemplates", "ResourceClaimTemplate")
CLASSES = unstructured(DRA, "deviceclasses", "DeviceClass", namespaced=False)
SLICES = unstructured(DRA, "resourceslices", "ResourceSlice", namespaced=False)

TEAM = "team"
DRIVER = "gpu.example.com"
RESOURCE = "example.com/gpu"
PLUGIN_NODE = "plugin"
PLUGIN_DEVICES = 2
NODE_COUNT = 3
DEVICES_PER_NODE = 2
POD_NAMES = tuple(f"pod-{number}" for number in range(9))
SHARED_NAMES = ("shared-0", "shared-1")
ACTIONS = 45
_NOW = DeleteOptions(grace_period_seconds=0)


class CheckedServer:
    """The API server, with the safety checks run after every write."""

    def __init__(self, inner: Any, simulation: ClusterSimulation) -> None:
        self._inner = inner
        self._simulation = simulation

    async def handle(self, request: LocalRequest) -> Document:
        answer: Document = await self._inner.handle(request)
        if request.verb not in ("get", "list") and request.resource in ("pods", "resourceclaims"):
            self._simulation.note(request)
            try:
                await self._simulation.check()
            except AssertionError as violation:
                # Not raised here: the sender of the request would log it and go on.
                self._simulation.violation = self._simulation.violation or violation
        return answer

    async def watch(self, request: LocalRequest) -> AsyncIterator[WatchBatch]:
        stream: AsyncIterator[WatchBatch] = await self._inner.watch(request)
        return stream


class ClusterSimulation:
    """`rng` is the only randomness, the loop the only clock."""

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
        self._rng = random.Random(seed)
        self._actions = actions
        # With Pods that ask for an extended resource, and a node where a device plugin has it.
        self.extended = extended
        # Whether the server refuses to allocate a device twice; a kube-apiserver does not.
        self.exclusive = exclusive
        # Of the API server.
        self.gates: FeatureGates | None = None
        self.rates = rates or FaultRates()
        self.scheduler_names = ("default-scheduler", "other-scheduler")[:schedulers]
        self.programs = [SchedulerProgram(name) for name in self.scheduler_names]
        # What runs beside each scheduler.
        self.controller_program: Program = controller_program
        self.processes: list[Process] = []
        # Uid of a Pod whose containers run -> its claims' uids and devices when they started.
        self.running: dict[str, dict[str, list[str]]] = {}
        # Uids of Pods that run with a device of the plugin.
        self.on_plugin: set[str] = set()
        self.writes = 0
        # The first broken promise; ends the run.
        self.violation: AssertionError | None = None
        self.story = self.rates.story

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            inner = await stack.enter_async_context(
                in_process_server(LoopClock(), self._fork(), TEAM, gates=self.gates)
            )
            if not self.exclusive:
                inner._server.cache.devices.check = lambda *_: None  # type: ignore[method-assign]
            server = CheckedServer(inner, self)
            self.user = RestClient(
                InProcessTransport(server, user="user", groups=("system:masters",), user_agent="user")
            )
            self._eyes = RestClient(
                InProcessTransport(inner, user="eyes", groups=("system:masters",), user_agent="eyes")
            )
            self.rates.evict = self._evict
            await self.create_objects()
            for name, program in zip(self.scheduler_names, self.programs, strict=True):
                self.processes.append(Process(name, program, server, self._fork(), self.rates))
            for number in range(len(self.scheduler_names)):
                self.processes.append(
                    Process(f"controller-{number}", self.controller_program, server, self._fork(), self.rates)
                )
            for process in self.processes:
                process.start()
            kubelet = asyncio.ensure_future(self._kubelet())
            try:
                await self._run_workload()
                await self._stop_faults()
            finally:
                kubelet.cancel()
                await asyncio.gather(kubelet, return_exceptions=True)
                for process in self.processes:
                    if process.alive:
                        await process.end()

    def _raise_violation(self) -> None:
        if self.violation is not None:
            raise self.violation

    def _fork(self) -> random.Random:
        return random.Random(self._rng.random())

    def note(self, request: LocalRequest) -> None:
        self.writes += 1
        place = "/".join(part for part in (request.resource, request.name, request.subresource) if part)
        time = asyncio.get_running_loop().time()
        self.story.append(f"{time:9.3f} {request.user_agent:18} {request.verb:7} {place}")

    # --- Safety. ---

    async def state(self) -> tuple[list[Document], list[Document]]:
        claims = list((await self._eyes.list(CLAIMS, TEAM)).items)
        return claims, list((await self._eyes.list(PODS, TEAM)).items)

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

    async def _run_workload(self) -> None:
        for _ in range(self._actions):
            await asyncio.sleep(self._rng.uniform(0.0, 1.5))
            self._raise_violation()
            try:
                await self._step()
            except APIError as refusal:
                self.story.append(f"          user: {refusal}")

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
                if self.rates.crash:
                    self._rng.choice(self.processes).crash()

    def _pod(self, name: str, entry: Document) -> Document:
        spec = {
            "schedulerName": self._rng.choice(self.scheduler_names),
            "containers": [{"name": "c", "image": "i"}],
            "resourceClaims": [entry],
        }
        return {"metadata": {"name": name, "namespace": TEAM}, "spec": spec}

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

    # --- Kubelets, and the garbage collector's part. ---

    async def _kubelet(self) -> None:
        seen = -1
        while True:
            await asyncio.sleep(0.25)
            if seen == self.writes:
                continue
            seen = self.writes
            claims, pods = await self.state()
            for pod in pods:
                try:
                    await self._sync_pod(pod, claims)
                except NotFoundError:
                    continue
            await self._collect(claims, pods)

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

    async def _set_phase(self, name: str, phase: str) -> None:
        patch = Patch(PatchType.MERGE, {"status": {"phase": phase}})
        await self.user.patch(PODS, name, TEAM, patch, WriteOptions(subresource="status"))

    async def _collect(self, claims: list[Document], pods: list[Document]) -> None:
        alive = {pod["metadata"]["uid"] for pod in pods}
        for claim in claims:
            owners = claim["metadata"].get("ownerReferences") or ()
            if owners and owners[0]["uid"] not in alive and not claim["metadata"].get("deletionTimestamp"):
                try:
                    await self.user.delete(
                        CLAIMS, claim["metadata"]["name"], TEAM, DeleteOptions(uid=claim["metadata"]["uid"])
                    )
                except APIError:
                    continue

    # --- Liveness. ---

    async def _stop_faults(self) -> None:
        """No more faults: everything must come to rest before the queue's flush could have hidden a lost wake-up."""
        self.rates.on = False
        await asyncio.sleep(200)
        self._raise_violation()
        for process in self.processes:
            assert process.alive, f"{process.name} has not come back"
            assert not process.failures(), process.failures()
        await self._check_settled()

    async def _check_settled(self) -> None:
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
