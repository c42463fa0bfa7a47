"""A cluster with a classic driver, all real but the nodes, in virtual time: nothing is waited for in vain."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from dray.api.document import UID, Document, GroupVersion
from dray.api.features import FeatureGates
from dray.client.in_process import InProcessTransport
from dray.client.interface import Client, DeleteOptions, Patch, PatchType, WriteOptions, unstructured
from dray.client.rest import RestClient
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.classic_claim.reconciler import ClassicClaimController
from dray.controllers.reconciler import ControllerContext
from dray.controllers.resource_claim.reconciler import ResourceClaimController
from dray.driver.classic import Allocation, Claim, ClassicController, NoRoomError, Options, serve
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup
from dray.scheduler.config import SchedulerConfig
from dray.scheduler.queue import Backoff
from dray.scheduler.registry import BUILT_IN
from dray.scheduler.scheduler import Scheduler
from dray.sim.replica.virtual_time import LoopClock
from tests.in_process_server import in_process_server
from tests.recording_transport import RecordingTransport

CORE, CDI, DRA = GroupVersion("", "v1"), GroupVersion("cdi.k8s.io", "v1alpha1"), GroupVersion("resource.k8s.io", "v1")
PODS = unstructured(CORE, "pods", "Pod")
NODES = unstructured(CORE, "nodes", "Node", namespaced=False)
EVENTS = unstructured(CORE, "events", "Event")
CLAIMS = unstructured(CDI, "resourceclaims", "ResourceClaim")
CLASSES = unstructured(CDI, "resourceclasses", "ResourceClass", namespaced=False)
STRUCTURED_CLAIMS = unstructured(DRA, "resourceclaims", "ResourceClaim")
DEVICE_CLASSES = unstructured(DRA, "deviceclasses", "DeviceClass", namespaced=False)
SLICES = unstructured(DRA, "resourceslices", "ResourceSlice", namespaced=False)

TEAM = "team"
DRIVER = "gpu.example.com"
CLASS = "gpu"
SECONDS_MAX = 250.0
NOW = DeleteOptions(grace_period_seconds=0)
_MASTERS = ("system:masters",)


class Boards(ClassicController):
    """A driver with so many boards on each node; its memory is the claims' attributes."""

    name = DRIVER

    def __init__(self, boards: Mapping[str, int], *, user_limit: int = 1, seconds: float = 0.001) -> None:
        self.boards = dict(boards)
        self.user_limit = user_limit
        self.seconds = seconds
        # Uid of a claim -> node of its board.
        self.held: dict[UID, str] = {}
        self.calls: list[tuple[str, str, str]] = []
        # Raised by the next calls of the operation.
        self.fail: dict[str, list[Exception]] = {}

    async def start(self, held: Sequence[Claim]) -> None:
        self.held = {claim.uid: claim.attributes["node"] for claim in held if claim.attributes}

    def free_on(self, node: str) -> int:
        return self.boards.get(node, 0) - list(self.held.values()).count(node)

    async def unsuitable_nodes(self, claims: Sequence[Claim], nodes: Sequence[str]) -> Iterable[str]:
        await self._enter("unsuitable_nodes", ",".join(claim.key.name for claim in claims))
        return [node for node in nodes if self.free_on(node) < len(claims)]

    async def allocate(
        self, claim: Claim, class_parameters: Mapping[str, Any], claim_parameters: Mapping[str, Any], node: str | None
    ) -> Allocation:
        await self._enter("allocate", claim.key.name, node or "")
        chosen = node or next((name for name in sorted(self.boards) if self.free_on(name) > 0), "")
        if claim.uid not in self.held and self.free_on(chosen) < 1:
            raise NoRoomError(f"no board on {chosen}" if chosen else "no board anywhere")
        self.held[claim.uid] = chosen
        attributes = {
            "node": chosen,
            **{key: str(value) for key, value in {**class_parameters, **claim_parameters}.items()},
        }
        return Allocation(attributes, nodes=[chosen], user_limit=self.user_limit)

    async def deallocate(self, claim: Claim) -> None:
        await self._enter("deallocate", claim.key.name, claim.attributes.get("node", ""))
        self.held.pop(claim.uid, None)

    async def _enter(self, operation: str, claim: str, node: str = "") -> None:
        self.calls.append((operation, claim, node))
        await asyncio.sleep(self.seconds)
        if self.fail.get(operation):
            raise self.fail[operation].pop(0)

    def called(self, operation: str) -> list[tuple[str, str]]:
        return [(claim, node) for name, claim, node in self.calls if name == operation]


class Cluster:
    """A running cluster; `user` may do everything."""

    def __init__(self, server: Any, group: TaskGroup) -> None:
        self._server = server
        self._group = group
        self.user: Client = self.client("user")
        self.metrics = Metrics()
        self.transports: dict[str, RecordingTransport] = {}
        self.scheduler: Scheduler | None = None

    def client(self, name: str) -> RestClient:
        return RestClient(InProcessTransport(self._server, user=name, groups=_MASTERS, user_agent=name))

    def _watched(self, name: str) -> RestClient:
        transport = self.transports[name] = RecordingTransport(
            InProcessTransport(self._server, user=name, groups=_MASTERS, user_agent=name)
        )
        return RestClient(transport)

    # --- Components; each returns what stops it. ---

    def start_driver(self, driver: ClassicController, name: str = "driver") -> Callable[[], Awaitable[None]]:
        options = Options(leader_elect=False)
        return self._spawn(serve(driver, self._watched(name), LoopClock(), self.metrics, options))

    def start_controller(self) -> Callable[[], Awaitable[None]]:
        client = self._watched("controller")
        informers = SharedInformerFactory(client, LoopClock(), random.Random(1))
        classic = ClassicClaimController(ControllerContext(client, informers, LoopClock(), metrics=self.metrics))
        structured = ResourceClaimController(ControllerContext(client, informers, LoopClock(), metrics=self.metrics))
        return self._spawn(informers.run(), classic.run(), structured.run())

    def start_scheduler(self, gates: str = "") -> Callable[[], Awaitable[None]]:
        client = self._watched("scheduler")
        informers = SharedInformerFactory(client, LoopClock(), random.Random(2))
        self.scheduler = Scheduler(
            client,
            informers,
            LoopClock(),
            Metrics(),
            factories=BUILT_IN,
            config=SchedulerConfig(backoff=Backoff(1.0, 1.0)),
            features=FeatureGates.parse(gates),
        )
        return self._spawn(informers.run(), self.scheduler.run())

    def _spawn(self, *work: Any) -> Callable[[], Awaitable[None]]:
        tasks = [self._group.spawn(item, "part") for item in work]

        async def stop() -> None:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        return stop

    # --- Objects. ---

    async def furnish(self, nodes: Iterable[str] = ("n1", "n2"), **parameters: Any) -> None:
        await self.user.create(CLASSES, {"metadata": {"name": CLASS}, "driverName": DRIVER, "parameters": parameters})
        for name in nodes:
            await self.node(name)

    async def node(self, name: str, cpu: str = "8", **labels: str) -> None:
        amounts = {"cpu": cpu, "memory": "8Gi", "pods": "110"}
        status = {"allocatable": amounts, "capacity": amounts}
        await self.user.create(NODES, {"metadata": {"name": name, "labels": labels}, "status": status})
        # Nobody here looks after nodes: they are ready from the beginning.
        await self.user.patch(NODES, name, "", Patch(PatchType.MERGE, {"spec": {"taints": None}}))

    async def claim(self, name: str, mode: str = "Delayed", class_name: str = CLASS, **parameters: Any) -> Document:
        spec = {"resourceClassName": class_name, "allocationMode": mode, "parameters": parameters}
        return await self.user.create(CLAIMS, {"metadata": {"name": name, "namespace": TEAM}, "spec": spec})

    async def pod(self, name: str, *entries: Document, **spec: Any) -> Document:
        cpu = spec.pop("cpu", "100m")
        container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
        body = {"containers": [container], "resourceClaims": list(entries), **spec}
        return await self.user.create(PODS, {"metadata": {"name": name, "namespace": TEAM}, "spec": body})

    async def get_claim(self, name: str) -> Document:
        return await self.user.get(CLAIMS, name, TEAM)

    async def get_pod(self, name: str) -> Document:
        return await self.user.get(PODS, name, TEAM)

    async def set_phase(self, name: str, phase: str) -> None:
        patch = Patch(PatchType.MERGE, {"status": {"phase": phase}})
        await self.user.patch(PODS, name, TEAM, patch, WriteOptions(subresource="status"))

    # --- Waiting. ---

    async def node_of(self, name: str) -> str:
        """Wait until the Pod has a node."""
        found = await self.eventually(lambda: self.get_pod(name), lambda pod: bool(pod["spec"].get("nodeName")))
        return str(found["spec"]["nodeName"])

    async def phase(self, name: str, phase: str) -> Document:
        """Wait until the claim has the phase."""
        found: Document = await self.eventually(
            lambda: self.get_claim(name), lambda claim: claim["status"]["phase"] == phase
        )
        return found

    async def message(self, name: str, containing: str) -> str:
        """Wait until the Pod's condition says so."""

        def text(pod: Document) -> str:
            conditions = pod.get("status", {}).get("conditions") or ()
            return next((str(item.get("message", "")) for item in conditions if item["type"] == "PodScheduled"), "")

        return text(await self.eventually(lambda: self.get_pod(name), lambda pod: containing in text(pod)))

    async def events(self, name: str, reason: str) -> list[str]:
        """Wait until there is such an event of the object."""

        async def read() -> list[str]:
            items = (await self.user.list(EVENTS, TEAM)).items
            return [e["message"] for e in items if e["involvedObject"]["name"] == name and e["reason"] == reason]

        found: list[str] = await self.eventually(read, bool)
        return found

    async def eventually(self, read: Callable[[], Awaitable[Any]], good: Callable[[Any], bool]) -> Any:
        """Read until it is good, or fail with what was read last."""
        deadline = asyncio.get_running_loop().time() + SECONDS_MAX
        while True:
            found = await read()
            if good(found):
                return found
            assert asyncio.get_running_loop().time() < deadline, f"still {found}"
            await asyncio.sleep(0.05)


def inline(name: str = "gpu", *, optional: bool = False, mode: str = "Delayed", **parameters: Any) -> Document:
    """An entry with its own template."""
    spec = {"resourceClassName": CLASS, "allocationMode": mode, "parameters": parameters}
    return {"name": name, "template": {"metadata": {"labels": {"made": "here"}}, "spec": spec}, **_optional(optional)}


def named(claim: str, name: str = "gpu", *, optional: bool = False) -> Document:
    """An entry that names a claim."""
    return {"name": name, "resourceClaimName": claim, **_optional(optional)}


def _optional(optional: bool) -> Document:
    return {"optional": True} if optional else {}


@asynccontextmanager
async def running_cluster(
    *, gates: str = "", scheduler: bool = True, controller: bool = True
) -> AsyncIterator[Cluster]:
    """A cluster for the time of a `with` block, without a driver."""
    features = FeatureGates.parse(gates)
    async with (
        in_process_server(LoopClock(), random.Random(1), TEAM, gates=features) as server,
        TaskGroup("cluster") as group,
    ):
        made = Cluster(server, group)
        if controller:
            made.start_controller()
        if scheduler:
            made.start_scheduler()
        yield made
        await group.cancel()
