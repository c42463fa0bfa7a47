"""A real API server and schedulers in one process, for tests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dray.api.document import Document, GroupVersion
from dray.api.features import FeatureGates
from dray.client.in_process import in_process_client
from dray.client.interface import Client, ListOptions, unstructured
from dray.client.shared_informers import SharedInformerFactory
from dray.cmd import apiserver
from dray.cmd.controllers import spawn_controllers
from dray.cmd.settings import APIServerSettings
from dray.controllers.reconciler import ControllerContext
from dray.controllers.resource_claim.reconciler import ResourceClaimController
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup
from dray.scheduler.config import SchedulerConfig
from dray.scheduler.handle import PluginFactory
from dray.scheduler.registry import BUILT_IN
from dray.scheduler.scheduler import Scheduler

T = TypeVar("T")
CORE = GroupVersion("", "v1")
NODES = unstructured(CORE, "nodes", "Node", namespaced=False)
PODS = unstructured(CORE, "pods", "Pod")
EVENTS = unstructured(CORE, "events", "Event")
SECONDS_MAX = 120.0


def node(name: str, *, labels: Any = None, cpu: str = "4", **spec: Any) -> Document:
    allocatable = {"cpu": cpu, "memory": "8Gi", "pods": "110"}
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": spec,
        "status": {"allocatable": allocatable, "capacity": allocatable},
    }


def pod(name: str, *, cpu: str = "100m", labels: Any = None, **spec: Any) -> Document:
    container = {"name": "c", "image": "image", "resources": {"requests": {"cpu": cpu}}}
    return {
        "metadata": {"name": name, "namespace": "default", "labels": labels or {}},
        "spec": {"containers": [container], **spec},
    }


@dataclass(slots=True)
class Cluster:
    """A running server; `client` may do everything."""

    running: apiserver.Running
    client: Client
    group: TaskGroup
    gates: FeatureGates

    def start_controllers(self) -> None:
        """Start all controllers."""
        own = in_process_client(self.running.components, user="controllers", groups=("system:masters",))
        spawn_controllers(self.group, own, self.running.clock, self.running.metrics, root_ca="PEM", gates=self.gates)

    def start_scheduler(
        self,
        factories: Mapping[str, PluginFactory] = BUILT_IN,
        config: SchedulerConfig | None = None,
        client: Client | None = None,
        gates: str = "",
        metrics: Metrics | None = None,
    ) -> tuple[Scheduler, Callable[[], Awaitable[None]]]:
        """A scheduler, and what stops it."""
        own = client or in_process_client(self.running.components, user="system:kube-scheduler")
        informers = SharedInformerFactory(own, self.running.clock, random.Random(1))
        scheduler = Scheduler(
            own,
            informers,
            self.running.clock,
            metrics or Metrics(),
            factories=factories,
            config=config,
            features=FeatureGates.parse(gates) if gates else self.gates,
        )
        return scheduler, self._start(informers.run(), scheduler.run())

    def start_claim_controller(self) -> Callable[[], Awaitable[None]]:
        """The controller that creates and frees claims; returns what stops it."""
        own = in_process_client(self.running.components, user="claims", groups=("system:masters",))
        informers = SharedInformerFactory(own, self.running.clock, random.Random(2))
        controller = ResourceClaimController(ControllerContext(own, informers, self.running.clock))
        return self._start(informers.run(), controller.run())

    def _start(self, *work: Coroutine[Any, Any, Any]) -> Callable[[], Awaitable[None]]:
        tasks = [self.group.spawn(item, f"part {number}") for number, item in enumerate(work)]

        async def stop() -> None:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        return stop

    async def create(self, *documents: Document) -> None:
        for document in documents:
            await self.client.create(PODS if "containers" in document["spec"] else NODES, document)

    async def pod(self, name: str) -> Document:
        return await self.client.get(PODS, name, "default")

    async def node_of(self, name: str) -> str:
        """Wait until the Pod has a node."""
        found = await self.eventually(lambda: self.pod(name), lambda item: bool(item["spec"].get("nodeName")))
        return str(found["spec"]["nodeName"])

    async def condition(self, name: str, reason: str, containing: str = "") -> Document:
        """Wait until PodScheduled has the reason, and a message with the text."""

        def get(item: Document) -> Document:
            conditions = item.get("status", {}).get("conditions") or ()
            return next((one for one in conditions if one["type"] == "PodScheduled"), {})

        def ready(item: Document) -> bool:
            return get(item).get("reason") == reason and containing in get(item).get("message", "")

        return get(await self.eventually(lambda: self.pod(name), ready))

    async def event_messages(self, name: str, reason: str) -> list[str]:
        """Wait until there is such an event of the Pod."""
        selector = f"involvedObject.name={name},reason={reason}"

        async def read() -> list[str]:
            page = await self.client.list(EVENTS, "default", ListOptions(field_selector=selector))
            return [item["message"] for item in page.items]

        return await self.eventually(read, bool)

    async def eventually(self, read: Callable[[], Awaitable[T]], good: Callable[[T], bool]) -> T:
        """Read until it is good, or fail with what was read last."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SECONDS_MAX
        while True:
            found = await read()
            if good(found):
                return found
            assert loop.time() < deadline, f"still {found}"
            await asyncio.sleep(0.01)


@asynccontextmanager
async def started(folder: Path, feature_gates: str = "") -> AsyncIterator[Cluster]:
    """A server with the service account that Pods need."""
    # No controller runs here that would take the taint of a new node away.
    gates = FeatureGates.parse(feature_gates)
    settings = APIServerSettings(
        data_dir=str(folder),
        port=0,
        store="memory",
        disable_admission_plugins=("TaintNodesByCondition",),
        feature_gates=gates,
    )
    async with apiserver.running(settings) as running:
        client = in_process_client(running.local, user="admin", groups=("system:masters",))
        accounts = unstructured(CORE, "serviceaccounts", "ServiceAccount")
        await client.create(accounts, {"metadata": {"name": "default", "namespace": "default"}})
        async with TaskGroup("test") as group:
            yield Cluster(running, client, group, gates)
            await group.cancel()
