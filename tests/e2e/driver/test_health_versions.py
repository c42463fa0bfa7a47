"""Drivers of the SDK with the health services of Kubernetes 1.36 and 1.37, over their real sockets."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import grpc
import grpc.aio
import pytest

from dray.driver import DeviceHealth, Driver, Health
from dray.rpc.dra_services import HEALTH_SERVICES
from dray.rpc.pb.plugin_registration.v1 import api_pb2 as registration
from dray.rpc.pb.plugin_registration.v1.api_pb2_grpc import RegistrationStub
from dray.rpc.sockets import connect
from tests.e2e.driver.cluster import NODE, Cluster, Node, driver_running, node_running, pod, result, until
from tests.e2e.driver.test_sdk import HealthyDriver, TestDriver

V1, V1ALPHA1 = HEALTH_SERVICES


async def listed(node: Node, driver: Driver) -> list[str]:
    async with connect(str(node.root / f"plugins_registry/{driver.name}-reg.sock")) as channel:
        info = await RegistrationStub(channel).GetInfo(registration.InfoRequest(), timeout=10)
    return [name for name in info.supported_versions if name in HEALTH_SERVICES]


async def first_report(node: Node, driver: Driver, version: str) -> Any:
    """The first message of a kubelet's stream."""
    service = HEALTH_SERVICES[version]
    async with connect(str(node.root / f"plugins/{driver.name}/dra.sock")) as channel:
        stream = service.stub(channel).NodeWatchResources(service.messages.NodeWatchResourcesRequest())
        message = await stream.read()
        stream.cancel()
    return message


@pytest.mark.behaviour("N-15", "N-21")
async def test_a_driver_serves_both_versions_and_lists_the_newest_first(node: Node) -> None:
    driver = HealthyDriver()
    async with driver_running(driver, node) as runner:
        runner.report_health([DeviceHealth(NODE, "x", Health.UNHEALTHY, "hot", 7)])
        assert await listed(node, driver) == [V1, V1ALPHA1]
        for version in HEALTH_SERVICES:
            (item,) = (await first_report(node, driver, version)).devices
            assert (item.device.pool_name, item.device.device_name, item.message) == (NODE, "x", "hot")
            assert (item.health, item.health_check_timeout_seconds) == (2, 7)


@pytest.mark.behaviour("N-21")
@pytest.mark.parametrize(
    ("driver", "versions", "names", "text"),
    [
        (TestDriver(), (V1, V1ALPHA1), [], "device health reporting is not supported by this driver"),
        (HealthyDriver(), (), [], "Method not found!"),
    ],
    ids=["a driver without health", "switched off"],
)
async def test_health_that_is_not_reported(
    node: Node, driver: Driver, versions: tuple[str, ...], names: Collection[str], text: str
) -> None:
    async with driver_running(driver, node, health_services=versions):
        assert await listed(node, driver) == names
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await first_report(node, driver, V1)
        assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.UNIMPLEMENTED, text)


@pytest.mark.behaviour("N-16", "N-21")
@pytest.mark.parametrize("version", [V1, V1ALPHA1])
async def test_a_driver_with_one_version_reports_to_the_node(cluster: Cluster, version: str) -> None:
    await cluster.claim("a", result("x"), pods=["p"])
    user = pod("p", "a")
    async with (
        node_running(cluster.folder / "kubelet", cluster.client) as node,
        driver_running(HealthyDriver(), node, health_services=(version,)) as runner,
    ):
        await node.claims.prepare_claims(user)
        runner.report_health([DeviceHealth(NODE, "x", Health.UNHEALTHY, "hot")])

        def shown() -> list[str | None]:
            statuses = node.claims.resource_statuses(user, user.spec.containers[0])
            return [item.health for status in statuses for item in status.resources]

        await until(lambda: shown() == ["Unhealthy"])
