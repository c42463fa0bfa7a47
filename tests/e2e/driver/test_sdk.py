"""Drivers made with the SDK: registered with a node, publishing to the real API server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import orjson
import pytest

from dray.api.document import UID, Document
from dray.api.features import FeatureGates
from dray.cli import doctor_on_node
from dray.client.in_process import in_process_client
from dray.driver import (
    Claim,
    ContainerEdits,
    Device,
    DeviceHealth,
    Driver,
    Health,
    Options,
    Pool,
    PreparedClaim,
    PreparedDevice,
    counter_set,
    device,
)
from dray.node.dra.dra_manager import Prepared, PrepareError
from dray.rpc.pb.dra.v1 import api_pb2 as v1
from dray.rpc.pb.dra.v1.api_pb2_grpc import DRAPluginStub
from dray.rpc.sockets import SocketError, connect
from dray.sim.doctor.drivers import check_drivers
from dray.sim.snapshot import Snapshot
from tests.e2e.driver.cluster import NODE, Cluster, Node, driver_running, node_running, pod, result, short_folder, until
from tests.local_server import local_server


class TestDriver(Driver):
    """Prepares with a variable; notes what it is asked."""

    __test__ = False
    name = "test.example.com"

    def __init__(self, *devices: Device) -> None:
        self.offered: list[Device] = list(devices) or [device("x"), device("y")]
        self.notes: list[str] = []
        self.fail = ""

    def devices(self) -> Iterable[Device]:
        return self.offered

    def prepare(self, claim: Claim) -> Iterable[PreparedDevice]:
        self.notes.append(f"prepare {claim.key.name}")
        if self.fail:
            raise RuntimeError(self.fail)
        return [item.prepared(ContainerEdits(env=(f"DEVICE={item.name}",))) for item in claim.devices]

    def unprepare(self, claim: PreparedClaim) -> None:
        self.notes.append(f"unprepare {claim.key.name} {','.join(item.name for item in claim.devices)}")


def cdi_files(node: Node) -> list[str]:
    return sorted(path.name for path in (node.root / "cdi").glob("*"))


def record(node: Node) -> list[Document]:
    path = node.root / "plugins/test.example.com/prepared.json"
    return orjson.loads(path.read_bytes())["claims"] if path.exists() else []


@pytest.mark.behaviour("SP-134")
@pytest.mark.parametrize(
    ("pod_uid", "registration", "service"),
    [
        ("", "d-reg.sock", "plugins/d/dra.sock"),
        ("u", "d-u-reg.sock", "plugins/d/dra-u.sock"),
    ],
)
def test_default_paths(pod_uid: str, registration: str, service: str) -> None:
    options = Options("n", pod_uid=pod_uid)
    assert options.registration_socket("d") == f"/var/lib/kubelet/plugins_registry/{registration}"
    assert options.service_socket("d") == f"/var/lib/kubelet/{service}"


@pytest.mark.behaviour("SP-135")
async def test_claims_are_prepared_once_and_unprepared(cluster: Cluster, node: Node) -> None:
    driver = TestDriver()
    made = await cluster.claim("a", result("x"), pods=["p"])
    user = pod("p", "a")
    async with driver_running(driver, node):
        assert isinstance(await node.claims.prepare_claims(user), Prepared)
        uid = made["metadata"]["uid"]
        (name,) = node.claims.container_devices(user, user.spec.containers[0])
        assert name == f"test.example.com/claim=x-{uid}-0"
        assert cdi_files(node) == [f"test.example.com-claim-{uid}.json"]
        assert [(item["uid"], item["phase"]) for item in record(node)] == [(uid, "prepared")]
        assert await node.claims.unprepare_claims(UID("uid-p")) is None
    assert driver.notes == ["prepare a", "unprepare a x"]
    assert (cdi_files(node), record(node)) == ([], [])


@pytest.mark.behaviour("SP-135")
async def test_one_claims_failure_is_its_own(cluster: Cluster, node: Node) -> None:
    driver = TestDriver()
    good = await cluster.claim("good", result("x"), pods=["p"])
    bad = await cluster.claim("bad", result("y"), pods=["p"])
    async with driver_running(driver, node) as _, connect(_socket(node)) as channel:
        claims = [
            v1.Claim(namespace="default", name="good", uid=good["metadata"]["uid"]),
            v1.Claim(namespace="default", name="bad", uid="another"),
            v1.Claim(namespace="default", name="none", uid="u"),
        ]
        answer = await DRAPluginStub(channel).NodePrepareResources(v1.NodePrepareResourcesRequest(claims=claims))
        errors = {uid: entry.error for uid, entry in answer.claims.items()}
        assert errors == {
            good["metadata"]["uid"]: "",
            "another": "claim default/bad got replaced",
            "u": 'retrieve claim default/none: resourceclaims.resource.k8s.io "none" not found',
        }
        assert driver.notes == ["prepare good"]
        # An unknown claim is unprepared already.
        undone = await DRAPluginStub(channel).NodeUnprepareResources(
            v1.NodeUnprepareResourcesRequest(
                claims=[v1.Claim(namespace="default", name="bad", uid=bad["metadata"]["uid"])]
            )
        )
        assert [entry.error for entry in undone.claims.values()] == [""]
        assert driver.notes == ["prepare good"]


def _socket(node: Node) -> str:
    return str(node.root / "plugins/test.example.com/dra.sock")


async def test_the_authors_errors_reach_the_pod_and_are_retried(cluster: Cluster, node: Node) -> None:
    driver = TestDriver()
    driver.fail = "no power"
    await cluster.claim("a", result("x"), pods=["p"])
    async with driver_running(driver, node):
        failed = await node.claims.prepare_claims(pod("p", "a"))
        text = "NodePrepareResources failed for ResourceClaim a: prepare claim default/a: no power"
        assert failed == PrepareError(f"prepare dynamic resources: {text}")
        assert [item["phase"] for item in record(node)] == ["preparing"]
        # It may have done half of it, so the Pod's end undoes it.
        assert await node.claims.unprepare_claims(UID("uid-p")) is None
        assert driver.notes == ["prepare a", "unprepare a x"]
        driver.fail = ""
        assert isinstance(await node.claims.prepare_claims(pod("p", "a")), Prepared)


async def test_a_restarted_driver_answers_from_its_record(cluster: Cluster, node: Node) -> None:
    first, second = TestDriver(), TestDriver()
    await cluster.claim("a", result("x"), pods=["p", "q"])
    async with driver_running(first, node):
        assert isinstance(await node.claims.prepare_claims(pod("p", "a")), Prepared)
    await until(lambda: node.drivers() == [])
    async with driver_running(second, node), connect(_socket(node)) as channel:
        (entry,) = record(node)
        request = v1.NodePrepareResourcesRequest(claims=[v1.Claim(namespace="default", name="a", uid=entry["uid"])])
        answer = await DRAPluginStub(channel).NodePrepareResources(request)
        assert [item.device_name for item in answer.claims[entry["uid"]].devices] == ["x"]
        assert second.notes == []
        # Its CDI file went with a reboot: it is made again.
        for name in cdi_files(node):
            (node.root / "cdi" / name).unlink()
        await DRAPluginStub(channel).NodePrepareResources(request)
        assert second.notes == ["prepare a"]
        assert len(cdi_files(node)) == 1


class SlowDriver(TestDriver):
    """Counts how many calls are under way at once, over all instances."""

    under_way: ClassVar[int] = 0
    most: ClassVar[int] = 0
    # None ends before so many have been under way at once; more than that may be, for a while after.
    wanted: ClassVar[int] = 1

    async def prepare(self, claim: Claim) -> Iterable[PreparedDevice]:  # type: ignore[override]
        SlowDriver.under_way += 1
        SlowDriver.most = max(SlowDriver.most, SlowDriver.under_way)
        await until(lambda: SlowDriver.most >= SlowDriver.wanted)
        for _ in range(20):
            await asyncio.sleep(0)
        SlowDriver.under_way -= 1
        return [item.prepared() for item in claim.devices]


@pytest.mark.behaviour("SP-136")
@pytest.mark.parametrize(("serialize", "most"), [(True, 1), (False, 4)])
async def test_calls_follow_each_other_also_across_instances(
    cluster: Cluster, node: Node, serialize: bool, most: int
) -> None:
    SlowDriver.under_way, SlowDriver.most, SlowDriver.wanted = 0, 0, most
    uids = [(await cluster.claim(f"c{n}", result(f"x{n}"), pods=["p"]))["metadata"]["uid"] for n in range(4)]
    folder = node.root / "plugins/test.example.com"
    async with (
        driver_running(SlowDriver(), node, pod_uid="one", serialize=serialize),
        driver_running(SlowDriver(), node, pod_uid="two", serialize=serialize),
        connect(str(folder / "dra-one.sock")) as one,
        connect(str(folder / "dra-two.sock")) as two,
    ):

        async def prepare(number: int) -> None:
            claim = v1.Claim(namespace="default", name=f"c{number}", uid=uids[number])
            stub = DRAPluginStub(two if number % 2 else one)
            await stub.NodePrepareResources(v1.NodePrepareResourcesRequest(claims=[claim]))

        await asyncio.gather(*(prepare(number) for number in range(4)))
        assert [item["phase"] for item in record(node)] == ["prepared"] * 4
    assert SlowDriver.most == most
    assert (folder / "serialize.lock").exists() == serialize


@pytest.mark.behaviour("SP-133", "SP-134")
async def test_a_rolling_update_hands_over(cluster: Cluster, node: Node) -> None:
    old, new = TestDriver(), TestDriver()
    await cluster.claim("a", result("x"), pods=["p"])
    async with driver_running(new, node, pod_uid="new"):
        async with driver_running(old, node, pod_uid="old"):
            assert isinstance(await node.claims.prepare_claims(pod("p", "a")), Prepared)
        await until(lambda: len(node.plugins.plugins) == 1)
        # What the other instance prepared is in the record that both share.
        assert await node.claims.unprepare_claims(UID("uid-p")) is None
    assert sorted(old.notes + new.notes) == ["prepare a", "unprepare a x"]
    assert (cdi_files(node), record(node)) == ([], [])


@pytest.mark.behaviour("SP-132")
async def test_a_driver_may_serve_one_version_alone(cluster: Cluster, node: Node) -> None:
    driver = TestDriver()
    await cluster.claim("a", result("x", shareID="7c0b9a5e-0000-4000-8000-000000000000"), pods=["p"])
    async with driver_running(driver, node, services=("v1beta1.DRAPlugin",)):
        assert isinstance(await node.claims.prepare_claims(pod("p", "a")), Prepared)
        (info,) = node.claims.claims()
        assert info.devices["test.example.com"][0].share_id is None
    assert driver.notes == ["prepare a"]


async def test_shares_are_reported_in_v1(cluster: Cluster, node: Node) -> None:
    share = "7c0b9a5e-0000-4000-8000-000000000000"
    await cluster.claim("a", result("x", shareID=share), pods=["p"])
    async with driver_running(TestDriver(), node):
        assert isinstance(await node.claims.prepare_claims(pod("p", "a")), Prepared)
        (info,) = node.claims.claims()
        assert info.devices["test.example.com"][0].share_id == share


class HealthyDriver(TestDriver):
    reports_health = True


@pytest.mark.behaviour("SP-125")
async def test_health_streams_to_the_node(cluster: Cluster, node: Node) -> None:
    driver = HealthyDriver()
    await cluster.claim("a", result("x"), pods=["p"])
    user = pod("p", "a")

    def shown() -> list[str | None]:
        statuses = node.claims.resource_statuses(user, user.spec.containers[0])
        return [item.health for status in statuses for item in status.resources]

    async with driver_running(driver, node) as runner:
        assert isinstance(await node.claims.prepare_claims(user), Prepared)
        assert shown() == ["Unknown"]
        # From a thread, as a driver's own watcher would.
        await asyncio.to_thread(runner.report_health, [DeviceHealth(NODE, "x", Health.HEALTHY)])
        await until(lambda: shown() == ["Healthy"])
        runner.report_health([DeviceHealth(NODE, "x", Health.UNHEALTHY, "hot")])
        await until(lambda: shown() == ["Unhealthy"])
    await until(lambda: shown() == ["Unknown"])


# --- Slices. ---


@pytest.mark.behaviour("N-58")
async def test_a_list_that_the_server_refuses_stops_publishing_with_an_error(cluster: Cluster, node: Node) -> None:
    errors: list[Exception] = []
    attributes = {"resource.kubernetes.io/numaNode": (0, 1)}
    async with driver_running(TestDriver(device("x", attributes=attributes)), node, on_error=errors.append) as runner:
        await until(lambda: errors and runner.publisher.settled)
        assert "resource.kubernetes.io/numaNode" in str(errors[0])
        assert len(errors) == 1
        assert await cluster.slices() == []


def names(items: list[Document]) -> list[str]:
    return sorted(one["name"] for item in items for one in item["spec"].get("devices", ()))


async def settled(cluster: Cluster, expected: list[str]) -> list[Document]:
    async def found() -> bool:
        return names(await cluster.slices()) == expected

    await until(found)
    return await cluster.slices()


@pytest.mark.behaviour("SP-137", "SP-139")
async def test_slices_follow_the_drivers_devices_and_are_repaired(cluster: Cluster, node: Node) -> None:
    driver = TestDriver()
    uid = (await cluster.local.request("get", f"core/v1/nodes/{NODE}"))["metadata"]["uid"]
    async with driver_running(driver, node) as runner:
        (item,) = await settled(cluster, ["x", "y"])
        assert item["spec"]["nodeName"] == NODE
        assert item["metadata"]["ownerReferences"] == [
            {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": uid, "controller": True}
        ]
        driver.offered = [device("x")]
        runner.publish()
        (changed,) = await settled(cluster, ["x"])
        # One slice was changed, so its pool is of the same generation.
        assert changed["metadata"]["name"] == item["metadata"]["name"]
        assert changed["spec"]["pool"]["generation"] == item["spec"]["pool"]["generation"]
        await cluster.local.request("delete", f"resource.k8s.io/v1/resourceslices/{item['metadata']['name']}")
        (again,) = await settled(cluster, ["x"])
        assert again["metadata"]["name"] != item["metadata"]["name"]
        again["spec"]["devices"] = []
        await cluster.local.request("update", f"resource.k8s.io/v1/resourceslices/{again['metadata']['name']}", again)
        await settled(cluster, ["x"])
    # They stay when the driver stops: it may be a restart.
    assert names(await cluster.slices()) == ["x"]


@pytest.mark.behaviour("N-71")
async def test_slices_deleted_right_after_an_update_are_created_again(cluster: Cluster, node: Node) -> None:
    driver = TestDriver()
    async with driver_running(driver, node) as runner:
        (item,) = await settled(cluster, ["x", "y"])
        for offered in (["x"], ["x", "y"], ["y"]):
            driver.offered = [device(name) for name in offered]
            runner.publish()
            (item,) = await settled(cluster, offered)
            await cluster.local.request("delete", f"resource.k8s.io/v1/resourceslices/{item['metadata']['name']}")
        (again,) = await settled(cluster, ["y"])
        assert again["metadata"]["name"] != item["metadata"]["name"]


async def test_doctor_finds_a_driver_that_runs_and_publishes_nothing(cluster: Cluster, node: Node) -> None:
    """As it was after `kubectl delete node`; sockets of drivers that are gone do not hold it up."""
    driver = PoolDriver()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(node.root / "plugins_registry" / "gone.example.com-reg.sock"))
    async with driver_running(driver, node):
        assert await asyncio.to_thread(doctor_on_node.running_drivers, node.root) == [driver.name]
        snapshot = Snapshot.of(await cluster.slices())
        assert [finding.rule for finding in check_drivers(NODE, [driver.name], snapshot)] == ["unpublished-driver"]


@pytest.mark.behaviour("SP-139")
@pytest.mark.parametrize("collected_before", [True, False])
async def test_slices_come_back_for_a_node_that_was_deleted_and_registered_again(
    cluster: Cluster, node: Node, collected_before: bool
) -> None:
    """Whether the garbage collector deletes the slices before the new Node exists, or after."""
    body: Document = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
    driver = PoolDriver()
    driver.wanted = {"a": Pool((device("x"),)), "b": Pool((device("y"),))}
    errors: list[Exception] = []
    async with driver_running(driver, node, on_error=errors.append):
        items = await settled(cluster, ["x", "y"])
        first = items[0]["metadata"]["name"]
        await cluster.local.request("delete", f"core/v1/nodes/{NODE}")
        if collected_before:
            for item in items:
                await cluster.local.request("delete", f"resource.k8s.io/v1/resourceslices/{item['metadata']['name']}")
            await settled(cluster, [])
        uid = (await cluster.create("core/v1/nodes", body))["metadata"]["uid"]
        if not collected_before:
            # Only the first is collected in time; the other is given to the new Node.
            await cluster.local.request("delete", f"resource.k8s.io/v1/resourceslices/{first}")

        async def belong_to_the_new_node() -> bool:
            found = await cluster.slices()
            return names(found) == ["x", "y"] and all(
                [owner["uid"] for owner in item["metadata"]["ownerReferences"]] == [uid] for item in found
            )

        await until(belong_to_the_new_node)
        if not collected_before:
            kept = {item["metadata"]["name"] for item in await cluster.slices()}
            assert items[1]["metadata"]["name"] in kept
    assert errors == []


@pytest.mark.behaviour("SP-137")
async def test_slices_are_deleted_with_the_driver_only_if_configured(cluster: Cluster, node: Node) -> None:
    async with driver_running(TestDriver(), node, remove_slices_on_stop=True):
        await settled(cluster, ["x", "y"])
    assert await cluster.slices() == []


class PoolDriver(TestDriver):
    """Several pools."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted: Mapping[str, Pool] = {}

    def pools(self) -> Mapping[str, Pool]:
        return self.wanted


@pytest.mark.behaviour("SP-137", "SP-138")
async def test_several_pools_and_slices(cluster: Cluster, node: Node) -> None:
    driver = PoolDriver()
    large = Pool(tuple(device(f"d{number:03}") for number in range(200)))
    driver.wanted = {"large": large, "small": Pool((device("s"),))}
    async with driver_running(driver, node) as runner:
        items = await settled(cluster, [*(f"d{number:03}" for number in range(200)), "s"])
        pools = [(item["spec"]["pool"]["name"], item["spec"]["pool"]["resourceSliceCount"]) for item in items]
        assert sorted(pools) == [("large", 2), ("large", 2), ("small", 1)]
        driver.wanted = {"large": Pool((*large.devices, *(device(f"e{number:03}") for number in range(100))))}
        runner.publish()
        expected = [*(f"d{number:03}" for number in range(200)), *(f"e{number:03}" for number in range(100))]
        items = await settled(cluster, expected)
        # A slice is new, so all are of the next generation.
        await until(lambda: runner.publisher.settled)
        items = await cluster.slices()
        assert [item["spec"]["pool"]["generation"] for item in items] == [2, 2, 2]


@pytest.mark.behaviour("SP-137")
async def test_pools_of_an_earlier_run_are_removed(cluster: Cluster, node: Node) -> None:
    first, second = PoolDriver(), PoolDriver()
    first.wanted, second.wanted = {"old": Pool((device("o"),))}, {"new": Pool((device("n"),))}
    async with driver_running(first, node):
        await settled(cluster, ["o"])
    async with driver_running(second, node):
        await settled(cluster, ["n"])


@pytest.mark.behaviour("SP-140")
async def test_dropped_fields_are_reported_once_and_not_rewritten() -> None:
    assert not FeatureGates.parse("DRAPartitionableDevices=false").enabled("DRAPartitionableDevices")
    errors: list[Exception] = []
    driver = PoolDriver()
    driver.wanted = {NODE: Pool((device("x", consumes={"c": {"m": 1}}),), (counter_set("c", {"m": 1}),))}
    with short_folder() as folder:
        async with local_server(folder / "api", "DRAPartitionableDevices=false") as local:
            client = in_process_client(local.running.local, user="admin", groups=("system:masters",))
            cluster = Cluster(folder, local, client)
            await cluster.create("core/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
            async with (
                node_running(folder / "kubelet", client) as node,
                driver_running(driver, node, on_error=errors.append) as runner,
            ):
                await settled(cluster, ["x"])
                await until(lambda: len(errors) == 2)
                await until(lambda: runner.publisher.settled)
                versions = [item["metadata"]["resourceVersion"] for item in await cluster.slices()]
                runner.publish()
                await until(lambda: runner.publisher.settled)
                assert [item["metadata"]["resourceVersion"] for item in await cluster.slices()] == versions
    assert sorted({type(error).__name__ for error in errors}) == ["DroppedFieldsError"]
    assert len(errors) == 2
    assert any(str(error).endswith("the server dropped fields of DRAPartitionableDevices") for error in errors)


async def test_refused_writes_are_reported(cluster: Cluster, node: Node) -> None:
    errors: list[Exception] = []
    driver = TestDriver(device("Not_A_Name"))
    async with driver_running(driver, node, on_error=errors.append):
        await until(lambda: errors)
    assert "Invalid value" in str(errors[0])
    assert await cluster.slices() == []


async def test_a_pool_elsewhere_is_refused(cluster: Cluster, node: Node) -> None:
    driver = PoolDriver()
    driver.wanted = {"p": Pool(all_nodes=True)}
    with pytest.raises(ValueError, match="the pool's choice of nodes says otherwise"):
        async with driver_running(driver, node):
            pass


async def test_stopping_removes_the_sockets(cluster: Cluster, node: Node) -> None:
    async with driver_running(TestDriver(), node):
        assert _sockets(node.root) == ["dra.sock", "test.example.com-reg.sock"]
    assert _sockets(node.root) == []


async def test_a_second_process_cannot_take_the_socket_of_the_first(cluster: Cluster, node: Node) -> None:
    async with driver_running(TestDriver(), node):
        with pytest.raises(SocketError, match="another process serves it"):
            async with driver_running(TestDriver(), node):
                pass
        assert _sockets(node.root) == ["dra.sock", "test.example.com-reg.sock"]
    async with driver_running(TestDriver(), node):
        pass


def _sockets(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.is_socket())


def test_the_command_line(capsys: Any) -> None:
    from dray.driver import run

    assert run(TestDriver(), ["--help"], {}) == 0
    assert "--node-name" in capsys.readouterr().out
    assert run(TestDriver(), [], {}) == 2
    assert capsys.readouterr().err == "--node-name: needs a value\n"


def test_a_missing_folder_is_reported_without_a_traceback(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dray.driver import run

    # The test's own logging stays as it is.
    monkeypatch.setattr("dray.driver.program.logs.configure", lambda **_: None)
    config = tmp_path / "config"
    config.write_text(
        "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], "
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: u, user: {}}]}"
    )
    with short_folder() as root:
        code = run(TestDriver(), ["--node-name", NODE, "--kubeconfig", str(config), "--root-dir", str(root)], {})
    assert code == 1
    assert capsys.readouterr().err.endswith("test.example.com-reg.sock: its folder does not exist\n")
