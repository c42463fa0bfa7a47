"""The example drivers, registered with a node over real sockets."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from dray.client.objects import uid_of
from dray.node.dra.dra_manager import Prepared, PrepareError
from tests.e2e.driver.cluster import NODE, Cluster, Node, driver_running, pod, result, until

EXAMPLES = Path(__file__).parents[3] / "examples"


def load(example: str) -> Any:
    spec = importlib.util.spec_from_file_location(example.replace("-", "_"), EXAMPLES / example / "driver.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_env(cluster: Cluster, node: Node) -> None:
    driver = load("env-driver").EnvDriver()
    config = [
        {"source": "FromClass", "opaque": {"driver": driver.name, "parameters": {"env": {"A": "class", "B": "class"}}}},
        {"source": "FromClaim", "opaque": {"driver": driver.name, "parameters": {"env": {"B": "claim"}}}},
    ]
    async with driver_running(driver, node):
        await cluster.claim("c", result("slot-3", driver.name), pods=["p"], config=config)
        user = pod("p", "c")
        assert isinstance(await node.claims.prepare_claims(user), Prepared)
        (name,) = node.claims.container_devices(user, user.spec.containers[0])
        (file,) = (node.root / "cdi").glob("*.json")
        spec = orjson.loads(file.read_bytes())
        assert spec["cdiVersion"] == "0.3.0"
        assert name == f"{spec['kind']}={spec['devices'][0]['name']}"
        assert spec["devices"][0]["containerEdits"]["env"] == ["A=class", "B=claim", "DEVICE=slot-3"]
        assert await node.claims.unprepare_claims(uid_of(user)) is None
        assert not list((node.root / "cdi").iterdir())


async def test_gpu_slices(cluster: Cluster, node: Node) -> None:
    async with driver_running(load("gpu-driver").GPUDriver(8), node):

        async def published() -> bool:
            found = await cluster.slices()
            return len(found) == (found[0]["spec"]["pool"]["resourceSliceCount"] if found else -1)

        await until(published)
        slices = await cluster.slices()
        assert sorted(len(item["spec"].get("devices", ())) for item in slices) == [0, 40, 64]
        assert sum(len(item["spec"].get("sharedCounters", ())) for item in slices) == 8
        assert {item["spec"]["nodeName"] for item in slices} == {NODE}


async def test_host_devices(cluster: Cluster, node: Node) -> None:
    driver = load("host-devices").HostDevices(["/dev/null", "/dev/zero"])
    async with driver_running(driver, node):
        await cluster.claim("c", result("null", driver.name), pods=["p"])
        await cluster.claim("gone", result("nothing", driver.name), pods=["p"])
        user = pod("p", "c")
        assert isinstance(await node.claims.prepare_claims(user), Prepared)
        (file,) = (node.root / "cdi").glob("*.json")
        (device,) = orjson.loads(file.read_bytes())["devices"]
        assert device["containerEdits"]["deviceNodes"] == [{"path": "/dev/null", "permissions": "rw"}]
        failed = await node.claims.prepare_claims(pod("p", "c", "gone"))
        assert failed == PrepareError(
            "prepare dynamic resources: NodePrepareResources failed for ResourceClaim gone: "
            "device nothing does not exist any more"
        )


@pytest.mark.parametrize("example", ["env-driver", "gpu-driver", "host-devices"])
def test_examples_are_short(example: str) -> None:
    assert len((EXAMPLES / example / "driver.py").read_text().splitlines()) <= 100


@pytest.mark.parametrize("example", ["env-driver", "gpu-driver", "host-devices", "sriov-driver"])
async def test_the_examples_manifests_are_accepted(cluster: Cluster, example: str) -> None:
    groups = {"v1": "core/v1"}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    await cluster.create("core/v1/serviceaccounts@default", account)
    for body in yaml.safe_load_all((EXAMPLES / example / "claim.yaml").read_text()):
        place = groups.get(body["apiVersion"], body["apiVersion"])
        plural = {"DeviceClass": "deviceclasses"}.get(body["kind"], f"{body['kind'].lower()}s")
        namespace = "" if body["kind"] == "DeviceClass" else "@default"
        await cluster.create(f"{place}/{plural}{namespace}", body)


async def test_a_broken_gpu_is_tainted_and_unhealthy(cluster: Cluster, node: Node, tmp_path: Path) -> None:
    driver = load("gpu-driver").GPUDriver(2, str(tmp_path))
    await cluster.claim("c", result("gpu-1-2g-0", driver.name), pods=["p"])
    user = pod("p", "c")

    def shown() -> list[str | None]:
        statuses = node.claims.resource_statuses(user, user.spec.containers[0])
        return [item.health for status in statuses for item in status.resources]

    async def tainted() -> set[str]:
        items = await cluster.slices()
        return {one["name"] for item in items for one in item["spec"].get("devices", ()) if one.get("taints")}

    async with driver_running(driver, node):
        assert isinstance(await node.claims.prepare_claims(user), Prepared)
        await until(lambda: shown() == ["Healthy"])
        (tmp_path / "gpu-1").touch()
        await until(lambda: shown() == ["Unhealthy"])

        async def whole_card() -> bool:
            return len(await tainted()) == 13

        await until(whole_card)
        assert all(name.startswith("gpu-1") for name in await tainted())
