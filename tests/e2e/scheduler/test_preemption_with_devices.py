"""Preemption with devices, a real API server and the claim controller in this process: what a user sees when it goes
well, and when something stands still halfway."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from dray.api.document import Document, GroupVersion
from dray.api.errors import NotFoundError
from dray.client.in_process import in_process_client
from dray.client.interface import (
    Bookmark,
    DeleteOptions,
    LocalRequest,
    LocalServer,
    Patch,
    PatchType,
    WatchOptions,
    WriteOptions,
    unstructured,
)
from tests.e2e.scheduler.cluster import CORE, PODS, SECONDS_MAX, Cluster, node, pod, started

NOW = DeleteOptions(grace_period_seconds=0)
RESOURCE = GroupVersion("resource.k8s.io", "v1")
CLASSES = unstructured(RESOURCE, "deviceclasses", "DeviceClass", namespaced=False)
SLICES = unstructured(RESOURCE, "resourceslices", "ResourceSlice", namespaced=False)
TEMPLATES = unstructured(RESOURCE, "resourceclaimtemplates", "ResourceClaimTemplate")
CLAIMS = unstructured(RESOURCE, "resourceclaims", "ResourceClaim")
PRIORITY_CLASSES = unstructured(
    GroupVersion("scheduling.k8s.io", "v1"), "priorityclasses", "PriorityClass", namespaced=False
)
BUDGETS = unstructured(GroupVersion("policy", "v1"), "poddisruptionbudgets", "PodDisruptionBudget")
REQUESTS: Document = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}
STATUS = WriteOptions(subresource="status")


def run(folder: Path, test: Callable[[Cluster], Awaitable[None]], *nodes: str, **device: Any) -> None:
    """Run a test on a cluster with one device on each node."""

    async def main() -> None:
        async with started(folder) as cluster:
            client = cluster.client
            await client.create(PRIORITY_CLASSES, {"metadata": {"name": "high"}, "value": 1000})
            selector = {"cel": {"expression": 'device.driver == "gpu.example.com"'}}
            await client.create(CLASSES, {"metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}})
            template = {"metadata": {"name": "one", "namespace": "default"}, "spec": {"spec": REQUESTS}}
            await client.create(TEMPLATES, template)
            for name in nodes or ("n",):
                await cluster.create(node(name, labels={"kubernetes.io/hostname": name}))
                pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
                spec = {"driver": "gpu.example.com", "nodeName": name, "pool": pool}
                devices = [{"name": "d", **device}]
                await client.create(SLICES, {"metadata": {"name": name}, "spec": spec | {"devices": devices}})
            await test(cluster)

    asyncio.run(main())


def with_device(name: str, claim: str = "", **more: Any) -> Document:
    entry = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": "one"}
    container = {"name": "c", "image": "image", "resources": {"claims": [{"name": "gpu"}]}}
    made = pod(name, terminationGracePeriodSeconds=0, resourceClaims=[{"name": "gpu", **entry}], **more)
    made["spec"]["containers"] = [container]
    return made


def urgent(name: str = "urgent", **more: Any) -> Document:
    return with_device(name, priorityClassName="high", **more)


async def place(cluster: Cluster, *names: str, **more: Any) -> None:
    for name in names:
        await cluster.create(with_device(name, **more))
        await cluster.node_of(name)


async def gone(cluster: Cluster, name: str) -> None:
    async def is_gone() -> bool:
        try:
            await cluster.pod(name)
        except NotFoundError:
            return True
        return False

    await cluster.eventually(is_gone, bool)


async def nominated(cluster: Cluster, name: str) -> str:
    found = await cluster.eventually(
        lambda: cluster.pod(name), lambda item: bool(item["status"].get("nominatedNodeName"))
    )
    return str(found["status"]["nominatedNodeName"])


async def names_of(cluster: Cluster) -> set[str]:
    return {item["metadata"]["name"] for item in (await cluster.client.list(PODS, "default")).items}


async def claim_of(cluster: Cluster, pod_name: str) -> Document:
    """The claim that was made for a Pod."""

    async def read() -> list[Document]:
        claims = (await cluster.client.list(CLAIMS, "default")).items
        return [item for item in claims if item["metadata"]["name"].startswith(f"{pod_name}-gpu-")]

    return (await cluster.eventually(read, bool))[0]


async def finalizers(cluster: Cluster, name: str, *names: str) -> None:
    body = {"metadata": {"finalizers": list(names) or None}}
    await cluster.client.patch(PODS, name, "default", Patch(PatchType.MERGE, body))


async def retry(cluster: Cluster, label: str) -> None:
    """Change a node, so that Pods which wait for devices are tried again."""
    nodes = unstructured(CORE, "nodes", "Node", namespaced=False)
    await cluster.client.patch(nodes, "n", "", Patch(PatchType.MERGE, {"metadata": {"labels": {"tried": label}}}))


@pytest.mark.behaviour("PE-73")
def test_the_claim_controller_frees_what_victims_had(tmp_path: Path) -> None:
    """A claim from a template goes with its Pod; a named one is freed and stays."""

    async def test(cluster: Cluster) -> None:
        cluster.start_scheduler()
        cluster.start_claim_controller()
        metadata = {"name": "named", "namespace": "default"}
        await cluster.client.create(CLAIMS, {"metadata": metadata, "spec": REQUESTS})
        await place(cluster, "generated")
        await place(cluster, "user", claim="named")
        await cluster.create(urgent("first"), urgent("second"))
        assert {await cluster.node_of("first"), await cluster.node_of("second")} == {"n", "m"}
        assert await names_of(cluster) == {"first", "second"}
        claims = (await cluster.client.list(CLAIMS, "default")).items
        by_name = {item["metadata"]["name"]: item for item in claims}
        assert not [name for name in by_name if name.startswith("generated-")]
        assert "allocation" not in by_name["named"].get("status", {})
        assert "reservedFor" not in by_name["named"].get("status", {})

    run(tmp_path, test, "n", "m")


@pytest.mark.behaviour("PE-82")
def test_a_claim_controller_that_is_down(tmp_path: Path) -> None:
    """The preemptor keeps its node and says what it waits for; nobody else goes; all is well when it is back."""

    async def test(cluster: Cluster) -> None:
        cluster.start_scheduler()
        stop = cluster.start_claim_controller()
        await place(cluster, "low", "other")
        await cluster.create(with_device("placeholder", priorityClassName="high", schedulingGates=[{"name": "g"}]))
        await claim_of(cluster, "placeholder")
        await stop()
        ungated = Patch(PatchType.JSON, [{"op": "remove", "path": "/spec/schedulingGates"}])
        await cluster.client.patch(PODS, "placeholder", "default", ungated)
        place_of = await nominated(cluster, "placeholder")
        victim = "low" if "other" in await names_of(cluster) else "other"
        await gone(cluster, victim)
        await retry(cluster, "again")
        condition = await cluster.condition("placeholder", "Unschedulable", "deallocated")
        assert condition["message"].endswith("preemption: waiting for claims of preempted pods to be deallocated")
        assert (await claim_of(cluster, victim))["status"]["allocation"]
        assert len(await names_of(cluster)) == 2, "nobody else had to go"
        cluster.start_claim_controller()
        assert await cluster.node_of("placeholder") == place_of

    run(tmp_path, test, "n", "m")


def test_a_preemptor_that_is_deleted_midway(tmp_path: Path) -> None:
    """Its victim is going already. Once that is gone, the device is anybody's: nothing is kept for the preemptor."""

    async def test(cluster: Cluster) -> None:
        cluster.start_scheduler()
        cluster.start_claim_controller()
        await place(cluster, "low")
        await finalizers(cluster, "low", "example.com/stuck")
        await cluster.create(urgent())
        assert await nominated(cluster, "urgent") == "n"
        await cluster.eventually(lambda: cluster.pod("low"), lambda item: "deletionTimestamp" in item["metadata"])
        await cluster.create(with_device("patient"))
        await cluster.condition("patient", "Unschedulable")
        await cluster.client.delete(PODS, "urgent", "default", NOW)
        await finalizers(cluster, "low")
        assert await cluster.node_of("patient") == "n"
        assert await names_of(cluster) == {"patient"}

    run(tmp_path, test)


def test_a_victim_with_a_finalizer_that_never_goes(tmp_path: Path) -> None:
    """The preemptor says so and evicts nobody else; another one looks elsewhere; a free device is taken at once."""

    async def test(cluster: Cluster) -> None:
        cluster.start_scheduler()
        cluster.start_claim_controller()
        await place(cluster, "stuck", nodeSelector={"kubernetes.io/hostname": "n"})
        await place(cluster, "low")
        await finalizers(cluster, "stuck", "example.com/stuck")
        await cluster.create(urgent(nodeSelector={"kubernetes.io/hostname": "n"}))
        assert await nominated(cluster, "urgent") == "n"
        uid = (await cluster.pod("urgent"))["metadata"]["uid"]
        assert await cluster.event_messages("stuck", "Preempted") == [f"Preempted by pod {uid} on node n"]
        await retry(cluster, "again")
        condition = await cluster.condition("urgent", "Unschedulable", "terminating")
        assert condition["message"].endswith("preemption: not eligible due to a terminating pod on the nominated node.")
        # Not the place that is kept for the first one.
        await cluster.create(urgent("second"))
        assert await cluster.node_of("second") == "m"
        await gone(cluster, "low")
        assert "nodeName" not in (await cluster.pod("urgent"))["spec"]
        await finalizers(cluster, "stuck")
        assert await cluster.node_of("urgent") == "n"

    run(tmp_path, test, "n", "m")


def test_a_budget_that_forbids_every_disruption(tmp_path: Path) -> None:
    """Budgets bind evictions; for preemption they are a wish: the Pod goes, and says why."""

    async def test(cluster: Cluster) -> None:
        scheduler, _ = cluster.start_scheduler()
        cluster.start_claim_controller()
        await place(cluster, "guarded", labels={"app": "web"})
        metadata = {"name": "none", "namespace": "default"}
        spec = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "web"}}}
        await cluster.client.create(BUDGETS, {"metadata": metadata, "spec": spec})
        await finalizers(cluster, "guarded", "example.com/look")
        await cluster.create(urgent())
        victim = await cluster.eventually(
            lambda: cluster.pod("guarded"), lambda item: "deletionTimestamp" in item["metadata"]
        )
        condition = next(item for item in victim["status"]["conditions"] if item["type"] == "DisruptionTarget")
        assert condition["reason"] == "PreemptionByScheduler"
        uid = (await cluster.pod("urgent"))["metadata"]["uid"]
        assert await cluster.event_messages("guarded", "Preempted") == [f"Preempted by pod {uid} on node n"]
        violations = scheduler.handle.metrics.value("scheduler_preemption_pdb_violations_total", {"preemptor": "pod"})
        assert violations == 1
        await finalizers(cluster, "guarded")
        assert await cluster.node_of("urgent") == "n"

    run(tmp_path, test)


class Silent:
    """A server that does not answer some requests of the scheduler, which is about to be killed."""

    def __init__(self, server: LocalServer, ignored: Callable[[LocalRequest], bool]) -> None:
        self._server = server
        self._ignored = ignored
        self.watch = server.watch
        self.reached = asyncio.Event()

    async def handle(self, request: LocalRequest) -> Document:
        if self._ignored(request):
            self.reached.set()
            await asyncio.Event().wait()
        return await self._server.handle(request)


@pytest.mark.behaviour("PE-81")
@pytest.mark.parametrize("killed", ["before the eviction", "after the eviction"])
def test_a_scheduler_that_is_killed_after_the_nomination(tmp_path: Path, killed: str) -> None:
    """What it kept in memory is lost. The nomination stays, the device moves once, and nobody else goes."""

    async def test(cluster: Cluster) -> None:
        silent = Silent(cluster.running.local, lambda item: item.verb == "delete" and killed == "before the eviction")
        _, stop = cluster.start_scheduler(client=in_process_client(silent, user="system:kube-scheduler"))
        cluster.start_claim_controller()
        await place(cluster, "low", "other")
        for name in ("low", "other"):
            await finalizers(cluster, name, "example.com/slow")
        await cluster.create(urgent())
        chosen = await nominated(cluster, "urgent")
        victim, other = ("low", "other") if await cluster.node_of("low") == chosen else ("other", "low")
        if killed == "before the eviction":
            await silent.reached.wait()
        else:
            await cluster.eventually(lambda: cluster.pod(victim), lambda item: "deletionTimestamp" in item["metadata"])
        await stop()
        cluster.start_scheduler()
        await cluster.eventually(lambda: cluster.pod(victim), lambda item: "deletionTimestamp" in item["metadata"])
        # Of equal priority, and later: it does not get what the first one was promised.
        await cluster.create(urgent("later", nodeSelector={"kubernetes.io/hostname": chosen}))
        await cluster.condition("later", "Unschedulable")
        await finalizers(cluster, victim)
        assert await cluster.node_of("urgent") == chosen
        assert await names_of(cluster) == {"low", "other", "urgent", "later"} - {victim}
        assert "deletionTimestamp" not in (await cluster.pod(other))["metadata"]

    run(tmp_path, test, "n", "m")


CONDITIONS = {"bindsToNode": True, "bindingConditions": ["ready"], "bindingFailureConditions": ["broken"]}


async def report(cluster: Cluster, pod_name: str, condition: str) -> None:
    """What the driver says of the device of a Pod."""
    found = await claim_of(cluster, pod_name)
    now = "2026-01-01T00:00:00Z"
    condition_of = {"type": condition, "status": "True", "reason": "r", "message": "", "lastTransitionTime": now}
    device = {"driver": "gpu.example.com", "pool": "n", "device": "d", "conditions": [condition_of]}
    await cluster.client.patch(
        CLAIMS, found["metadata"]["name"], "default", Patch(PatchType.MERGE, {"status": {"devices": [device]}}), STATUS
    )


async def observe_pod(cluster: Cluster, since: Document, good: Callable[[Document], bool]) -> None:
    """Wait until a version of the Pod after the given one is good; a later one need not be."""
    options = WatchOptions(resource_version=since["metadata"]["resourceVersion"])
    async with asyncio.timeout(SECONDS_MAX), aclosing(cluster.client.watch(PODS, "default", options)) as events:
        async for event in events:
            if isinstance(event, Bookmark) or event.object["metadata"]["uid"] != since["metadata"]["uid"]:
                continue
            if good(event.object):
                return


async def waits_for_driver(cluster: Cluster, name: str) -> None:
    assert await cluster.event_messages(name, "BindingConditionsPending")
    await cluster.eventually(lambda: claim_of(cluster, name), lambda item: "allocation" in item.get("status", {}))


@pytest.mark.behaviour("PE-33", "PE-42", "PE-65")
def test_a_victim_that_waits_for_its_device_is_not_deleted(tmp_path: Path) -> None:
    """Its attempt ends, and its claim is deallocated for the preemptor; the Pod itself stays and waits."""

    async def test(cluster: Cluster) -> None:
        cluster.start_scheduler()
        cluster.start_claim_controller()
        await cluster.create(with_device("low"))
        await waits_for_driver(cluster, "low")
        assert await nominated(cluster, "low") == "n"
        await cluster.create(urgent())
        await waits_for_driver(cluster, "urgent")
        assert await cluster.event_messages("low", "Preempted")
        low = await cluster.pod("low")
        assert "nodeName" not in low["spec"]
        assert "deletionTimestamp" not in low["metadata"]
        assert "allocation" not in (await claim_of(cluster, "low")).get("status", {})
        await report(cluster, "urgent", "ready")
        assert await cluster.node_of("urgent") == "n"
        await cluster.eventually(
            lambda: cluster.pod("low"), lambda item: "nominatedNodeName" not in item.get("status", {})
        )

    run(tmp_path, test, **CONDITIONS)


@pytest.mark.behaviour("PE-65")
def test_a_preemptor_whose_device_fails_may_preempt_again(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        cluster.start_scheduler()
        cluster.start_claim_controller()
        await cluster.create(with_device("low"))
        await waits_for_driver(cluster, "low")
        await report(cluster, "low", "ready")
        await cluster.node_of("low")
        await cluster.create(urgent())
        await waits_for_driver(cluster, "urgent")
        assert "low" not in await names_of(cluster)
        before = await cluster.pod("urgent")
        await report(cluster, "urgent", "broken")
        condition = await cluster.condition("urgent", "Unschedulable", "failed")
        assert "binding of device gpu.example.com/n/d failed" in condition["message"]
        # The next attempt may already wait on the node again.
        await observe_pod(cluster, before, lambda item: "nominatedNodeName" not in item["status"])
        await retry(cluster, "again")
        await cluster.eventually(
            lambda: claim_of(cluster, "urgent"), lambda item: "allocation" in item.get("status", {})
        )
        await report(cluster, "urgent", "ready")
        assert await cluster.node_of("urgent") == "n"

    run(tmp_path, test, **CONDITIONS)
