"""The gate DRAControlPlaneController off, and on again: what KEP-3063's production readiness review promises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dray.api.document import GroupVersion
from dray.api.errors import APIError
from dray.api.features import FeatureGates
from dray.client.in_process import in_process_client
from dray.client.interface import Client, Patch, PatchType, unstructured
from dray.cmd import apiserver
from dray.cmd.settings import APIServerSettings
from dray.sim.replica.virtual_time import run_virtually
from tests.conformance.classic.cluster import CLAIMS, NOW, PODS, TEAM, Boards, Cluster, inline, running_cluster

OFF = "DRAControlPlaneController=false"
ACCOUNTS = unstructured(GroupVersion("", "v1"), "serviceaccounts", "ServiceAccount")


@asynccontextmanager
async def _server(folder: Path, gates: str) -> AsyncIterator[Client]:
    """A server on what an earlier one has stored."""
    settings = APIServerSettings(data_dir=str(folder), port=0, feature_gates=FeatureGates.parse(gates))
    async with apiserver.running(settings) as running:
        yield in_process_client(running.local, user="admin", groups=("system:masters",))


def _pod(name: str) -> dict[str, object]:
    container = {"name": "c", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [container], "resourceClaims": [inline()]},
    }


async def _off_and_on(folder: Path) -> None:
    async with _server(folder, "") as client:
        await client.create(ACCOUNTS, {"metadata": {"name": "default", "namespace": "default"}})
        await client.create(PODS, _pod("old"))
    async with _server(folder, OFF) as client:
        label = Patch(PatchType.MERGE, {"metadata": {"labels": {"a": "b"}}})
        changed = await client.patch(PODS, "old", "default", label)
        assert changed["spec"]["resourceClaims"][0]["template"]["spec"]["resourceClassName"] == "gpu"
        assert changed["spec"]["containers"][0]["resources"]["claims"] == [{"name": "gpu"}]
        created = await client.create(PODS, _pod("new"))
        assert created["spec"]["resourceClaims"] == changed["spec"]["resourceClaims"]
    async with _server(folder, "") as client:
        kept = await client.get(PODS, "old", "default")
        assert kept["metadata"]["labels"] == {"a": "b"}
        assert kept["spec"]["resourceClaims"][0]["template"]["spec"]["resourceClassName"] == "gpu"


@pytest.mark.behaviour("CL-18")
def test_fields_of_stored_pods_outlive_the_gate(tmp_path: Path) -> None:
    asyncio.run(_off_and_on(tmp_path))


@pytest.mark.behaviour("CL-42")
def test_a_scheduler_without_the_feature_places_pods_as_if_nothing_was_asked_for() -> None:
    async def main() -> None:
        async with running_cluster(scheduler=False) as cluster:
            await cluster.furnish()
            await cluster.claim("c", "Immediate")
            stop = cluster.start_scheduler(OFF)
            await cluster.pod("inline", inline())
            await cluster.node_of("inline")
            claim = await cluster.get_claim("inline-gpu")
            assert claim["status"]["phase"] == "Pending"
            assert "scheduling" not in claim["status"]
            await stop()
            await _switched_on(cluster)

    run_virtually(main())


async def _switched_on(cluster: Cluster) -> None:
    """Pods that were placed without their claims must be made anew; then they are placed properly."""
    cluster.start_scheduler()
    cluster.start_driver(Boards({"n1": 2, "n2": 2}))
    await asyncio.sleep(100)
    claim = await cluster.get_claim("inline-gpu")
    assert "reservedFor" not in claim["status"]
    await cluster.user.delete(PODS, "inline", TEAM, NOW)
    await cluster.pod("inline", inline())
    await cluster.node_of("inline")
    users = (await cluster.get_claim("inline-gpu"))["status"]["reservedFor"]
    assert [user["name"] for user in users] == ["inline"]


@pytest.mark.behaviour("CL-42")
def test_what_runs_keeps_its_claims_while_the_feature_is_off() -> None:
    async def main() -> None:
        async with running_cluster(scheduler=False, controller=False) as cluster:
            await cluster.furnish()
            driver = Boards({"n1": 1})
            stops = [cluster.start_scheduler(), cluster.start_controller(), cluster.start_driver(driver)]
            await cluster.pod("p", inline())
            node = await cluster.node_of("p")
            before = await cluster.get_claim("p-gpu")
            for stop in stops:
                await stop()
            # Only a scheduler without the feature is left.
            stop = cluster.start_scheduler(OFF)
            await cluster.pod("other")
            await cluster.node_of("other")
            assert await cluster.get_claim("p-gpu") == before
            await stop()
            cluster.start_scheduler()
            cluster.start_controller()
            cluster.start_driver(driver)
            await asyncio.sleep(100)
            assert (await cluster.get_claim("p-gpu"))["status"] == before["status"]
            assert (await cluster.get_pod("p"))["spec"]["nodeName"] == node
            await cluster.set_phase("p", "Succeeded")
            await cluster.eventually(lambda: cluster.user.list(CLAIMS, TEAM), lambda page: not page.items)
            assert driver.held == {}

    run_virtually(main())


@pytest.mark.behaviour("CL-58")
def test_without_the_feature_the_group_is_not_served(tmp_path: Path) -> None:
    async def main() -> None:
        async with _server(tmp_path, "") as client:
            assert "cdi.k8s.io" in {item.group for item in await client.resources()}
            kept = {"metadata": {"name": "c", "namespace": "default"}, "spec": {"resourceClassName": "gpu"}}
            await client.create(CLAIMS, kept)
        async with _server(tmp_path, OFF) as client:
            assert "cdi.k8s.io" not in {item.group for item in await client.resources()}
            with pytest.raises(APIError, match="the server could not find the requested resource"):
                await client.get(CLAIMS, "c", "default")
        async with _server(tmp_path, "") as client:
            assert (await client.get(CLAIMS, "c", "default"))["status"]["phase"] == "Pending"

    asyncio.run(main())
