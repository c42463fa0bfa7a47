"""A cluster in this process, as `dray up` runs it: API server (SQLite, full durability), controllers and scheduler."""

from __future__ import annotations

import asyncio
import gc
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sized
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from bench.device_objects import PODS, SERVICE_ACCOUNTS
from dray.api.document import Document
from dray.api.errors import AlreadyExistsError
from dray.client.in_process import in_process_client
from dray.client.interface import (
    Bookmark,
    Client,
    EventType,
    LocalRequest,
    LocalServer,
    Resource,
    WatchOptions,
)
from dray.cmd import apiserver
from dray.cmd.controllers import spawn_controllers
from dray.cmd.main import GC_THRESHOLDS
from dray.cmd.scheduler import spawn_scheduler
from dray.cmd.settings import APIServerSettings, NodeControl
from dray.runtime.tasks import TaskGroup
from dray.scheduler.config import SchedulerConfig

T = TypeVar("T")

WRITERS = 64
# The controllers have nothing left to do when nothing was written for so long.
QUIET_SECONDS = 2.0
_NEVER = 1e9


class Counted:
    """A server in this process that counts what it is asked; implements `LocalServer`."""

    def __init__(self, server: LocalServer) -> None:
        self._server = server
        # By verb and resource, with its subresource.
        self.requests: Counter[str] = Counter()
        self.watch = server.watch

    async def handle(self, request: LocalRequest) -> Document:
        """Count and pass on."""
        path = f"{request.resource}/{request.subresource}" if request.subresource else request.resource
        self.requests[f"{request.verb} {path}"] += 1
        return await self._server.handle(request)


@asynccontextmanager
async def cluster(setup: Callable[[Client], Awaitable[None]]) -> AsyncIterator[tuple[Client, Counted]]:
    """A cluster whose controllers and scheduler start when the setup has ended, and what it is asked."""
    gc.set_threshold(*GC_THRESHOLDS)
    with tempfile.TemporaryDirectory() as folder:
        settings = APIServerSettings(
            data_dir=str(Path(folder) / "state"), port=0, disable_admission_plugins=("TaintNodesByCondition",)
        )
        running = await apiserver.start(settings)
        counted = Counted(running.local)
        client = in_process_client(counted, user="bench", groups=("system:masters",))
        try:
            with suppress(AlreadyExistsError):
                await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default", "namespace": "default"}})
            await setup(client)
            async with TaskGroup("bench") as group:
                _spawn(group, running, counted, settings)
                await _until_quiet(client)
                gc.freeze()
                yield client, counted
                await group.cancel()
        finally:
            await running.stop()


async def _until_quiet(client: Client) -> None:
    """Return when everybody has read what was there, and said what there is to say about it."""
    before = ""
    while (now := (await client.list(SERVICE_ACCOUNTS)).resource_version) != before:
        before = now
        await asyncio.sleep(QUIET_SECONDS)


def _spawn(group: TaskGroup, running: apiserver.Running, server: LocalServer, settings: APIServerSettings) -> None:
    controllers = in_process_client(server, user="system:kube-controller-manager")
    gates = settings.feature_gates
    spawn_controllers(
        group,
        controllers,
        running.clock,
        running.metrics,
        root_ca=running.pki.authority.certificate.decode(),
        gates=gates,
        # The nodes are objects only: nobody is there to send their heartbeats.
        nodes=NodeControl(node_monitor_grace_period=_NEVER, node_startup_grace_period=_NEVER),
    )
    scheduler = in_process_client(server, user="system:kube-scheduler")
    spawn_scheduler(group, scheduler, running.clock, running.metrics, config=SchedulerConfig(), features=gates)


async def for_all(items: Iterable[T], act: Callable[[T], Awaitable[Any]], writers: int = WRITERS) -> None:
    """Act on all items, on many at the same time."""
    remaining = iter(items)
    if isinstance(items, Sized):
        writers = min(writers, len(items))

    async def work() -> None:
        for item in remaining:
            await act(item)

    await asyncio.gather(*(work() for _ in range(writers)))


async def create_all(client: Client, objects: Iterable[tuple[Resource[Any], Document]]) -> None:
    """Create with many at the same time."""

    async def create(item: tuple[Resource[Any], Document]) -> None:
        await client.create(*item)

    await for_all(objects, create)


class BoundPods:
    """Hears of every Pod that gets its node or goes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Name -> when its node was heard of.
        self.bound: dict[str, float] = {}
        self._changed = asyncio.Event()
        self._listening = asyncio.Event()

    async def follow(self, client: Client) -> None:
        """Listen until cancelled."""
        page = await client.list(PODS)
        options = WatchOptions(resource_version=page.resource_version)
        async with aclosing(client.watch(PODS, "", options)) as events:
            self._listening.set()
            async for event in events:
                if not isinstance(event, Bookmark):
                    self._heard(event.type, event.object)

    def _heard(self, kind: EventType, document: Document) -> None:
        name = document["metadata"]["name"]
        if kind is not EventType.DELETED and name not in self.bound and document["spec"].get("nodeName"):
            self.bound[name] = self._clock()
            self._changed.set()

    async def listening(self) -> None:
        """Return when nothing that happens from now on is missed."""
        await self._listening.wait()

    async def until(self, count: int) -> None:
        """Return when so many Pods have got a node."""
        while len(self.bound) < count:
            self._changed.clear()
            await self._changed.wait()
