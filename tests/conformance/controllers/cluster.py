"""A cluster in virtual time: the API server, chosen controllers, the scheduler, and simulated nodes."""

from __future__ import annotations

import asyncio
import builtins
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from dray.api.document import Document, GroupVersion
from dray.api.features import FeatureGates
from dray.client.in_process import InProcessTransport
from dray.client.interface import ListOptions, Patch, PatchType, WatchBatch, WriteOptions, unstructured
from dray.client.rest import Call, RestClient
from dray.client.shared_informers import SharedInformerFactory
from dray.cmd.simulated_nodes import SimulatedNodes, Simulation
from dray.controllers.node_lifecycle.reconciler import NodeLifecycleController
from dray.controllers.reconciler import ControllerContext, Reconciler
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup
from dray.scheduler.registry import BUILT_IN
from dray.scheduler.scheduler import Scheduler
from dray.sim.replica.virtual_time import LoopClock
from tests.in_process_server import in_process_server

CORE, APPS, BATCH = GroupVersion("", "v1"), GroupVersion("apps", "v1"), GroupVersion("batch", "v1")
PODS = unstructured(CORE, "pods", "Pod")
NODES = unstructured(CORE, "nodes", "Node", namespaced=False)
EVENTS = unstructured(CORE, "events", "Event")
REPLICA_SETS = unstructured(APPS, "replicasets", "ReplicaSet")
REPLICATION_CONTROLLERS = unstructured(CORE, "replicationcontrollers", "ReplicationController")
DEPLOYMENTS = unstructured(APPS, "deployments", "Deployment")
DAEMON_SETS = unstructured(APPS, "daemonsets", "DaemonSet")
REVISIONS = unstructured(APPS, "controllerrevisions", "ControllerRevision")
JOBS = unstructured(BATCH, "jobs", "Job")

TEAM = "team"
# Virtual; nothing in a test needs this long unless it never comes.
SECONDS_MAX = 900.0

# Given a client, its informers, a clock and randomness: a controller.
MakeController = Callable[[ControllerContext], Reconciler[Any]]


@dataclass
class Watched:
    """A transport that records requests and fails on demand."""

    inner: InProcessTransport
    calls: list[Call] = field(default_factory=list)
    fail: Callable[[Call], Exception | None] = lambda _: None
    # Fails after the server has done it.
    lose: Callable[[Call], Exception | None] = lambda _: None
    # Resources of which the controllers hear nothing for now.
    held: set[str] = field(default_factory=set)

    async def send(self, call: Call) -> Document:
        self.calls.append(call)
        failure = self.fail(call)
        if failure is not None:
            raise failure
        answer = await self.inner.send(call)
        lost = self.lose(call)
        if lost is not None:
            raise lost
        return answer

    async def stream(self, call: Call) -> AsyncIterator[WatchBatch]:
        async with aclosing(self.inner.stream(call)) as inner:
            async for batch in inner:
                await self._passing(call)
                yield batch

    async def _passing(self, call: Call) -> None:
        """Wait while the events of this resource are held back."""
        while call.resource is not None and call.resource.plural in self.held:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        await self.inner.close()


@dataclass
class Cluster:
    """What a test does to the cluster, and sees of it."""

    user: RestClient
    transport: Watched

    async def create(self, resource: Any, name: str, spec: Document, **metadata: Any) -> Document:
        document = {"metadata": {"name": name, "namespace": TEAM, **metadata}, "spec": spec}
        return await self.user.create(resource, document)

    async def get(self, resource: Any, name: str) -> Document:
        return await self.user.get(resource, name, TEAM)

    async def list(self, resource: Any, selector: str = "") -> list[Document]:
        return list((await self.user.list(resource, TEAM, ListOptions(label_selector=selector))).items)

    async def patch(self, resource: Any, name: str, body: Document, subresource: str = "") -> Document:
        patch = Patch(PatchType.MERGE, body)
        return await self.user.patch(resource, name, TEAM, patch, WriteOptions(subresource=subresource))

    async def pods(self, selector: str = "") -> builtins.list[Document]:
        """The Pods that are not on their way out."""
        return [pod for pod in await self.list(PODS, selector) if not pod["metadata"].get("deletionTimestamp")]

    async def status(self, resource: Any, name: str) -> Document:
        status: Document = (await self.get(resource, name)).get("status") or {}
        return status

    async def until(self, condition: Callable[[], Awaitable[object]]) -> Any:
        """Let virtual time pass until something is so."""
        async with asyncio.timeout(SECONDS_MAX):
            while not (answer := await condition()):  # noqa: ASYNC110 - the condition is the server's state
                await asyncio.sleep(0.05)
            return answer

    async def until_status(self, resource: Any, name: str, **wanted: Any) -> Document:
        """Wait for fields of a status; None means absent."""
        seen: Document = {}

        async def reached() -> bool:
            nonlocal seen
            seen = await self.status(resource, name)
            return all(seen.get(key) == value for key, value in wanted.items())

        try:
            await self.until(reached)
        except TimeoutError:
            raise AssertionError(f"{name}: wanted {wanted}, has {seen}") from None
        return seen

    async def settle(self, seconds: float = 5.0) -> None:
        """Let everybody do what they still want to do."""
        await asyncio.sleep(seconds)

    async def events(self, name: str = "") -> builtins.list[tuple[str, str, str]]:
        """Events in the order of their first telling."""
        items = [item for item in await self.list(EVENTS) if not name or item["involvedObject"]["name"] == name]
        items.sort(key=lambda item: (item["firstTimestamp"], item["metadata"]["name"]))
        return [(item["type"], item["reason"], item["message"]) for item in items]

    def writes(self, plural: str) -> builtins.list[tuple[str, str]]:
        """What the controllers wrote of one resource: verb and subresource."""
        return [
            (call.verb, call.subresource)
            for call in self.transport.calls
            if call.resource is not None
            and call.resource.plural == plural
            and call.verb not in ("get", "list", "watch")
        ]


async def add_node(cluster: Cluster, name: str, *, pods: int = 110, **spec: Any) -> None:
    """A node without a kubelet, for tests that play it."""
    amounts = {"cpu": "8", "memory": "8Gi", "pods": str(pods)}
    status = {"allocatable": amounts, "capacity": amounts}
    await cluster.user.create(NODES, {"metadata": {"name": name}, "status": status})
    # New nodes are tainted until they are ready.
    await cluster.user.patch(NODES, name, "", Patch(PatchType.MERGE, {"spec": {"taints": None, **spec}}))


@asynccontextmanager
async def running_cluster(
    *makes: MakeController,
    nodes: int = 3,
    scheduler: bool = True,
    prepare: Any = None,
    metrics: Metrics | None = None,
    gates: FeatureGates | None = None,
) -> AsyncIterator[Cluster]:
    """A cluster for the time of a `with` block; `prepare` may furnish it before the controllers start."""
    clock, rng = LoopClock(), random.Random(7)
    async with in_process_server(clock, random.Random(1), TEAM, "kube-node-lease", gates=gates) as server:

        def client(name: str) -> InProcessTransport:
            return InProcessTransport(server, user=name, groups=("system:masters",), user_agent=name)

        cluster = Cluster(RestClient(client("user")), Watched(client("controller")))
        if prepare is not None:
            await prepare(cluster)
        async with TaskGroup("cluster") as group:
            for work in _programs(
                cluster, client, clock, makes, rng, metrics=metrics, nodes=nodes, scheduler=scheduler
            ):
                group.spawn(work, getattr(work, "__qualname__", "program"))
            yield cluster


def _programs(
    cluster: Cluster,
    client: Callable[[str], InProcessTransport],
    clock: LoopClock,
    makes: Sequence[MakeController],
    rng: random.Random,
    *,
    metrics: Metrics | None,
    nodes: int,
    scheduler: bool,
) -> list[Coroutine[Any, Any, Any]]:
    controllers = RestClient(cluster.transport)
    informers = SharedInformerFactory(controllers, clock, rng)
    context = ControllerContext(controllers, informers, clock, metrics, rng=rng)
    work = [make(context).run() for make in makes]
    work.append(informers.run())
    if scheduler:
        scheduling = RestClient(client("scheduler"))
        seen = SharedInformerFactory(scheduling, clock, rng)
        work.append(Scheduler(scheduling, seen, clock, Metrics(), factories=BUILT_IN).run())
        work.append(seen.run())
    if nodes:
        looked_after = RestClient(client("node-controller"))
        known = SharedInformerFactory(looked_after, clock, rng)
        # Takes the taint from new nodes.
        work.append(NodeLifecycleController(ControllerContext(looked_after, known, clock)).run())
        work.append(known.run())
        work.append(SimulatedNodes(RestClient(client("nodes")), clock, Simulation(nodes)).run())
    return work


def template(labels: Document, *, annotations: Document | None = None, **spec: Any) -> Document:
    """A Pod template with one container."""
    return {
        "metadata": {"labels": labels, "annotations": annotations or {}},
        "spec": {"containers": [{"name": "c", "image": "image:1"}], **spec},
    }
