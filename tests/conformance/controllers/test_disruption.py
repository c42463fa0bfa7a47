"""Disruption budgets with their controller, evictions and workloads, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dray.api.document import Document, GroupVersion
from dray.api.errors import ServiceUnavailableError, TooManyRequestsError
from dray.apiserver.authorization.bootstrap_roles import CONTROLLER_ROLES
from dray.apiserver.registry.pod_disruption_budgets import POD_DISRUPTION_BUDGETS
from dray.client.interface import Patch, PatchType, unstructured
from dray.controllers.deployment.reconciler import DeploymentController
from dray.controllers.disruption.reconciler import DisruptionController
from dray.controllers.job.reconciler import JobController
from dray.controllers.replica_set.reconciler import ReplicaSetController
from dray.controllers.taint_eviction.reconciler import TaintEvictionController
from dray.sim.replica.virtual_time import run_virtually
from tests.conformance.controllers.cluster import (
    DEPLOYMENTS,
    JOBS,
    NODES,
    PODS,
    REPLICA_SETS,
    TEAM,
    Cluster,
    add_node,
    running_cluster,
    template,
)

BUDGETS = unstructured(GroupVersion("policy", "v1"), "poddisruptionbudgets", "PodDisruptionBudget")
WEB = {"app": "web"}


def run(scenario: Callable[[Cluster], Awaitable[None]], *, nodes: int = 3) -> None:
    async def main() -> None:
        async with running_cluster(
            DisruptionController, DeploymentController, ReplicaSetController, JobController, nodes=nodes
        ) as cluster:
            await scenario(cluster)

    run_virtually(main())


async def add_budget(cluster: Cluster, name: str = "pdb", **spec: Any) -> Document:
    return await cluster.create(BUDGETS, name, {"selector": {"matchLabels": WEB}, **spec})


async def add_web(cluster: Cluster, replicas: int = 4, resource: Any = DEPLOYMENTS) -> None:
    spec = {"replicas": replicas, "selector": {"matchLabels": WEB}, "template": template(WEB)}
    await cluster.create(resource, "web", spec)


async def evict(cluster: Cluster, name: str) -> None:
    await cluster.user.create_subresource(PODS, name, TEAM, "eviction", {"metadata": {"name": name}})


async def add_pod(cluster: Cluster, name: str, *, ready: bool = True, **conditions: Document) -> None:
    await cluster.create(PODS, name, template(WEB)["spec"] | {"nodeName": "n"}, labels=WEB)
    found = [{"type": "Ready", "status": "True" if ready else "False"}, *conditions.values()]
    await cluster.patch(PODS, name, {"status": {"phase": "Running", "conditions": found}}, "status")


@pytest.mark.behaviour("DB-13", "DB-14", "DB-16")
def test_a_budget_follows_its_pods_and_the_scale_of_their_deployment() -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_budget(cluster, maxUnavailable="30%")
        await add_web(cluster)
        # Two of four would be 50 %, but 30 % of four is rounded up.
        wanted = {"currentHealthy": 4, "desiredHealthy": 2, "expectedPods": 4, "disruptionsAllowed": 2}
        await cluster.until_status(BUDGETS, "pdb", **wanted)
        await cluster.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 10}})
        await cluster.until_status(BUDGETS, "pdb", expectedPods=10, desiredHealthy=7, disruptionsAllowed=3)
        await cluster.patch(BUDGETS, "pdb", {"spec": {"maxUnavailable": 1}})
        status = await cluster.until_status(BUDGETS, "pdb", disruptionsAllowed=1)
        assert status["observedGeneration"] == 2

    run(scenario)


@pytest.mark.behaviour("DB-16")
def test_a_replica_set_of_its_own_counts_once() -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_web(cluster, 3, REPLICA_SETS)
        await add_budget(cluster, minAvailable="50%")
        await cluster.until_status(BUDGETS, "pdb", expectedPods=3, desiredHealthy=2, disruptionsAllowed=1)

    run(scenario)


@pytest.mark.behaviour("DB-16", "DB-17", "DB-20", "DB-22")
def test_a_controller_without_a_scale_is_an_error_that_evictions_show() -> None:
    async def scenario(cluster: Cluster) -> None:
        annotations = {"simulation.dray.dev/run-seconds": "1000"}
        work = template(WEB, annotations=annotations, restartPolicy="Never")
        await cluster.create(JOBS, "work", {"template": work})
        await add_budget(cluster, maxUnavailable=1)
        text = "jobs.batch does not implement the scale subresource"
        status = await cluster.until_status(BUDGETS, "pdb", disruptionsAllowed=0)

        async def failed() -> bool:
            conditions = (await cluster.status(BUDGETS, "pdb")).get("conditions") or []
            return [item["message"] for item in conditions] == [text]

        await cluster.until(failed)
        status = await cluster.status(BUDGETS, "pdb")
        assert status["conditions"][0]["reason"] == "SyncFailed"
        events = {(kind, reason) for kind, reason, _ in await cluster.events("pdb")}
        assert ("Warning", "CalculateExpectedPodCountFailed") in events

    run(scenario)


@pytest.mark.behaviour("DB-17", "DB-22")
def test_pods_without_a_controller_are_reported() -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_budget(cluster, maxUnavailable=1)
        await cluster.until_status(BUDGETS, "pdb", expectedPods=0, observedGeneration=1)
        await add_node(cluster, "n")
        await add_pod(cluster, "lonely")
        await cluster.settle()
        events = await cluster.events("pdb")
        assert ("Normal", "NoPods", "No matching pods found") in events
        (text,) = {message for _, reason, message in events if reason == "UnmanagedPods"}
        assert "(selector: &LabelSelector{MatchLabels:map[string]string{app: web,},MatchExpressions:" in text
        assert (await cluster.status(BUDGETS, "pdb"))["disruptionsAllowed"] == 0

    run(scenario, nodes=0)


@pytest.mark.behaviour("DB-16", "DB-20")
@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet"])
def test_a_controller_that_is_gone_is_an_error(kind: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        owner = {"apiVersion": "apps/v1", "kind": kind, "name": "gone", "uid": "u", "controller": True}
        await add_node(cluster, "n")
        spec = template(WEB)["spec"] | {"nodeName": "n"}
        await cluster.create(PODS, "left", spec, labels=WEB, ownerReferences=[owner])
        await add_budget(cluster, maxUnavailable=1)
        await cluster.settle()
        (condition,) = (await cluster.status(BUDGETS, "pdb"))["conditions"]
        assert (condition["reason"], condition["message"]) == ("SyncFailed", 'found no controllers for pod "left"')

    run(scenario, nodes=0)


@pytest.mark.behaviour("DB-20", "DB-22")
def test_a_stored_selector_that_cannot_be_parsed_allows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(POD_DISRUPTION_BUDGETS.strategy, "_validate", None)

    async def scenario(cluster: Cluster) -> None:
        bad = {"matchExpressions": [{"key": "app", "operator": "Like", "values": ["web"]}]}
        await add_budget(cluster, minAvailable=1, selector=bad)
        await cluster.settle()
        text = '"Like" is not a valid label selector operator'
        assert ("Warning", "NoPods", f"Failed to get pods: {text}") in await cluster.events("pdb")
        status = await cluster.status(BUDGETS, "pdb")
        (condition,) = status["conditions"]
        assert (condition["reason"], condition["message"], status["disruptionsAllowed"]) == ("SyncFailed", text, 0)

    run(scenario, nodes=0)


@pytest.mark.behaviour("DB-13")
def test_a_pod_with_several_budgets_is_reported() -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_node(cluster, "n")
        await add_budget(cluster, "one", minAvailable=1)
        await add_budget(cluster, "two", minAvailable=1)
        await add_pod(cluster, "p")
        await cluster.settle()
        text = f'Pod "{TEAM}"/"p" matches multiple PodDisruptionBudgets.  Chose "one" arbitrarily.'
        assert ("Warning", "MultiplePodDisruptionBudgets", text) in await cluster.events("p")

    run(scenario, nodes=0)


@pytest.mark.behaviour("DB-18", "DB-21")
def test_an_evicted_pod_that_stays_counts_again_after_two_minutes() -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_node(cluster, "n")
        await add_pod(cluster, "a")
        await add_pod(cluster, "b")
        await add_budget(cluster, minAvailable=1)
        await cluster.until_status(BUDGETS, "pdb", disruptionsAllowed=1)
        # Somebody charged the budget and died before the Pod was deleted.
        times = {"a": "2026-01-01T00:00:00Z"}
        await cluster.patch(BUDGETS, "pdb", {"status": {"disruptedPods": times, "disruptionsAllowed": 0}}, "status")
        await cluster.until_status(BUDGETS, "pdb", currentHealthy=1, disruptionsAllowed=0)
        await cluster.settle(125)
        status = await cluster.until_status(BUDGETS, "pdb", currentHealthy=2, disruptionsAllowed=1)
        assert "disruptedPods" not in status
        text = f"Pod was expected by PDB {TEAM}/pdb to be deleted but it wasn't"
        assert ("Warning", "NotDeleted", text) in await cluster.events("a")

    run(scenario, nodes=0)


@pytest.mark.behaviour("DB-23")
def test_a_deletion_that_never_came_is_taken_back() -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_node(cluster, "n")
        target = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": "m",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        await add_pod(cluster, "p", target=target)

        async def condition() -> Document:
            items = (await cluster.status(PODS, "p"))["conditions"]
            return next(item for item in items if item["type"] == "DisruptionTarget")

        await cluster.settle(100)
        assert (await condition())["status"] == "True"
        await cluster.settle(30)
        found = await condition()
        assert (found["status"], found.get("reason")) == ("False", None)

    run(scenario, nodes=0)


@pytest.mark.behaviour("DB-31", "DB-33")
def test_a_drain_takes_no_more_pods_at_once_than_the_budget_allows() -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_budget(cluster, maxUnavailable=1)
        await add_web(cluster, 6)
        await cluster.until_status(BUDGETS, "pdb", currentHealthy=6)
        node = (await cluster.pods("app=web"))[0]["spec"]["nodeName"]
        refusals = await drain(cluster, node)
        await cluster.until_status(BUDGETS, "pdb", currentHealthy=6)
        assert all(pod["spec"]["nodeName"] != node for pod in await cluster.pods("app=web"))
        # All are evicted at the same time, and one of them at a time is accepted.
        assert refusals[0] >= len(refusals) - 1 > 0

    run(scenario, nodes=2)


async def drain(cluster: Cluster, node: str) -> list[int]:
    """As `kubectl drain`: cordon, and evict every Pod, again after 5 s where a budget refuses.

    Returns how often each Pod was refused, in descending order.
    """
    await cluster.user.patch(NODES, node, "", Patch(PatchType.MERGE, {"spec": {"unschedulable": True}}))
    names = [pod["metadata"]["name"] for pod in await cluster.pods("app=web") if pod["spec"]["nodeName"] == node]
    return sorted(await asyncio.gather(*(_evict_until_accepted(cluster, name) for name in names)), reverse=True)


async def _evict_until_accepted(cluster: Cluster, name: str) -> int:
    for refusals in range(100):
        try:
            await evict(cluster, name)
        except TooManyRequestsError:
            await asyncio.sleep(5)
        else:
            return refusals
    raise AssertionError(f"{name} was never evicted")


@pytest.mark.behaviour("DB-29", "DB-30")
def test_a_budget_that_forbids_all_refuses_until_it_changes() -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_web(cluster, 2)
        await add_budget(cluster, maxUnavailable=0)
        await cluster.until_status(BUDGETS, "pdb", currentHealthy=2, disruptionsAllowed=0)
        name = (await cluster.pods("app=web"))[0]["metadata"]["name"]
        with pytest.raises(TooManyRequestsError) as refused:
            await evict(cluster, name)
        (cause,) = (refused.value.details or {})["causes"]
        assert cause["message"] == "The disruption budget pdb needs 2 healthy pods and has 2 currently"
        await cluster.patch(BUDGETS, "pdb", {"spec": {"maxUnavailable": 1}})
        with pytest.raises(TooManyRequestsError) as refused:
            await evict(cluster, name)
        assert refused.value.retry_after_seconds == 10
        await cluster.until_status(BUDGETS, "pdb", disruptionsAllowed=1)
        await evict(cluster, name)

    run(scenario)


@pytest.mark.behaviour("DB-19", "DB-20")
def test_without_its_controller_a_budget_allows_what_it_last_allowed_and_no_more() -> None:
    async def scenario(cluster: Cluster) -> None:
        await add_web(cluster, 3)
        await add_budget(cluster, maxUnavailable=1)
        await cluster.until_status(BUDGETS, "pdb", disruptionsAllowed=1)
        down = ServiceUnavailableError("down")
        cluster.transport.fail = lambda call: down if call.resource and call.resource.plural == BUDGETS.plural else None
        pods = await cluster.pods("app=web")
        await evict(cluster, pods[0]["metadata"]["name"])
        await cluster.settle(60)
        with pytest.raises(TooManyRequestsError):
            await evict(cluster, pods[1]["metadata"]["name"])
        cluster.transport.fail = lambda _: None
        await cluster.until_status(BUDGETS, "pdb", currentHealthy=3, disruptionsAllowed=1)

    run(scenario)


@pytest.mark.behaviour("DB-34")
def test_the_controller_has_the_rights_of_its_role() -> None:
    rules = CONTROLLER_ROLES["disruption-controller"]
    granted = {(verb, resource) for item in rules for verb in item["verbs"] for resource in item.get("resources") or ()}
    assert {("update", "poddisruptionbudgets/status"), ("get", "*/scale"), ("patch", "pods/status")} <= granted
    assert not {(verb, resource) for verb, resource in granted if verb in ("delete", "create") and resource != "events"}


@pytest.mark.behaviour("DB-34")
def test_evictions_by_taints_ask_no_budget() -> None:
    async def scenario() -> None:
        async with running_cluster(DisruptionController, TaintEvictionController, nodes=0) as cluster:
            await add_node(cluster, "n")
            await add_pod(cluster, "p")
            await add_budget(cluster, minAvailable=1)
            await cluster.until_status(BUDGETS, "pdb", currentHealthy=1, disruptionsAllowed=0)
            taint = {"key": "example.com/broken", "effect": "NoExecute"}
            await cluster.user.patch(NODES, "n", "", Patch(PatchType.MERGE, {"spec": {"taints": [taint]}}))

            async def is_going() -> bool:
                return not await cluster.pods("app=web")

            await cluster.until(is_going)

    run_virtually(scenario())
