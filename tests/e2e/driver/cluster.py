"""A node in the test's process: the API server on its memory store, plugin registration and claims, on real sockets."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dray.api.codec import from_document
from dray.api.document import UID, Document
from dray.api.features import FeatureGates
from dray.api.gate_table import CURRENT, Release
from dray.api.types.core_v1 import Pod
from dray.client.in_process import in_process_client
from dray.client.interface import Client
from dray.driver import Driver, DriverRunner, Options
from dray.node.dra.dra_manager import DraManager, DraOptions
from dray.node.plugins.plugin_manager import PluginManager
from dray.rpc.dra_services import DRA_PLUGIN
from dray.runtime.metrics import Metrics
from dray.runtime.system import SystemClock
from dray.runtime.tasks import TaskGroup

if TYPE_CHECKING:
    from tests.local_server import Local

NODE = "node-1"
WAIT_SECONDS_MAX = 120.0
CLOCK = SystemClock()


@contextmanager
def short_folder() -> Iterator[Path]:
    """Socket paths may have 107 bytes only; a test's own folder is longer than that."""
    folder = Path(tempfile.mkdtemp(prefix="dray-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def until(condition: Callable[[], Any]) -> None:
    """Wait for something that has no event of its own; conditions may be coroutines."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while True:
            found = condition()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return
            await asyncio.sleep(0.005)


Identity = tuple[int, int, int] | None


def identity_of(path: Path) -> Identity:
    """Which file has the path now; None between a driver's taking its predecessor's away and making its own."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def is_registered(plugins: PluginManager, socket: Path, before: Identity) -> bool:
    """Whether the plugin whose file has the path now is registered, and not the one that had it before."""
    plugins.rescan()
    found, now = plugins._sockets._entries.get(str(socket)), identity_of(socket)
    return found is not None and found.plugin is not None and found.socket.identity == now != before


@dataclass(slots=True)
class Node:
    """The node side, running."""

    root: Path
    client: Client
    claims: DraManager
    plugins: PluginManager
    metrics: Metrics
    known: Collection[UID] | None = None

    @property
    def checkpoint(self) -> Path:
        return self.root / "dra_manager_state"

    def drivers(self) -> list[str]:
        return sorted(plugin.name for plugin in self.plugins.plugins)


@asynccontextmanager
async def node_running(
    root: Path, client: Client, known: Collection[UID] | None = None, *, gates: str = "", release: Release = CURRENT
) -> AsyncIterator[Node]:
    metrics = Metrics()
    features = FeatureGates.parse(gates, release)
    claims = DraManager(client, NODE, str(root), CLOCK, metrics, DraOptions(features))
    plugins = PluginManager(str(root / "plugins_registry"), {DRA_PLUGIN: claims}, CLOCK, metrics)
    node = Node(root, client, claims, plugins, metrics, known)
    async with TaskGroup("node") as group:
        group.spawn(claims.run(lambda: node.known), "claims")
        group.spawn(plugins.run(), "plugins")
        yield node


@asynccontextmanager
async def driver_running(driver: Driver, node: Node, **options: Any) -> AsyncIterator[DriverRunner]:
    """The driver as its own process would run it; ready when the node has registered it."""
    chosen = Options(NODE, str(node.root), cdi_folder=str(node.root / "cdi"), **{"repair_seconds": 0.05, **options})
    runner = DriverRunner(driver, node.client, chosen, CLOCK, Metrics())
    stop = asyncio.Event()
    task = asyncio.create_task(runner.run(stop))
    try:
        ready = asyncio.create_task(_registered(runner, node))
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            ready.cancel()
            task.result()
        await ready
        yield runner
    finally:
        stop.set()
        await task


async def _registered(runner: DriverRunner, node: Node) -> None:
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while not runner.registered.is_set():
            node.plugins.rescan()
            await asyncio.sleep(0.01)


@dataclass(slots=True)
class Cluster:
    """Everything a test needs."""

    folder: Path
    local: Local
    client: Client
    uids: dict[str, str] = field(default_factory=dict)

    async def create(self, path: str, body: Document) -> Document:
        return await self.local.request("create", path, body)

    async def claim(self, name: str, *results: Document, pods: Collection[str] = (), config: Any = ()) -> Document:
        """A claim that the scheduler has allocated and reserved for Pods."""
        requests = [
            {"name": request, "exactly": {"deviceClassName": "any"}}
            for request in dict.fromkeys(item["request"].partition("/")[0] for item in results)
        ]
        made = await self.create(
            "resource.k8s.io/v1/resourceclaims@default",
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name},
                "spec": {"devices": {"requests": requests}},
            },
        )
        status: Document = {"allocation": {"devices": {"results": list(results), "config": list(config)}}}
        status["reservedFor"] = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods]
        path = f"resource.k8s.io/v1/resourceclaims/{name}/status@default"
        return await self.local.request("update", path, {**made, "status": status})

    async def slices(self) -> list[Document]:
        answer = await self.local.request("list", "resource.k8s.io/v1/resourceslices")
        items: list[Document] = answer["items"]
        return items


def result(
    device: str, driver: str = "test.example.com", request: str = "req", pool: str = NODE, **more: Any
) -> Document:
    return {"request": request, "driver": driver, "pool": pool, "device": device, **more}


def pod(name: str, *claims: str, containers: Collection[Document] = ()) -> Pod:
    """A Pod that uses existing claims, each under its own name."""
    listed = list(containers) or [{"name": "main", "resources": {"claims": [{"name": claim} for claim in claims]}}]
    return from_document(
        Pod,
        {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
            "spec": {
                "containers": listed,
                "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in claims],
            },
        },
    )


@asynccontextmanager
async def cluster_running() -> AsyncIterator[Cluster]:
    # Here and not above: processes that only need a node start in half the time without a server.
    from tests.local_server import local_server

    with short_folder() as folder:
        async with local_server(folder / "api") as local:
            client = in_process_client(local.running.local, user="admin", groups=("system:masters",))
            cluster = Cluster(folder, local, client)
            await cluster.create("core/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
            await cluster.create(
                "resource.k8s.io/v1/deviceclasses",
                {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {}},
            )
            yield cluster
