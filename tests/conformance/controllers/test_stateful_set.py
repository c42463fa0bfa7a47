"""StatefulSets with simulated nodes, in virtual time."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dray.api.document import Document, GroupVersion
from dray.client.interface import unstructured
from dray.client.resources import PERSISTENT_VOLUME_CLAIMS
from dray.controllers.garbage_collector.reconciler import GarbageCollector
from dray.controllers.stateful_set.reconciler import StatefulSetController
from dray.controllers.volume_protection import VolumeClaimProtectionController
from dray.sim.replica.virtual_time import run_virtually
from tests.conformance.controllers.cluster import PODS, REVISIONS, TEAM, Cluster, running_cluster, template

STATEFUL_SETS = unstructured(GroupVersion("apps", "v1"), "statefulsets", "StatefulSet")
DB = {"app": "db"}
REVISION = "controller-revision-hash"


def run(scenario: Callable[[Cluster], Awaitable[None]], *, nodes: int = 2) -> None:
    async def main() -> None:
        controllers = (StatefulSetController, GarbageCollector, VolumeClaimProtectionController)
        async with running_cluster(*controllers, nodes=nodes) as cluster:
            await scenario(cluster)

    run_virtually(main())


async def add_set(cluster: Cluster, replicas: int = 3, **spec: Any) -> Document:
    body = {
        "replicas": replicas,
        "serviceName": "db",
        "selector": {"matchLabels": DB},
        "template": template(DB),
        **spec,
    }
    return await cluster.create(STATEFUL_SETS, "db", body)


async def names(cluster: Cluster) -> list[str]:
    return sorted(pod["metadata"]["name"] for pod in await cluster.pods())


def deleted_pods(cluster: Cluster) -> list[str]:
    """The Pods that the controller has deleted, in order."""
    calls = [call for call in cluster.transport.calls if call.resource is not None and call.resource.plural == "pods"]
    return [call.name for call in calls if call.verb == "delete"]


async def until_ready(cluster: Cluster, count: int) -> Document:
    return await cluster.until_status(STATEFUL_SETS, "db", replicas=count, readyReplicas=count or None)


@pytest.mark.behaviour("ST-01", "ST-02", "ST-03", "ST-08")
def test_pods_are_created_in_order_with_stable_identities() -> None:
    async def scenario(cluster: Cluster) -> None:
        created = await add_set(cluster)
        spec = created["spec"]
        assert spec["podManagementPolicy"] == "OrderedReady"
        assert spec["updateStrategy"] == {
            "type": "RollingUpdate",
            "rollingUpdate": {"partition": 0, "maxUnavailable": 1},
        }
        status = await until_ready(cluster, 3)
        assert status["currentRevision"] == status["updateRevision"]
        pods = sorted(await cluster.pods(), key=lambda pod: pod["metadata"]["name"])
        assert [pod["metadata"]["name"] for pod in pods] == ["db-0", "db-1", "db-2"]
        for ordinal, pod in enumerate(pods):
            labels, spec = pod["metadata"]["labels"], pod["spec"]
            assert labels["statefulset.kubernetes.io/pod-name"] == f"db-{ordinal}"
            assert labels["apps.kubernetes.io/pod-index"] == str(ordinal)
            assert labels[REVISION] == status["updateRevision"]
            assert (spec["hostname"], spec["subdomain"]) == (f"db-{ordinal}", "db")
        # Each was ready before the next one was created.
        for earlier, later in itertools.pairwise(pods):
            ready = next(item for item in earlier["status"]["conditions"] if item["type"] == "Ready")
            assert ready["lastTransitionTime"] <= later["metadata"]["creationTimestamp"]
        assert ("Normal", "SuccessfulCreate", "create Pod db-0 in StatefulSet db successful") in await cluster.events(
            "db"
        )

    run(scenario)


@pytest.mark.behaviour("ST-03")
def test_a_pod_that_never_starts_holds_up_the_others() -> None:
    async def scenario(cluster: Cluster) -> None:
        blocked = template(DB, nodeSelector={"nowhere": "yes"})
        await add_set(cluster, template=blocked)
        await cluster.settle(60)
        assert await names(cluster) == ["db-0"]

    run(scenario)


@pytest.mark.behaviour("ST-03")
def test_parallel_pods_do_not_wait() -> None:
    async def scenario(cluster: Cluster) -> None:
        blocked = template(DB, nodeSelector={"nowhere": "yes"})
        await add_set(cluster, template=blocked, podManagementPolicy="Parallel")
        await cluster.settle(10)
        assert await names(cluster) == ["db-0", "db-1", "db-2"]

    run(scenario)


@pytest.mark.behaviour("ST-03")
def test_the_highest_ordinals_go_first() -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_set(cluster, replicas=4)
        await until_ready(cluster, 4)
        await cluster.patch(STATEFUL_SETS, "db", {"spec": {"replicas": 1}})
        await until_ready(cluster, 1)
        assert await names(cluster) == ["db-0"]
        assert deleted_pods(cluster) == ["db-3", "db-2", "db-1"]
        text = "delete Pod db-3 in StatefulSet db successful"
        assert ("Normal", "SuccessfulDelete", text) in await cluster.events("db")

    run(scenario)


@pytest.mark.behaviour("ST-02")
def test_ordinals_may_start_elsewhere() -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_set(cluster, replicas=2, ordinals={"start": 5})
        await until_ready(cluster, 2)
        assert await names(cluster) == ["db-5", "db-6"]

    run(scenario)


@pytest.mark.behaviour("ST-04")
def test_a_finished_or_deleted_pod_comes_back_with_its_name() -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_set(cluster, replicas=2)
        await until_ready(cluster, 2)
        before = (await cluster.get(PODS, "db-1"))["metadata"]["uid"]
        await cluster.patch(PODS, "db-1", {"status": {"phase": "Failed"}}, "status")

        async def replaced() -> bool:
            pods = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in await cluster.pods()}
            return bool(pods.get("db-1", before) != before)

        await cluster.until(replaced)
        await until_ready(cluster, 2)
        await cluster.user.delete(PODS, "db-0", TEAM)
        await until_ready(cluster, 2)

    run(scenario)


@pytest.mark.behaviour("ST-05", "ST-06")
def test_a_rolling_update_goes_from_the_highest_ordinal_down() -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_set(cluster)
        first = (await until_ready(cluster, 3))["updateRevision"]
        await cluster.patch(STATEFUL_SETS, "db", {"spec": {"template": {"metadata": {"annotations": {"v": "2"}}}}})

        async def updated() -> Document | None:
            status = await cluster.status(STATEFUL_SETS, "db")
            is_done = (
                status["currentRevision"] == status["updateRevision"] != first and status.get("readyReplicas") == 3
            )
            return status if is_done else None

        status = await cluster.until(updated)
        assert deleted_pods(cluster) == ["db-2", "db-1", "db-0"]
        revisions = {item["metadata"]["name"]: item["revision"] for item in await cluster.list(REVISIONS)}
        assert revisions == {first: 1, status["updateRevision"]: 2}
        # Rolled back: the old revision gets the highest number.
        await cluster.patch(STATEFUL_SETS, "db", {"spec": {"template": {"metadata": {"annotations": {"v": None}}}}})

        async def back() -> bool:
            found = await cluster.status(STATEFUL_SETS, "db")
            return bool(found["currentRevision"] == first == found["updateRevision"])

        await cluster.until(back)
        assert {item["metadata"]["name"]: item["revision"] for item in await cluster.list(REVISIONS)}[first] == 3

    run(scenario)


@pytest.mark.behaviour("ST-05", "ST-06")
def test_pods_below_the_partition_keep_their_revision() -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_set(cluster, updateStrategy={"type": "RollingUpdate", "rollingUpdate": {"partition": 2}})
        first = (await until_ready(cluster, 3))["updateRevision"]
        await cluster.patch(STATEFUL_SETS, "db", {"spec": {"template": {"metadata": {"annotations": {"v": "2"}}}}})
        await cluster.until_status(STATEFUL_SETS, "db", updatedReplicas=1, currentReplicas=2, readyReplicas=3)
        await cluster.user.delete(PODS, "db-0", TEAM)
        await cluster.settle(30)
        revisions = {pod["metadata"]["name"]: pod["metadata"]["labels"][REVISION] for pod in await cluster.pods()}
        assert revisions["db-0"] == revisions["db-1"] == first != revisions["db-2"]

    run(scenario)


@pytest.mark.behaviour("ST-06")
def test_on_delete_waits_for_somebody_to_delete() -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_set(cluster, replicas=2, updateStrategy={"type": "OnDelete"})
        first = (await until_ready(cluster, 2))["updateRevision"]
        await cluster.patch(STATEFUL_SETS, "db", {"spec": {"template": {"metadata": {"annotations": {"v": "2"}}}}})
        await cluster.settle(30)
        assert {pod["metadata"]["labels"][REVISION] for pod in await cluster.pods()} == {first}
        await cluster.user.delete(PODS, "db-0", TEAM)
        await cluster.until_status(STATEFUL_SETS, "db", updatedReplicas=1, readyReplicas=2)

    run(scenario)


CLAIMS = [
    {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
]


@pytest.mark.behaviour("ST-02", "ST-07", "ST-08")
def test_claims_of_pods_follow_the_retention_policy() -> None:
    async def scenario(cluster: Cluster) -> None:
        policy = {"whenDeleted": "Delete", "whenScaled": "Delete"}
        created = await add_set(
            cluster,
            replicas=2,
            podManagementPolicy="Parallel",
            volumeClaimTemplates=CLAIMS,
            persistentVolumeClaimRetentionPolicy=policy,
        )

        async def claims() -> dict[str, Document]:
            return {item["metadata"]["name"]: item for item in await cluster.list(PERSISTENT_VOLUME_CLAIMS)}

        async def has(*wanted: str) -> bool:
            return sorted(await claims()) == sorted(wanted)

        await cluster.until(lambda: has("data-db-0", "data-db-1"))

        async def has_owners(count: int) -> bool:
            return all(
                len(item["metadata"].get("ownerReferences") or ()) == count for item in (await claims()).values()
            )

        for changed, count in (({"whenDeleted": "Retain"}, 0), ({"whenDeleted": "Delete"}, 1)):
            await cluster.patch(STATEFUL_SETS, "db", {"spec": {"persistentVolumeClaimRetentionPolicy": changed}})
            await cluster.until(functools.partial(has_owners, count))
        (owner,) = (await claims())["data-db-0"]["metadata"]["ownerReferences"]
        assert owner["uid"] == created["metadata"]["uid"]
        pod = next(pod for pod in await cluster.pods() if pod["metadata"]["name"] == "db-1")
        volume = next(item for item in pod["spec"]["volumes"] if item["name"] == "data")
        assert volume["persistentVolumeClaim"]["claimName"] == "data-db-1"
        text = "create Claim data-db-0 Pod db-0 in StatefulSet db success"
        assert ("Normal", "SuccessfulCreate", text) in await cluster.events("db")
        await cluster.patch(STATEFUL_SETS, "db", {"spec": {"replicas": 1}})
        await cluster.until(lambda: has("data-db-0"))
        await cluster.user.delete(STATEFUL_SETS, "db", TEAM)
        await cluster.until(has)

    run(scenario, nodes=1)


@pytest.mark.behaviour("ST-02")
def test_an_orphan_is_adopted_only_with_a_name_of_the_set() -> None:
    async def scenario(cluster: Cluster) -> None:
        body = template(DB)["spec"]
        await cluster.create(PODS, "db-0", body, labels=DB)
        await cluster.create(PODS, "stranger", body, labels=DB)
        await add_set(cluster, replicas=1)
        await until_ready(cluster, 1)
        adopted = await cluster.get(PODS, "db-0")
        assert adopted["metadata"]["ownerReferences"][0]["kind"] == "StatefulSet"
        assert adopted["metadata"]["labels"]["apps.kubernetes.io/pod-index"] == "0"
        assert "ownerReferences" not in (await cluster.get(PODS, "stranger"))["metadata"]

    run(scenario)


@pytest.mark.behaviour("ST-03")
def test_a_late_cache_creates_no_pod_twice() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.transport.held.add("pods")
        await add_set(cluster, podManagementPolicy="Parallel")
        await cluster.settle(30)
        creations = [verb for verb, subresource in cluster.writes("pods") if verb == "create" and not subresource]
        assert len(creations) == 3
        cluster.transport.held.clear()
        await until_ready(cluster, 3)

    run(scenario)
