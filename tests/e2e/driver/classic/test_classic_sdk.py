"""Plugins written with the kit, on real sockets: once prepared, always the same answer, whatever crashes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import orjson
import pytest

from dray.driver.classic import Claim, ContainerEdits, NodeOptions, NodePlugin, NodePluginRunner
from dray.node.resource_manager import ResourceError
from dray.rpc.pb.classic_dra.v1alpha1 import api_pb2 as pb
from dray.rpc.pb.classic_dra.v1alpha1.api_pb2_grpc import NodeStub
from dray.rpc.sockets import connect
from dray.runtime.metrics import Metrics
from tests.e2e.driver.classic.classic_node import (
    CLAIMS,
    ClassicNode,
    by_name,
    classic_node,
    make_claim,
    make_class,
    pod,
)
from tests.e2e.driver.cluster import CLOCK, NODE, WAIT_SECONDS_MAX, Cluster, identity_of, is_registered, until
from tests.fork_server import ForkedPopen

HERE = Path(__file__).parent
NAME = "gpu.example.com"


@pytest.fixture
async def node(cluster: Cluster) -> AsyncIterator[ClassicNode]:
    async with classic_node(cluster.folder / "kubelet", cluster.client) as running:
        yield running


class Cards(NodePlugin):
    """Notes what it is called with."""

    name = NAME

    def __init__(self) -> None:
        self.calls: list[tuple[str, Claim]] = []
        self.fail = ""

    def prepare(self, claim: Claim) -> ContainerEdits:
        self.calls.append(("prepare", claim))
        if self.fail:
            raise RuntimeError(self.fail)
        return ContainerEdits(env=(f"CARD={claim.attributes['card']}",))

    def unprepare(self, claim: Claim) -> None:
        self.calls.append(("unprepare", claim))

    @property
    def operations(self) -> list[str]:
        return [name for name, _ in self.calls]


class Names(NodePlugin):
    """Its devices have CDI files already; its methods are coroutines."""

    name = NAME
    undone = False

    async def prepare(self, claim: Claim) -> list[str]:
        return ["example.com/card=0", f"example.com/node={self.node_name}"]

    async def unprepare(self, claim: Claim) -> None:
        self.undone = True


@asynccontextmanager
async def running(plugin: NodePlugin, node: ClassicNode) -> AsyncIterator[NodePluginRunner]:
    """As its own process would run it; ready when the node has registered it."""
    options = NodeOptions(NODE, str(node.root), str(node.root / "cdi"))
    runner = NodePluginRunner(plugin, node.client, options, CLOCK, Metrics())
    stop = asyncio.Event()
    task = asyncio.create_task(runner.run(stop))
    try:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while not runner.registered.is_set():
                assert not task.done()
                node.plugins.rescan()
                await asyncio.sleep(0.01)
        yield runner
    finally:
        stop.set()
        await task


def cdi_files(node: ClassicNode) -> list[Any]:
    return [orjson.loads(path.read_bytes()) for path in sorted((node.root / "cdi").glob("*.json"))]


@pytest.mark.behaviour("CL-47", "CL-48", "CL-02")
async def test_a_claim_is_prepared_with_all_that_is_known_of_it(cluster: Cluster, node: ClassicNode) -> None:
    await make_class(cluster, initCommand=["init"])
    await make_claim(cluster, "a", ["p"], attributes={"card": "3"}, parameters={"memory": "2Gi"})
    plugin = Cards()
    user = pod("p", by_name("a"))
    async with running(plugin, node):
        for _ in range(2):
            await node.manager.prepare(user)
        (_, claim), *more = plugin.calls
        assert more == []
        assert (claim.parameters, claim.class_parameters) == ({"memory": "2Gi"}, {"initCommand": ["init"]})
        assert (str(claim), claim.class_name, claim.attributes) == ("default/a", "gpu", {"card": "3"})
        (file,) = cdi_files(node)
        (name,) = node.manager.container_options(user, "main").cdi_devices
        assert name == f"{file['kind']}={file['devices'][0]['name']}"
        assert file["devices"][0]["containerEdits"]["env"] == ["CARD=3"]
        # What is undone is what was done, also when nothing is left of the claim.
        await cluster.local.request("delete", f"{CLAIMS}/a@default")
        await node.manager.release(user)
        assert plugin.calls[1] == ("unprepare", claim)
        assert cdi_files(node) == []


@pytest.mark.behaviour("CL-47", "CL-48", "CL-49")
async def test_calls_are_idempotent_and_unknown_resources_distinguished(cluster: Cluster, node: ClassicNode) -> None:
    uid = (await make_claim(cluster, "a", ["p"]))["metadata"]["uid"]
    plugin = Cards()
    async with running(plugin, node), connect(str(node.root / "plugins" / NAME / "classic/plugin.sock")) as channel:
        stub = NodeStub(channel)
        request = pb.NodePrepareResourceRequest(resource_uid=uid)
        first = await stub.NodePrepareResource(request)
        assert await stub.NodePrepareResource(request) == first
        undo = pb.NodeUnprepareResourceRequest(resource_id=uid, cdi_device=first.cdi_device)
        for _ in range(2):
            await stub.NodeUnprepareResource(undo)
        # Never prepared: there is nothing to undo.
        await stub.NodeUnprepareResource(pb.NodeUnprepareResourceRequest(resource_id="no-such-uid"))
        assert plugin.operations == ["prepare", "unprepare"]
        with pytest.raises(grpc.aio.AioRpcError, match="resource no-such-uid does not exist") as caught:
            await stub.NodePrepareResource(pb.NodePrepareResourceRequest(resource_uid="no-such-uid"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_what_is_not_allocated_is_not_prepared(cluster: Cluster, node: ClassicNode) -> None:
    plain = (await make_claim(cluster, "a", allocated=False))["metadata"]["uid"]
    other = (await make_claim(cluster, "b", driver="else.example.com"))["metadata"]["uid"]
    async with running(Cards(), node), connect(str(node.root / "plugins" / NAME / "classic/plugin.sock")) as channel:
        for uid, text in ((plain, "default/a not allocated"), (other, "default/b was allocated by else.example.com")):
            with pytest.raises(grpc.aio.AioRpcError, match=text):
                await NodeStub(channel).NodePrepareResource(pb.NodePrepareResourceRequest(resource_uid=uid))


async def test_coroutines_and_devices_that_are_there_already(cluster: Cluster, node: ClassicNode) -> None:
    await make_claim(cluster, "a", ["p"])
    user = pod("p", by_name("a"))
    plugin = Names()
    async with running(plugin, node):
        await node.manager.prepare(user)
        names = node.manager.container_options(user, "main").cdi_devices
        assert names == ("example.com/card=0", f"example.com/node={NODE}")
        assert cdi_files(node) == []
        await node.manager.release(user)
        assert plugin.undone


async def test_errors_of_the_driver_are_reported_and_retried(cluster: Cluster, node: ClassicNode) -> None:
    await make_claim(cluster, "a", ["p"])
    plugin = Cards()
    user = pod("p", by_name("a"))
    async with running(plugin, node):
        plugin.fail = "too hot"
        with pytest.raises(ResourceError, match=r"prepare claim .*: too hot"):
            await node.manager.prepare(user)
        plugin.fail = ""
        await node.manager.prepare(user)
        assert plugin.operations == ["prepare", "prepare"]


async def test_a_restarted_plugin_answers_from_its_record(cluster: Cluster, node: ClassicNode) -> None:
    await make_claim(cluster, "a", ["p"])
    user = pod("p", by_name("a"))
    async with running(Cards(), node):
        await node.manager.prepare(user)
    plugin = Cards()
    async with running(plugin, node):
        await node.manager.release(user)
        assert plugin.operations == ["unprepare"]


# --- Power cuts. ---


@asynccontextmanager
async def process(cluster: Cluster, node: ClassicNode, folder: Path) -> AsyncIterator[ForkedPopen]:
    """The plugin in a process of its own, registered and connected."""
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[3]), "GRPC_VERBOSITY": "NONE"}
    arguments = [
        f"--node-name={NODE}",
        f"--kubeconfig={cluster.local.running.kubeconfig}",
        f"--root-dir={node.root}",
        f"--cdi-dir={node.root}/cdi",
    ]
    script = HERE / "crashing_plugin.py"
    # A predecessor's connection finds the new socket as well; it is closed, with its calls, when the new one registers.
    socket = Path(NodeOptions(NODE, str(node.root)).registration_socket(NAME))
    before = identity_of(socket)
    started = ForkedPopen([sys.executable, script, folder, *arguments], env=environment)

    def ready() -> bool:
        assert started.poll() is None
        return is_registered(node.plugins, socket, before) and node.claims._drivers.usable(NAME)

    try:
        await until(ready)
        yield started
    finally:
        started.kill()
        started.wait(10)


@pytest.mark.behaviour("CL-47", "CL-48")
@pytest.mark.parametrize("place", ["begin prepare", "end prepare", "answer prepare"])
async def test_a_plugin_killed_while_it_prepares(cluster: Cluster, node: ClassicNode, place: str) -> None:
    folder = cluster.folder / "plugin"
    folder.mkdir()
    uid = (await make_claim(cluster, "a", ["p"]))["metadata"]["uid"]
    user = pod("p", by_name("a"))
    async with process(cluster, node, folder) as killed:
        (folder / "crash").write_text(place)
        with pytest.raises(ResourceError, match="NodePrepareResource: rpc error"):
            await node.manager.prepare(user)
        assert await asyncio.to_thread(killed.wait, 30) == -9
    # Either side of the question may be asked next.
    async with process(cluster, node, folder):
        await node.manager.prepare(user)
        assert [path.name for path in (folder / "hardware").iterdir()] == [uid]
        assert len(cdi_files(node)) == 1
        await node.manager.release(user)
        assert list((folder / "hardware").iterdir()) == []
        assert cdi_files(node) == []


@pytest.mark.behaviour("CL-47", "CL-48")
@pytest.mark.parametrize("place", ["end prepare", "answer prepare", "begin unprepare", "answer unprepare"])
async def test_a_plugin_killed_and_its_pod_gone(cluster: Cluster, node: ClassicNode, place: str) -> None:
    folder = cluster.folder / "plugin"
    folder.mkdir()
    await make_claim(cluster, "a", ["p"])
    user = pod("p", by_name("a"))
    async with process(cluster, node, folder) as killed:
        if place.endswith("unprepare"):
            await node.manager.prepare(user)
        (folder / "crash").write_text(place)
        with pytest.raises(ResourceError, match="rpc error"):
            await (node.manager.release if place.endswith("unprepare") else node.manager.prepare)(user)
        assert await asyncio.to_thread(killed.wait, 30) == -9
    async with process(cluster, node, folder):
        await node.manager.release(user)
        assert list((folder / "hardware").iterdir()) == []
        assert cdi_files(node) == []
        assert node.claims.claims() == ()
