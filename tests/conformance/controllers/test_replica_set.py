"""ReplicaSets on the API server, with the scheduler and simulated nodes, in virtual time."""

from __future__ import annotations

from typing import Any

from dray.api.document import Document, GroupResource
from dray.api.errors import ForbiddenError, ServiceUnavailableError
from dray.client.rest import Call
from dray.controllers.replica_set.reconciler import ReplicaSetController, ReplicationControllerController
from dray.sim.replica.virtual_time import run_virtually
from tests.conformance.controllers.cluster import (
    PODS,
    REPLICA_SETS,
    REPLICATION_CONTROLLERS,
    TEAM,
    Cluster,
    running_cluster,
    template,
)

LABELS = {"app": "web"}


def spec(replicas: int, **more: Any) -> Document:
    return {"replicas": replicas, "selector": {"matchLabels": LABELS}, "template": template(LABELS), **more}


def test_pods_are_made_kept_and_removed() -> None:
    async def scenario() -> None:
        async with running_cluster(ReplicaSetController) as cluster:
            await cluster.create(REPLICA_SETS, "web", spec(3))
            status = await cluster.until_status(REPLICA_SETS, "web", availableReplicas=3)
            assert status == {
                "replicas": 3,
                "fullyLabeledReplicas": 3,
                "readyReplicas": 3,
                "availableReplicas": 3,
                "terminatingReplicas": 0,
                "observedGeneration": 1,
            }
            pods = await cluster.pods()
            owner = pods[0]["metadata"]["ownerReferences"][0]
            assert (owner["kind"], owner["name"], owner["controller"], owner["blockOwnerDeletion"]) == (
                "ReplicaSet",
                "web",
                True,
                True,
            )
            assert all(pod["metadata"]["name"].startswith("web-") for pod in pods)
            assert all(pod["metadata"]["generateName"] == "web-" for pod in pods)
            await cluster.user.delete(PODS, pods[0]["metadata"]["name"], TEAM)
            await cluster.settle()
            assert len(await cluster.pods()) == 3
            await cluster.patch(REPLICA_SETS, "web", {"spec": {"replicas": 1}})
            await cluster.until_status(REPLICA_SETS, "web", replicas=1, observedGeneration=2)
            await cluster.patch(REPLICA_SETS, "web", {"spec": {"replicas": 0}})
            status = await cluster.until_status(REPLICA_SETS, "web", replicas=0, terminatingReplicas=0)
            assert status == {"replicas": 0, "terminatingReplicas": 0, "observedGeneration": 3}
            events = await cluster.events("web")
            assert [event[1] for event in events] == ["SuccessfulCreate"] * 4 + ["SuccessfulDelete"] * 3
            names = {pod["metadata"]["name"] for pod in pods}
            assert {message for _, _, message in events[:3]} == {f"Created pod: {name}" for name in names}

    run_virtually(scenario())


def test_orphans_are_adopted_and_strangers_released() -> None:
    async def orphan(cluster: Cluster) -> None:
        await cluster.create(PODS, "found", template(LABELS)["spec"], labels=LABELS)
        await cluster.create(PODS, "other", template(LABELS)["spec"], labels={"app": "other"})

    async def scenario() -> None:
        async with running_cluster(ReplicaSetController, prepare=orphan) as cluster:
            created = await cluster.create(REPLICA_SETS, "web", spec(2))
            await cluster.until_status(REPLICA_SETS, "web", readyReplicas=2)
            found = await cluster.get(PODS, "found")
            assert [owner["uid"] for owner in found["metadata"]["ownerReferences"]] == [created["metadata"]["uid"]]
            assert not (await cluster.get(PODS, "other"))["metadata"].get("ownerReferences")
            await cluster.patch(PODS, "found", {"metadata": {"labels": {"app": "debugged"}}})
            await cluster.settle()
            assert not (await cluster.get(PODS, "found"))["metadata"].get("ownerReferences")
            assert len(await cluster.pods("app=web")) == 2
            # Given back, it is one too many.
            await cluster.patch(PODS, "found", {"metadata": {"labels": LABELS}})
            await cluster.settle(60)
            assert len(await cluster.pods("app=web")) == 2

    run_virtually(scenario())


def test_a_deleted_owner_adopts_nothing() -> None:
    async def scenario() -> None:
        async with running_cluster(ReplicaSetController) as cluster:
            await cluster.create(REPLICA_SETS, "web", spec(0), finalizers=["example.com/stay"])
            await cluster.until_status(REPLICA_SETS, "web", observedGeneration=1)
            await cluster.user.delete(REPLICA_SETS, "web", TEAM)
            await cluster.create(PODS, "found", template(LABELS)["spec"], labels=LABELS)
            await cluster.settle()
            assert not (await cluster.get(PODS, "found"))["metadata"].get("ownerReferences")

    run_virtually(scenario())


def test_a_refused_pod_is_reported_in_a_condition() -> None:
    why = "exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2"
    refused: list[str] = []
    cluster: Cluster

    def refuse(call: Call) -> Exception | None:
        created = [item for item in cluster.transport.calls if is_creation(item)]
        if not is_creation(call) or len(created) <= 2:
            return None
        assert isinstance(call.body, dict)
        refused.append(call.body["metadata"]["name"])
        return ForbiddenError(GroupResource("", "pods"), refused[-1], why)

    async def scenario() -> None:
        nonlocal cluster
        async with running_cluster(ReplicaSetController) as cluster:
            cluster.transport.fail = refuse
            await cluster.create(REPLICA_SETS, "web", spec(9))
            await cluster.until_status(REPLICA_SETS, "web", readyReplicas=2)
            status = await cluster.status(REPLICA_SETS, "web")
            (condition,) = status["conditions"]
            assert {**condition, "lastTransitionTime": ""} == {
                "type": "ReplicaFailure",
                "status": "True",
                "reason": "FailedCreate",
                "message": f'pods "{refused[0]}" is forbidden: {why}',
                "lastTransitionTime": "",
            }
            failures = [event for event in await cluster.events("web") if event[1] == "FailedCreate"]
            assert ("Warning", "FailedCreate", f'Error creating: pods "{refused[0]}" is forbidden: {why}') in failures
            # Batches grow from one, and end with the first refusal: not all nine were tried at once.
            assert len(refused) < 9
            await cluster.patch(REPLICA_SETS, "web", {"spec": {"replicas": 2}})
            status = await cluster.until_status(REPLICA_SETS, "web", observedGeneration=2, conditions=None)
            assert status["readyReplicas"] == 2

    run_virtually(scenario())


def is_creation(call: Call) -> bool:
    return call.verb == "create" and call.resource is not None and call.resource.plural == "pods"


def test_available_only_after_min_ready_seconds() -> None:
    async def scenario() -> None:
        async with running_cluster(ReplicaSetController) as cluster:
            await cluster.create(REPLICA_SETS, "web", spec(2, minReadySeconds=30))
            await cluster.until_status(REPLICA_SETS, "web", readyReplicas=2)
            assert "availableReplicas" not in await cluster.status(REPLICA_SETS, "web")
            await cluster.settle(20)
            assert "availableReplicas" not in await cluster.status(REPLICA_SETS, "web")
            await cluster.settle(15)
            assert (await cluster.status(REPLICA_SETS, "web"))["availableReplicas"] == 2

    run_virtually(scenario())


def test_lost_answers_make_no_pod_twice() -> None:
    lost: list[Call] = []

    def lose(call: Call) -> Exception | None:
        if not is_creation(call) or len(lost) >= 4:
            return None
        lost.append(call)
        return ServiceUnavailableError("answer lost")

    async def scenario() -> None:
        async with running_cluster(ReplicaSetController, nodes=0, scheduler=False) as cluster:
            cluster.transport.lose = lose
            # The informer hears of nothing meanwhile: what was asked for is all the controller knows.
            cluster.transport.held.add("pods")
            await cluster.create(REPLICA_SETS, "web", spec(4))
            await cluster.settle(60)
            # Each answer was lost once; asked for again by name, the Pod was found.
            assert len(lost) == 4
            assert len(await cluster.pods()) == 4
            cluster.transport.held.clear()
            await cluster.until_status(REPLICA_SETS, "web", replicas=4)
            assert len(await cluster.pods()) == 4
            assert [verb for verb, _ in cluster.writes("pods")].count("create") > 4

    run_virtually(scenario())


def test_a_pod_that_came_and_went_unseen_is_replaced() -> None:
    async def scenario() -> None:
        async with running_cluster(ReplicaSetController, nodes=0, scheduler=False) as cluster:
            # The informer never tells of the first Pods, as after a watch that broke and a list that came too late.
            cluster.transport.held.add("pods")
            await cluster.create(REPLICA_SETS, "web", spec(2))
            await cluster.settle()
            pods = await cluster.list(PODS)
            assert len(pods) == 2
            await cluster.user.delete(PODS, pods[0]["metadata"]["name"], TEAM)

            async def replaced() -> bool:
                names = {pod["metadata"]["name"] for pod in await cluster.list(PODS)}
                return len(names) == 2 and pods[0]["metadata"]["name"] not in names

            await cluster.until(replaced)
            await cluster.settle(60)
            assert len(await cluster.list(PODS)) == 2

    run_virtually(scenario())


def test_a_replication_controller_adopts_keeps_and_releases() -> None:
    """As Kubernetes' specifications for ReplicationControllers: adoption, release, scaling and the status."""

    async def orphan(cluster: Cluster) -> None:
        await cluster.create(PODS, "found", template(LABELS)["spec"], labels=LABELS)

    async def scenario() -> None:
        async with running_cluster(ReplicationControllerController, prepare=orphan) as cluster:
            given = {"replicas": 2, "selector": LABELS, "template": template(LABELS)}
            created = await cluster.create(REPLICATION_CONTROLLERS, "web", given)
            status = await cluster.until_status(REPLICATION_CONTROLLERS, "web", availableReplicas=2)
            counted = {"replicas": 2, "fullyLabeledReplicas": 2, "readyReplicas": 2, "availableReplicas": 2}
            assert status == {**counted, "observedGeneration": 1}
            (owner,) = (await cluster.get(PODS, "found"))["metadata"]["ownerReferences"]
            assert (owner["apiVersion"], owner["kind"], owner["uid"], owner["controller"]) == (
                "v1",
                "ReplicationController",
                created["metadata"]["uid"],
                True,
            )
            await cluster.patch(PODS, "found", {"metadata": {"labels": {"app": "debugged"}}})
            await cluster.settle()
            assert not (await cluster.get(PODS, "found"))["metadata"].get("ownerReferences")
            assert len(await cluster.pods("app=web")) == 2
            await cluster.patch(REPLICATION_CONTROLLERS, "web", {"spec": {"replicas": 0}})
            await cluster.until_status(REPLICATION_CONTROLLERS, "web", replicas=0, observedGeneration=2)
            assert await cluster.pods("app=web") == []

    run_virtually(scenario())


def test_a_replication_controller_reports_a_refused_pod() -> None:
    """As "should surface a failure condition on a common issue like exceeded quota": it goes when the cause does."""
    blocked = True

    def refuse(call: Call) -> Exception | None:
        return (
            ForbiddenError(GroupResource("", "pods"), "p", "exceeded quota") if blocked and is_creation(call) else None
        )

    async def scenario() -> None:
        nonlocal blocked
        async with running_cluster(ReplicationControllerController) as cluster:
            cluster.transport.fail = refuse
            given = {"replicas": 1, "selector": LABELS, "template": template(LABELS)}
            await cluster.create(REPLICATION_CONTROLLERS, "web", given)
            await cluster.settle()
            (condition,) = (await cluster.get(REPLICATION_CONTROLLERS, "web"))["status"]["conditions"]
            assert (condition["type"], condition["reason"]) == ("ReplicaFailure", "FailedCreate")
            blocked = False
            status = await cluster.until_status(REPLICATION_CONTROLLERS, "web", readyReplicas=1)
            assert "conditions" not in status

    run_virtually(scenario())
