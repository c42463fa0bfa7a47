"""Deployments on the API server, with ReplicaSets, the scheduler and simulated nodes, in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dray.api.document import Document, GroupResource
from dray.api.errors import ForbiddenError
from dray.client.interface import Patch, PatchType, WriteOptions
from dray.client.rest import Call
from dray.controllers.deployment.reconciler import DeploymentController
from dray.controllers.deployment.revisions import DESIRED_REPLICAS, HASH_LABEL, MAX_REPLICAS, REVISION, REVISION_HISTORY
from dray.controllers.replica_set.reconciler import ReplicaSetController
from dray.sim.replica.virtual_time import run_virtually
from tests.conformance.controllers.cluster import (
    DEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    TEAM,
    Cluster,
    running_cluster,
    template,
)

LABELS = {"app": "web"}


def spec(replicas: int, image: str = "image:1", **more: Any) -> Document:
    return {
        "replicas": replicas,
        "selector": {"matchLabels": LABELS},
        "template": template(LABELS, containers=[{"name": "c", "image": image}]),
        **more,
    }


def rolling(surge: int | str, unavailable: int | str) -> Document:
    return {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}}


def run_scenario(scenario: Callable[[Cluster], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        async with running_cluster(DeploymentController, ReplicaSetController, **options) as cluster:
            await scenario(cluster)

    run_virtually(run())


async def set_image(cluster: Cluster, image: str) -> None:
    change = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}}
    await cluster.patch(DEPLOYMENTS, "web", change)


async def rolled_out(cluster: Cluster) -> Document:
    """Wait as `kubectl rollout status` does."""

    async def complete() -> bool:
        deployment = await cluster.get(DEPLOYMENTS, "web")
        status, wanted = deployment.get("status") or {}, deployment["spec"]["replicas"]
        return status.get("observedGeneration") == deployment["metadata"]["generation"] and all(
            status.get(field, 0) == wanted for field in ("updatedReplicas", "replicas", "availableReplicas")
        )

    await cluster.until(complete)
    await cluster.settle()
    return await cluster.get(DEPLOYMENTS, "web")


async def by_revision(cluster: Cluster) -> dict[str, Document]:
    return {item["metadata"]["annotations"][REVISION]: item for item in await cluster.list(REPLICA_SETS)}


def conditions(document: Document) -> dict[str, tuple[str, str, str]]:
    return {
        item["type"]: (item["status"], item["reason"], item["message"])
        for item in document["status"].get("conditions") or ()
    }


def test_a_first_rollout() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(DEPLOYMENTS, "web", spec(3), annotations={"team": "x", REVISION: "9"})
        deployment = await rolled_out(cluster)
        (replica_set,) = await cluster.list(REPLICA_SETS)
        hashed = replica_set["metadata"]["labels"][HASH_LABEL]
        name = f"web-{hashed}"
        assert replica_set["metadata"]["name"] == name
        assert replica_set["spec"]["selector"]["matchLabels"] == {**LABELS, HASH_LABEL: hashed}
        assert replica_set["metadata"]["annotations"] == {
            "team": "x",
            REVISION: "1",
            DESIRED_REPLICAS: "3",
            MAX_REPLICAS: "4",
        }
        assert deployment["metadata"]["annotations"][REVISION] == "1"
        assert conditions(deployment) == {
            "Available": ("True", "MinimumReplicasAvailable", "Deployment has minimum availability."),
            "Progressing": ("True", "NewReplicaSetAvailable", f'ReplicaSet "{name}" has successfully progressed.'),
        }
        numbers = {key: value for key, value in deployment["status"].items() if key != "conditions"}
        assert numbers == {
            "replicas": 3,
            "updatedReplicas": 3,
            "readyReplicas": 3,
            "availableReplicas": 3,
            "terminatingReplicas": 0,
            "observedGeneration": 1,
        }
        assert await cluster.events("web") == [
            ("Normal", "ScalingReplicaSet", f"Scaled up replica set {name} from 0 to 3")
        ]
        assert all(pod["metadata"]["labels"][HASH_LABEL] == hashed for pod in await cluster.pods())

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("replicas", "strategy", "most", "least"),
    [
        (4, rolling(1, 0), 5, 4),
        (4, rolling(0, 1), 4, 3),
        (4, rolling("25%", "25%"), 5, 3),
        (10, rolling("25%", "25%"), 13, 8),
        (3, rolling(2, 2), 5, 1),
        (1, rolling("25%", "25%"), 2, 1),
    ],
)
def test_a_rolling_update_stays_within_its_bounds(replicas: int, strategy: Document, most: int, least: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(DEPLOYMENTS, "web", spec(replicas, **strategy))
        await rolled_out(cluster)
        await set_image(cluster, "image:2")
        counts: list[tuple[int, int]] = []

        async def done() -> bool:
            pods = await cluster.pods()
            available = [pod for pod in pods if is_ready(pod)]
            counts.append((len(pods), len(available)))
            return len(pods) == replicas == len([pod for pod in available if image_of(pod) == "image:2"])

        await cluster.until(done)
        assert max(count for count, _ in counts) <= most
        assert min(available for _, available in counts) >= least
        await rolled_out(cluster)
        sets = await by_revision(cluster)
        assert (sets["1"]["spec"]["replicas"], sets["2"]["spec"]["replicas"]) == (0, replicas)

    run_scenario(scenario)


def is_ready(pod: Document) -> bool:
    return any(item["type"] == "Ready" and item["status"] == "True" for item in pod["status"].get("conditions") or ())


def image_of(pod: Document) -> str:
    image: str = pod["spec"]["containers"][0]["image"]
    return image


def test_recreate_never_mixes() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(DEPLOYMENTS, "web", spec(3, strategy={"type": "Recreate"}))
        await rolled_out(cluster)
        await set_image(cluster, "image:2")

        async def done() -> bool:
            images = {image_of(pod) for pod in await cluster.list(PODS)}
            assert len(images) <= 1
            return images == {"image:2"}

        await cluster.until(done)
        deployment = await rolled_out(cluster)
        assert deployment["status"]["updatedReplicas"] == 3
        messages = [
            message.split(" ", 5)[0:2] + message.split(" ")[5:] for _, _, message in await cluster.events("web")
        ]
        assert messages == [
            ["Scaled", "up", "from", "0", "to", "3"],
            ["Scaled", "down", "from", "3", "to", "0"],
            ["Scaled", "up", "from", "0", "to", "3"],
        ]

    run_scenario(scenario)


def test_rolling_back_gives_the_old_set_a_new_number() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(DEPLOYMENTS, "web", spec(2))
        await rolled_out(cluster)
        first = (await by_revision(cluster))["1"]["metadata"]["name"]
        for number, image in enumerate(("image:2", "image:1", "image:2", "image:1"), start=2):
            await set_image(cluster, image)
            deployment = await rolled_out(cluster)
            assert deployment["metadata"]["annotations"][REVISION] == str(number)
        sets = await by_revision(cluster)
        assert sorted(sets) == ["4", "5"]
        assert sets["5"]["metadata"]["name"] == first
        assert sets["5"]["metadata"]["annotations"][REVISION_HISTORY] == "1,3"
        assert sets["4"]["metadata"]["annotations"][REVISION_HISTORY] == "2"

    run_scenario(scenario)


def test_history_is_cut() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(DEPLOYMENTS, "web", spec(1, revisionHistoryLimit=2))
        for number in range(1, 6):
            await set_image(cluster, f"image:{number}")
            await rolled_out(cluster)

        async def cut() -> bool:
            return sorted(await by_revision(cluster)) == ["3", "4", "5"]

        await cluster.until(cut)

    run_scenario(scenario)


def test_paused_and_resumed() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(DEPLOYMENTS, "web", spec(2))
        await rolled_out(cluster)
        await cluster.patch(DEPLOYMENTS, "web", {"spec": {"paused": True}})
        await set_image(cluster, "image:2")
        await cluster.settle()
        assert len(await cluster.list(REPLICA_SETS)) == 1
        deployment = await cluster.get(DEPLOYMENTS, "web")
        assert conditions(deployment)["Progressing"] == ("Unknown", "DeploymentPaused", "Deployment is paused")
        # A paused Deployment scales all the same.
        await cluster.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 4}})
        await cluster.until_status(DEPLOYMENTS, "web", readyReplicas=4)
        assert {image_of(pod) for pod in await cluster.pods()} == {"image:1"}
        await cluster.patch(DEPLOYMENTS, "web", {"spec": {"paused": False}})
        await rolled_out(cluster)
        assert {image_of(pod) for pod in await cluster.pods()} == {"image:2"}

    run_scenario(scenario)


def test_a_missed_deadline_is_reported_and_cleared() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(DEPLOYMENTS, "web", spec(2, progressDeadlineSeconds=60))
        await rolled_out(cluster)
        stuck = {"spec": {"template": {"spec": {"nodeSelector": {"no": "where"}}}}}
        await cluster.patch(DEPLOYMENTS, "web", stuck)
        await cluster.settle(30)
        assert conditions(await cluster.get(DEPLOYMENTS, "web"))["Progressing"][1] == "ReplicaSetUpdated"
        await cluster.settle(60)
        deployment = await cluster.get(DEPLOYMENTS, "web")
        name = (await by_revision(cluster))["2"]["metadata"]["name"]
        assert conditions(deployment)["Progressing"] == (
            "False",
            "ProgressDeadlineExceeded",
            f'ReplicaSet "{name}" has timed out progressing.',
        )
        assert conditions(deployment)["Available"][0] == "True"
        assert (deployment["status"]["unavailableReplicas"], deployment["status"]["replicas"]) == (1, 3)
        await cluster.patch(DEPLOYMENTS, "web", {"spec": {"template": {"spec": {"nodeSelector": None}}}})
        deployment = await rolled_out(cluster)
        assert conditions(deployment)["Progressing"][1] == "NewReplicaSetAvailable"

    run_scenario(scenario)


def test_scaling_in_the_middle_is_shared_out() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(DEPLOYMENTS, "web", spec(10, **rolling(3, 2)))
        await rolled_out(cluster)
        stuck = {"spec": {"template": {"spec": {"nodeSelector": {"no": "where"}}}}}
        await cluster.patch(DEPLOYMENTS, "web", stuck)
        await cluster.settle()
        sizes = {key: item["spec"]["replicas"] for key, item in (await by_revision(cluster)).items()}
        assert sizes == {"1": 8, "2": 5}
        await cluster.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 15}})
        await cluster.settle()
        sizes = {key: item["spec"]["replicas"] for key, item in (await by_revision(cluster)).items()}
        assert sizes == {"1": 11, "2": 7}

    run_scenario(scenario)


def test_a_failing_replica_set_is_reported() -> None:
    def refuse(call: Call) -> Exception | None:
        pods = call.verb == "create" and call.resource is not None and call.resource.plural == "pods"
        return ForbiddenError(GroupResource("", "pods"), "x", "exceeded quota") if pods else None

    async def scenario(cluster: Cluster) -> None:
        cluster.transport.fail = refuse
        await cluster.create(DEPLOYMENTS, "web", spec(1, progressDeadlineSeconds=600))
        await cluster.until_status(DEPLOYMENTS, "web", unavailableReplicas=1)
        await cluster.settle()
        reported = conditions(await cluster.get(DEPLOYMENTS, "web"))
        assert reported["ReplicaFailure"] == ("True", "FailedCreate", 'pods "x" is forbidden: exceeded quota')
        assert reported["Available"] == (
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.",
        )
        cluster.transport.fail = lambda _: None
        deployment = await rolled_out(cluster)
        assert "ReplicaFailure" not in conditions(deployment)

    run_scenario(scenario)


def test_a_refused_replica_set_is_reported() -> None:
    def refuse(call: Call) -> Exception | None:
        sets = call.verb == "create" and call.resource is not None and call.resource.plural == "replicasets"
        return ForbiddenError(GroupResource("apps", "replicasets"), "x", "no") if sets else None

    async def scenario(cluster: Cluster) -> None:
        cluster.transport.fail = refuse
        await cluster.create(DEPLOYMENTS, "web", spec(1))
        await cluster.settle()
        status, reason, message = conditions(await cluster.get(DEPLOYMENTS, "web"))["Progressing"]
        assert (status, reason) == ("False", "ReplicaSetCreateError")
        assert message.startswith('Failed to create new replica set "web-')
        assert message.endswith('": replicasets.apps "x" is forbidden: no')
        assert ("Warning", "ReplicaSetCreateError", message) in await cluster.events("web")

    run_scenario(scenario)


def test_a_name_taken_by_other_content_is_avoided() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(DEPLOYMENTS, "web", spec(1))
        await rolled_out(cluster)
        (first,) = await cluster.list(REPLICA_SETS)
        await cluster.user.delete(DEPLOYMENTS, "web", TEAM)
        await cluster.create(DEPLOYMENTS, "web", spec(1, minReadySeconds=1))
        # Nobody collects garbage here: the name belongs to the Deployment that was.
        deployment = await rolled_out(cluster)
        assert deployment["status"]["collisionCount"] == 1
        names = {item["metadata"]["name"] for item in await cluster.list(REPLICA_SETS)}
        assert first["metadata"]["name"] in names
        assert len(names) == 2

    run_scenario(scenario)


def test_an_applied_empty_variable_rolls_out_once() -> None:
    async def scenario(cluster: Cluster) -> None:
        body = spec(1)
        body["template"]["spec"]["containers"][0]["env"] = [{"name": "X", "value": ""}]
        body["template"]["spec"]["nodeSelector"] = None
        deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": body}
        options = WriteOptions(field_manager="helm", force=True)
        for _ in range(2):
            await cluster.user.patch(DEPLOYMENTS, "web", TEAM, Patch(PatchType.APPLY, deployment), options)
            await rolled_out(cluster)
            await cluster.settle()
            assert len(await cluster.list(REPLICA_SETS)) == 1

    run_scenario(scenario)


def test_a_set_without_a_controller_is_adopted() -> None:
    async def orphan(cluster: Cluster) -> None:
        labels = {**LABELS, HASH_LABEL: "x"}
        body = spec(2) | {"selector": {"matchLabels": labels}, "template": template(labels)}
        await cluster.create(REPLICA_SETS, "web-x", body, labels=labels)

    async def scenario(cluster: Cluster) -> None:
        await cluster.create(DEPLOYMENTS, "web", spec(2))
        deployment = await rolled_out(cluster)
        (adopted,) = await cluster.list(REPLICA_SETS)
        assert adopted["metadata"]["ownerReferences"][0]["uid"] == deployment["metadata"]["uid"]
        assert adopted["metadata"]["annotations"][REVISION] == "1"

    run_scenario(scenario, prepare=orphan)
