"""A small cluster with a classic driver, whose boards outlive its process; everything follows from one seed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any

from dray.api.document import Document, GroupVersion
from dray.api.errors import NotFoundError
from dray.api.features import FeatureGates
from dray.client.interface import DeleteOptions, LocalRequest, Patch, PatchType, unstructured
from dray.client.rest import RestClient
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.classic_claim.reconciler import ClassicClaimController
from dray.controllers.reconciler import ControllerContext
from dray.driver.classic import Allocation, Claim, ClassicController, NoRoomError
from dray.driver.classic.reconciler import DriverReconciler
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics
from tests.simulation import classic_checks as checks
from tests.simulation.network import FaultRates
from tests.simulation.processes import Program, SchedulerProgram
from tests.simulation.scheduling_simulation import (
    ACTIONS,
    NODES,
    POD_NAMES,
    PODS,
    SHARED_NAMES,
    TEAM,
    SchedulingSimulation,
)

CDI = GroupVersion("cdi.k8s.io", "v1alpha1")
CLAIMS = unstructured(CDI, "resourceclaims", "ResourceClaim")
CLASSES = unstructured(CDI, "resourceclasses", "ResourceClass", namespaced=False)

DRIVER = "board.example.com"
NODE_NAMES = ("node-0", "node-1", "node-2")
BOARDS_PER_NODE = 2
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


class ClassicSimulation(SchedulingSimulation):
    """Boards that a driver allocates."""

    claims = CLAIMS

    def __init__(self, seed: int, *, schedulers: int, rates: FaultRates | None = None, actions: int = ACTIONS) -> None:
        names = ("default-scheduler", "other-scheduler")[:schedulers]
        programs = {name: SchedulerProgram(name, GATES) for name in names}
        super().__init__(seed, rates or FaultRates(driver_broken=0.03), actions, programs)
        self.hardware = Hardware()
        self.others_writes = 0

    def other_programs(self) -> Iterable[tuple[str, Program]]:
        return [("controller", _controller), ("driver", self._driver)]

    def _driver(self, client: RestClient, rng: random.Random, clock: Clock) -> list[Coroutine[Any, Any, Any]]:
        informers = SharedInformerFactory(client, clock, rng)
        reconciler = DriverReconciler(Boards(self, rng), client, informers, clock, Metrics())
        return [informers.run(), reconciler.run()]

    # --- The story. ---

    def note(self, request: LocalRequest, answer: Document) -> None:
        super().note(request, answer)
        # The driver tries claims without a node again from time to time, for room that it may not have heard of.
        self.others_writes += request.user_agent != "driver"

    def _details(self, request: LocalRequest, answer: Document) -> str:
        status = answer.get("status")
        status = status if isinstance(status, dict) and request.resource == "resourceclaims" else {}
        scheduler = (status.get("scheduling") or {}).get("scheduler") or {}
        users = [user["name"] for user in status.get("reservedFor") or ()]
        return f" {status.get('phase', '')} {scheduler.get('selectedNode', '')} {users or ''}"

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

    # --- Users. ---

    async def create_objects(self) -> None:
        await self.user.create(CLASSES, {"metadata": {"name": "board"}, "driverName": DRIVER})
        for name in NODE_NAMES:
            await self._add_node(name)

    async def _add_node(self, name: str) -> None:
        amounts = {"cpu": "8", "memory": "8Gi", "pods": "110"}
        status = {"allocatable": amounts, "capacity": amounts}
        await self.user.create(NODES, {"metadata": {"name": name}, "status": status})
        # Nobody here looks after nodes: they are ready from the beginning.
        await self.user.patch(NODES, name, "", Patch(PatchType.MERGE, {"spec": {"taints": None}}))

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
                self._crash_one()

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

    async def _finish(self, name: str) -> None:
        pod = await self.user.get(PODS, name, TEAM)
        if self.running.pop(pod["metadata"]["uid"], None) is not None:
            await self._set_phase(name, "Succeeded")

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

    async def check_settled(self) -> None:
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
