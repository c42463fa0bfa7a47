"""The claim controller of cdi.k8s.io, on the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.errors import NotFoundError
from dray.apiserver.authorization.bootstrap_roles import CONTROLLER_ROLES
from dray.client.interface import Patch, PatchType
from dray.client.rest import Call
from dray.sim.replica.virtual_time import run_virtually
from tests.conformance.classic.cluster import CLAIMS, NOW, PODS, TEAM, Cluster, inline, named, running_cluster

Scenario = Callable[[Cluster], Coroutine[Any, Any, None]]


def run_scenario(scenario: Scenario) -> None:
    async def run() -> None:
        async with running_cluster(scheduler=False) as cluster:
            await cluster.furnish()
            await scenario(cluster)

    run_virtually(run())


async def _exists(cluster: Cluster, name: str) -> bool:
    try:
        await cluster.get_claim(name)
    except NotFoundError:
        return False
    return True


@pytest.mark.behaviour("CL-19", "CL-15", "CL-16", "CL-21", "CL-23")
def test_a_template_becomes_a_claim_that_belongs_to_the_pod() -> None:
    async def scenario(cluster: Cluster) -> None:
        pod = await cluster.pod("p", inline("gpu", memory="2Gi"), inline("fpga", mode="Immediate"))
        await cluster.eventually(lambda: _exists(cluster, "p-fpga"), bool)
        claim = await cluster.get_claim("p-gpu")
        assert claim["metadata"]["labels"] == {"made": "here"}
        assert claim["metadata"]["ownerReferences"] == [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": "p",
                "uid": pod["metadata"]["uid"],
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]
        wanted = {"resourceClassName": "gpu", "allocationMode": "Delayed", "parameters": {"memory": "2Gi"}}
        assert claim["spec"] == wanted
        version = claim["metadata"]["resourceVersion"]
        await asyncio.sleep(100)
        assert (await cluster.get_claim("p-gpu"))["metadata"]["resourceVersion"] == version
        text = cluster.metrics.exposition().decode()
        assert "resource_controller_create_total 2.0" in text
        assert "resource_controller_create_failures_total 0.0" in text
        assert 'workqueue_adds_total{name="resource_claim"}' in text

    run_scenario(scenario)


@pytest.mark.behaviour("CL-20", "CL-23")
def test_a_claim_of_somebody_else_is_not_used() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.claim("p-gpu", memory="other")
        await cluster.pod("p", inline("gpu"))
        [message] = await cluster.events("p", "FailedResourceClaimCreation")
        assert message == (
            "PodResourceClaim gpu: ResourceClaim team/p-gpu was not created for pod team/p (pod is not owner)"
        )
        assert "ownerReferences" not in (await cluster.get_claim("p-gpu"))["metadata"]
        await cluster.user.delete(CLAIMS, "p-gpu", TEAM)
        await cluster.eventually(lambda: _exists(cluster, "p-gpu"), bool)
        assert (await cluster.get_claim("p-gpu"))["metadata"]["ownerReferences"][0]["name"] == "p"

    run_scenario(scenario)


@pytest.mark.behaviour("CL-20")
def test_a_claim_can_be_given_to_a_pod() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start_scheduler()
        await cluster.claim("p-gpu", memory="other")
        pod = await cluster.pod("p", inline("gpu"))
        await cluster.events("p", "FailedResourceClaimCreation")
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod["metadata"]["uid"]}
        given = Patch(PatchType.MERGE, {"metadata": {"ownerReferences": [owner]}})
        await cluster.user.patch(CLAIMS, "p-gpu", TEAM, given)
        await cluster.message("p", "waiting for resource driver to allocate resource")
        assert (await cluster.get_claim("p-gpu"))["spec"]["parameters"] == {"memory": "other"}

    run_scenario(scenario)


async def _allocate(cluster: Cluster, name: str, *pods: Any, limit: int = 1) -> None:
    claim = await cluster.get_claim(name)
    status = {"phase": "Allocated", "driverName": "gpu.example.com", "userLimit": limit}
    claim = await cluster.user.update_status(CLAIMS, {**claim, "status": status})
    users = [
        {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        for pod in pods
    ]
    await cluster.user.update_status(CLAIMS, {**claim, "status": {**status, "reservedFor": users}})


async def _users(cluster: Cluster, name: str) -> list[str]:
    return [user["name"] for user in (await cluster.get_claim(name))["status"].get("reservedFor") or ()]


@pytest.mark.behaviour("CL-22", "CL-30")
def test_users_that_are_gone_are_forgotten_and_the_claim_stays_allocated() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.claim("shared")
        gone = await cluster.pod("gone", named("shared"), nodeName="n1")
        done = await cluster.pod("done", named("shared"), nodeName="n1")
        stays = await cluster.pod("stays", named("shared"), nodeName="n2")
        await _allocate(cluster, "shared", gone, done, stays, limit=-1)
        # Its node has died: only the controller can remove its reservation.
        await cluster.user.delete(PODS, "gone", TEAM, NOW)
        await cluster.eventually(lambda: _users(cluster, "shared"), lambda users: users == ["done", "stays"])
        await cluster.set_phase("done", "Failed")
        await cluster.eventually(lambda: _users(cluster, "shared"), lambda users: users == ["stays"])
        await cluster.user.delete(PODS, "stays", TEAM, NOW)
        await cluster.eventually(lambda: _users(cluster, "shared"), lambda users: users == [])
        await asyncio.sleep(100)
        assert (await cluster.get_claim("shared"))["status"]["phase"] == "Allocated"

    run_scenario(scenario)


@pytest.mark.behaviour("CL-12", "CL-22")
def test_users_other_than_pods_are_left_alone() -> None:
    async def scenario(cluster: Cluster) -> None:
        claim = await cluster.claim("shared")
        status = {"phase": "Allocated", "driverName": "gpu.example.com", "userLimit": 1}
        claim = await cluster.user.update_status(CLAIMS, {**claim, "status": status})
        user = {"apiVersion": "example.com/v1", "kind": "Robot", "name": "r", "uid": "1"}
        await cluster.user.update_status(CLAIMS, {**claim, "status": {**status, "reservedFor": [user]}})
        await asyncio.sleep(100)
        assert (await cluster.get_claim("shared"))["status"]["reservedFor"] == [user]

    run_scenario(scenario)


@pytest.mark.behaviour("CL-19", "CL-30")
@pytest.mark.parametrize("end", ["Succeeded", "Failed", "deleted"])
def test_a_claim_goes_when_its_pod_is_done(end: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.pod("p", inline("gpu"))
        await cluster.eventually(lambda: _exists(cluster, "p-gpu"), bool)
        if end == "deleted":
            await cluster.user.delete(PODS, "p", TEAM, NOW)
        else:
            await cluster.set_phase("p", end)
        await cluster.eventually(lambda: _exists(cluster, "p-gpu"), lambda there: not there)

    run_scenario(scenario)


def test_a_pod_of_the_same_name_gets_its_own_claim() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.pod("p", inline("gpu"))
        await cluster.eventually(lambda: _exists(cluster, "p-gpu"), bool)
        first = await cluster.get_claim("p-gpu")
        await cluster.user.delete(PODS, "p", TEAM, NOW)
        second = await cluster.pod("p", inline("gpu"))

        async def owner() -> str:
            if not await _exists(cluster, "p-gpu"):
                return ""
            return str((await cluster.get_claim("p-gpu"))["metadata"]["ownerReferences"][0]["uid"])

        await cluster.eventually(owner, lambda uid: uid == second["metadata"]["uid"])
        assert (await cluster.get_claim("p-gpu"))["metadata"]["uid"] != first["metadata"]["uid"]

    run_scenario(scenario)


def test_nothing_is_made_for_a_pod_that_is_done() -> None:
    async def scenario(cluster: Cluster) -> None:
        stop = cluster.start_controller()
        await stop()
        await cluster.pod("p", inline("gpu"))
        await cluster.eventually(lambda: _exists(cluster, "p-gpu"), bool)
        await cluster.set_phase("p", "Succeeded")
        await cluster.eventually(lambda: _exists(cluster, "p-gpu"), lambda there: not there)
        await asyncio.sleep(100)
        assert not await _exists(cluster, "p-gpu")

    run_scenario(scenario)


def test_a_pod_whose_binding_came_late_gets_its_reservation() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.claim("shared")
        await _allocate(cluster, "shared")
        await cluster.pod("p", named("shared"), nodeName="n1")
        await cluster.eventually(lambda: _users(cluster, "shared"), lambda users: users == ["p"])
        await cluster.pod("late", named("shared"), nodeName="n1")
        await cluster.pod("optional", named("shared", optional=True), nodeName="n1")
        await asyncio.sleep(100)
        assert await _users(cluster, "shared") == ["p"]

    run_scenario(scenario)


@pytest.mark.behaviour("CL-22")
def test_the_controllers_role_allows_what_it_does() -> None:
    rules = [rule for rule in CONTROLLER_ROLES["resource-claim-controller"] if rule["apiGroups"] == ["cdi.k8s.io"]]
    allowed = {(verb, resource) for rule in rules for verb in rule["verbs"] for resource in rule["resources"]}
    assert allowed >= {("create", "resourceclaims"), ("delete", "resourceclaims"), ("update", "resourceclaims/status")}


def _before_deletion(cluster: Cluster, act: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Act once, before the server receives the controller's first deletion of a claim."""
    inner = cluster.transports["controller"].inner
    send, pending = inner.send, [act]

    async def delayed(call: Call) -> Document:
        if call.resource is not None and call.resource.plural == "resourceclaims" and call.verb == "delete" and pending:
            await pending.pop()()
        return await send(call)

    inner.send = delayed  # type: ignore[method-assign]


@pytest.mark.behaviour("CL-19", "CL-30")
def test_deletion_spares_a_claim_that_was_recreated_under_the_same_name() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.pod("p", inline("gpu"))
        await cluster.eventually(lambda: _exists(cluster, "p-gpu"), bool)
        old = await cluster.get_claim("p-gpu")

        async def recreate() -> None:
            await cluster.user.delete(CLAIMS, "p-gpu", TEAM)
            await cluster.user.create(CLAIMS, {"metadata": {"name": "p-gpu", "namespace": TEAM}, "spec": old["spec"]})

        _before_deletion(cluster, recreate)
        await cluster.set_phase("p", "Succeeded")
        await asyncio.sleep(100)
        assert (await cluster.get_claim("p-gpu"))["metadata"]["uid"] != old["metadata"]["uid"]

    run_scenario(scenario)


@pytest.mark.behaviour("CL-19", "CL-22")
def test_a_claim_that_is_reserved_meanwhile_is_not_deleted() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.pod("p", inline("gpu"))
        await cluster.eventually(lambda: _exists(cluster, "p-gpu"), bool)
        other = await cluster.pod("other", named("p-gpu"), nodeName="n1")

        async def reserve() -> None:
            await _allocate(cluster, "p-gpu", other)

        _before_deletion(cluster, reserve)
        await cluster.set_phase("p", "Succeeded")
        await asyncio.sleep(100)
        assert await _users(cluster, "p-gpu") == ["other"]

    run_scenario(scenario)
