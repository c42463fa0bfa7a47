"""What a disabled feature gate means on a node: Pods have their devices all the same."""

from __future__ import annotations

import pytest

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
