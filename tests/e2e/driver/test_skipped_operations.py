"""Devices that need no preparing: the node does not call their driver, which need not even run there."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dray.api.document import UID, Document
from dray.client.interface import Client
from dray.node.dra.dra_manager import Prepared, PrepareError
from tests.e2e.driver.cluster import Cluster, node_running, pod, result
from tests.e2e.driver.servicer import FakeDriver
from tests.e2e.driver.test_claims import ready

FABRIC = "fabric.example.com"


class NewerServer:
    """An API server whose claims have `skipNodeOperations` for the devices of a driver."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def get(self, *arguments: Any) -> Any:
        found = await self._client.get(*arguments)
        if isinstance(found, dict):
            results: list[Document] = found["status"]["allocation"]["devices"]["results"]
            for item in results:
                if item["driver"] == FABRIC:
                    item["skipNodeOperations"] = ["*"]
        return found


@pytest.mark.behaviour("N-108", "N-123")
async def test_a_pod_runs_without_the_driver_of_such_devices(cluster: Cluster) -> None:
    await cluster.claim("a", result("x", FABRIC), result("y"), pods=["p"])
    user, client = pod("p", "a"), cast("Client", NewerServer(cluster.client))
    gates = "DRAOptionalNodeOperations=true"
    async with node_running(cluster.folder / "kubelet", client, gates=gates) as node:
        async with FakeDriver().running(node.root) as driver:
            await ready(driver, node)
            assert isinstance(await node.claims.prepare_claims(user), Prepared)
            assert node.claims.container_devices(user, user.spec.containers[0]) == ("test.example.com/claim=a",)
            assert await node.claims.unprepare_claims(UID("uid-p")) is None
            assert [call[1] for call in driver.calls] == ["prepare", "unprepare"]
        assert node.claims.claims() == ()
        for operation in ("prepare", "unprepare"):
            assert node.metrics.value(f"dra_node_{operation}_skips_total", {"driver_name": FABRIC}) == 1


@pytest.mark.behaviour("N-108")
async def test_without_the_gate_the_pod_waits_and_says_so(cluster: Cluster) -> None:
    await cluster.claim("a", result("x", FABRIC), pods=["p"])
    client = cast("Client", NewerServer(cluster.client))
    async with node_running(cluster.folder / "kubelet", client) as node:
        outcome = await node.claims.prepare_claims(pod("p", "a"))
        assert isinstance(outcome, PrepareError)
        assert outcome.message.endswith(
            "ResourceClaim a: DRAOptionalNodeOperations feature gate is disabled on kubelet"
        )
        assert node.claims.claims() == ()
