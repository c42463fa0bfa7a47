"""The node prepares claims through drivers on real sockets, with the real API server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import pytest

from dray.api.document import UID
from dray.api.types.core_v1 import Pod
from dray.node.dra.checkpoint import decode
from dray.node.dra.dra_manager import Prepared, PrepareError, UnprepareError
from dray.node.runtimes.runtime import ContainerRecord
from tests.e2e.driver.cluster import CLOCK, NODE, Cluster, Node, node_running, pod, result, until
from tests.e2e.driver.servicer import BOTH, FakeDriver

PREFIX = "prepare dynamic resources: "


async def ready(driver: FakeDriver, node: Node) -> None:
    node.plugins.rescan()
    assert await driver.status() == (True, "")
    await until(lambda: driver.name in node.drivers())


def saved(node: Node) -> dict[str, set[str]]:
    """The Pods of each claim in the checkpoint."""
    return {info.key.name: set(info.pod_uids) for info in decode(node.checkpoint.read_bytes())}


@pytest.mark.behaviour("SP-111", "SP-115", "SP-121")
async def test_prepare_and_unprepare(cluster: Cluster, node: Node) -> None:
    async with FakeDriver().running(node.root) as driver:
        await ready(driver, node)
        await cluster.claim("a", result("x"), pods=["p"])
        await cluster.claim("b", result("y"), pods=["p"])
        # No container uses b: it is prepared all the same.
        user = pod("p", "a", "b", containers=[{"name": "m", "resources": {"claims": [{"name": "a"}]}}])
        seen: list[dict[str, set[str]]] = []
        answer = driver.on_prepare

        async def look(*arguments: Any) -> None:
            seen.append(saved(node))
            await answer(*arguments)

        driver.on_prepare = look
        assert isinstance(await node.claims.prepare_claims(user), Prepared)
        assert driver.calls == [("v1", "prepare", ("a", "b"))]
        # The checkpoint came before the call.
        assert seen == [{"a": {"uid-p"}, "b": {"uid-p"}}]
        assert node.claims.container_devices(user, user.spec.containers[0]) == ("test.example.com/claim=a",)
        assert [claim.info.key.name for claim in node.claims.container_claims(user, user.spec.containers[0])] == ["a"]
        assert isinstance(await node.claims.prepare_claims(user), Prepared)
        assert len(driver.calls) == 1
        assert node.claims.uses_claims(UID("uid-p"))
        assert await node.claims.unprepare_claims(UID("uid-p")) is None
        assert driver.calls[1:] == [("v1", "unprepare", ("a", "b"))]
        assert not node.claims.uses_claims(UID("uid-p"))
        assert saved(node) == {}
        assert await node.claims.unprepare_claims(UID("uid-p")) is None
        assert len(driver.calls) == 2


@pytest.mark.behaviour("SP-110")
async def test_nothing_is_noted_when_validation_fails(cluster: Cluster, node: Node) -> None:
    await cluster.claim("a", result("x"), pods=["p"])
    await cluster.claim("other", result("y"), pods=["q"])
    claim = await cluster.local.request("get", "resource.k8s.io/v1/resourceclaims/other@default")
    cases = {
        "a": "DRA driver test.example.com is not registered",
        "none": 'fetch ResourceClaim none: resourceclaims.resource.k8s.io "none" not found',
        "other": f"pod p (uid-p) is not allowed to use ResourceClaim other ({claim['metadata']['uid']})",
    }
    for name, text in cases.items():
        assert await node.claims.prepare_claims(pod("p", name)) == PrepareError(PREFIX + text)
    assert not node.checkpoint.exists()
    assert not node.claims.uses_claims(UID("uid-p"))


@pytest.mark.behaviour("SP-112", "SP-116")
async def test_faulty_answers_keep_the_pod_waiting_until_a_retry_succeeds(cluster: Cluster, node: Node) -> None:
    async with FakeDriver().running(node.root) as driver:
        await ready(driver, node)
        made = await cluster.claim("a", result("x"), pods=["p"])
        uid = made["metadata"]["uid"]
        good = driver.on_prepare

        async def entry_error(request: Any, answer: Any, context: Any) -> None:
            answer.claims[uid].error = "no power"

        async def unknown(request: Any, answer: Any, context: Any) -> None:
            answer.claims["other"].error = ""

        async def nothing(request: Any, answer: Any, context: Any) -> None:
            pass

        async def broken(request: Any, answer: Any, context: Any) -> None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no hardware")

        cases = [
            (entry_error, "NodePrepareResources failed for ResourceClaim a: no power"),
            (unknown, "NodePrepareResources returned result for unknown claim UID other"),
            (nothing, "NodePrepareResources skipped 1 ResourceClaims"),
            (broken, "NodePrepareResources: rpc error: code = Unavailable desc = no hardware"),
        ]
        for behaviour, text in cases:
            driver.on_prepare = behaviour
            assert await node.claims.prepare_claims(pod("p", "a")) == PrepareError(PREFIX + text)
        driver.on_prepare = good
        assert isinstance(await node.claims.prepare_claims(pod("p", "a")), Prepared)
        (claim,) = node.claims.claims()
        assert len(claim.devices["test.example.com"]) == 1


@pytest.mark.behaviour("SP-112")
async def test_an_empty_entry_is_success_without_devices(cluster: Cluster, node: Node) -> None:
    async with FakeDriver().running(node.root) as driver:
        await ready(driver, node)

        async def empty(request: Any, answer: Any, context: Any) -> None:
            for claim in request.claims:
                answer.claims[claim.uid].SetInParent()

        driver.on_prepare = empty
        await cluster.claim("a", result("x"), pods=["p"])
        user = pod("p", "a")
        assert isinstance(await node.claims.prepare_claims(user), Prepared)
        assert node.claims.container_devices(user, user.spec.containers[0]) == ()


@pytest.mark.behaviour("SP-117")
async def test_unprepare_waits_for_the_last_pod_and_is_retried(cluster: Cluster, node: Node) -> None:
    async with FakeDriver().running(node.root) as driver:
        await ready(driver, node)
        await cluster.claim("a", result("x"), pods=["p", "q"])
        for name in ("p", "q"):
            assert isinstance(await node.claims.prepare_claims(pod(name, "a")), Prepared)
        assert driver.names("prepare") == [("a",)]
        assert await node.claims.unprepare_claims(UID("uid-p")) is None
        assert driver.names("unprepare") == []
        good = driver.on_unprepare

        async def busy(request: Any, answer: Any, context: Any) -> None:
            for claim in request.claims:
                answer.claims[claim.uid].error = "busy"

        driver.on_unprepare = busy
        text = "unprepare dynamic resources: NodeUnprepareResources failed for ResourceClaim a: busy"
        assert await node.claims.unprepare_claims(UID("uid-q")) == UnprepareError(text)
        assert saved(node) == {"a": {"uid-q"}}
        driver.on_unprepare = good
        assert await node.claims.unprepare_claims(UID("uid-q")) is None
        assert saved(node) == {}


@pytest.mark.behaviour("SP-114")
async def test_a_claim_made_again_under_its_name_waits_for_the_old_one(cluster: Cluster, node: Node) -> None:
    async with FakeDriver().running(node.root) as driver:
        await ready(driver, node)
        old = await cluster.claim("a", result("x"), pods=["p"])
        assert isinstance(await node.claims.prepare_claims(pod("p", "a")), Prepared)
        await cluster.local.request("delete", "resource.k8s.io/v1/resourceclaims/a@default")
        await cluster.claim("a", result("x"), pods=["q"])
        text = (
            f"old ResourceClaim with same name a and different UID {old['metadata']['uid']} still exists "
            "(previous pod force-deleted?!)"
        )
        assert await node.claims.prepare_claims(pod("q", "a")) == PrepareError(PREFIX + text)
        await node.claims.unprepare_claims(UID("uid-p"))
        assert isinstance(await node.claims.prepare_claims(pod("q", "a")), Prepared)


@pytest.mark.behaviour("SP-147")
async def test_a_device_waits_until_the_driver_has_unprepared_it(cluster: Cluster, node: Node) -> None:
    async with FakeDriver().running(node.root) as driver:
        await ready(driver, node)
        told: list[str] = []
        node.claims.on_driver(lambda: told.append("try again"))
        good, called, goes_on = driver.on_unprepare, asyncio.Event(), asyncio.Event()

        async def fails(request: Any, answer: Any, context: Any) -> None:
            called.set()
            await goes_on.wait()
            for claim in request.claims:
                answer.claims[claim.uid].error = "busy"

        driver.on_unprepare = fails
        await cluster.claim("a", result("x"), pods=["p"])
        assert isinstance(await node.claims.prepare_claims(pod("p", "a")), Prepared)
        # The claim goes by force, and the device is allocated again.
        await cluster.local.request("delete", "resource.k8s.io/v1/resourceclaims/a@default")
        await cluster.claim("b", result("x"), pods=["q"])
        releasing = asyncio.create_task(node.claims.unprepare_claims(UID("uid-p")))
        await called.wait()
        preparing = asyncio.create_task(node.claims.prepare_claims(pod("q", "b")))
        goes_on.set()
        assert await releasing is not None
        text = (
            "ResourceClaim b: device test.example.com/node-1/x is not unprepared yet for default/a, which had it before"
        )
        assert await preparing == PrepareError(PREFIX + text)
        assert driver.names("prepare") == [("a",)]
        assert told == []
        driver.on_unprepare = good
        assert await node.claims.unprepare_claims(UID("uid-p")) is None
        assert told == ["try again"]
        assert isinstance(await node.claims.prepare_claims(pod("q", "b")), Prepared)


@pytest.mark.behaviour("SP-118", "SP-120")
async def test_after_a_restart_of_the_node_agent(cluster: Cluster) -> None:
    root = cluster.folder / "kubelet"
    driver = FakeDriver()
    async with driver.running(root):
        await cluster.claim("a", result("x"), pods=["p"])
        await cluster.claim("b", result("y"), pods=["q"])
        async with node_running(root, cluster.client) as node:
            await ready(driver, node)
            for name, claim in (("p", "a"), ("q", "b")):
                assert isinstance(await node.claims.prepare_claims(pod(name, claim)), Prepared)
        driver.calls.clear()
        async with node_running(root, cluster.client) as node:
            await ready(driver, node)
            # p runs on: it is prepared once more. q went away meanwhile: it is unprepared.
            assert isinstance(await node.claims.prepare_claims(pod("p", "a")), Prepared)
            assert isinstance(await node.claims.prepare_claims(pod("p", "a")), Prepared)
            await node.claims.reconcile({UID("uid-p")})
        assert driver.calls == [("v1", "prepare", ("a",)), ("v1", "unprepare", ("b",))]


@pytest.mark.behaviour("SP-118")
async def test_the_loop_unprepares_what_gone_pods_left_once_pods_are_known(cluster: Cluster) -> None:
    root = cluster.folder / "kubelet"
    driver = FakeDriver()
    async with driver.running(root):
        await cluster.claim("a", result("x"), pods=["p"])
        async with node_running(root, cluster.client) as node:
            await ready(driver, node)
            assert isinstance(await node.claims.prepare_claims(pod("p", "a")), Prepared)
        # Not before the node knows its Pods.
        async with node_running(root, cluster.client) as node:
            await ready(driver, node)
            assert isinstance(await node.claims.prepare_claims(pod("p", "a")), Prepared)
        assert driver.names("unprepare") == []
        async with node_running(root, cluster.client, known=()) as node:
            await ready(driver, node)
            await until(lambda: saved(node) == {})
        assert driver.names("unprepare") == [("a",)]


def as_started(item: Pod, annotations: Mapping[str, str]) -> ContainerRecord:
    """The container of a Pod as the runtime has it."""
    meta = item.metadata
    names = (f"id-{meta.uid}", meta.uid or "", meta.namespace or "", meta.name or "", "main")
    return ContainerRecord(*names, 0, "x", "", CLOCK.now(), annotations=annotations)


@pytest.mark.behaviour("SP-119", "SP-146")
@pytest.mark.parametrize("kind", ["newest damaged", "all damaged", "removed"])
async def test_claims_in_use_are_read_from_containers_after_a_lost_checkpoint(cluster: Cluster, kind: str) -> None:
    root = cluster.folder / "kubelet"
    driver = FakeDriver()
    async with driver.running(root):
        for name, device, owners in (("a", "x", ["p"]), ("b", "y", ["q"]), ("c", "z", ["q"])):
            await cluster.claim(name, result(device), pods=owners)
        users = [pod("p", "a"), pod("q", "b", "c")]
        async with node_running(root, cluster.client) as node:
            await ready(driver, node)
            for item in users:
                assert isinstance(await node.claims.prepare_claims(item), Prepared)
            before = node.claims.claims()
            found = [as_started(item, node.claims.container_options(item, "main").annotations) for item in users]
        for path in root.glob("*dra_manager_state*"):
            if kind == "removed":
                path.unlink()
            elif kind == "all damaged" or not path.name.startswith("."):
                path.write_bytes(b"\x00garbage" * 100)
        driver.calls.clear()
        async with node_running(root, cluster.client) as node:
            problem = node.claims.recover([*found, as_started(pod("r"), {node.claims.annotation: "{"})])
            assert ("the claims in use were read from the containers" in problem) == (kind != "removed")
            assert node.claims.claims() == before
            # What was rebuilt replaces the damaged checkpoint before any claim changes.
            await node.claims.reconcile({UID("uid-p"), UID("uid-q")})
            assert saved(node) == {"a": {"uid-p"}, "b": {"uid-q"}, "c": {"uid-q"}}
            await ready(driver, node)
            # p runs on; q has gone meanwhile with its containers: the drivers are told.
            assert isinstance(await node.claims.prepare_claims(users[0]), Prepared)
            await node.claims.reconcile({UID("uid-p")})
            assert driver.calls == [("v1", "prepare", ("a",)), ("v1", "unprepare", ("b", "c"))]
            assert saved(node) == {"a": {"uid-p"}}
        # A good checkpoint is believed, whatever containers tell.
        async with node_running(root, cluster.client) as node:
            assert node.claims.recover(found) == ""
            assert [info.key.name for info in node.claims.claims()] == ["a"]


@pytest.mark.behaviour("SP-122")
async def test_one_connection_serves_all_calls(cluster: Cluster, node: Node) -> None:
    async with FakeDriver().running(node.root) as driver:
        await ready(driver, node)
        for name in ("a", "b", "c"):
            await cluster.claim(name, result(f"x-{name}"), pods=["p"])
            assert isinstance(await node.claims.prepare_claims(pod("p", name)), Prepared)
        assert len(driver.names("prepare")) == 3
        assert len(driver.peers) == 1


@pytest.mark.behaviour("SP-122")
async def test_a_call_that_takes_too_long_fails(cluster: Cluster, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dray.node.dra.driver_client.CALL_TIMEOUT_SECONDS", 0.2)
    async with FakeDriver().running(node.root) as driver:
        await ready(driver, node)

        async def stuck(request: Any, answer: Any, context: Any) -> None:
            await asyncio.Event().wait()

        driver.on_prepare = stuck
        await cluster.claim("a", result("x"), pods=["p"])
        failed = await node.claims.prepare_claims(pod("p", "a"))
        text = "NodePrepareResources: rpc error: code = DeadlineExceeded desc = "
        assert isinstance(failed, PrepareError)
        assert failed.message.startswith(PREFIX + text)


@pytest.mark.behaviour("SP-132")
@pytest.mark.parametrize("versions", [("v1beta1.DRAPlugin", "v1.DRAPlugin"), ("v1beta1.DRAPlugin",)])
async def test_the_service_the_plugin_prefers_is_spoken(
    cluster: Cluster, node: Node, versions: tuple[str, ...]
) -> None:
    async with FakeDriver(versions=versions).running(node.root) as driver:
        await ready(driver, node)
        await cluster.claim("a", result("x"), pods=["p"])
        assert isinstance(await node.claims.prepare_claims(pod("p", "a")), Prepared)
        assert await node.claims.unprepare_claims(UID("uid-p")) is None
        assert driver.calls == [("v1beta1", "prepare", ("a",)), ("v1beta1", "unprepare", ("a",))]


@pytest.mark.behaviour("SP-133")
async def test_a_rolling_update_moves_to_the_new_instance_and_back_when_it_fails(cluster: Cluster, node: Node) -> None:
    old, new = FakeDriver(), FakeDriver()
    for name in ("a", "b", "c"):
        await cluster.claim(name, result(f"x-{name}"), pods=["p"])
    async with old.running(node.root, "old"):
        await ready(old, node)
        assert isinstance(await node.claims.prepare_claims(pod("p", "a")), Prepared)
        async with new.running(node.root, "new"):
            node.plugins.rescan()
            assert await new.status() == (True, "")
            await until(lambda: node.claims._client(new.name).endpoint == new.endpoint)
            assert isinstance(await node.claims.prepare_claims(pod("p", "b")), Prepared)
        await until(lambda: node.claims._client(old.name).endpoint == old.endpoint)
        assert isinstance(await node.claims.prepare_claims(pod("p", "c")), Prepared)
    assert (old.names("prepare"), new.names("prepare")) == ([("a",), ("c",)], [("b",)])


@pytest.mark.behaviour("SP-133")
async def test_the_endpoint_of_another_instance_is_refused(node: Node) -> None:
    first, second = FakeDriver(), FakeDriver()
    async with first.running(node.root):
        await ready(first, node)
        second.endpoint = first.endpoint
        async with second.registered_at(node.root / "plugins_registry" / "second.sock"):
            node.plugins.rescan()
            registered, text = await second.status()
            assert not registered
            assert text.endswith(f"endpoint {first.endpoint} already registered for DRA driver plugin {first.name}")


@pytest.mark.behaviour("SP-123")
async def test_metrics(cluster: Cluster, node: Node) -> None:
    async with FakeDriver().running(node.root) as driver:
        await ready(driver, node)
        await cluster.claim("a", result("x"), pods=["p"])
        await node.claims.prepare_claims(pod("p", "none"))
        await node.claims.prepare_claims(pod("p", "a"))
        value = node.metrics.value
        assert value("dra_resource_claims_in_use", {"driver_name": "<any>"}) == 1
        assert value("dra_resource_claims_in_use", {"driver_name": driver.name}) == 1
        await node.claims.unprepare_claims(UID("uid-p"))
        operations = "dra_operations_duration_seconds_count"
        assert value(operations, {"operation_name": "PrepareResources", "is_error": "true"}) == 1
        assert value(operations, {"operation_name": "PrepareResources", "is_error": "false"}) == 1
        assert value(operations, {"operation_name": "UnprepareResources", "is_error": "false"}) == 1
        for method in ("NodePrepareResources", "NodeUnprepareResources"):
            labels = {
                "driver_name": driver.name,
                "method_name": f"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/{method}",
                "grpc_status_code": "OK",
            }
            assert value("dra_grpc_operations_duration_seconds_count", labels) == 1
        assert value("dra_resource_claims_in_use", {"driver_name": "<any>"}) == 0


@pytest.mark.behaviour("N-67")
async def test_unprepare_goes_by_what_the_node_has_on_record(cluster: Cluster, node: Node) -> None:
    async with FakeDriver().running(node.root) as driver:
        await ready(driver, node)
        made = await cluster.claim("a", result("x"), pods=["p"])
        assert isinstance(await node.claims.prepare_claims(pod("p", "a")), Prepared)
        # The Pod's status no longer names a claim, and the claim is gone from the API.
        await cluster.local.request(
            "update", "resource.k8s.io/v1/resourceclaims/a/status@default", {**made, "status": {}}
        )
        await cluster.local.request("delete", "resource.k8s.io/v1/resourceclaims/a@default")
        assert await node.claims.unprepare_claims(UID("uid-p")) is None
        assert driver.names("unprepare") == [("a",)]
        assert node.claims.claims() == ()


@pytest.mark.behaviour("SP-125", "N-15", "N-16")
@pytest.mark.parametrize("service", ["v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"])
async def test_health_reaches_the_containers_status(cluster: Cluster, node: Node, service: str) -> None:
    async with FakeDriver(versions=(service, *BOTH)).running(node.root) as driver:
        await ready(driver, node)
        await cluster.claim("a", result("x"), pods=["p"])
        user = pod("p", "a")
        await node.claims.prepare_claims(user)
        notified: asyncio.Queue[Sequence[str]] = asyncio.Queue()
        node.claims.on_change(notified.put_nowait)

        def shown() -> list[tuple[str | None, str | None]]:
            (status,) = node.claims.resource_statuses(user, user.spec.containers[0])
            assert status.name == "claim:a"
            return [(item.health, item.message) for item in status.resources]

        assert shown() == [("Unknown", None)]
        driver.healths.put_nowait([{"health": "UNHEALTHY", "message": "hot"}])
        async with asyncio.timeout(10):
            assert await notified.get() == ["uid-p"]
        assert shown() == [("Unhealthy", "hot")]
        assert "hot" in (node.root / "dra_health_state").read_text()
        # It is valid for a second now, and not reported again.
        driver.healths.put_nowait([{"health": "HEALTHY", "health_check_timeout_seconds": 1}])
        async with asyncio.timeout(10):
            await notified.get()
            assert shown() == [("Healthy", None)]
            await notified.get()
        assert shown() == [("Unknown", None)]
        assert driver.streams == [service]


@pytest.mark.behaviour("SP-124")
async def test_all_slices_of_the_node_are_deleted_at_the_start(cluster: Cluster) -> None:
    def slice_of(name: str, node_name: str) -> dict[str, Any]:
        pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "d.example.com", "nodeName": node_name, "pool": pool}
        return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}

    await cluster.create("resource.k8s.io/v1/resourceslices", slice_of("ours", NODE))
    await cluster.create("resource.k8s.io/v1/resourceslices", slice_of("theirs", "node-2"))
    async with node_running(cluster.folder / "kubelet", cluster.client):

        async def only_theirs() -> bool:
            return [item["metadata"]["name"] for item in await cluster.slices()] == ["theirs"]

        await until(only_theirs)


@pytest.mark.behaviour("SP-124")
async def test_slices_of_a_driver_go_when_it_does_not_come_back(
    cluster: Cluster, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dray.node.dra.slice_cleaner.WIPING_DELAY_SECONDS", 0.3)
    driver = FakeDriver()
    async with driver.running(node.root):
        await ready(driver, node)
        await until(lambda: node.claims._drivers.usable(driver.name))
        pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
        await cluster.create(
            "resource.k8s.io/v1/resourceslices",
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": "s"},
                "spec": {"driver": driver.name, "nodeName": NODE, "pool": pool},
            },
        )

    async def none() -> bool:
        return not await cluster.slices()

    await until(none)


@pytest.mark.behaviour("SP-124")
async def test_a_driver_that_does_not_answer_loses_its_slices_and_one_that_reconnects_keeps_them(
    cluster: Cluster, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, path = FakeDriver(), node.root / "dra.sock"
    pending = node.claims._cleaner._plan._pending
    spec = {"driver": driver.name, "nodeName": NODE, "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}}
    driver.endpoint = str(path)
    # The registration's socket stays all the time, as that of a killed process does.
    async with driver.registered_at(node.root / "plugins_registry" / "d.sock"):
        async with driver.service(path):
            await ready(driver, node)
            await until(lambda: node.claims._drivers.usable(driver.name))
            await cluster.create(
                "resource.k8s.io/v1/resourceslices",
                {
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "ResourceSlice",
                    "metadata": {"name": "s"},
                    "spec": spec,
                },
            )
        await until(lambda: driver.name in pending)
        monkeypatch.setattr("dray.node.dra.slice_cleaner.WIPING_DELAY_SECONDS", 0.1)
        async with driver.service(path):
            await until(lambda: node.claims._drivers.usable(driver.name))
            assert driver.name not in pending
            assert len(await cluster.slices()) == 1

        async def none() -> bool:
            return not await cluster.slices()

        await until(none)


async def test_pods_that_share_a_claim_wait_for_each_other_and_others_do_not(cluster: Cluster, node: Node) -> None:
    async with FakeDriver().running(node.root) as driver:
        await ready(driver, node)
        await cluster.claim("shared", result("x"), pods=["p", "q"])
        await cluster.claim("own", result("y"), pods=["r"])
        held, entered = asyncio.Event(), asyncio.Event()
        good = driver.on_prepare

        async def slow(request: Any, answer: Any, context: Any) -> None:
            if request.claims[0].name == "shared":
                entered.set()
                await held.wait()
            await good(request, answer, context)

        driver.on_prepare = slow
        first = asyncio.create_task(node.claims.prepare_claims(pod("p", "shared")))
        await entered.wait()
        second = asyncio.create_task(node.claims.prepare_claims(pod("q", "shared")))
        undo = asyncio.create_task(node.claims.unprepare_claims(UID("uid-p")))
        assert isinstance(await node.claims.prepare_claims(pod("r", "own")), Prepared)
        assert not any(task.done() for task in (first, second, undo))
        held.set()
        async with asyncio.timeout(10):
            assert isinstance(await first, Prepared)
            assert isinstance(await second, Prepared)
            assert await undo is None
        assert driver.names("prepare") == [("shared",), ("own",)]
        assert driver.names("unprepare") == []
        assert saved(node) == {"own": {"uid-r"}, "shared": {"uid-q"}}


async def test_a_driver_that_goes_during_a_call_is_an_error_and_no_cancellation(cluster: Cluster, node: Node) -> None:
    driver, entered = FakeDriver(), asyncio.Event()

    async def stuck(request: Any, answer: Any, context: Any) -> None:
        entered.set()
        await asyncio.Event().wait()

    driver.on_prepare = stuck
    await cluster.claim("a", result("x"), pods=["p"])
    async with driver.service(node.root / "dra.sock"):
        async with driver.registered_at(node.root / "plugins_registry" / "d.sock"):
            await ready(driver, node)
            call = asyncio.create_task(node.claims.prepare_claims(pod("p", "a")))
            await entered.wait()
        node.plugins.rescan()
        async with asyncio.timeout(10):
            failed = await call
        text = "NodePrepareResources: rpc error: code = Unavailable desc = the plugin was deregistered"
        assert failed == PrepareError(PREFIX + text)


async def test_a_cancelled_call_is_cancelled_and_the_claim_can_be_unprepared(cluster: Cluster, node: Node) -> None:
    async with FakeDriver().running(node.root) as driver:
        await ready(driver, node)
        entered = asyncio.Event()

        async def stuck(request: Any, answer: Any, context: Any) -> None:
            entered.set()
            await asyncio.Event().wait()

        driver.on_prepare = stuck
        await cluster.claim("a", result("x"), pods=["p"])
        call = asyncio.create_task(node.claims.prepare_claims(pod("p", "a")))
        await entered.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await node.claims.unprepare_claims(UID("uid-p")) is None
        assert driver.names("unprepare") == [("a",)]
