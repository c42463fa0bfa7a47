"""Workloads whose controllers crash between any two writes, with every fault, in virtual time from one seed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack
from typing import Any

from dray.api.document import Document, GroupVersion
from dray.api.errors import APIError
from dray.client.in_process import InProcessTransport
from dray.client.interface import LocalRequest, Patch, PatchType, WatchBatch, unstructured
from dray.client.rest import RestClient
from dray.client.shared_informers import SharedInformerFactory
from dray.cmd.simulated_nodes import SimulatedNodes, Simulation
from dray.controllers.daemon_set.reconciler import DaemonSetController
from dray.controllers.deployment.reconciler import DeploymentController
from dray.controllers.job.reconciler import JobController
from dray.controllers.node_lifecycle.reconciler import NodeLifecycleController
from dray.controllers.reconciler import ControllerContext
from dray.controllers.replica_set.reconciler import ReplicaSetController
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics
from dray.scheduler.registry import BUILT_IN
from dray.scheduler.scheduler import Scheduler
from dray.sim.replica.virtual_time import LoopClock
from tests.in_process_server import in_process_server
from tests.simulation.network import FaultRates
from tests.simulation.processes import Process

TEAM = "team"
APPS = GroupVersion("apps", "v1")
PODS = unstructured(GroupVersion("", "v1"), "pods", "Pod")
REPLICA_SETS = unstructured(APPS, "replicasets", "ReplicaSet")
DEPLOYMENTS = unstructured(APPS, "deployments", "Deployment")
DAEMON_SETS = unstructured(APPS, "daemonsets", "DaemonSet")
JOBS = unstructured(GroupVersion("batch", "v1"), "jobs", "Job")
NODES = 3
ACTIONS = 20
_MASTERS = ("system:masters",)


class ControllerProgram:
    """The process that crashes; `current` are the controllers of the present life that create Pods."""

    def __init__(self) -> None:
        self.current: tuple[ReplicaSetController, DaemonSetController, JobController] | None = None

    def __call__(self, client: RestClient, rng: random.Random, clock: Clock) -> list[Coroutine[Any, Any, Any]]:
        informers = SharedInformerFactory(client, clock, rng)
        context = ControllerContext(client, informers, clock, rng=rng)
        self.current = ReplicaSetController(context), DaemonSetController(context), JobController(context)
        deployments = DeploymentController(ControllerContext(client, informers, clock))
        return [informers.run(), deployments.run(), *(controller.run() for controller in self.current)]


def template(app: str, image: str = "i:1", seconds: float = 0.0, code: int = 0, **spec: Any) -> Document:
    annotations = {}
    if seconds:
        annotations = {
            "simulation.dray.dev/run-seconds": str(seconds),
            "simulation.dray.dev/exit-code": str(code),
        }
    return {
        "metadata": {"labels": {"app": app}, "annotations": annotations},
        "spec": {"containers": [{"name": "c", "image": image}], **spec},
    }


class CheckedServer:
    """The API server, with what must always hold checked after every Pod that is created or bound."""

    def __init__(self, inner: Any, simulation: WorkloadSimulation) -> None:
        self._inner = inner
        self._simulation = simulation

    async def handle(self, request: LocalRequest) -> Document:
        answer: Document = await self._inner.handle(request)
        if request.verb not in ("get", "list") and request.resource in ("pods", "replicasets"):
            self._simulation.note(request)
        if request.verb == "create" and (request.resource, request.subresource) in (("pods", ""), ("pods", "binding")):
            try:
                await self._simulation.check()
            except AssertionError as violation:
                self._simulation.violation = self._simulation.violation or violation
        return answer

    async def watch(self, request: LocalRequest) -> AsyncIterator[WatchBatch]:
        stream: AsyncIterator[WatchBatch] = await self._inner.watch(request)
        return stream


class WorkloadSimulation:
    """`rng` is the only randomness, the loop the only clock."""

    def __init__(self, seed: int, *, rates: FaultRates | None = None, actions: int = ACTIONS) -> None:
        self._rng = random.Random(seed)
        self.rates = rates or FaultRates(crash=0.04)
        self._actions = actions
        self.story = self.rates.story
        self.violation: AssertionError | None = None
        self.program = ControllerProgram()

    def _fork(self) -> random.Random:
        return random.Random(self._rng.random())

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            inner = await stack.enter_async_context(
                in_process_server(LoopClock(), self._fork(), TEAM, "kube-node-lease")
            )
            server = self._server(inner)
            self.eyes = self._client(inner, "eyes")
            self.user = self._client(server, "user")
            steady = [asyncio.ensure_future(work) for work in self._steady(server)]
            self.process = Process("controllers", self.program, server, self._fork(), self.rates)
            try:
                await asyncio.sleep(8)
                self.process.start()
                await self._create_objects()
                await self._run_workload()
                await self._stop_faults()
            finally:
                if self.process.alive:
                    await self.process.end()
                for task in steady:
                    task.cancel()
                await asyncio.gather(*steady, return_exceptions=True)

    def _server(self, inner: Any) -> CheckedServer:
        return CheckedServer(inner, self)

    def _client(self, server: Any, name: str) -> RestClient:
        return RestClient(InProcessTransport(server, user=name, groups=_MASTERS, user_agent=name))

    def _steady(self, server: Any) -> list[Coroutine[Any, Any, Any]]:
        clock = LoopClock()
        scheduling, looking = self._client(server, "scheduler"), self._client(server, "nodes")
        seen, known = (
            SharedInformerFactory(scheduling, clock, self._fork()),
            SharedInformerFactory(looking, clock, self._fork()),
        )
        return [
            Scheduler(scheduling, seen, clock, Metrics(), factories=BUILT_IN).run(),
            seen.run(),
            NodeLifecycleController(ControllerContext(looking, known, clock)).run(),
            known.run(),
            SimulatedNodes(looking, clock, Simulation(NODES)).run(),
        ]

    # --- The user. ---

    async def _create_objects(self) -> None:
        for resource, name, spec in (
            (REPLICA_SETS, "fixed", {"replicas": 5, "template": template("fixed")}),
            (DEPLOYMENTS, "rolling", {"replicas": 4, "template": template("rolling")}),
            (DAEMON_SETS, "agent", {"template": template("agent")}),
        ):
            body = {**spec, "selector": {"matchLabels": {"app": name}}}
            await self.user.create(resource, {"metadata": {"name": name, "namespace": TEAM}, "spec": body})
        never: Document = {"restartPolicy": "Never"}
        for name, spec in (
            ("good", {"completions": 6, "parallelism": 3, "template": template("good", seconds=3, **never)}),
            ("bad", {"backoffLimit": 2, "template": template("bad", seconds=1, code=1, **never)}),
            (
                "indexed",
                {
                    "completions": 5,
                    "parallelism": 2,
                    "completionMode": "Indexed",
                    "template": template("indexed", seconds=2, **never),
                },
            ),
        ):
            await self.user.create(JOBS, {"metadata": {"name": name, "namespace": TEAM}, "spec": spec})

    async def _run_workload(self) -> None:
        for number in range(self._actions):
            await asyncio.sleep(self._rng.uniform(0.0, 4.0))
            self._raise_violation()
            try:
                await self._step(number)
            except APIError as refusal:
                self.story.append(f"          user: {refusal}")

    async def _step(self, number: int) -> None:
        match self._rng.choice(("delete", "delete", "image", "scale", "daemons", "crash")):
            case "delete":
                pods = await self._pods()
                keep = ("good", "bad", "indexed")
                names = [pod["metadata"]["name"] for pod in pods if pod["metadata"]["labels"]["app"] not in keep]
                if names:
                    await self.user.delete(PODS, self._rng.choice(names), TEAM)
            case "image":
                await self._change(DEPLOYMENTS, "rolling", {"template": _image(number)})
            case "scale":
                await self._change(DEPLOYMENTS, "rolling", {"replicas": self._rng.randint(0, 8)})
            case "daemons":
                await self._change(DAEMON_SETS, "agent", {"template": _image(number)})
            case _:
                if self.rates.crash:
                    self.process.crash()

    async def _change(self, resource: Any, name: str, spec: Document) -> None:
        await self.user.patch(resource, name, TEAM, Patch(PatchType.MERGE, {"spec": spec}))

    async def _pods(self) -> list[Document]:
        return list((await self.eyes.list(PODS, TEAM)).items)

    # --- What must hold. ---

    def note(self, request: LocalRequest) -> None:
        place = "/".join(part for part in (request.resource, request.name, request.subresource) if part)
        name = (request.body or {}).get("metadata", {}).get("name", "") if isinstance(request.body, dict) else ""
        time = asyncio.get_running_loop().time()
        self.story.append(f"{time:9.3f} {request.user_agent:12} {request.verb:7} {place} {name}")

    def _raise_violation(self) -> None:
        if self.violation is not None:
            raise self.violation

    async def check(self) -> None:
        active: dict[str, list[Document]] = {}
        for pod in await self._pods():
            finished = pod["status"].get("phase") in ("Succeeded", "Failed")
            if not finished and not pod["metadata"].get("deletionTimestamp"):
                active.setdefault(pod["metadata"]["labels"]["app"], []).append(pod)
        for app, most in (("fixed", 5), ("good", 3), ("bad", 1), ("indexed", 2)):
            assert len(active.get(app, ())) <= most, f"{app}: {len(active[app])} Pods"
        index = "batch.kubernetes.io/job-completion-index"
        indexes = Counter(pod["metadata"]["annotations"][index] for pod in active.get("indexed", ()))
        assert max(indexes.values(), default=0) <= 1, f"an index twice: {indexes}"
        nodes = Counter(pod["spec"].get("nodeName") for pod in active.get("agent", ()))
        nodes.pop(None, 0)
        assert max(nodes.values(), default=0) <= 1, f"two daemons on a node: {nodes}"

    async def _stop_faults(self) -> None:
        """No more faults: everything must come to rest."""
        self.rates.on = False
        await asyncio.sleep(400)
        self._raise_violation()
        assert self.process.alive
        assert not self.process.failures(), self.process.failures()
        await self._check_pods()
        await self._check_jobs()
        for controller in self.program.current or ():
            expectations = controller._control.expectations
            assert not expectations._creations, f"{controller.name} expects {expectations._creations}"
            assert not expectations._by_owner, f"{controller.name} expects {expectations._by_owner}"
            assert not expectations._deletions, f"{controller.name} expects {expectations._deletions}"

    async def _check_pods(self) -> None:
        found = Counter(
            pod["metadata"]["labels"]["app"]
            for pod in await self._pods()
            if pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
        )
        deployment = await self.eyes.get(DEPLOYMENTS, "rolling", TEAM)
        wanted = deployment["spec"]["replicas"]
        expected = {"fixed": 5, "agent": NODES, **({"rolling": wanted} if wanted else {})}
        assert found == expected, found
        status = deployment["status"]
        assert [status.get(key, 0) for key in ("replicas", "updatedReplicas", "availableReplicas")] == [wanted] * 3
        daemons = (await self.eyes.get(DAEMON_SETS, "agent", TEAM))["status"]
        assert (daemons["numberAvailable"], daemons["updatedNumberScheduled"]) == (NODES, NODES)

    async def _check_jobs(self) -> None:
        jobs = {item["metadata"]["name"]: item["status"] for item in (await self.eyes.list(JOBS, TEAM)).items}
        ends = {name: status["conditions"][-1]["type"] for name, status in jobs.items()}
        assert ends == {"good": "Complete", "bad": "Failed", "indexed": "Complete"}
        assert (jobs["good"]["succeeded"], jobs["good"].get("failed")) == (6, None)
        assert (jobs["indexed"]["succeeded"], jobs["indexed"]["completedIndexes"]) == (5, "0-4")
        assert jobs["bad"]["failed"] == 3
        pods = [pod for pod in await self._pods() if pod["metadata"]["labels"]["app"] in jobs]
        found = Counter(pod["metadata"]["labels"]["app"] for pod in pods)
        assert found == {"good": 6, "bad": 3, "indexed": 5}, found
        assert all(not pod["metadata"].get("finalizers") for pod in pods)


def _image(number: int) -> Document:
    return {"spec": {"containers": [{"name": "c", "image": f"i:{number}"}]}}
