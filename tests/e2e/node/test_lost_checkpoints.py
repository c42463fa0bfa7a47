"""kill -9 of a real agent and garbage for checkpoints. The plugin is written to the protocol, not with the SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dray.api.document import Document
from dray.client.interface import ListOptions
from dray.rpc.pb.deviceplugin.v1beta1 import api_pb2 as pb
from dray.rpc.pb.deviceplugin.v1beta1.api_pb2_grpc import RegistrationStub, add_DevicePluginServicer_to_server
from dray.rpc.sockets import connect
from tests.e2e.node.conftest import BOTH
from tests.e2e.node.devices import FOO, held, until, until_amounts, with_foo
from tests.e2e.node.harness import EVENTS, Agent, Cluster, container_status, is_running
from tests.e2e.node_devices.harness import raw_server
from tests.e2e.node_devices.servicer import Speaking
from tests.e2e.node_devices.test_lost_checkpoint import lose

RUNTIMES = BOTH
STAYS = 'trap "exit 0" TERM; while true; do sleep 0.05; done'


@asynccontextmanager
async def plugin(agent: Agent, *ids: str) -> AsyncIterator[Speaking]:
    served, folder = Speaking("FOO", *ids), agent.root / "device-plugins"
    async with raw_server(str(folder / "foo.sock"), served, add_DevicePluginServicer_to_server):
        async with connect(str(folder / "kubelet.sock")) as channel:
            request = pb.RegisterRequest(version="v1beta1", endpoint="foo.sock", resource_name=FOO)
            await RegistrationStub(channel).Register(request, timeout=120, wait_for_ready=True)
        yield served


async def events_of_node(cluster: Cluster) -> list[Document]:
    options = ListOptions(field_selector=f"involvedObject.name={cluster.node}")
    return list((await cluster.client.list(EVENTS, "default", options)).items)


@pytest.mark.behaviour("DP-59", "DP-60")
@pytest.mark.parametrize("kind", ["newest damaged", "all damaged", "removed"])
async def test_running_containers_keep_their_devices_for_themselves(cluster: Cluster, agent: Agent, kind: str) -> None:
    async with plugin(agent, "d0", "d1", "d2"):
        await until_amounts(cluster, 3, 3)
        before = {}
        for name in ("p0", "p1"):
            await cluster.run(name, with_foo(STAYS, imagePullPolicy="IfNotPresent"), hostNetwork=True)
            before[name] = await cluster.wait(name, is_running())
        assert await held(agent) == {"p0": ["d0"], "p1": ["d1"]}
    agent.kill()
    lose(str(agent.root / "device-plugins"), kind)
    # A Pod that comes while no agent runs, and one whose container goes on without its Pod.
    await cluster.delete("p0", grace_seconds=0)
    agent.start()
    async with plugin(agent, "d0", "d1", "d2") as served:
        await until_amounts(cluster, 3, 3)
        await cluster.run("new", with_foo(STAYS, imagePullPolicy="IfNotPresent"), hostNetwork=True)
        await cluster.wait("new", is_running())
        found = await held(agent)
        assert found["p1"] == ["d1"]
        assert found["new"] in (["d0"], ["d2"])
        assert all("d1" not in ids for ids in served.allocated)
        after = await cluster.wait("p1", is_running())
        assert container_status(after)["containerID"] == container_status(before["p1"])["containerID"]
        if kind != "removed":

            async def told() -> bool:
                return any(item["reason"] == "DeviceCheckpointDamaged" for item in await events_of_node(cluster))

            await until(told)
        for name in ("p1", "new"):
            await cluster.delete(name)
            await cluster.gone(name)


@pytest.mark.behaviour("DP-59")
async def test_the_runtime_keeps_who_has_which_device(cluster: Cluster, agent: Agent) -> None:
    async with plugin(agent, "d0"):
        await until_amounts(cluster, 1, 1)
        await cluster.run("p", with_foo(STAYS, imagePullPolicy="IfNotPresent"), hostNetwork=True)
        await cluster.wait("p", is_running())
        for _ in range(2):
            agent.kill()
            lose(str(agent.root / "device-plugins"), "all damaged")
            agent.start()

            async def has_it() -> bool:
                return await held(agent) == {"p": ["d0"]}

            await until(has_it)
        # A good checkpoint again.
        path = Path(agent.root / "device-plugins/kubelet_internal_checkpoint")
        await until(lambda: b"d0" in path.read_bytes())
        await cluster.delete("p")
        await cluster.gone("p")
