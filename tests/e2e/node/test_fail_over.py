"""A node with two API servers, one of which is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dray.api.document import GroupVersion
from dray.client.interface import unstructured
from tests.e2e.node.conftest import ACCOUNTS, end_shims
from tests.e2e.node.harness import LOOK_SECONDS, POD_SECONDS_MAX, Agent, Cluster, client_of, is_running, shell
from tests.servers import Server, running_server
from tests.shared_etcd import etcd_flags, running_etcd, running_pair

LEASES = unstructured(GroupVersion("coordination.k8s.io", "v1"), "leases", "Lease")
LEASE_SECONDS = 4
NODE = "node-1"


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[str]:
    with running_etcd(tmp_path / "etcd") as url:
        yield url


@pytest.fixture
def pair(etcd: str, tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    with running_pair(etcd, tmp_path / "first", tmp_path / "second") as servers:
        yield servers


@pytest.mark.behaviour("CS-11")
async def test_a_node_goes_on_with_another_api_server(etcd: str, pair: tuple[Server, Server], tmp_path: Path) -> None:
    one, other = pair
    flags = ("--runtime=process", f"--api-servers={other.url}", f"--node-lease-duration-seconds={LEASE_SECONDS}")
    agent = Agent(one, tmp_path / "node", NODE, flags)
    agent.start()
    try:
        async with reaching(other) as cluster:
            await cluster.client.create(ACCOUNTS, {"metadata": {"name": "default", "namespace": "default"}})
            await runs_a_pod(cluster, "before")
            one.kill()
            await runs_a_pod(cluster, "during")
            await renews_its_lease(cluster)
        port = urlsplit(one.url).port or 0
        with running_server(one.data_dir, *etcd_flags(etcd), command="apiserver", port=port) as again:
            other.kill()
            async with reaching(again) as cluster:
                await runs_a_pod(cluster, "after")
                await renews_its_lease(cluster)
            agent.stop()
    finally:
        if agent.process is not None and agent.process.poll() is None:
            agent.stop()
        end_shims(agent)


@asynccontextmanager
async def reaching(server: Server) -> AsyncIterator[Cluster]:
    client = client_of(server)
    yield Cluster(client, NODE, "default")
    await client.close()


async def runs_a_pod(cluster: Cluster, name: str) -> None:
    await cluster.run(name, shell("a", "sleep 1000"))
    await cluster.wait(name, is_running())


async def renews_its_lease(cluster: Cluster) -> None:
    async def renewed() -> str:
        return str((await cluster.client.get(LEASES, NODE, "kube-node-lease"))["spec"]["renewTime"])

    before = await renewed()
    async with asyncio.timeout(POD_SECONDS_MAX):
        while await renewed() == before:  # noqa: ASYNC110 - what is waited for is on the server
            await asyncio.sleep(LOOK_SECONDS)
