"""Device metadata of a driver of the SDK, prepared and unprepared by a node over real sockets."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from dray.api.device_metadata import DeviceMetadataError
from dray.api.document import UID, NamespacedName
from dray.driver import Claim, NetworkDeviceData, Options, PreparedDevice
from dray.driver.metadata import read_file
from dray.driver.prepared.preparer import ClaimRef
from dray.driver.runner import DriverRunner
from dray.node.dra.dra_manager import Prepared
from dray.runtime.metrics import Metrics
from tests.e2e.driver.cluster import CLOCK, NODE, Cluster, Node, driver_running, pod, result
from tests.e2e.driver.test_sdk import TestDriver, cdi_files


class MetadataDriver(TestDriver):
    metadata_versions = ("v1beta1",)

    def prepare(self, claim: Claim) -> Iterable[PreparedDevice]:
        return [item.prepared(attributes={"speed": 25}) for item in claim.devices]


@pytest.mark.behaviour("N-24", "N-29", "N-33", "N-34")
async def test_containers_get_the_metadata_of_their_requests(cluster: Cluster, node: Node) -> None:
    made = await cluster.claim("a", result("x", request="one"), result("y", request="two"), pods=["p"])
    uid = made["metadata"]["uid"]
    containers = [
        {"name": request, "resources": {"claims": [{"name": "a", "request": request}]}} for request in ("one", "two")
    ]
    user = pod("p", "a", containers=containers)
    driver = MetadataDriver()
    async with driver_running(driver, node) as runner:
        assert isinstance(await node.claims.prepare_claims(user), Prepared)
        for container, request in zip(user.spec.containers, ("one", "two"), strict=True):
            assert node.claims.container_devices(user, container) == (f"{driver.name}/metadata={uid}_{request}",)
        path = node.root / f"plugins/{driver.name}/dra-device-metadata/default_a/one/metadata.json"
        (device,) = read_file(path).devices
        assert (device.name, device.attributes["speed"].int_) == ("x", 25)
        (entry, *_) = runner._preparer._claims.all()
        network = NetworkDeviceData(interface_name="net1")
        runner.update_metadata(entry.claim, "one", [entry.claim.devices[0].prepared(network=network)])
        assert read_file(path).devices[0].network_data == network
        # A file that was removed is written again, as after a reboot.
        (node.root / "cdi" / f"{driver.name}_metadata_{uid}_two.json").unlink()
        with_files = await runner._preparer.prepare([ClaimRef(UID(uid), NamespacedName("default", "a"))])
        assert with_files[UID(uid)].error == ""
        assert len(cdi_files(node)) == 2
        assert await node.claims.unprepare_claims(UID("uid-p")) is None
        assert cdi_files(node) == []
        assert not path.parent.parent.exists()


@pytest.mark.behaviour("N-31")
async def test_a_driver_with_an_unknown_version_does_not_start(node: Node) -> None:
    class Unknown(TestDriver):
        metadata_versions = ("v1beta1", "v7")

    with pytest.raises(DeviceMetadataError, match="v7"):
        DriverRunner(Unknown(), node.client, Options(NODE, str(node.root)), CLOCK, Metrics())


@pytest.mark.behaviour("N-34")
async def test_a_failure_to_clean_up_fails_unprepare(
    cluster: Cluster, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.claim("a", result("x"), pods=["p"])
    async with driver_running(MetadataDriver(), node) as runner:
        assert isinstance(await node.claims.prepare_claims(pod("p", "a")), Prepared)

        def refuse(_claim: object) -> None:
            raise OSError("read-only file system")

        with monkeypatch.context() as patch:
            assert runner._metadata is not None
            patch.setattr(runner._metadata, "remove", refuse)
            failure = await node.claims.unprepare_claims(UID("uid-p"))
            assert failure is not None
            assert "clean up device metadata: read-only file system" in failure.message
        assert await node.claims.unprepare_claims(UID("uid-p")) is None
