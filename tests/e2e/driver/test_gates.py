"""What a disabled feature gate means on a node: Pods have their devices all the same."""

from __future__ import annotations

import pytest

from dray.api.codec import from_document, to_document
from dray.api.document import UID
from dray.api.gate_table import Release
from dray.api.types.core_v1 import Pod
from dray.node.dra.dra_manager import Prepared
from tests.e2e.driver.cluster import Cluster, Node, node_running, pod, result, until
from tests.e2e.driver.servicer import BOTH, FakeDriver


async def ready(driver: FakeDriver, node: Node) -> None:
    node.plugins.rescan()
    assert await driver.status() == (True, "")
    await until(lambda: driver.name in node.drivers())


@pytest.mark.behaviour("NG-05")
@pytest.mark.parametrize("enabled", [True, False])
async def test_health_is_reported_only_with_its_gate(cluster: Cluster, enabled: bool) -> None:
    root = cluster.folder / "kubelet"
    gates = ",".join(
        f"{name}={str(enabled).lower()}" for name in ("ResourceHealthStatus", "ResourceHealthStatusMessage")
    )
    driver = FakeDriver(versions=(*BOTH, "v1.DRAResourceHealth"))
    async with driver.running(root), node_running(root, cluster.client, gates=gates) as node:
        await ready(driver, node)
        await cluster.claim("a", result("x"), pods=["p"])
        user = pod("p", "a")
        assert isinstance(await node.claims.prepare_claims(user), Prepared)
        driver.healths.put_nowait([{"health": "UNHEALTHY"}])

        def shown() -> list[str]:
            return [
                str(one["health"])
                for item in node.claims.container_resources(user, "main")
                for one in item["resources"]
            ]

        if enabled:
            await until(lambda: shown() == ["Unhealthy"])
        else:
            assert shown() == []
        # The Pod has its device all the same.
        assert node.claims.container_options(user, "main").cdi_devices == ("test.example.com/claim=a",)


# In 1.34 the gate is not locked yet; whatever needs it goes with it.
OFF = "DynamicResourceAllocation=false,DRAAdminAccess=false,DRAPrioritizedList=false,DRASchedulerFilterTimeout=false"


@pytest.mark.behaviour("EV-25", "NG-09")
async def test_a_node_without_the_feature_keeps_the_claims_of_its_pods_and_starts_no_others(cluster: Cluster) -> None:
    root, release = cluster.folder / "kubelet", Release(1, 34)
    driver = FakeDriver()
    async with driver.running(root):
        async with node_running(root, cluster.client, release=release) as node:
            await ready(driver, node)
            await cluster.claim("a", result("x"), pods=["p"])
            assert isinstance(await node.claims.prepare_claims(pod("p", "a")), Prepared)
        # The agent is restarted without the gate.
        async with node_running(root, cluster.client, {UID("uid-p")}, gates=OFF, release=release) as node:
            await ready(driver, node)
            assert isinstance(await node.claims.prepare_claims(pod("p", "a")), Prepared)
            assert node.claims.container_options(pod("p", "a"), "main").cdi_devices == ("test.example.com/claim=a",)
            await cluster.claim("b", result("y"), pods=["q"])
            refused = await node.claims.prepare_claims(pod("q", "b"))
            assert "the feature gate DynamicResourceAllocation is disabled on this node" in str(refused)
            assert await node.claims.unprepare_claims(UID("uid-p")) is None
        async with node_running(root, cluster.client, release=release) as node:
            await ready(driver, node)
            assert isinstance(await node.claims.prepare_claims(pod("q", "b")), Prepared)
    assert [(kind, names) for _, kind, names in driver.calls if names == ("b",)] == [("prepare", ("b",))]


def with_extended_resource(name: str, claim: str) -> Pod:
    resources = {"requests": {"example.com/gpu": "1"}, "limits": {"example.com/gpu": "1"}}
    mapping = {"containerName": "main", "resourceName": "example.com/gpu", "requestName": "req"}
    status = {"extendedResourceClaimStatus": {"resourceClaimName": claim, "requestMappings": [mapping]}}
    return from_document(
        Pod, {**to_document(pod(name, containers=[{"name": "main", "resources": resources}])), "status": status}
    )


@pytest.mark.behaviour("NG-10")
async def test_a_node_without_extended_resources_keeps_those_of_its_pods_and_starts_no_others(cluster: Cluster) -> None:
    root, release, off = cluster.folder / "kubelet", Release(1, 36), "DRAExtendedResource=false"
    early, late = with_extended_resource("p", "a"), with_extended_resource("q", "b")
    driver = FakeDriver()
    async with driver.running(root):
        async with node_running(root, cluster.client, release=release) as node:
            await ready(driver, node)
            await cluster.claim("a", result("x"), pods=["p"])
            assert isinstance(await node.claims.prepare_claims(early), Prepared)
        async with node_running(root, cluster.client, {UID("uid-p")}, gates=off, release=release) as node:
            await ready(driver, node)
            assert isinstance(await node.claims.prepare_claims(early), Prepared)
            assert node.claims.container_options(early, "main").cdi_devices == ("test.example.com/claim=a",)
            await cluster.claim("b", result("y"), pods=["q"])
            refused = await node.claims.prepare_claims(late)
            assert "the feature gate DRAExtendedResource is disabled on this node" in str(refused)
            assert await node.claims.unprepare_claims(UID("uid-p")) is None
    assert {names for _, _, names in driver.calls} == {("a",)}
    assert driver.calls[-1][1] == "unprepare"
