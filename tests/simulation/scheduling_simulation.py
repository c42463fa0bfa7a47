"""What simulations of schedulers share: users, kubelets and processes; everything follows from one seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from typing import Any

from dray.api.document import Document, GroupVersion
from dray.api.errors import APIError, ConflictError, NotFoundError
from dray.api.features import FeatureGates
from dray.client.in_process import InProcessTransport
from dray.client.interface import DeleteOptions, LocalRequest, Patch, PatchType, WatchBatch, WriteOptions, unstructured
from dray.client.rest import RestClient
from dray.sim.replica.virtual_time import LoopClock
from tests.in_process_server import in_process_server
from tests.simulation.network import FaultRates
from tests.simulation.processes import Process, Program, SchedulerProgram

CORE = GroupVersion("", "v1")
PODS = unstructured(CORE, "pods", "Pod")
NODES = unstructured(CORE, "nodes", "Node", namespaced=False)

TEAM = "team"
POD_NAMES = tuple(f"pod-{number}" for number in range(9))
SHARED_NAMES = ("shared-0", "shared-1")
ACTIONS = 45


class CheckedServer:
    """The API server, with the safety checks run after every write."""

    def __init__(self, inner: Any, simulation: SchedulingSimulation) -> None:
        self._inner = inner
        self._simulation = simulation

    async def handle(self, request: LocalRequest) -> Document:
        answer: Document = await self._inner.handle(request)
        if request.verb not in ("get", "list") and request.resource in ("pods", "resourceclaims"):
            self._simulation.note(request, answer)
            try:
                await self._simulation.check()
            except AssertionError as violation:
                # Not raised here: the sender of the request would log it and go on.
                self._simulation.violation = self._simulation.violation or violation
        return answer

    async def watch(self, request: LocalRequest) -> AsyncIterator[WatchBatch]:
        stream: AsyncIterator[WatchBatch] = await self._inner.watch(request)
        return stream


class SchedulingSimulation:
    """`rng` is the only randomness, the loop the only clock. Subclasses have the claims and what is promised."""

    # The kind of claims.
    claims: Any
    # Of the API server.
    gates: FeatureGates | None = None

    def __init__(self, seed: int, rates: FaultRates, actions: int, programs: dict[str, SchedulerProgram]) -> None:
        self._rng = random.Random(seed)
        self._actions = actions
        self.rates = rates
        self.scheduler_names = tuple(programs)
        self.programs = list(programs.values())
        self.processes: list[Process] = []
        # Uid of a Pod whose containers run -> what it runs with.
        self.running: dict[str, Any] = {}
        self.writes = 0
        # The first broken promise; ends the run.
        self.violation: AssertionError | None = None
        self.story = rates.story

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            inner = await stack.enter_async_context(
                in_process_server(LoopClock(), self._fork(), TEAM, gates=self.gates)
            )
            self.prepare(inner)
            server = CheckedServer(inner, self)
            self.user, self._eyes = _client(server, "user"), _client(inner, "eyes")
            await self.create_objects()
            schedulers: Iterable[tuple[str, Program]] = zip(self.scheduler_names, self.programs, strict=True)
            for name, program in (*schedulers, *self.other_programs()):
                self.processes.append(Process(name, program, server, self._fork(), self.rates))
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

    def prepare(self, inner: Any) -> None:
        """Change the server before anybody uses it."""

    def other_programs(self) -> Iterable[tuple[str, Program]]:
        """What runs beside the schedulers."""
        raise NotImplementedError

    async def create_objects(self) -> None:
        raise NotImplementedError

    async def check(self) -> None:
        """Raise for what must never be, or keep it in `violation`."""
        raise NotImplementedError

    async def check_settled(self) -> None:
        """Raise for what must not be when all has come to rest."""
        raise NotImplementedError

    async def _step(self) -> None:
        raise NotImplementedError

    async def _sync_pod(self, pod: Document, claims: list[Document]) -> None:
        raise NotImplementedError

    def _fork(self) -> random.Random:
        return random.Random(self._rng.random())

    def log(self, text: str) -> None:
        self.story.append(f"{asyncio.get_running_loop().time():9.3f} {text}")

    def note(self, request: LocalRequest, answer: Document) -> None:
        self.writes += 1
        place = "/".join(part for part in (request.resource, request.name, request.subresource) if part)
        self.log(f"{request.user_agent:18} {request.verb:7} {place}{self._details(request, answer)}")

    def _details(self, request: LocalRequest, answer: Document) -> str:
        return ""

    def _raise_violation(self) -> None:
        if self.violation is not None:
            raise self.violation

    async def state(self) -> tuple[list[Document], list[Document]]:
        claims = list((await self._eyes.list(self.claims, TEAM)).items)
        return claims, list((await self._eyes.list(PODS, TEAM)).items)

    async def _run_workload(self) -> None:
        for _ in range(self._actions):
            await asyncio.sleep(self._rng.uniform(0.0, 1.5))
            self._raise_violation()
            try:
                await self._step()
            except APIError as refusal:
                self.log(f"user: {refusal}")

    def _crash_one(self) -> None:
        if self.rates.crash:
            self._rng.choice(self.processes).crash()

    def _pod(self, name: str, *entries: Document) -> Document:
        spec = {
            "schedulerName": self._rng.choice(self.scheduler_names),
            "containers": [{"name": "c", "image": "i"}],
            "resourceClaims": list(entries),
        }
        return {"metadata": {"name": name, "namespace": TEAM}, "spec": spec}

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

    async def _set_phase(self, name: str, phase: str) -> None:
        patch = Patch(PatchType.MERGE, {"status": {"phase": phase}})
        await self.user.patch(PODS, name, TEAM, patch, WriteOptions(subresource="status"))

    async def _collect(self, claims: list[Document], pods: list[Document]) -> None:
        alive = {pod["metadata"]["uid"] for pod in pods}
        for claim in claims:
            metadata = claim["metadata"]
            owners = metadata.get("ownerReferences") or ()
            if owners and owners[0]["uid"] not in alive and not metadata.get("deletionTimestamp"):
                try:
                    await self.user.delete(self.claims, metadata["name"], TEAM, DeleteOptions(uid=metadata["uid"]))
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
        await self.check_settled()


def _client(server: Any, name: str) -> RestClient:
    return RestClient(InProcessTransport(server, user=name, groups=("system:masters",), user_agent=name))
