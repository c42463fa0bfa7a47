"""Classic claims on a node, with a plugin over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from dray.api.codec import from_document
from dray.api.document import UID, Document, GroupResource
from dray.api.errors import ForbiddenError
from dray.api.features import FeatureGates
from dray.api.types.core_v1 import Pod
from dray.client.http import http_client
from dray.client.in_process import InProcessTransport
from dray.client.interface import DeleteOptions
from dray.client.resources import PODS
from dray.client.rest import RestClient
from dray.cmd.node_identity import find_identity
from dray.cmd.settings import NodeSettings
from dray.node.classic.claim_manager import ClassicClaimManager
from dray.node.dra.checkpoint import decode
from dray.node.pod_resources.listing import pod_resources
from dray.node.pod_resources.sources import Sources
from dray.node.resource_manager import ResourceError
from dray.runtime.metrics import Metrics
from tests.e2e.driver.classic.classic_node import (
    CLAIMS,
    ClassicNode,
    by_name,
    classic_node,
    inline,
    make_claim,
    plugin_serving,
    pod,
    users,
)
from tests.e2e.driver.classic.servicer import DRIVER, FakePlugin
from tests.e2e.driver.cluster import CLOCK, NODE, Cluster, result, until
from tests.e2e.driver.test_claims import as_started
from tests.unit.node.devices.builders import Pods


@pytest.fixture
async def node(cluster: Cluster) -> AsyncIterator[ClassicNode]:
    async with classic_node(cluster.folder / "kubelet", cluster.client) as running:
        yield running


@pytest.fixture
async def plugin(node: ClassicNode) -> AsyncIterator[FakePlugin]:
    async with plugin_serving(FakePlugin(), node) as fake:
        yield fake


def uid_of(claim: Any) -> str:
    return str(claim["metadata"]["uid"])


# --- Registration. ---


@pytest.mark.behaviour("CL-46")
@pytest.mark.parametrize("versions", [("v1alpha1",), (), ("1.0.0", "v7")])
async def test_a_resource_plugin_registers_whatever_its_versions(node: ClassicNode, versions: tuple[str, ...]) -> None:
    async with plugin_serving(FakePlugin(versions=versions), node) as fake:
        assert await fake.statuses.get() == (True, "")
        # The plugin is notified first, and then listed.
        await until(lambda: node.drivers() == [DRIVER])
    await until(lambda: node.drivers() == [])


@pytest.mark.behaviour("CL-46")
async def test_both_kinds_of_plugins_live_side_by_side(node: ClassicNode, plugin: FakePlugin) -> None:
    other = FakePlugin(versions=("v1.DRAPlugin",), kind="DRAPlugin")
    async with plugin_serving(other, node, socket="structured"):
        assert await other.statuses.get() == (True, "")
        await until(lambda: node.drivers() == [DRIVER, DRIVER])
        assert {item.type for item in node.plugins.plugins} == {"DRAPlugin", "ResourcePlugin"}


# --- Preparing and giving back. ---


@pytest.mark.behaviour("CL-43", "CL-47", "CL-48")
async def test_a_claim_is_prepared_for_its_first_pod_and_unprepared_after_its_last(
    cluster: Cluster, node: ClassicNode, plugin: FakePlugin
) -> None:
    uid = uid_of(await make_claim(cluster, "a", ["p", "q"]))
    first, second = pod("p", by_name("a")), pod("q", by_name("a"))
    await node.manager.prepare(first)
    await node.manager.prepare(second)
    await node.manager.prepare(first)
    assert plugin.calls == [("prepare", uid)]
    assert node.manager.container_options(second, "main").cdi_devices == (f"example.com/gpu={uid}",)
    await node.manager.release(first)
    assert plugin.calls == [("prepare", uid)]
    await node.manager.release(second)
    assert plugin.calls[1:] == [("unprepare", uid, f"example.com/gpu={uid}")]
    await node.manager.release(second)
    assert len(plugin.calls) == 2
    assert node.claims.claims() == ()
    for operation, count in (("PrepareResources", 3), ("UnprepareResources", 2)):
        labels = {"operation_name": operation, "is_error": "false"}
        assert node.metrics.value("classic_dra_operations_duration_seconds_count", labels) == count


@pytest.mark.behaviour("CL-59")
async def test_claims_in_use_are_read_from_containers_after_a_lost_checkpoint(
    cluster: Cluster, node: ClassicNode, plugin: FakePlugin
) -> None:
    uid = uid_of(await make_claim(cluster, "a", ["p"]))
    user = pod("p", by_name("a"))
    await node.manager.prepare(user)
    found = as_started(user, node.manager.container_options(user, "main").annotations)
    for path in node.root.glob("*classic_claims_state*"):
        path.write_bytes(b"garbage")
    manager = ClassicClaimManager(cluster.client, str(node.root), CLOCK, Metrics(), FeatureGates())
    assert manager.claims() == ()
    assert "checkpoint is corrupted" in manager.recover([found])
    assert manager.claims() == node.claims.claims()
    assert [info.uid for info in manager.claims()] == [uid]


@pytest.mark.behaviour("CL-50", "PR-10")
async def test_only_containers_that_list_a_claim_get_its_devices(
    cluster: Cluster, node: ClassicNode, plugin: FakePlugin
) -> None:
    made = [uid_of(await make_claim(cluster, name, ["p"])) for name in ("a", "b")]
    inline_uid = uid_of(await make_claim(cluster, "p-own", ["p"], owner="p"))
    containers: list[Document] = [
        {"name": "both", "resources": {"claims": [{"name": "b"}, {"name": "a"}]}},
        {"name": "one", "resources": {"claims": [{"name": "own"}]}},
        {"name": "none"},
    ]
    user = pod("p", by_name("a"), by_name("b"), inline("own"), containers=containers)
    await node.manager.prepare(user)
    await node.structured.prepare(user)
    devices = {
        name: (
            node.manager.container_options(user, name).cdi_devices,
            node.structured.container_options(user, name).cdi_devices,
        )
        for name in ("both", "one", "none")
    }
    assert devices == {
        "both": (tuple(f"example.com/gpu={uid}" for uid in made), ()),
        "one": ((f"example.com/gpu={inline_uid}",), ()),
        "none": ((), ()),
    }
    # PodResources has the claims of both managers.
    listed = pod_resources(user, Sources(Pods(), claims=(node.manager, node.structured)), dynamic=True)
    held = {
        entry.name: [
            (claim.class_name, claim.claim_name, claim.claim_namespace, one.driver_name, one.cdi_devices[0].name)
            for claim in entry.dynamic_resources
            for one in claim.claim_resources
        ]
        for entry in listed.containers
    }
    assert held == {
        "both": [
            ("gpu", name, "default", DRIVER, f"example.com/gpu={uid}") for name, uid in zip("ab", made, strict=True)
        ],
        "one": [("gpu", "p-own", "default", DRIVER, f"example.com/gpu={inline_uid}")],
        "none": [],
    }


@pytest.mark.behaviour("PR-14")
async def test_pod_resources_lists_no_claims_until_all_are_prepared(
    cluster: Cluster, node: ClassicNode, plugin: FakePlugin
) -> None:
    await make_claim(cluster, "p-own", ["p"], owner="p")
    user = pod("p", inline("own"))
    sources = Sources(Pods(), claims=(node.manager, node.structured))
    assert not pod_resources(user, sources, dynamic=True).containers[0].dynamic_resources
    revision = sources.revision
    await node.manager.prepare(user)
    assert sources.revision != revision
    assert len(pod_resources(user, sources, dynamic=True).containers[0].dynamic_resources) == 1


@pytest.mark.behaviour("CL-47")
async def test_a_claim_may_have_no_devices_at_all(cluster: Cluster, node: ClassicNode, plugin: FakePlugin) -> None:
    async def nothing(_uid: str, _context: Any) -> list[str]:
        return []

    plugin.on_prepare = nothing
    await make_claim(cluster, "a", ["p"])
    user = pod("p", by_name("a"))
    await node.manager.prepare(user)
    assert node.manager.container_options(user, "main").cdi_devices == ()
    await node.manager.release(user)
    assert plugin.calls[-1] == ("unprepare", plugin.calls[0][1])


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "not reserved": ({"pods": ["other"]}, "pod p (uid-p) is not allowed to use ResourceClaim p-gpu ("),
    "not allocated": ({"allocated": False}, "ResourceClaim p-gpu: not allocated"),
    "somebody else's": (
        {"pods": ["p"], "owner": "other"},
        "ResourceClaim default/p-gpu was not created for pod default/p (pod is not owner)",
    ),
    "of another driver": ({"pods": ["p"], "driver": "else.example.com"}, "resource driver else.example.com is not"),
}


@pytest.mark.behaviour("CL-44")
@pytest.mark.parametrize("case", REFUSALS)
async def test_a_pod_that_may_not_use_its_claim_does_not_run(
    cluster: Cluster, node: ClassicNode, plugin: FakePlugin, case: str
) -> None:
    claim, message = REFUSALS[case]
    await make_claim(cluster, "p-gpu", **{"owner": "p", **claim})
    with pytest.raises(ResourceError, match="Failed to prepare dynamic resources") as caught:
        await node.manager.prepare(pod("p", inline("gpu")))
    assert caught.value.reason == "FailedPrepareDynamicResources"
    assert message in caught.value.message
    assert plugin.calls == []
    assert not node.checkpoint.exists()


@pytest.mark.behaviour("CL-44")
async def test_a_pod_whose_claim_is_missing_does_not_run(node: ClassicNode, plugin: FakePlugin) -> None:
    with pytest.raises(ResourceError, match="ResourceClaim p-gpu does not exist"):
        await node.manager.prepare(pod("p", inline("gpu")))
    # A name may belong to either kind; where neither has it, the other manager says so.
    user = pod("p", by_name("gone"))
    await node.manager.prepare(user)
    with pytest.raises(ResourceError, match=r'resourceclaims.resource.k8s.io "gone" not found'):
        await node.structured.prepare(user)


@pytest.mark.behaviour("CL-14")
async def test_a_name_in_both_groups_is_an_error(cluster: Cluster, node: ClassicNode, plugin: FakePlugin) -> None:
    await make_claim(cluster, "a", ["p"])
    await cluster.claim("a", result("x"), pods=["p"])
    with pytest.raises(ResourceError, match=r'"a" exists in resource.k8s.io and in cdi.k8s.io, one of them must go'):
        await node.manager.prepare(pod("p", by_name("a")))


@pytest.mark.behaviour("CL-14")
async def test_of_two_claims_of_a_name_the_reserved_one_counts(
    cluster: Cluster, node: ClassicNode, plugin: FakePlugin
) -> None:
    await make_claim(cluster, "a", ["p"])
    await cluster.claim("a", result("x"), pods=["other"])
    await make_claim(cluster, "b", ["other"])
    await cluster.claim("b", result("x", driver="absent.example.com"), pods=["p"])
    user = pod("p", by_name("a"), by_name("b"))
    await node.manager.prepare(user)
    assert [name for name in ("a", "b") if node.claims.has_claim(user, name)] == ["a"]
    with pytest.raises(ResourceError, match=r"DRA driver absent.example.com is not registered"):
        await node.structured.prepare(user)


async def test_a_pod_that_has_a_claim_keeps_it_when_a_namesake_appears(
    cluster: Cluster, node: ClassicNode, plugin: FakePlugin
) -> None:
    await make_claim(cluster, "a", ["p"])
    user = pod("p", by_name("a"))
    await node.manager.prepare(user)
    await cluster.claim("a", result("x"), pods=["p"])
    await node.manager.prepare(user)
    await node.structured.prepare(user)


@pytest.mark.behaviour("CL-45")
async def test_a_deleted_pod_leaves_its_claim_after_it_was_unprepared(
    cluster: Cluster, node: ClassicNode, plugin: FakePlugin
) -> None:
    await make_claim(cluster, "a", ["p", "other"])
    seen: list[list[str]] = []

    async def fail_once(_uid: str, context: Any) -> None:
        seen.append(await users(cluster, "a"))
        if len(seen) == 1:
            await context.abort(grpc.StatusCode.INTERNAL, "not now")

    plugin.on_unprepare = fail_once
    user = pod("p", by_name("a"), deleted=True)
    await node.manager.prepare(user)
    with pytest.raises(ResourceError, match="code = Internal desc = not now"):
        await node.manager.release(user)
    assert await users(cluster, "a") == ["p", "other"]
    await node.manager.release(user)
    assert seen == [["p", "other"], ["p", "other"]]
    assert await users(cluster, "a") == ["other"]


@pytest.mark.behaviour("CL-45")
async def test_a_pod_that_was_never_prepared_leaves_its_claims_too(cluster: Cluster, node: ClassicNode) -> None:
    await make_claim(cluster, "a", ["p"])
    await make_claim(cluster, "p-own", ["p"], owner="p")
    await node.manager.release(pod("p", by_name("a"), by_name("gone"), inline("own"), deleted=True))
    assert (await users(cluster, "a"), await users(cluster, "p-own")) == ([], [])


@pytest.mark.behaviour("CL-45")
async def test_a_pod_that_ended_by_itself_is_left_to_the_controller(
    cluster: Cluster, node: ClassicNode, plugin: FakePlugin
) -> None:
    await make_claim(cluster, "a", ["p"])
    user = pod("p", by_name("a"))
    await node.manager.prepare(user)
    await node.manager.release(user)
    # An agent that restarts before it has reported the end must still find the Pod among the users.
    assert await users(cluster, "a") == ["p"]


async def test_many_pods_leave_a_shared_claim_at_once(cluster: Cluster, node: ClassicNode, plugin: FakePlugin) -> None:
    names = [f"p{number}" for number in range(8)]
    await make_claim(cluster, "a", names)
    everyone = [pod(name, by_name("a"), deleted=True) for name in names]
    await asyncio.gather(*(node.manager.prepare(user) for user in everyone))
    await asyncio.gather(*(node.manager.release(user) for user in everyone))
    assert await users(cluster, "a") == []
    assert [call[0] for call in plugin.calls] == ["prepare", "unprepare"]


# --- Plugins that do not know the resource. ---


@pytest.mark.behaviour("CL-49")
async def test_an_unknown_resource_is_verified_before_it_is_tried_again(
    cluster: Cluster, node: ClassicNode, plugin: FakePlugin
) -> None:
    async def unknown(_uid: str, context: Any) -> None:
        await context.abort(grpc.StatusCode.NOT_FOUND, "unknown claim")

    uid = uid_of(await make_claim(cluster, "a", ["p"]))
    user = pod("p", by_name("a"))
    good, plugin.on_prepare = plugin.on_prepare, unknown
    with pytest.raises(ResourceError, match="code = NotFound desc = unknown claim"):
        await node.manager.prepare(user)
    plugin.on_prepare = good
    await node.manager.prepare(user)
    plugin.on_unprepare = unknown
    # The claim is there: the plugin must be wrong, and is asked again.
    with pytest.raises(ResourceError, match="unknown claim"):
        await node.manager.release(user)
    await cluster.local.request("delete", f"{CLAIMS}/a@default")
    await node.manager.release(user)
    assert [call[:2] for call in plugin.calls] == [("prepare", uid)] * 2 + [("unprepare", uid)] * 2
    assert node.claims.claims() == ()


@pytest.mark.behaviour("CL-49")
async def test_a_deleted_claim_is_not_asked_for_again(cluster: Cluster, node: ClassicNode, plugin: FakePlugin) -> None:
    async def unknown(_uid: str, context: Any) -> None:
        await context.abort(grpc.StatusCode.NOT_FOUND, "unknown claim")

    await make_claim(cluster, "p-own", ["p"], owner="p")
    user = pod("p", inline("own"))
    plugin.on_prepare = unknown
    with pytest.raises(ResourceError, match="unknown claim"):
        await node.manager.prepare(user)
    await cluster.local.request("delete", f"{CLAIMS}/p-own@default")
    with pytest.raises(ResourceError, match="p-own does not exist"):
        await node.manager.prepare(user)
    assert len(plugin.calls) == 1


# --- What is remembered. ---


@pytest.mark.behaviour("CL-43", "CL-48")
async def test_the_checkpoint_is_there_before_the_call_and_a_restart_undoes_what_was_left(cluster: Cluster) -> None:
    root = cluster.folder / "kubelet"
    uid = uid_of(await make_claim(cluster, "a", ["p"]))
    saved: list[frozenset[UID]] = []
    async with classic_node(root, cluster.client) as node, plugin_serving(FakePlugin(), node) as fake:

        async def never(_uid: str, context: Any) -> None:
            saved.extend(info.pod_uids for info in decode(node.checkpoint.read_bytes()))
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the power is gone")

        fake.on_prepare = never
        with pytest.raises(ResourceError, match="the power is gone"):
            await node.manager.prepare(pod("p", by_name("a")))
    assert saved == [frozenset({UID("uid-p")})]
    # The Pod is gone when the agent comes back; whether the plugin did anything is unknown.
    async with classic_node(root, cluster.client, known=()) as node, plugin_serving(FakePlugin(), node) as fake:
        await until(lambda: fake.calls)
        assert fake.calls == [("unprepare", uid)]
        await until(lambda: node.claims.claims() == ())


@pytest.mark.behaviour("CL-43", "CL-47")
async def test_after_a_restart_the_plugin_is_asked_once_more(cluster: Cluster) -> None:
    root = cluster.folder / "kubelet"
    uid = uid_of(await make_claim(cluster, "a", ["p"]))
    user = pod("p", by_name("a"))
    async with classic_node(root, cluster.client) as node, plugin_serving(FakePlugin(), node):
        await node.manager.prepare(user)
    async with classic_node(root, cluster.client, known=[UID("uid-p")]) as node:
        # The agent knows the devices also without the plugin.
        assert node.claims.has_claim(user, "a")
        async with plugin_serving(FakePlugin(), node) as fake:
            await node.manager.prepare(user)
            assert fake.calls == [("prepare", uid)]


async def test_two_claims_of_a_pod_do_not_depend_on_each_other(
    cluster: Cluster, node: ClassicNode, plugin: FakePlugin
) -> None:
    good, bad = [uid_of(await make_claim(cluster, name, ["p"])) for name in ("a", "b")]

    async def some(uid: str, context: Any) -> list[str]:
        if uid == bad:
            await context.abort(grpc.StatusCode.INTERNAL, "broken")
        return [f"example.com/gpu={uid}"]

    plugin.on_prepare = some
    user = pod("p", by_name("a"), by_name("b"))
    for _ in range(2):
        with pytest.raises(ResourceError, match="broken"):
            await node.manager.prepare(user)
    # What was prepared is not asked for again.
    assert sorted(plugin.calls) == sorted([("prepare", good), ("prepare", bad), ("prepare", bad)])


# --- Claims that a Pod can do without. ---


@pytest.mark.parametrize(
    ("reserved", "allocated", "state"),
    [(["p"], True, "allocated"), ([], True, "none"), ([], False, "none")],
)
async def test_a_container_learns_whether_it_has_an_optional_claim(
    cluster: Cluster, node: ClassicNode, plugin: FakePlugin, reserved: list[str], allocated: bool, state: str
) -> None:
    await make_claim(cluster, "named", reserved, allocated=allocated)
    await make_claim(cluster, "p-big-gpu", reserved, allocated=allocated, owner="p")
    if allocated:
        await cluster.claim("s", result("x", driver="gone.example.com"), pods=[])
    user = pod(
        "p",
        by_name("named", optional=True),
        inline("big-gpu", optional=True),
        by_name("s", optional=True),
        by_name("none", optional=True),
        containers=[
            {"name": "main", "resources": {"claims": [{"name": name} for name in ("named", "big-gpu", "s", "none")]}},
            {"name": "other"},
        ],
    )
    await node.manager.prepare(user)
    await node.structured.prepare(user)
    assert node.structured.container_options(user, "main").envs == {
        "DRAY_CLAIM_NAMED": state,
        "DRAY_CLAIM_BIG_GPU": state,
        "DRAY_CLAIM_S": "none",
        "DRAY_CLAIM_NONE": "none",
    }
    assert node.structured.container_options(user, "other").envs == {}
    assert len(node.manager.container_options(user, "main").cdi_devices) == (2 if state == "allocated" else 0)
    assert node.structured.container_options(user, "main").cdi_devices == ()


# --- With a node's own rights. ---


@pytest.mark.behaviour("CL-45")
async def test_a_node_needs_no_more_than_its_own_rights(cluster: Cluster) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    await cluster.create("core/v1/serviceaccounts@default", account)
    container = {"name": "main", "image": "i", "resources": {"claims": ["a", "own"]}}
    entries = [by_name("a"), inline("own")]
    spec = {"nodeName": NODE, "containers": [container], "resourceClaims": entries}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    made = await cluster.create("core/v1/pods@default", body)
    settings = NodeSettings(data_dir=str(cluster.folder / "api"))
    rights = http_client(find_identity(settings, NODE, (NODE,), CLOCK.now()).access, CLOCK)
    user = from_document(Pod, {**made, "metadata": {**made["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}})
    uid = made["metadata"]["uid"]
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": True}
    for name in ("a", "p-own"):
        claim = await make_claim(cluster, name, ["other"])
        claim["metadata"]["ownerReferences"] = [reference]
        claim = await cluster.local.request("update", f"{CLAIMS}/{name}@default", claim)
        claim["status"]["reservedFor"].append({key: reference[key] for key in ("apiVersion", "kind", "name", "uid")})
        await cluster.local.request("update", f"{CLAIMS}/{name}/status@default", claim)
    async with classic_node(cluster.folder / "kubelet", rights) as node, plugin_serving(FakePlugin(), node):
        await node.manager.prepare(user)
        await node.structured.prepare(user)
        await node.manager.release(user)
        assert (await users(cluster, "a"), await users(cluster, "p-own")) == (["other"], ["other"])
        # Once the Pod is gone from the API server its node gets no events of its claims, and must not wait.
        await cluster.client.delete(PODS, "p", "default", DeleteOptions(grace_period_seconds=0))
        await node.manager.release(user)
        with pytest.raises(ResourceError, match=r"fetch ResourceClaim a: .* is forbidden"):
            await node.manager.prepare(user)
    await rights.close()


class Foreign(RestClient):
    """A server without classic claims, which forbids nodes to ask for what it does not know."""

    asked = 0

    async def get(self, resource: Any, *arguments: Any, **options: Any) -> Any:
        if resource.group == "cdi.k8s.io":
            self.asked += 1
            raise ForbiddenError(GroupResource(resource.group, resource.plural), "", "")
        return await super().get(resource, *arguments, **options)

    async def resources(self, **_: Any) -> Any:
        return [item for item in await super().resources() if item.group != "cdi.k8s.io"]


async def test_a_server_without_classic_claims_is_no_obstacle(cluster: Cluster) -> None:
    transport = InProcessTransport(
        cluster.local.running.local, user="admin", groups=("system:masters",), user_agent="t"
    )
    client = Foreign(transport)
    await cluster.claim("a", result("x", driver="absent.example.com"), pods=["p"])
    user = pod("p", by_name("a"), deleted=True)
    async with classic_node(cluster.folder / "kubelet", client) as node:
        await node.manager.prepare(user)
        with pytest.raises(ResourceError, match=r"DRA driver absent.example.com is not registered"):
            await node.structured.prepare(user)
        await node.manager.release(user)
        # It is not asked all the time.
        assert client.asked == 1


# --- Feature gates. ---


@pytest.mark.behaviour("NG-03", "CL-51")
async def test_without_the_feature_pods_keep_their_claims_and_others_do_not_start(cluster: Cluster) -> None:
    gate = "DRAControlPlaneController"
    root = cluster.folder / "kubelet"
    await make_claim(cluster, "shared", ["old", "new"])
    await make_claim(cluster, "old-own", ["old"], owner="old")
    await make_claim(cluster, "new-own", ["new"], owner="new")
    old, new = (pod(name, by_name("shared"), inline("own")) for name in ("old", "new"))
    plugin = FakePlugin()
    async with classic_node(root, cluster.client) as node, plugin_serving(plugin, node):
        await node.manager.prepare(old)
        before = node.manager.container_options(old, "main")
        assert len(before.cdi_devices) == 2
    async with (
        classic_node(root, cluster.client, gates=f"{gate}=false") as node,
        plugin_serving(FakePlugin(), node) as again,
    ):
        await node.manager.prepare(old)
        await node.structured.prepare(old)
        assert node.manager.container_options(old, "main") == before
        with pytest.raises(ResourceError) as caught:
            await node.manager.prepare(new)
        assert caught.value.reason == "FailedPrepareDynamicResources"
        text = f"ResourceClaim new-own: the feature gate {gate} is disabled on this node"
        assert caught.value.message.endswith(text)
        # A claim by name is not looked for among classic ones.
        only_named = pod("new", by_name("shared"))
        await node.manager.prepare(only_named)
        with pytest.raises(ResourceError):
            await node.structured.prepare(only_named)
        # Without the claim of its own, it can do.
        await node.manager.prepare(pod("other", inline("own", optional=True)))
        await node.manager.release(old)
        assert node.claims.claims() == ()
        assert sorted(call[0] for call in again.calls) == ["prepare", "prepare", "unprepare", "unprepare"]
