"""What a disabled feature gate means on a node: Pods keep the claims that they have, and others do not start."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.codec import from_document
from dray.api.types.core_v1 import Pod
from dray.node.dra.dra_manager import Prepared
from dray.node.resource_manager import ResourceError
from tests.e2e.driver.cluster import Cluster, Node, node_running, pod, result, until
from tests.e2e.driver.servicer import BOTH, FakeDriver

pytestmark = pytest.mark.timeout(90)

GPU = "example.com/gpu"


def extended(name: str) -> Pod:
    """A Pod whose extended resource a claim provides."""
    amounts = {"limits": {GPU: "1"}, "requests": {GPU: "1"}}
    mapping = {"containerName": "main", "resourceName": GPU, "requestName": "req"}
    special = {"resourceClaimName": f"{name}-claim", "requestMappings": [mapping]}
    body: dict[str, Any] = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"containers": [{"name": "main", "resources": amounts}]},
        "status": {"extendedResourceClaimStatus": special},
    }
    return from_document(Pod, body)


async def ready(driver: FakeDriver, node: Node) -> None:
    node.plugins.rescan()
    assert await driver.status() == (True, "")
    await until(lambda: driver.name in node.drivers())


@pytest.mark.parametrize(
    ("gate", "of_claims"),
    [
        pytest.param("DynamicResourceAllocation", True, marks=pytest.mark.behaviour("NG-02")),
        pytest.param("DynamicResourceAllocation", False, marks=pytest.mark.behaviour("NG-02")),
        pytest.param("DRAExtendedResource", False, marks=pytest.mark.behaviour("NG-04", "XR-44")),
    ],
)
async def test_what_is_prepared_is_kept_and_nothing_else_starts(cluster: Cluster, gate: str, of_claims: bool) -> None:
    root = cluster.folder / "kubelet"
    old, new = (pod(name, f"{name}-claim") if of_claims else extended(name) for name in ("old", "new"))
    for name in ("old", "new"):
        await cluster.claim(f"{name}-claim", result(f"device-{name}"), pods=[name])
    async with FakeDriver().running(root) as driver:
        async with node_running(root, cluster.client) as node:
            await ready(driver, node)
            await node.claims.prepare(old)
            before = node.claims.container_options(old, "main")
            assert before.cdi_devices == ("test.example.com/claim=old-claim",)
        async with node_running(root, cluster.client, gates=f"{gate}=false") as node:
            await ready(driver, node)
            await node.claims.prepare(old)
            # Also for a container that starts again.
            assert node.claims.container_options(old, "main") == before
            assert [info.key.name for info in node.claims.claim_infos(old, old.spec.containers[0])] == ["old-claim"]
            with pytest.raises(ResourceError) as caught:
                await node.claims.prepare(new)
            assert caught.value.reason == "FailedPrepareDynamicResources"
            assert caught.value.message == (
                "Failed to prepare dynamic resources: prepare dynamic resources: "
                f"ResourceClaim new-claim: the feature gate {gate} is disabled on this node"
            )
            await node.claims.release(old)
            assert node.claims.claims() == ()
        assert driver.names("unprepare") == [("old-claim",)]


@pytest.mark.behaviour("NG-05")
@pytest.mark.parametrize("enabled", [True, False])
async def test_health_is_reported_only_with_its_gate(cluster: Cluster, enabled: bool) -> None:
    root = cluster.folder / "kubelet"
    gates = f"ResourceHealthStatus={str(enabled).lower()}"
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
