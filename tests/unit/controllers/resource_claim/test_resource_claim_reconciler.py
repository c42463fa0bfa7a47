"""The claim controller at work on the API server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from dray.api.document import Document
from dray.api.errors import ConflictError, NotFoundError, ServiceUnavailableError
from dray.api.features import FeatureGates
from dray.api.pod_claims import FINALIZER
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim, ResourceClaimTemplate
from dray.client.in_process import InProcessTransport
from dray.client.interface import DeleteOptions, PatchType, WriteOptions, unstructured
from dray.client.resources import EVENTS, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from dray.client.rest import Call, RestClient
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.reconciler import ControllerContext
from dray.controllers.resource_claim.reconciler import ResourceClaimController
from dray.runtime.metrics import Metrics
from dray.runtime.system import SystemClock
from dray.runtime.tasks import TaskGroup
from tests.in_process_server import in_process_server
from tests.recording_transport import READS, RecordingTransport

TEAM = "team"


class Watched(RecordingTransport):
    """A transport that also shows all writes but those of events."""

    def all_writes(self) -> list[tuple[str, str, str]]:
        return [
            (call.verb, call.resource.plural, call.subresource)
            for call in self.calls
            if call.resource is not None and call.verb not in READS and call.resource is not EVENTS
        ]


@dataclass
class ClusterHarness:
    user: RestClient
    transport: Watched
    metrics: Metrics
    controller: ResourceClaimController

    def claim_known(self, name: str) -> ResourceClaim | None:
        """The claim as the controller knows it."""
        return self.controller._claims.lister.get(name, TEAM)

    async def pod(self, name: str, entries: list[Document], **spec: Any) -> Pod:
        document = {
            "metadata": {"name": name, "namespace": TEAM},
            "spec": {"containers": [{"name": "c", "image": "i"}], "resourceClaims": entries, **spec},
        }
        return await self.user.create(PODS, msgspec.convert(document, Pod))

    async def template(self, name: str, *, metadata: Document | None = None, listed: bool = False) -> None:
        one = {"deviceClassName": "gpu.example.com"}
        request = {"name": "r", "firstAvailable": [{"name": "s", **one}]} if listed else {"name": "r", "exactly": one}
        document = {
            "metadata": {"name": name, "namespace": TEAM},
            "spec": {"metadata": metadata or {}, "spec": {"devices": {"requests": [request]}}},
        }
        await self.user.create(RESOURCE_CLAIM_TEMPLATES, msgspec.convert(document, ResourceClaimTemplate))

    async def claim(self, name: str) -> ResourceClaim:
        spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.example.com"}}]}}
        document = {"metadata": {"name": name, "namespace": TEAM, "finalizers": [FINALIZER]}, "spec": spec}
        return await self.user.create(RESOURCE_CLAIMS, msgspec.convert(document, ResourceClaim))

    async def allocate(self, claim: ResourceClaim, *users: Pod) -> ResourceClaim:
        result = {"request": "r", "driver": "gpu.example.com", "pool": "pool", "device": "gpu-0"}
        status = {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": p.metadata.name, "uid": p.metadata.uid} for p in users],
        }
        body = msgspec.structs.replace(claim, status=msgspec.convert(status, type(claim.status)))
        return await self.user.update_status(RESOURCE_CLAIMS, body)

    async def claims(self) -> list[ResourceClaim]:
        return list((await self.user.list(RESOURCE_CLAIMS, TEAM)).items)

    async def get(self, name: str) -> ResourceClaim | None:
        try:
            return await self.user.get(RESOURCE_CLAIMS, name, TEAM)
        except NotFoundError:
            return None

    async def named(self, pod: str) -> dict[str, str | None]:
        statuses = (await self.user.get(PODS, pod, TEAM)).status.resource_claim_statuses
        return {status.name: status.resource_claim_name for status in statuses}

    async def finish(self, pod: Pod, phase: str = "Succeeded") -> None:
        current = await self.user.get(PODS, pod.metadata.name or "", TEAM)
        status = msgspec.structs.replace(current.status, phase=phase)
        await self.user.update_status(PODS, msgspec.structs.replace(current, status=status))

    async def events(self) -> list[tuple[str, str, str]]:
        items = (await self.user.list(EVENTS, TEAM)).items
        return [(item["type"], item["reason"], item["message"]) for item in items]


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(10):
        while not await condition():  # noqa: ASYNC110 - the condition is the server's state
            await asyncio.sleep(0.002)


@asynccontextmanager
async def running(gates: FeatureGates | None = None, prepare: Any = None) -> AsyncIterator[ClusterHarness]:
    clock, metrics = SystemClock(), Metrics()
    async with in_process_server(clock, random.Random(1), TEAM) as server:
        transport = Watched(
            InProcessTransport(server, user="controller", groups=("system:masters",), user_agent="controller")
        )
        user = RestClient(InProcessTransport(server, user="u", groups=("system:masters",), user_agent="u"))
        client = RestClient(transport)
        informers = SharedInformerFactory(client, clock, random.Random(1))
        context = ControllerContext(client, informers, clock, metrics, gates or FeatureGates())
        controller = ResourceClaimController(context)
        cluster = ClusterHarness(user, transport, metrics, controller)
        if prepare is not None:
            await prepare(cluster)
        async with TaskGroup("test") as group:
            group.spawn(informers.run(), "informers")
            group.spawn(controller.run(), "controller")
            yield cluster


FROM_TEMPLATE = {"name": "gpu", "resourceClaimTemplateName": "template"}


@pytest.mark.behaviour("SP-74", "SP-75", "SP-76", "SP-88")
async def test_a_claim_is_created_and_named_in_the_status() -> None:
    async with running() as cluster:
        await cluster.template("template", metadata={"labels": {"l": "1"}, "annotations": {"a": "2"}})
        pod = await cluster.pod("pod", [FROM_TEMPLATE])
        await until(lambda: cluster.named("pod"))
        [claim] = await cluster.claims()
        assert (claim.metadata.name or "").startswith("pod-gpu-")
        assert await cluster.named("pod") == {"gpu": claim.metadata.name}
        assert claim.metadata.labels == {"l": "1"}
        assert claim.metadata.annotations == {"a": "2", "resource.kubernetes.io/pod-claim-name": "gpu"}
        assert [owner.uid for owner in claim.metadata.owner_references] == [pod.metadata.uid]
        [apply] = [call for call in cluster.transport.calls if call.verb == "patch"]
        assert apply.content_type == PatchType.APPLY.value
        assert apply.query == {"fieldManager": "ResourceClaimController", "force": "true"}
        assert apply.subresource == "status"
        stored = await cluster.user.get(unstructured(PODS.group_version, "pods", "Pod"), "pod", TEAM)
        assert "ResourceClaimController" in [entry["manager"] for entry in stored["metadata"]["managedFields"]]
        counted = {"status": "success", "admin_access": "false"}
        assert cluster.metrics.value("resourceclaim_controller_creates_total", counted) == 1
        assert cluster.metrics.value("workqueue_adds_total", {"name": "resource_claim"}) > 0


@pytest.mark.behaviour("SP-74")
async def test_long_names_are_shortened() -> None:
    async with running() as cluster:
        await cluster.template("template")
        await cluster.pod("p" * 150, [{"name": "e" * 60, "resourceClaimTemplateName": "template"}])
        await until(lambda: cluster.named("p" * 150))
        [claim] = await cluster.claims()
        assert len(claim.metadata.name or "") <= 63
        assert (claim.metadata.name or "").startswith("p" * 40 + "-" + "e" * 16 + "-")


@pytest.mark.behaviour("SP-79")
async def test_a_missing_template_is_reported_and_retried() -> None:
    async with running() as cluster:
        await cluster.pod("pod", [FROM_TEMPLATE])
        await until(cluster.events)
        [(kind, reason, message)] = await cluster.events()
        assert (kind, reason) == ("Warning", "FailedResourceClaimCreation")
        assert message == (
            'PodResourceClaim gpu: resource claim template "template": '
            'resourceclaimtemplate.resource.k8s.io "template" not found'
        )
        assert cluster.metrics.value("workqueue_retries_total", {"name": "resource_claim"}) > 0
        await cluster.template("template")
        await until(lambda: cluster.named("pod"))


@pytest.mark.behaviour("SP-87", "SP-88")
async def test_a_failed_creation_is_counted_reported_and_retried() -> None:
    async with running() as cluster:
        failures = [ServiceUnavailableError("down"), ConflictError(RESOURCE_CLAIMS.group_resource, "x", "conflict")]

        def fail(call: Call) -> Exception | None:
            return failures.pop() if call.verb == "create" and call.resource is RESOURCE_CLAIMS and failures else None

        cluster.transport.fail = fail
        await cluster.template("template")
        await cluster.pod("pod", [FROM_TEMPLATE])
        await until(lambda: cluster.named("pod"))
        counted = {"status": "failure", "admin_access": "false"}
        assert cluster.metrics.value("resourceclaim_controller_creates_total", counted) == 2
        assert len(await cluster.claims()) == 1
        await until(cluster.events)


@pytest.mark.behaviour("SP-77")
async def test_a_lost_response_to_the_status_write_creates_no_second_claim() -> None:
    async with running() as cluster:
        failures = [ServiceUnavailableError("down")] * 3
        cluster.transport.fail = lambda call: failures.pop() if call.verb == "patch" and failures else None
        await cluster.template("template")
        await cluster.pod("pod", [FROM_TEMPLATE])
        await until(lambda: cluster.named("pod"))
        assert not failures
        assert len(await cluster.claims()) == 1


@pytest.mark.behaviour("SP-77")
async def test_a_restarted_controller_finds_the_generated_claim() -> None:
    async def prepare(cluster: ClusterHarness) -> None:
        await cluster.template("template")
        pod = await cluster.pod("pod", [FROM_TEMPLATE])
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "pod", "uid": pod.metadata.uid, "controller": True}
        metadata = {
            "name": "found",
            "namespace": TEAM,
            "annotations": {"resource.kubernetes.io/pod-claim-name": "gpu"},
            "ownerReferences": [owner],
        }
        spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.example.com"}}]}}
        await cluster.user.create(RESOURCE_CLAIMS, msgspec.convert({"metadata": metadata, "spec": spec}, ResourceClaim))

    async with running(prepare=prepare) as cluster:
        await until(lambda: cluster.named("pod"))
        assert await cluster.named("pod") == {"gpu": "found"}
        assert len(await cluster.claims()) == 1


@pytest.mark.behaviour("SP-78")
async def test_a_deleted_claim_is_replaced_for_a_waiting_pod() -> None:
    async with running() as cluster:
        await cluster.template("template")
        await cluster.pod("pod", [FROM_TEMPLATE])
        await until(lambda: cluster.named("pod"))
        first = (await cluster.named("pod"))["gpu"]
        await cluster.user.delete(RESOURCE_CLAIMS, first or "", TEAM)

        async def replaced() -> bool:
            return (await cluster.named("pod"))["gpu"] != first

        await until(replaced)
        [claim] = await cluster.claims()
        assert await cluster.named("pod") == {"gpu": claim.metadata.name}


@pytest.mark.behaviour("SP-81")
async def test_a_pod_bound_without_the_scheduler_reserves_allocated_claims() -> None:
    async with running() as cluster:
        await cluster.allocate(await cluster.claim("shared"))
        pod = await cluster.pod("pod", [{"name": "gpu", "resourceClaimName": "shared"}], nodeName="node")

        async def reserved() -> bool:
            claim = await cluster.get("shared")
            return claim is not None and [u.uid for u in claim.status.reserved_for] == [pod.metadata.uid]

        await until(reserved)


@pytest.mark.behaviour("SP-82", "SP-84")
async def test_the_last_consumer_deallocates_the_claim() -> None:
    async with running() as cluster:
        pods = [await cluster.pod(name, [{"name": "gpu", "resourceClaimName": "shared"}]) for name in ("a", "b")]
        await cluster.allocate(await cluster.claim("shared"), *pods)
        await cluster.finish(pods[0])

        async def one_left() -> bool:
            claim = await cluster.get("shared")
            return claim is not None and [u.name for u in claim.status.reserved_for] == ["b"]

        await until(one_left)
        claim = await cluster.get("shared")
        assert claim is not None
        assert claim.status.allocation is not None
        cluster.transport.calls.clear()
        await cluster.user.delete(PODS, "b", TEAM, DeleteOptions(grace_period_seconds=0))

        async def freed() -> bool:
            claim = await cluster.get("shared")
            return claim is not None and not claim.metadata.finalizers

        await until(freed)
        claim = await cluster.get("shared")
        assert claim is not None
        assert claim.status.allocation is None
        # The allocation goes with the last user, in one write; the finalizer goes after it.
        assert cluster.transport.all_writes() == [
            ("update", "resourceclaims", "status"),
            ("update", "resourceclaims", ""),
        ]


@pytest.mark.behaviour("SP-82")
async def test_an_uncached_pod_is_confirmed_by_a_live_read() -> None:
    async def prepare(cluster: ClusterHarness) -> None:
        pod = await cluster.pod("gone", [])
        await cluster.allocate(await cluster.claim("shared"), pod)
        await cluster.user.delete(PODS, "gone", TEAM, DeleteOptions(grace_period_seconds=0))

    async with running(prepare=prepare) as cluster:

        async def freed() -> bool:
            claim = await cluster.get("shared")
            return claim is not None and not claim.status.reserved_for

        await until(freed)
        assert ("get", "pods", "gone") in [
            (call.verb, call.resource.plural, call.name) for call in cluster.transport.calls if call.resource
        ]


@pytest.mark.behaviour("SP-85")
async def test_a_deleted_claim_without_consumers_is_finalized() -> None:
    async with running() as cluster:
        await cluster.allocate(await cluster.claim("shared"))
        await cluster.user.delete(RESOURCE_CLAIMS, "shared", TEAM)

        async def gone() -> bool:
            return await cluster.get("shared") is None

        await until(gone)
        assert ("update", "resourceclaims", "status") in cluster.transport.all_writes()


@pytest.mark.behaviour("SP-86")
async def test_a_generated_claim_is_deleted_when_its_pod_has_finished() -> None:
    async with running() as cluster:
        await cluster.template("template")
        pod = await cluster.pod("pod", [FROM_TEMPLATE])
        await until(lambda: cluster.named("pod"))
        [claim] = await cluster.claims()
        protected = msgspec.structs.replace(
            claim, metadata=msgspec.structs.replace(claim.metadata, finalizers=(FINALIZER,))
        )
        await cluster.allocate(await cluster.user.update(RESOURCE_CLAIMS, protected, WriteOptions()), pod)
        await cluster.finish(pod, "Running")
        assert len(await cluster.claims()) == 1
        await cluster.finish(pod)

        async def gone() -> bool:
            return not await cluster.claims()

        await until(gone)
        assert (await cluster.user.get(PODS, "pod", TEAM)).metadata.uid == pod.metadata.uid


@pytest.mark.behaviour("SP-80")
async def test_no_claim_is_created_for_a_deleted_or_finished_pod() -> None:
    async def prepare(cluster: ClusterHarness) -> None:
        await cluster.template("template")
        deleted = await cluster.pod("deleted", [FROM_TEMPLATE], nodeName="node")
        await cluster.user.delete(PODS, deleted.metadata.name or "", TEAM)
        await cluster.finish(await cluster.pod("finished", [FROM_TEMPLATE]), "Failed")

    async with running(prepare=prepare) as cluster:
        await cluster.pod("later", [FROM_TEMPLATE])
        await until(lambda: cluster.named("later"))
        assert [c.metadata.owner_references[0].name for c in await cluster.claims()] == ["later"]
