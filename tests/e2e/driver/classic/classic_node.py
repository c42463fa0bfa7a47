"""A node with classic claims in the test's process, on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from dray.api.codec import from_document
from dray.api.document import UID, Document
from dray.api.features import FeatureGates
from dray.api.types.core_v1 import Pod
from dray.client.interface import Client
from dray.node.classic.claim_manager import ClassicClaimManager
from dray.node.dra.dra_manager import DraManager, DraOptions
from dray.node.plugins.plugin_manager import PluginManager
from dray.rpc.dra_services import DRA_PLUGIN, RESOURCE_PLUGIN
from dray.rpc.pb.classic_dra.v1alpha1 import api_pb2_grpc as pb_grpc
from dray.rpc.pb.plugin_registration.v1 import api_pb2_grpc as registration_grpc
from dray.rpc.sockets import listen, remove_socket
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup
from tests.e2e.driver.classic.servicer import DRIVER, FakePlugin
from tests.e2e.driver.cluster import CLOCK, NODE, WAIT_SECONDS_MAX, Cluster

CLAIMS = "cdi.k8s.io/v1alpha1/resourceclaims"


@dataclass(slots=True)
class ClassicNode:
    """The node side, running; `manager` and `structured` are what the agent would ask, in this order."""

    root: Path
    client: Client
    claims: ClassicClaimManager
    manager: ClassicClaimManager
    structured: DraManager
    plugins: PluginManager
    metrics: Metrics
    known: Collection[UID] | None = None

    @property
    def checkpoint(self) -> Path:
        return self.root / "classic_claims_state"

    def drivers(self) -> list[str]:
        return sorted(plugin.name for plugin in self.plugins.plugins)


@asynccontextmanager
async def classic_node(
    root: Path, client: Client, known: Collection[UID] | None = None, *, gates: str = ""
) -> AsyncIterator[ClassicNode]:
    metrics, parsed = Metrics(), FeatureGates.parse(gates)
    claims = ClassicClaimManager(client, str(root), CLOCK, metrics, parsed)
    dynamic = DraManager(client, NODE, str(root), CLOCK, metrics, DraOptions(parsed, claims.has_claim))
    plugins = PluginManager(
        str(root / "plugins_registry"), {RESOURCE_PLUGIN: claims, DRA_PLUGIN: dynamic}, CLOCK, metrics
    )
    node = ClassicNode(root, client, claims, claims, dynamic, plugins, metrics, known)
    async with TaskGroup("node") as group:
        group.spawn(claims.run(lambda: node.known), "classic claims")
        group.spawn(dynamic.run(lambda: node.known), "claims")
        group.spawn(plugins.run(), "plugins")
        yield node


@asynccontextmanager
async def plugin_serving(fake: FakePlugin, node: ClassicNode, socket: str = "") -> AsyncIterator[FakePlugin]:
    """Serve and wait for the result of the registration."""
    name = socket or fake.name
    folder = node.root / "plugins" / name
    folder.mkdir(parents=True, exist_ok=True)
    paths = (str(folder / "p.sock"), str(node.root / "plugins_registry" / f"{name}-reg.sock"))
    fake.endpoint = paths[0]
    async with AsyncExitStack() as stack:
        for path in paths:
            server = grpc.aio.server()
            pb_grpc.add_NodeServicer_to_server(fake, server)
            registration_grpc.add_RegistrationServicer_to_server(fake, server)
            await listen(server, path)
            stack.push_async_callback(server.stop, 0)
            stack.callback(remove_socket, path)
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while fake.statuses.empty():
                node.plugins.rescan()
                await asyncio.sleep(0.01)
        yield fake


async def make_class(cluster: Cluster, name: str = "gpu", driver: str = DRIVER, **parameters: Any) -> None:
    await cluster.create(
        "cdi.k8s.io/v1alpha1/resourceclasses",
        {
            "apiVersion": "cdi.k8s.io/v1alpha1",
            "kind": "ResourceClass",
            "metadata": {"name": name},
            "driverName": driver,
            "parameters": parameters,
        },
    )


async def make_claim(
    cluster: Cluster,
    name: str,
    pods: Collection[str] = (),
    *,
    allocated: bool = True,
    owner: str = "",
    attributes: Any = None,
    driver: str = DRIVER,
    parameters: Any = None,
) -> Document:
    """A claim that its driver has allocated and the scheduler reserved."""
    metadata: Document = {"name": name}
    if owner:
        reference = {"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": f"uid-{owner}", "controller": True}
        metadata["ownerReferences"] = [reference]
    made = await cluster.create(
        f"{CLAIMS}@default",
        {
            "apiVersion": "cdi.k8s.io/v1alpha1",
            "kind": "ResourceClaim",
            "metadata": metadata,
            "spec": {"resourceClassName": "gpu", "parameters": parameters or {}},
        },
    )
    if not allocated:
        return made
    status = {
        "phase": "Allocated",
        "driverName": driver,
        "attributes": attributes or {"card": "0"},
        "userLimit": -1,
        "reservedFor": [{"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": f"uid-{pod}"} for pod in pods],
    }
    return await cluster.local.request("update", f"{CLAIMS}/{name}/status@default", {**made, "status": status})


async def users(cluster: Cluster, name: str) -> list[str]:
    claim = await cluster.local.request("get", f"{CLAIMS}/{name}@default")
    return [user["name"] for user in claim["status"].get("reservedFor", ())]


def pod(name: str, *entries: Document, containers: Collection[Document] = (), deleted: bool = False) -> Pod:
    """A Pod with these entries; its one container lists them all unless others are given."""
    listed = list(containers) or [
        {"name": "main", "resources": {"claims": [{"name": entry["name"]} for entry in entries]}}
    ]
    metadata: Document = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return from_document(Pod, {"metadata": metadata, "spec": {"containers": listed, "resourceClaims": list(entries)}})


def by_name(claim: str, **more: Any) -> Document:
    return {"name": claim, "resourceClaimName": claim, **more}


def inline(entry: str, **more: Any) -> Document:
    return {"name": entry, "template": {"spec": {"resourceClassName": "gpu"}}, **more}
