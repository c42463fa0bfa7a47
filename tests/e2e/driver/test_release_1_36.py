"""Either side of Kubernetes 1.36, with the services it has, against our other side, over real sockets."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.document import UID
from dray.driver import DeviceHealth, Health
from dray.node.dra.dra_manager import Prepared
from dray.rpc.pb.dra.v1 import api_pb2 as v1
from dray.rpc.pb.dra.v1 import api_pb2_grpc as v1_grpc
from dray.rpc.pb.dra.v1beta1 import api_pb2 as v1beta1
from dray.rpc.pb.dra.v1beta1 import api_pb2_grpc as v1beta1_grpc
from dray.rpc.pb.dra_health.v1alpha1 import api_pb2 as health
from dray.rpc.pb.dra_health.v1alpha1.api_pb2_grpc import DRAResourceHealthStub
from dray.rpc.pb.plugin_registration.v1 import api_pb2 as registration
from dray.rpc.pb.plugin_registration.v1.api_pb2_grpc import RegistrationStub
from dray.rpc.sockets import connect
from tests.e2e.driver.cluster import NODE, Cluster, Node, driver_running, pod, result, until
from tests.e2e.driver.servicer import FakeDriver
from tests.e2e.driver.test_claims import ready
from tests.e2e.driver.test_metadata import MetadataDriver

# What a driver of 1.36 lists.
SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth")


class NewDriver(MetadataDriver):
    reports_health = True


@pytest.mark.behaviour("N-16", "N-21", "N-24")
@pytest.mark.parametrize(("messages", "stub"), [(v1, v1_grpc.DRAPluginStub), (v1beta1, v1beta1_grpc.DRAPluginStub)])
async def test_our_driver_with_a_kubelet_of_1_36(cluster: Cluster, node: Node, messages: Any, stub: Any) -> None:
    made = await cluster.claim("a", result("x"), pods=["p"])
    claim = messages.Claim(namespace="default", name="a", uid=made["metadata"]["uid"])
    driver = NewDriver()
    async with driver_running(driver, node) as runner:
        async with connect(str(node.root / f"plugins_registry/{driver.name}-reg.sock")) as channel:
            info = await RegistrationStub(channel).GetInfo(registration.InfoRequest())
        # It takes the first DRA service that it knows, and ignores what it does not.
        assert [name for name in info.supported_versions if name in SERVICES] == list(SERVICES)
        async with connect(info.endpoint) as channel:
            prepared = await stub(channel).NodePrepareResources(messages.NodePrepareResourcesRequest(claims=[claim]))
            (device,) = prepared.claims[claim.uid].devices
            assert list(device.cdi_device_ids) == [f"{driver.name}/metadata={claim.uid}_req"]
            runner.report_health([DeviceHealth(NODE, "x", Health.UNHEALTHY, "hot")])
            stream = DRAResourceHealthStub(channel).NodeWatchResources(health.NodeWatchResourcesRequest())
            report = await stream.read()
            while not report.devices:
                report = await stream.read()
            assert [(item.device.device_name, item.message) for item in report.devices] == [("x", "hot")]
            stream.cancel()
            gone = await stub(channel).NodeUnprepareResources(messages.NodeUnprepareResourcesRequest(claims=[claim]))
            assert gone.claims[claim.uid].error == ""


@pytest.mark.behaviour("N-16")
@pytest.mark.parametrize("main", ["v1", "v1beta1"])
async def test_a_driver_of_1_36_with_our_node(cluster: Cluster, node: Node, main: str) -> None:
    listed = [name for name in SERVICES if main == "v1" or name != "v1.DRAPlugin"]
    async with FakeDriver(versions=listed).running(node.root) as driver:
        await ready(driver, node)
        await cluster.claim("a", result("x"), pods=["p"])
        user = pod("p", "a")
        assert isinstance(await node.claims.prepare_claims(user), Prepared)
        driver.healths.put_nowait([{"health": "UNHEALTHY", "message": "hot"}])

        def shown() -> list[str | None]:
            (status,) = node.claims.resource_statuses(user, user.spec.containers[0])
            return [item.health for item in status.resources]

        await until(lambda: shown() == ["Unhealthy"])
        assert await node.claims.unprepare_claims(UID("uid-p")) is None
        assert driver.calls == [(main, "prepare", ("a",)), (main, "unprepare", ("a",))]
        assert driver.streams == ["v1alpha1.DRAResourceHealth"]
