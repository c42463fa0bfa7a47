"""PodGroups with a real API server, its controllers and a scheduler in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from dray.api.document import Document, GroupVersion
from dray.client.in_process import in_process_client
from dray.client.interface import Client, DeleteOptions, ListOptions, Patch, PatchType, WriteOptions, unstructured
from dray.runtime.metrics import Metrics
from tests.e2e.scheduler.cluster import EVENTS, NODES, PODS, Cluster, node, pod, started

GATES = "GenericWorkload=true,DRAWorkloadResourceClaims=true"
NOW = DeleteOptions(grace_period_seconds=0)
SCHEDULING = GroupVersion("scheduling.k8s.io", "v1beta1")
DRA = GroupVersion("resource.k8s.io", "v1")
NAMESPACES = unstructured(GroupVersion("", "v1"), "namespaces", "Namespace", namespaced=False)
POD_GROUPS = unstructured(SCHEDULING, "podgroups", "PodGroup")
CLAIMS = unstructured(DRA, "resourceclaims", "ResourceClaim")
TEMPLATES = unstructured(DRA, "resourceclaimtemplates", "ResourceClaimTemplate")
SLICES = unstructured(DRA, "resourceslices", "ResourceSlice", namespaced=False)
CLASSES = unstructured(DRA, "deviceclasses", "DeviceClass", namespaced=False)
DRIVER = "gpu.example.com"


def run(folder: Path, test: Callable[[Cluster], Awaitable[None]], gates: str = GATES) -> None:
    async def main() -> None:
        async with started(folder, gates) as cluster:
            await test(cluster)

    asyncio.run(main())


def group(name: str, *, min_count: int = 0, claims: Any = None, **spec: Any) -> Document:
    policy: Document = {"gang": {"minCount": min_count}} if min_count else {"basic": {}}
    if claims:
        spec["resourceClaims"] = claims
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"schedulingPolicy": policy, **spec}}


def member(name: str, of: str, *claims: Document, **more: Any) -> Document:
    """A Pod of a group; its container uses all claims."""
    document = pod(name, schedulingGroup={"podGroupName": of}, terminationGracePeriodSeconds=0, **more)
    if claims:
        document["spec"]["resourceClaims"] = list(claims)
        document["spec"]["containers"][0]["resources"]["claims"] = [{"name": item["name"]} for item in claims]
    return document


GPU: Document = {"name": "gpu", "resourceClaimTemplateName": "gpu"}


async def create_devices(cluster: Cluster, nodes: int, devices: int, **device: Any) -> None:
    spec: Document = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}
    await cluster.client.create(CLASSES, {"metadata": {"name": "gpu"}, "spec": {}})
    template = {"metadata": {"name": "gpu", "namespace": "default"}, "spec": {"spec": spec}}
    await cluster.client.create(TEMPLATES, template)
    for number in range(nodes):
        name = f"n{number}"
        await cluster.create(node(name))
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        listed = [{"name": f"gpu-{index}", **device} for index in range(devices)]
        body = {"nodeName": name, "driver": DRIVER, "pool": pool, "devices": listed}
        await cluster.client.create(SLICES, {"metadata": {"name": name}, "spec": body})


async def pods_of(cluster: Cluster, of: str) -> list[Document]:
    found = (await cluster.client.list(PODS, "default")).items
    return [item for item in found if item["spec"].get("schedulingGroup", {}).get("podGroupName") == of]


async def placed(cluster: Cluster, of: str, count: int) -> list[Document]:
    """Wait until so many Pods of the group have a node."""

    async def read() -> list[Document]:
        return [item for item in await pods_of(cluster, of) if item["spec"].get("nodeName")]

    return await cluster.eventually(read, lambda items: len(items) == count)


async def allocated(cluster: Cluster) -> list[Document]:
    found = (await cluster.client.list(CLAIMS, "default")).items
    return [item for item in found if (item.get("status") or {}).get("allocation")]


async def condition(cluster: Cluster, of: str, reason: str) -> Document:
    def get(item: Document) -> Document:
        conditions = (item.get("status") or {}).get("conditions") or ()
        return next((one for one in conditions if one["type"] == "PodGroupInitiallyScheduled"), {})

    read = await cluster.eventually(
        lambda: cluster.client.get(POD_GROUPS, of, "default"), lambda item: get(item).get("reason") == reason
    )
    return get(read)


async def create_gang(cluster: Cluster, name: str, count: int, *claims: Document, **spec: Any) -> None:
    await cluster.client.create(POD_GROUPS, group(name, min_count=count, **spec))
    for number in range(count):
        await cluster.client.create(PODS, member(f"{name}-{number}", name, *claims))


async def delete_gang(cluster: Cluster, name: str) -> None:
    for item in await pods_of(cluster, name):
        await cluster.client.delete(PODS, item["metadata"]["name"], "default", NOW)
    await cluster.client.delete(POD_GROUPS, name, "default")


@pytest.mark.behaviour("GW-70", "GW-74", "GW-28", "GW-29", "GW-36")
def test_of_two_gangs_one_runs_whole_and_the_other_holds_nothing(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        await create_devices(cluster, 4, 2)
        cluster.start_controllers()
        cluster.start_scheduler()
        await asyncio.gather(*(create_gang(cluster, name, 5, GPU) for name in ("one", "two")))

        async def counts() -> dict[str, int]:
            return {
                name: sum(bool(item["spec"].get("nodeName")) for item in await pods_of(cluster, name))
                for name in ("one", "two")
            }

        found = await cluster.eventually(counts, lambda counts: 5 in counts.values())
        first, second = sorted(found, key=lambda name: -found[name])
        await condition(cluster, second, "Unschedulable")
        assert (await counts()) == {first: 5, second: 0}
        owners = {item["metadata"]["ownerReferences"][0]["name"] for item in await allocated(cluster)}
        assert owners == {f"{first}-{number}" for number in range(5)}
        assert (await condition(cluster, first, "Scheduled"))["status"] == "True"
        await delete_gang(cluster, first)
        await placed(cluster, second, 5)

    run(tmp_path, test)


@pytest.mark.behaviour(
    "GW-75",
    "GW-40",
    "GW-41",
    "GW-42",
    "GW-43",
    "GW-44",
    "GW-45",
    "GW-47",
    "GW-39",
    "N-127",
    "N-128",
    "N-130",
    "N-131",
    "N-132",
    "N-134",
)
def test_a_gang_shares_a_claim_of_its_group(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        await create_devices(cluster, 3, 1, allowMultipleAllocations=True)
        cluster.start_controllers()
        cluster.start_scheduler()
        await create_gang(cluster, "team", 3, GPU, claims=[GPU])
        nodes = {item["spec"]["nodeName"] for item in await placed(cluster, "team", 3)}
        assert len(nodes) == 1
        claims = (await cluster.client.list(CLAIMS, "default")).items
        assert len(claims) == 1
        live = await cluster.client.get(POD_GROUPS, "team", "default")
        uid = live["metadata"]["uid"]
        expected = [{"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "team", "uid": uid}]
        assert claims[0]["status"]["reservedFor"] == expected
        name = claims[0]["metadata"]["name"]
        assert live["status"]["resourceClaimStatuses"] == [{"name": "gpu", "resourceClaimName": name}]
        assert name.startswith("team-gpu-")
        await cluster.client.delete(PODS, "team-0", "default", NOW)
        await cluster.client.delete(POD_GROUPS, "team", "default")
        # The group and its claim stay for the Pods that are left.
        assert (await cluster.client.get(CLAIMS, name, "default"))["status"]["allocation"]
        await cluster.client.delete(PODS, "team-1", "default", NOW)
        assert (await cluster.client.get(CLAIMS, name, "default"))["status"]["reservedFor"] == expected
        await cluster.client.delete(PODS, "team-2", "default", NOW)

        async def left() -> list[Document]:
            return [
                *(await cluster.client.list(POD_GROUPS, "default")).items,
                *(await cluster.client.list(CLAIMS, "default")).items,
            ]

        await cluster.eventually(left, lambda items: not items)

    run(tmp_path, test)


@pytest.mark.behaviour("GW-76", "GW-27", "GW-31")
def test_a_gang_whose_last_pod_fits_nowhere_leaves_nothing_behind(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        await create_devices(cluster, 2, 2)
        cluster.start_controllers()
        cluster.start_scheduler()
        await create_gang(cluster, "big", 5, GPU)
        seen = await condition(cluster, "big", "Unschedulable")
        text = "pod group is unschedulable, minCount (5) cannot be satisfied: 4 scheduled, 0 remaining"
        assert seen["message"].startswith(text)
        # The Pod that fits nowhere says why, the others what became of the group.
        names = [f"big-{number}" for number in range(5)]
        messages = [(await cluster.condition(name, "Unschedulable"))["message"] for name in names]
        own = [message for message in messages if message.startswith("0/2 nodes are available: ")]
        assert len(own) == 1
        assert [message for message in messages if message.startswith(text)] == sorted(set(messages) - set(own)) * 4
        assert not await allocated(cluster)
        assert not any(item["status"].get("nominatedNodeName") for item in await pods_of(cluster, "big"))
        # Others get the devices at once.
        for number in range(4):
            await cluster.client.create(PODS, _alone(f"alone-{number}"))
        for number in range(4):
            await cluster.node_of(f"alone-{number}")

    run(tmp_path, test)


CONDITIONS = {"bindsToNode": True, "bindingConditions": ["ready"], "bindingFailureConditions": ["broken"]}


@pytest.mark.behaviour("GW-58")
def test_a_gang_that_loses_a_pod_while_it_waits_for_devices_is_not_bound(tmp_path: Path) -> None:
    """No Pod is left behind with devices: neither one whose device is ready, nor one that waits for its driver."""

    async def test(cluster: Cluster) -> None:
        await create_devices(cluster, 1, 3, **CONDITIONS)
        cluster.start_controllers()
        cluster.start_scheduler()
        await create_gang(cluster, "gang", 3, GPU)
        for number in range(3):
            assert await cluster.event_messages(f"gang-{number}", "BindingConditionsPending")
        await device_is_ready(cluster, "gang-0")
        await cluster.client.delete(PODS, "gang-1", "default", NOW)
        await cluster.eventually(lambda: allocated(cluster), lambda claims: not claims)
        assert not any(item["spec"].get("nodeName") for item in await pods_of(cluster, "gang"))
        # Others get the devices at once.
        await cluster.client.create(PODS, _alone("alone"))
        assert await cluster.event_messages("alone", "BindingConditionsPending")

    run(tmp_path, test)


@pytest.mark.behaviour("GW-58")
def test_a_gang_that_loses_a_bound_pod_while_others_wait_for_devices_is_not_bound(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        await create_devices(cluster, 1, 2, **CONDITIONS)
        cluster.start_controllers()
        cluster.start_scheduler()
        await create_gang(cluster, "gang", 2, GPU)
        for number in range(2):
            await device_is_ready(cluster, f"gang-{number}")
        await placed(cluster, "gang", 2)
        await cluster.client.delete(PODS, "gang-1", "default", NOW)
        await cluster.client.create(PODS, member("gang-2", "gang", GPU))
        assert await cluster.event_messages("gang-2", "BindingConditionsPending")
        await cluster.client.delete(PODS, "gang-0", "default", NOW)
        await cluster.eventually(lambda: allocated(cluster), lambda claims: not claims)
        assert not (await cluster.pod("gang-2"))["spec"].get("nodeName")

    run(tmp_path, test)


@pytest.mark.behaviour("GW-58")
@pytest.mark.parametrize("comes_later", [False, True])
def test_a_further_pod_of_a_gang_is_not_bound_when_the_others_are_gone(tmp_path: Path, comes_later: bool) -> None:
    async def test(cluster: Cluster) -> None:
        await create_devices(cluster, 1, 3, **CONDITIONS)
        cluster.start_controllers()
        cluster.start_scheduler()
        await cluster.client.create(POD_GROUPS, group("gang", min_count=2))
        for number in range(2 if comes_later else 3):
            await cluster.client.create(PODS, member(f"gang-{number}", "gang", GPU))
        for number in range(2):
            await device_is_ready(cluster, f"gang-{number}")
        await placed(cluster, "gang", 2)
        if comes_later:
            await cluster.client.create(PODS, member("gang-2", "gang", GPU))
        assert await cluster.event_messages("gang-2", "BindingConditionsPending")
        for number in range(2):
            await cluster.client.delete(PODS, f"gang-{number}", "default", NOW)
        await device_is_ready(cluster, "gang-2")
        await cluster.eventually(lambda: allocated(cluster), lambda claims: not claims)
        assert not (await cluster.pod("gang-2"))["spec"].get("nodeName")

    run(tmp_path, test)


@pytest.mark.behaviour("GW-58", "GW-77")
def test_pods_whose_devices_are_ready_are_bound_when_the_gang_needs_no_more(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        await create_devices(cluster, 1, 3, **CONDITIONS)
        cluster.start_controllers()
        cluster.start_scheduler()
        await create_gang(cluster, "gang", 3, GPU)
        for number in range(2):
            await device_is_ready(cluster, f"gang-{number}")
        assert await cluster.event_messages("gang-2", "BindingConditionsPending")
        fewer = Patch(PatchType.MERGE, {"spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}})
        await cluster.client.patch(POD_GROUPS, "gang", "default", fewer)
        assert {item["metadata"]["name"] for item in await placed(cluster, "gang", 2)} == {"gang-0", "gang-1"}
        assert (await condition(cluster, "gang", "Scheduled"))["status"] == "True"
        await device_is_ready(cluster, "gang-2")
        await placed(cluster, "gang", 3)

    run(tmp_path, test)


@pytest.mark.behaviour("GW-58")
def test_pods_whose_devices_are_ready_are_not_bound_when_the_gang_needs_more(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        await create_devices(cluster, 1, 3, **CONDITIONS)
        cluster.start_controllers()
        cluster.start_scheduler()
        await create_gang(cluster, "gang", 2, GPU)
        await device_is_ready(cluster, "gang-0")
        assert await cluster.event_messages("gang-1", "BindingConditionsPending")
        more = Patch(PatchType.MERGE, {"spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}})
        await cluster.client.patch(POD_GROUPS, "gang", "default", more)
        await cluster.eventually(lambda: allocated(cluster), lambda claims: not claims)
        await cluster.client.create(PODS, member("gang-2", "gang", GPU))
        for number in range(3):
            await device_is_ready(cluster, f"gang-{number}")
        await placed(cluster, "gang", 3)

    run(tmp_path, test)


@pytest.mark.behaviour("GW-34", "GW-58")
def test_a_pod_that_comes_while_its_gang_is_being_bound_is_bound_too(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        await create_devices(cluster, 1, 3)
        cluster.start_controllers()
        client = HeldBindings(in_process_client(cluster.running.components, user="system:kube-scheduler"))
        cluster.start_scheduler(client=cast(Client, client))
        await create_gang(cluster, "gang", 2, GPU)
        await cluster.eventually(client.pods_to_bind, lambda names: names == {"gang-0", "gang-1"})
        await cluster.client.create(PODS, member("gang-2", "gang", GPU))
        await cluster.eventually(client.pods_to_bind, lambda names: names == {"gang-0", "gang-1", "gang-2"})
        client.may_bind.set()
        await placed(cluster, "gang", 3)
        selector = ListOptions(field_selector="reason=FailedScheduling")
        assert not (await cluster.client.list(EVENTS, "default", selector)).items

    run(tmp_path, test)


class HeldBindings:
    """A client that sends bindings when it may."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._names: set[str] = set()
        self.may_bind = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def pods_to_bind(self) -> set[str]:
        return set(self._names)

    async def create_subresource(self, resource: Any, name: str, *arguments: Any) -> Any:
        self._names.add(name)
        await self.may_bind.wait()
        return await self._client.create_subresource(resource, name, *arguments)


@pytest.mark.behaviour("GW-57")
def test_a_gang_that_lacks_pods_keeps_no_devices_for_a_nomination_from_before_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dray.scheduler.scheduler.FLUSH_EVERY_SECONDS", 0.5)

    async def test(cluster: Cluster) -> None:
        await create_devices(cluster, 1, 1)
        cluster.start_controllers()
        await cluster.client.create(POD_GROUPS, group("gang", min_count=2))
        await cluster.client.create(PODS, member("gang-0", "gang", GPU))
        nominated = Patch(PatchType.MERGE, {"status": {"nominatedNodeName": "n0"}})
        await cluster.client.patch(PODS, "gang-0", "default", nominated, WriteOptions(subresource="status"))
        await cluster.client.create(PODS, _alone("alone"))
        cluster.start_scheduler()
        assert await cluster.node_of("alone") == "n0"
        await cluster.eventually(
            lambda: cluster.pod("gang-0"), lambda item: not item["status"].get("nominatedNodeName")
        )

    run(tmp_path, test)


async def device_is_ready(cluster: Cluster, pod_name: str) -> None:
    """Report the device of a Pod as ready, like its driver."""

    async def read() -> list[Document]:
        return [item for item in await allocated(cluster) if item["metadata"]["ownerReferences"][0]["name"] == pod_name]

    claim = (await cluster.eventually(read, bool))[0]
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    since = "2026-01-01T00:00:00Z"
    ready = {"type": "ready", "status": "True", "reason": "r", "message": "", "lastTransitionTime": since}
    device = {key: result[key] for key in ("driver", "pool", "device")} | {"conditions": [ready]}
    patch = Patch(PatchType.MERGE, {"status": {"devices": [device]}})
    await cluster.client.patch(CLAIMS, claim["metadata"]["name"], "default", patch, WriteOptions(subresource="status"))


def _alone(name: str) -> Document:
    document = member(name, "none", GPU)
    del document["spec"]["schedulingGroup"]
    return document


@pytest.mark.behaviour("GW-77", "GW-18", "GW-23", "GW-14")
def test_a_gang_is_placed_when_fewer_pods_suffice(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create(node("n0"))
        cluster.start_scheduler()
        await cluster.client.create(POD_GROUPS, group("team", min_count=4))
        for number in range(3):
            await cluster.client.create(PODS, member(f"team-{number}", "team"))
        for number in range(3):
            text = "waiting for minCount pods from a gang to appear in scheduling queue"
            await cluster.condition(f"team-{number}", "NotReadyForScheduling", text)
        patch = Patch(PatchType.MERGE, {"spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}})
        await cluster.client.patch(POD_GROUPS, "team", "default", patch)
        await placed(cluster, "team", 3)

    run(tmp_path, test)


@pytest.mark.behaviour("GW-18", "GW-19", "GW-24", "GW-38")
def test_pods_wait_for_their_group_and_for_each_other(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        metrics = Metrics()
        await cluster.create(node("n0"))
        scheduler, _ = cluster.start_scheduler(metrics=metrics)
        await cluster.client.create(PODS, member("a", "team"))
        text = 'waiting for pods\'s pod group "team" to appear in scheduling queue'
        await cluster.condition("a", "NotReadyForScheduling", text)
        assert scheduler.queue.counts()["incomplete"] == 1
        assert 'scheduler_pending_pods{queue="incomplete"} 1.0' in metrics.exposition().decode()
        await cluster.client.create(POD_GROUPS, group("team", min_count=2))
        await cluster.eventually(_counts(scheduler), lambda counts: counts["gated"] == 1)
        await cluster.client.create(PODS, member("b", "team"))
        await placed(cluster, "team", 2)
        # More Pods of a satisfied gang are placed as they come.
        await cluster.client.create(PODS, member("c", "team"))
        await placed(cluster, "team", 3)
        text = metrics.exposition().decode()
        assert 'scheduler_podgroup_schedule_attempts_total{profile="default-scheduler",result="scheduled"} 2.0' in text
        assert "scheduler_podgroup_scheduling_algorithm_duration_seconds_count 2.0" in text

    run(tmp_path, test)


def _counts(scheduler: Any) -> Callable[[], Awaitable[dict[str, int]]]:
    async def read() -> dict[str, int]:
        return dict(scheduler.queue.counts())

    return read


@pytest.mark.behaviour("GW-35", "GW-22")
def test_a_basic_group_places_what_fits(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create(node("n0", cpu="1"))
        cluster.start_scheduler()
        await cluster.client.create(POD_GROUPS, group("team"))
        for number in range(4):
            await cluster.client.create(PODS, member(f"team-{number}", "team", cpu="400m"))
        await placed(cluster, "team", 2)
        waiting = [item for item in await pods_of(cluster, "team") if not item["spec"].get("nodeName")]
        for item in waiting:
            await cluster.condition(item["metadata"]["name"], "Unschedulable")
        assert (await condition(cluster, "team", "Scheduled"))["status"] == "True"
        await cluster.create(node("n1", cpu="1"))
        await placed(cluster, "team", 4)

    run(tmp_path, test)


@pytest.mark.behaviour("GW-26", "GW-08")
def test_pods_of_a_group_must_be_alike(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        classes = unstructured(
            GroupVersion("scheduling.k8s.io", "v1"), "priorityclasses", "PriorityClass", namespaced=False
        )
        await cluster.client.create(classes, {"metadata": {"name": "high"}, "value": 7})
        await cluster.create(node("n0"))
        cluster.start_scheduler()
        created = await cluster.client.create(POD_GROUPS, group("team", min_count=1, priorityClassName="high"))
        assert created["spec"]["priority"] == 7
        await cluster.client.create(PODS, member("a", "team"))
        text = "all pods in a single pod group should have the same priority as the pod group's priority, got 0 and 7"
        assert (await cluster.condition("a", "SchedulerError"))["message"] == text
        assert (await condition(cluster, "team", "SchedulerError"))["message"] == text

    run(tmp_path, test)


@pytest.mark.behaviour("GW-06", "GW-17", "GW-48", "N-127", "N-129")
def test_without_the_gate_a_pod_is_scheduled_alone_and_its_creator_warned(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create(node("n0"))
        cluster.start_scheduler()
        created = await cluster.client.create(PODS, member("a", "team"))
        assert "schedulingGroup" not in created["spec"]
        await cluster.node_of("a")

    run(tmp_path, test, gates="")


@pytest.mark.behaviour("GW-41", "GW-49", "N-128")
def test_claims_that_a_group_cannot_have_are_reported(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        cluster.start_controllers()
        claims = unstructured(GroupVersion("cdi.k8s.io", "v1alpha1"), "resourceclaims", "ResourceClaim")
        body = {"metadata": {"name": "old", "namespace": "default"}, "spec": {"resourceClassName": "c"}}
        await cluster.client.create(claims, body)
        entries = [{"name": "gpu", "resourceClaimTemplateName": "none"}, {"name": "old", "resourceClaimName": "old"}]
        await cluster.client.create(POD_GROUPS, group("team", claims=entries))

        async def messages() -> set[str]:
            found = (await cluster.client.list(EVENTS, "default")).items
            return {item["message"] for item in found if item["reason"] == "FailedResourceClaimCreation"}

        read = await cluster.eventually(messages, lambda found: len(found) == 2)
        assert any(text.startswith('PodGroupResourceClaim gpu: resource claim template "none"') for text in read)
        assert any(text.startswith('PodGroupResourceClaim old: resourceclaim "old" exists in cdi') for text in read)

    run(tmp_path, test)


async def allocate(cluster: Cluster, claim: Document, node_name: str, device: str, *users: Document) -> None:
    """Write an allocation as a scheduler would that stopped right after."""
    live = await cluster.client.get(CLAIMS, claim["metadata"]["name"], "default")
    live["metadata"]["finalizers"] = ["resource.kubernetes.io/delete-protection"]
    live = await cluster.client.update(CLAIMS, live)
    result = {"request": "gpu", "driver": DRIVER, "pool": node_name, "device": device}
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_name]}]}]
    live["status"] = {
        "allocation": {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": terms}},
        "reservedFor": list(users),
    }
    await cluster.client.update_status(CLAIMS, live)


@pytest.mark.behaviour("GW-58", "GW-46", "N-133")
def test_two_gangs_that_hold_halves_after_a_crash_do_not_block_each_other(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        await create_devices(cluster, 2, 2)
        cluster.start_controllers()
        await asyncio.gather(*(create_gang(cluster, name, 3, GPU) for name in ("one", "two")))

        async def claims() -> dict[str, Document]:
            found = (await cluster.client.list(CLAIMS, "default")).items
            return {item["metadata"]["ownerReferences"][0]["name"]: item for item in found}

        made = await cluster.eventually(claims, lambda found: len(found) == 6)
        places = {"one-0": "n0/gpu-0", "one-1": "n1/gpu-0", "two-0": "n0/gpu-1", "two-1": "n1/gpu-1"}
        for name, place in places.items():
            node_name, device = place.split("/")
            uid = (await cluster.pod(name))["metadata"]["uid"]
            user = {"resource": "pods", "name": name, "uid": uid}
            await allocate(cluster, made[name], node_name, device, user)
        cluster.start_scheduler()

        async def counts() -> list[int]:
            return sorted(
                [
                    sum(bool(item["spec"].get("nodeName")) for item in await pods_of(cluster, name))
                    for name in ("one", "two")
                ]
            )

        await cluster.eventually(counts, lambda found: found == [0, 3])

    run(tmp_path, test)


@pytest.mark.behaviour("GW-46", "GW-45", "N-133", "N-134")
def test_a_claim_of_a_group_that_keeps_it_from_running_is_deallocated(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        await create_devices(cluster, 2, 1, allowMultipleAllocations=True)
        cluster.start_controllers()
        await create_gang(cluster, "team", 2, GPU, claims=[GPU])
        made = await cluster.eventually(
            lambda: cluster.client.list(CLAIMS, "default"), lambda page: len(page.items) == 1
        )
        live = await cluster.client.get(POD_GROUPS, "team", "default")
        user = {
            "apiGroup": "scheduling.k8s.io",
            "resource": "podgroups",
            "name": "team",
            "uid": live["metadata"]["uid"],
        }
        await allocate(cluster, made.items[0], "n0", "gpu-0", user)
        patch = Patch(PatchType.MERGE, {"spec": {"unschedulable": True}})
        await cluster.client.patch(NODES, "n0", "", patch)
        cluster.start_scheduler()
        assert {item["spec"]["nodeName"] for item in await placed(cluster, "team", 2)} == {"n1"}
        messages = [text for number in range(2) for text in await _failures(cluster, f"team-{number}")]
        assert any("deallocation of PodGroup ResourceClaim completed" in text for text in messages)

    run(tmp_path, test)


@pytest.mark.behaviour("GW-46")
def test_a_group_leaves_a_claim_that_keeps_it_from_running_to_its_other_users(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        await create_devices(cluster, 2, 1, allowMultipleAllocations=True)
        cluster.start_controllers()
        await create_gang(cluster, "team", 2, GPU, claims=[GPU])
        made = await cluster.eventually(
            lambda: cluster.client.list(CLAIMS, "default"), lambda page: len(page.items) == 1
        )
        claim = made.items[0]["metadata"]["name"]
        running = _alone("running")
        running["spec"] |= {"nodeName": "n0", "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}]}
        other = (await cluster.client.create(PODS, running))["metadata"]
        live = await cluster.client.get(POD_GROUPS, "team", "default")
        own = {"resource": "podgroups", "apiGroup": "scheduling.k8s.io", "name": "team", "uid": live["metadata"]["uid"]}
        user = {"resource": "pods", "name": "running", "uid": other["uid"]}
        await allocate(cluster, made.items[0], "n0", "gpu-0", own, user)
        await cluster.client.patch(NODES, "n0", "", Patch(PatchType.MERGE, {"spec": {"unschedulable": True}}))
        cluster.start_scheduler()
        found = await cluster.eventually(
            lambda: cluster.client.get(CLAIMS, claim, "default"), lambda item: item["status"]["reservedFor"] == [user]
        )
        assert found["status"]["allocation"]

        async def messages() -> str:
            return " ".join([text for number in range(2) for text in await _failures(cluster, f"team-{number}")])

        await cluster.eventually(messages, lambda text: "ResourceClaim unreserved for PodGroup" in text)

    run(tmp_path, test)


async def _failures(cluster: Cluster, name: str) -> list[str]:
    return await cluster.event_messages(name, "FailedScheduling")


@pytest.mark.behaviour("GW-22", "GW-31")
def test_an_impossible_gang_says_what_it_lacks_and_blocks_nobody(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        await create_devices(cluster, 2, 1)
        cluster.start_controllers()
        cluster.start_scheduler()
        await create_gang(cluster, "huge", 3, GPU)
        seen = await condition(cluster, "huge", "Unschedulable")
        assert "minCount (3) cannot be satisfied: 2 scheduled, 0 remaining" in seen["message"]
        table = await cluster.client.get(POD_GROUPS, "huge", "default")
        assert table["status"]["conditions"][0]["status"] == "False"
        own = [
            text
            for number in range(3)
            for text in await _failures(cluster, f"huge-{number}")
            if text.startswith("0/2 nodes are available: 2 cannot allocate all claims")
        ]
        assert own
        await create_gang(cluster, "small", 2, GPU)
        await placed(cluster, "small", 2)
        assert not any(item["spec"].get("nodeName") for item in await pods_of(cluster, "huge"))

    run(tmp_path, test)


JOBS = unstructured(GroupVersion("batch", "v1"), "jobs", "Job")


@pytest.mark.behaviour("GW-71", "GW-65", "GW-66", "GW-67", "GW-68")
def test_a_job_with_scheduling_is_a_gang(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create(node("n0", cpu="2"))
        cluster.start_controllers()
        cluster.start_scheduler()
        container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
        spec = {
            "parallelism": 3,
            "completions": 3,
            "scheduling": {"schedulingPolicy": {"gang": {}}},
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        }
        await cluster.client.create(JOBS, {"metadata": {"name": "train", "namespace": "default"}, "spec": spec})

        async def groups() -> list[Document]:
            return list((await cluster.client.list(POD_GROUPS, "default")).items)

        (made,) = await cluster.eventually(groups, lambda found: len(found) == 1)
        name = made["metadata"]["name"]
        assert made["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
        await condition(cluster, name, "Unschedulable")
        assert not any(item["spec"].get("nodeName") for item in await pods_of(cluster, name))
        reasons = {item["reason"] for item in (await cluster.client.list(EVENTS, "default")).items}
        assert {"WorkloadCreated", "PodGroupCreated"} <= reasons
        patch = Patch(PatchType.MERGE, {"spec": {"scheduling": {"schedulingPolicy": {"gang": {"minCount": 2}}}}})
        await cluster.client.patch(JOBS, "train", "default", patch)
        await placed(cluster, name, 2)
        await cluster.create(node("n1", cpu="2"))
        await placed(cluster, name, 3)

    run(tmp_path, test, gates=f"{GATES},WorkloadWithJob=true")


WORKLOADS = unstructured(SCHEDULING, "workloads", "Workload")
CONFIG_MAPS = unstructured(GroupVersion("", "v1"), "configmaps", "ConfigMap")


@pytest.mark.behaviour("GW-69", "GW-64", "GW-73")
def test_a_job_of_an_owner_with_a_workload_makes_only_the_group(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create(node("n0"))
        cluster.start_controllers()
        cluster.start_scheduler()
        # Any object can own Jobs; real ones are of kinds such as JobSet.
        owner = await cluster.client.create(CONFIG_MAPS, {"metadata": {"name": "set", "namespace": "default"}})
        uid = owner["metadata"]["uid"]
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "set", "uid": uid, "controller": True}
        template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
        metadata = {
            "name": "train",
            "namespace": "default",
            "ownerReferences": [reference],
            "annotations": {"scheduling.k8s.io/group-template-name": "workers"},
        }
        spec = {"parallelism": 2, "completions": 2, "template": template}
        await cluster.client.create(JOBS, {"metadata": metadata, "spec": spec})

        async def reasons() -> set[str]:
            return {item["reason"] for item in (await cluster.client.list(EVENTS, "default")).items}

        await cluster.eventually(reasons, lambda found: "FailedWorkloadCreate" in found)
        assert not (await cluster.client.list(PODS, "default")).items
        recipe = {
            "controllerRef": {"kind": "ConfigMap", "name": "set"},
            "podGroupTemplates": [{"name": "workers", "schedulingPolicy": {"gang": {"minCount": 2}}}],
        }
        await cluster.client.create(WORKLOADS, {"metadata": {"name": "w", "namespace": "default"}, "spec": recipe})

        async def groups() -> list[Document]:
            return list((await cluster.client.list(POD_GROUPS, "default")).items)

        (made,) = await cluster.eventually(groups, lambda found: len(found) == 1)
        assert made["spec"]["workloadRef"] == {"workloadName": "w", "templateName": "workers"}
        assert made["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}
        assert [item["kind"] for item in made["metadata"]["ownerReferences"]] == ["Job", "Workload"]
        await placed(cluster, made["metadata"]["name"], 2)
        assert len((await cluster.client.list(WORKLOADS, "default")).items) == 1
        served = [item for item in await cluster.client.resources() if item.group == "scheduling.k8s.io"]
        assert {item.version for item in served} == {"v1", "v1beta1"}
        assert "CompositePodGroup" not in {item.kind for item in served}

    run(tmp_path, test, gates=f"{GATES},WorkloadWithJob=true")


@pytest.mark.behaviour("GW-39")
def test_a_namespace_takes_its_groups_along(tmp_path: Path) -> None:
    """Groups are served in another version than their API group prefers; the namespace controller finds them."""

    async def test(cluster: Cluster) -> None:
        cluster.start_controllers()
        await cluster.client.create(NAMESPACES, {"metadata": {"name": "team"}})
        body = group("training", min_count=2)
        await cluster.client.create(POD_GROUPS, {**body, "metadata": {"name": "training", "namespace": "team"}}, "team")
        await cluster.client.delete(NAMESPACES, "team")

        async def left() -> list[str]:
            found = [*(await cluster.client.list(NAMESPACES)).items, *(await cluster.client.list(POD_GROUPS)).items]
            return [item["metadata"]["name"] for item in found]

        await cluster.eventually(left, lambda names: not {"team", "training"} & set(names))

    run(tmp_path, test)
