"""A cluster in this process, as `dray up` runs it: API server (SQLite, full durability), controllers and scheduler."""

from __future__ import annotations

import asyncio
import gc
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sized
from contextlib import aclosing, asynccontextmanager, suppress
from copy import copy
from pathlib import Path
from typing import Any, Self, TypeVar

from bench.device_objects import PODS, SERVICE_ACCOUNTS
from dray.api.document import Document
from dray.api.errors import AlreadyExistsError
from dray.api.features import FeatureGates
from dray.client.in_process import in_process_client
from dray.client.interface import (
    Bookmark,
    Client,
    EventType,
    LocalRequest,
    LocalServer,
    Resource,
    WatchBatch,
    WatchOptions,
)
from dray.cmd import apiserver
from dray.cmd.controllers import spawn_controllers
from dray.cmd.main import GC_THRESHOLDS
from dray.cmd.scheduler import spawn_scheduler
from dray.cmd.settings import APIServerSettings, NodeControl
from dray.runtime import huge_pages
from dray.runtime.tasks import TaskGroup
from dray.scheduler.config import SchedulerConfig
from dray.scheduler.decisions import DecisionLog

T = TypeVar("T")

WRITERS = 64
# The controllers are idle if nothing was written for so long.
QUIET_SECONDS = 2.0
_NEVER = 1e9


class Counted:
    """A server in this process that counts requests; implements `LocalServer`."""

    def __init__(self, server: LocalServer) -> None:
        self.server = server
        # By verb, resource and subresource; of `with_server` too.
        self.requests: Counter[str] = Counter()

    def with_server(self, server: LocalServer) -> Self:
        """Return the same for another server of this process, with common counts."""
        other = copy(self)
        other.server = server
        return other

    def handle(self, request: LocalRequest) -> Coroutine[Any, Any, Document]:
        """Count the request and forward it; no coroutine itself, which would be resumed whenever the server is."""
        path = f"{request.resource}/{request.subresource}" if request.subresource else request.resource
        self.requests[f"{request.verb} {path}"] += 1
        return self.server.handle(request)

    async def watch(self, request: LocalRequest) -> AsyncIterator[WatchBatch]:
        """Forward the request."""
        return await self.server.watch(request)


@asynccontextmanager
async def cluster(
    setup: Callable[[Client], Awaitable[None]],
    config: SchedulerConfig | None = None,
    feature_gates: str = "",
    *,
    data_dir: str = "",
    counted_by: type[Counted] = Counted,
    uses_huge_pages: bool = True,
) -> AsyncIterator[tuple[Client, Counted]]:
    """Run a cluster whose controllers and scheduler start after the setup; yield a client and the request counts.

    Without a data directory, the state is deleted in the end. Huge pages are used as by a process of Dray.
    """
    gc.set_threshold(*GC_THRESHOLDS)
    with tempfile.TemporaryDirectory() as folder:
        settings = APIServerSettings(
            data_dir=data_dir or str(Path(folder) / "state"),
            port=0,
            disable_admission_plugins=("TaintNodesByCondition",),
            feature_gates=FeatureGates.parse(feature_gates),
        )
        async with apiserver.running(settings) as running:
            counted = counted_by(running.local)
            client = in_process_client(counted, user="bench", groups=("system:masters",))
            with suppress(AlreadyExistsError):
                await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default", "namespace": "default"}})
            await setup(client)
            async with TaskGroup("bench") as group:
                if uses_huge_pages:
                    group.spawn(huge_pages.run(), "huge pages")
                _spawn(group, running, counted.with_server(running.components), settings, config or SchedulerConfig())
                await until_quiet(client)
                gc.freeze()
                yield client, counted
                await group.cancel()


async def until_quiet(client: Client) -> None:
    """Return when the components have processed the existing objects."""
    before = ""
    while (now := (await client.list(SERVICE_ACCOUNTS)).resource_version) != before:
        before = now
        await asyncio.sleep(QUIET_SECONDS)


def _spawn(
    group: TaskGroup,
    running: apiserver.Running,
    server: LocalServer,
    settings: APIServerSettings,
    config: SchedulerConfig,
) -> None:
    controllers = in_process_client(server, user="system:kube-controller-manager")
    gates = settings.feature_gates
    spawn_controllers(
        group,
        controllers,
        running.clock,
        running.metrics,
        root_ca=running.pki.authority.certificate.decode(),
        gates=gates,
        # The nodes are objects without agents, which send no heartbeats.
        nodes=NodeControl(node_monitor_grace_period=_NEVER, node_startup_grace_period=_NEVER),
    )
    scheduler = in_process_client(server, user="system:kube-scheduler")
    spawn_scheduler(
        group,
        scheduler,
        running.clock,
        running.metrics,
        config=config,
        features=gates,
        # As in `dray up`.
        decisions=DecisionLog(),
    )


async def for_all(items: Iterable[T], act: Callable[[T], Awaitable[Any]], writers: int = WRITERS) -> None:
    """Call a function for all items, concurrently."""
    remaining = iter(items)
    if isinstance(items, Sized):
        writers = min(writers, len(items))

    async def work() -> None:
        for item in remaining:
            await act(item)

    await asyncio.gather(*(work() for _ in range(writers)))


async def create_all(client: Client, objects: Iterable[tuple[Resource[Any], Document]]) -> None:
    """Create objects concurrently."""

    async def create(item: tuple[Resource[Any], Document]) -> None:
        await client.create(*item)

    await for_all(objects, create)


class BoundPods:
    """Records when Pods are bound."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Name -> time of the watch event with its node.
        self.bound: dict[str, float] = {}
        self._changed = asyncio.Event()
        self._watching = asyncio.Event()

    async def watch(self, client: Client) -> None:
        """Watch Pods until cancelled."""
        page = await client.list(PODS)
        options = WatchOptions(resource_version=page.resource_version)
        async with aclosing(client.watch(PODS, "", options)) as events:
            self._watching.set()
            async for event in events:
                if not isinstance(event, Bookmark):
                    self._on_event(event.type, event.object)

    def _on_event(self, kind: EventType, document: Document) -> None:
        name = document["metadata"]["name"]
        if kind is not EventType.DELETED and name not in self.bound and document["spec"].get("nodeName"):
            self.bound[name] = self._clock()
            self._changed.set()

    async def wait_until_watching(self) -> None:
        """Return when the watch is open."""
        await self._watching.wait()

    async def wait_for(self, count: int) -> None:
        """Return when so many Pods are bound."""
        while len(self.bound) < count:
            self._changed.clear()
            await self._changed.wait()
