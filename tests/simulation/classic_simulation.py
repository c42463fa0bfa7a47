"""A small cluster with a classic driver, whose boards outlive its process; everything follows from one seed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from dray.api.document import Document, GroupVersion
from dray.api.errors import APIError, ConflictError, NotFoundError
from dray.api.features import FeatureGates
from dray.client.in_process import InProcessTransport
from dray.client.interface import DeleteOptions, LocalRequest, Patch, PatchType, WatchBatch, WriteOptions, unstructured
from dray.client.rest import RestClient
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.classic_claim.reconciler import ClassicClaimController
from dray.controllers.reconciler import ControllerContext
from dray.driver.classic import Allocation, Claim, ClassicController, NoRoomError
from dray.driver.classic.reconciler import DriverReconciler
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics
from dray.sim.replica.virtual_time import LoopClock
from tests.in_process_server import in_process_server
from tests.simulation import classic_checks as checks
from tests.simulation.network import FaultRates
from tests.simulation.processes import Process, SchedulerProgram

CORE, CDI = GroupVersion("", "v1"), GroupVersion("cdi.k8s.io", "v1alpha1")
PODS = unstructured(CORE, "pods", "Pod")
NODES = unstructured(CORE, "nodes", "Node", namespaced=False)
CLAIMS = unstructured(CDI, "resourceclaims", "ResourceClaim")
CLASSES = unstructured(CDI, "resourceclasses", "ResourceClass", namespaced=False)

TEAM = "team"
DRIVER = "board.example.com"
NODE_NAMES = ("node-0", "node-1", "node-2")
BOARDS_PER_NODE = 2
POD_NAMES = tuple(f"pod-{number}" for number in range(9))
SHARED_NAMES = ("shared-0", "shared-1")
ACTIONS = 45
# Followed kinds that the simulation has none of only cost time.
GATES = FeatureGates.parse("DRADeviceTaintRules=false")


class Hardware:
    """The boards of all nodes; what is plugged in here is real, whatever the API says."""

    def __init__(self) -> None:
        # Uid of a claim -> node of its board.
        self.held: dict[str, str] = {}

    def free_on(self, node: str) -> int:
        return BOARDS_PER_NODE - Counter(self.held.values())[node]


class Boards(ClassicController):
    """The driver: stateless, slow, and sometimes broken."""

    name = DRIVER

    def __init__(self, simulation: ClassicSimulation, rng: random.Random) -> None:
        self._simulation = simulation
        self._hardware = simulation.hardware
        self._rng = rng

    async def unsuitable_nodes(self, claims: Sequence[Claim], nodes: Sequence[str]) -> Iterable[str]:
        await self._work("unsuitable_nodes")
        return [node for node in nodes if self._hardware.free_on(node) < len(claims)]

    async def allocate(
        self, claim: Claim, class_parameters: Mapping[str, Any], claim_parameters: Mapping[str, Any], node: str | None
    ) -> Allocation:
        await self._work("allocate")
        self._simulation.expect(claim.uid not in self._hardware.held, f"{claim} is allocated twice")
        await self._simulation.expect_finalizer(claim)
        chosen = node or next((name for name in NODE_NAMES if self._hardware.free_on(name)), None)
        if chosen is None or not self._hardware.free_on(chosen):
            raise NoRoomError(f"no board on {chosen}")
        self._hardware.held[claim.uid] = chosen
        self._simulation.log(f"driver: {claim} on {chosen}")
        await self._work("allocate, after")
        return Allocation({"node": chosen}, nodes=[chosen], user_limit=claim_parameters.get("users", 1))

    async def deallocate(self, claim: Claim) -> None:
        await self._work("deallocate")
        await self._simulation.expect_unused(claim)
        node = self._hardware.held.pop(claim.uid, None)
        self._simulation.log(f"driver: {claim} freed from {node}")
        await self._work("deallocate, after")

    async def _work(self, what: str) -> None:
        await asyncio.sleep(self._rng.uniform(0.0, 0.02))
        if self._simulation.rates.happens("driver_broken", self._rng):
            raise OSError(f"{what} broke")


class CheckedServer:
    """The API server, with the safety checks run after every write."""

    def __init__(self, inner: Any, simulation: ClassicSimulation) -> None:
        self._inner = inner
        self._simulation = simulation

    async def handle(self, request: LocalRequest) -> Document:
        answer: Document = await self._inner.handle(request)
        if request.verb not in ("get", "list") and request.resource in ("pods", "resourceclaims"):
            self._simulation.note(request, answer)
            await self._simulation.check()
        return answer

    async def watch(self, request: LocalRequest) -> AsyncIterator[WatchBatch]:
        stream: AsyncIterator[WatchBatch] = await self._inner.watch(request)
        return stream


class ClassicSimulation:
    """`rng` is the only randomness, the loop the only clock."""

    def __init__(self, seed: int, *, schedulers: int, rates: FaultRates | None = None, actions: int = ACTIONS) -> None:
        self._rng = random.Random(seed)
        self.rates = rates or FaultRates(driver_broken=0.03)
        self._actions = actions
        self.scheduler_names = ("default-scheduler", "other-scheduler")[:schedulers]
        self.programs = [SchedulerProgram(name, GATES) for name in self.scheduler_names]
        self.hardware = Hardware()
        self.processes: list[Process] = []
        # Uid of a Pod whose containers run -> uids of its claims.
        self.running: dict[str, frozenset[str]] = {}
        self.writes = self.others_writes = 0
        # The first broken promise; ends the run.
        self.violation: AssertionError | None = None
        self.story = self.rates.story

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            inner = await stack.enter_async_context(in_process_server(LoopClock(), self._fork(), TEAM))
            server = CheckedServer(inner, self)
            self.user = RestClient(
                InProcessTransport(server, user="user", groups=("system:masters",), user_agent="user")
            )
            self._eyes = RestClient(
                InProcessTransport(inner, user="eyes", groups=("system:masters",), user_agent="eyes")
            )
            await self._create_objects()
            for name, program in zip(self.scheduler_names, self.programs, strict=True):
                self.processes.append(Process(name, program, server, self._fork(), self.rates))
            self.processes.append(Process("controller", _controller, server, self._fork(), self.rates))
            self.processes.append(Process("driver", self._driver, server, self._fork(), self.rates))
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

    def _driver(self, client: RestClient, rng: random.Random, clock: Clock) -> list[Coroutine[Any, Any, Any]]:
        informers = SharedInformerFactory(client, clock, rng)
        reconciler = DriverReconciler(Boards(self, rng), client, informers, clock, Metrics())
        return [informers.run(), reconciler.run()]

    def _fork(self) -> random.Random:
        return random.Random(self._rng.random())

    # --- The story. ---

    def log(self, text: str) -> None:
        self.story.append(f"{asyncio.get_running_loop().time():9.3f} {text}")

    def note(self, request: LocalRequest, answer: Document) -> None:
        self.writes += 1
        # The driver tries claims without a node again from time to time, for room that it may not have heard of.
        self.others_writes += request.user_agent != "driver"
        place = "/".join(part for part in (request.resource, request.name, request.subresource) if part)
        status = answer.get("status")
        status = status if isinstance(status, dict) and request.resource == "resourceclaims" else {}
        scheduler = (status.get("scheduling") or {}).get("scheduler") or {}
        users = [user["name"] for user in status.get("reservedFor") or ()]
        self.log(
            f"{request.user_agent:18} {request.verb:7} {place} {status.get('phase', '')} "
            f"{scheduler.get('selectedNode', '')} {users or ''}"
        )

    # --- Safety. ---

    def expect(self, condition: bool, text: str) -> None:
        """Keep a violation instead of raising it: the caller would log it and go on."""
        if not condition:
            self.log(f"VIOLATION {text}")
            self.violation = self.violation or AssertionError(text)

    async def expect_finalizer(self, claim: Claim) -> None:
        live = await self._find_claim(claim)
        protected = live is not None and bool(live["metadata"].get("finalizers"))
        self.expect(protected, f"{claim} is allocated without a finalizer")

    async def expect_unused(self, claim: Claim) -> None:
        live = await self._find_claim(claim)
        users = (live or {}).get("status", {}).get("reservedFor")
        self.expect(not users, f"{claim} is freed while {users} use it")

    async def _find_claim(self, claim: Claim) -> Document | None:
        try:
            found = await self._eyes.get(CLAIMS, claim.key.name, claim.key.namespace)
        except NotFoundError:
            return None
        return found if found["metadata"]["uid"] == claim.uid else None

    async def state(self) -> tuple[list[Document], list[Document]]:
        claims = list((await self._eyes.list(CLAIMS, TEAM)).items)
        return claims, list((await self._eyes.list(PODS, TEAM)).items)

    async def check(self) -> None:
        claims, pods = await self.state()
        for problem in (
            *checks.allocated_claims_have_boards(claims, self.hardware.held),
            *checks.boards_belong_to_claims(claims, self.hardware.held),
            *checks.users_are_allowed(claims),
            *checks.bound_pods_are_reserved(claims, pods),
            *checks.running_pods_keep_their_claims(self.running, claims, pods),
        ):
            self.expect(False, problem)

    def _raise_violation(self) -> None:
        if self.violation is not None:
            raise self.violation

    # --- Users. ---

    async def _create_objects(self) -> None:
        await self.user.create(CLASSES, {"metadata": {"name": "board"}, "driverName": DRIVER})
        for name in NODE_NAMES:
            await self._add_node(name)

    async def _add_node(self, name: str) -> None:
        amounts = {"cpu": "8", "memory": "8Gi", "pods": "110"}
        status = {"allocatable": amounts, "capacity": amounts}
        await self.user.create(NODES, {"metadata": {"name": name}, "status": status})
        # Nobody here looks after nodes: they are ready from the beginning.
        await self.user.patch(NODES, name, "", Patch(PatchType.MERGE, {"spec": {"taints": None}}))

    async def _run_workload(self) -> None:
        for _ in range(self._actions):
            await asyncio.sleep(self._rng.uniform(0.0, 1.5))
            self._raise_violation()
            try:
                await self._step()
            except APIError as refusal:
                self.log(f"user: {refusal}")

    async def _step(self) -> None:
        name = self._rng.choice(POD_NAMES)
        match self._rng.choices(
            (
                "create",
                "create two",
                "create shared",
                "delete",
                "lose",
                "finish",
                "claim",
                "delete claim",
                "node",
                "crash",
            ),
            (8, 2, 4, 3, 1, 3, 3, 1, 1, 2),
        )[0]:
            case "create":
                await self.user.create(PODS, self._pod(name, _inline("one")))
            case "create two":
                await self.user.create(PODS, self._pod(name, _inline("one"), _inline("two")))
            case "create shared":
                entry = {"name": "shared", "resourceClaimName": self._rng.choice(SHARED_NAMES)}
                await self.user.create(PODS, self._pod(name, entry))
            case "delete":
                await self.user.delete(PODS, name, TEAM)
            case "lose":
                await self._lose(name)
            case "finish":
                await self._finish(name)
            case "claim":
                await self._create_claim(self._rng.choice(SHARED_NAMES))
            case "delete claim":
                await self.user.delete(CLAIMS, self._rng.choice(SHARED_NAMES), TEAM)
            case "node":
                await self._replace_node(self._rng.choice(NODE_NAMES))
            case _:
                self._crash(self._rng.choice(self.processes))

    def _crash(self, process: Process) -> None:
        if self.rates.crash:
            process.crash()

    async def _lose(self, name: str) -> None:
        """The Pod's node has died: nobody takes its reservations back."""
        self.running.pop((await self.user.get(PODS, name, TEAM))["metadata"]["uid"], None)
        await self.user.delete(PODS, name, TEAM, DeleteOptions(grace_period_seconds=0))

    async def _replace_node(self, name: str) -> None:
        await self.user.delete(NODES, name)
        await asyncio.sleep(self._rng.uniform(0.0, 2.0))
        await self._add_node(name)

    async def _create_claim(self, name: str) -> None:
        mode = self._rng.choice(("Delayed", "Immediate"))
        spec = {
            "resourceClassName": "board",
            "allocationMode": mode,
            "parameters": {"users": self._rng.choice((1, 2, -1))},
        }
        await self.user.create(CLAIMS, {"metadata": {"name": name, "namespace": TEAM}, "spec": spec})

    def _pod(self, name: str, *entries: Document) -> Document:
        spec = {
            "schedulerName": self._rng.choice(self.scheduler_names),
            "containers": [{"name": "c", "image": "i"}],
            "resourceClaims": list(entries),
        }
        return {"metadata": {"name": name, "namespace": TEAM}, "spec": spec}

    async def _finish(self, name: str) -> None:
        pod = await self.user.get(PODS, name, TEAM)
        if self.running.pop(pod["metadata"]["uid"], None) is not None:
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
                except (NotFoundError, ConflictError):
                    # Again when something has changed.
                    seen = -1
            await self._collect(claims, pods)

    async def _sync_pod(self, pod: Document, claims: list[Document]) -> None:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        if not pod["spec"].get("nodeName"):
            return
        if pod["metadata"].get("deletionTimestamp"):
            self.running.pop(uid, None)
            for claim in claims:
                users = claim["status"].get("reservedFor") or ()
                if any(user["uid"] == uid for user in users):
                    status = {**claim["status"], "reservedFor": [user for user in users if user["uid"] != uid]}
                    await self.user.update_status(CLAIMS, {**claim, "status": status})
            await self.user.delete(PODS, name, TEAM, DeleteOptions(uid=uid, grace_period_seconds=0))
        elif uid not in self.running and pod["status"].get("phase") == "Pending":
            mine = checks.claims_ready_for(pod, claims)
            if mine is not None:
                self.running[uid] = frozenset(claim["metadata"]["uid"] for claim in mine)
                await self._set_phase(name, "Running")

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
        claims, pods = await self.state()
        free = {node: self.hardware.free_on(node) for node in NODE_NAMES}
        problems = [
            *checks.unsettled_claims(claims, pods),
            *checks.leaked_boards(claims, self.hardware.held),
            *checks.needless_waits(claims, pods, free),
            *checks.bound_pods_that_never_ran(self.running, claims, pods),
        ]
        for program in self.programs:
            assert program.current is not None
            problems += checks.leaks_of(program.current, claims)
        assert not problems, problems
        quiet, limit = self.others_writes, self.writes + 10 * len(claims)
        await asyncio.sleep(60)
        assert self.others_writes == quiet, "something goes on for ever"
        assert self.writes < limit, "the driver goes on for ever"


def _inline(name: str) -> Document:
    return {"name": name, "template": {"spec": {"resourceClassName": "board"}}}


def _controller(client: RestClient, rng: random.Random, clock: Clock) -> list[Coroutine[Any, Any, Any]]:
    informers = SharedInformerFactory(client, clock, rng)
    return [informers.run(), ClassicClaimController(ControllerContext(client, informers, clock)).run()]
