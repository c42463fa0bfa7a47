"""Pods with classic claims on their way to a node: scheduler, claim controller and a driver together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.errors import BadRequestError
from dray.client.interface import Patch, PatchType
from dray.sim.replica.virtual_time import run_virtually
from tests.conformance.classic.cluster import (
    CLAIMS,
    CLASSES,
    DEVICE_CLASSES,
    DRIVER,
    EVENTS,
    NODES,
    NOW,
    PODS,
    SLICES,
    STRUCTURED_CLAIMS,
    TEAM,
    Boards,
    Cluster,
    inline,
    named,
    running_cluster,
)

Scenario = Callable[[Cluster], Coroutine[Any, Any, None]]


def run_scenario(scenario: Scenario, **how: Any) -> None:
    async def run() -> None:
        async with running_cluster(**how) as cluster:
            await cluster.furnish()
            await scenario(cluster)

    run_virtually(run())


def scheduling(claim: Document, part: str) -> Document:
    found: Document = (claim["status"].get("scheduling") or {}).get(part) or {}
    return found


def on(node: str) -> Document:
    """A selector of one node by its name."""
    return {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]}


async def write(cluster: Cluster, name: str, **status: Any) -> Document:
    """As a driver of another make would."""
    claim = await cluster.get_claim(name)
    return await cluster.user.update_status(CLAIMS, {**claim, "status": {**claim["status"], **status}})


async def allocate(cluster: Cluster, name: str, node: str = "", **status: Any) -> Document:
    where = {"driver": {"availableOnNodes": on(node)}} if node else None
    return await write(cluster, name, phase="Allocated", driverName=DRIVER, scheduling=where, **status)


# --- Immediate. ---


@pytest.mark.behaviour("CL-33", "CL-25", "CL-34", "CL-40")
def test_an_immediate_claim_decides_where_the_pod_goes() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.claim("c", "Immediate")
        await cluster.pod("p", named("c"))
        text = await cluster.message("p", "unallocated immediate resourceclaim")
        assert f"(resourceclaim team/c, driver {DRIVER})" in text
        driver = Boards({"n2": 1})
        cluster.start_driver(driver)
        assert await cluster.node_of("p") == "n2"
        claim = await cluster.get_claim("c")
        assert [user["name"] for user in claim["status"]["reservedFor"]] == ["p"]
        assert "selectedNode" not in scheduling(claim, "scheduler")
        assert driver.called("allocate") == [("c", "")]

    run_scenario(scenario)


@pytest.mark.behaviour("CL-25", "CL-28")
def test_an_immediate_claim_waits_for_room_and_is_not_tried_all_the_time() -> None:
    async def scenario(cluster: Cluster) -> None:
        driver = Boards({"n1": 1})
        cluster.start_driver(driver)
        await cluster.claim("first", "Immediate")
        await cluster.phase("first", "Allocated")
        await cluster.claim("second", "Immediate")
        await asyncio.sleep(60)
        assert 3 < len(driver.called("allocate")) < 12
        assert "finalizers" not in (await cluster.get_claim("second"))["metadata"]
        await cluster.user.delete(CLAIMS, "first", TEAM)
        await cluster.phase("second", "Allocated")

    run_scenario(scenario)


# --- Delayed. ---


@pytest.mark.behaviour("CL-26", "CL-39", "CL-07", "CL-09", "CL-32")
def test_a_delayed_claim_is_allocated_for_the_node_that_fits_the_pod() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.claim("c")
        await asyncio.sleep(50)
        driver = Boards({"n1": 1, "n2": 1})
        cluster.start_driver(driver)
        await asyncio.sleep(50)
        assert driver.calls == []
        await cluster.pod("p", named("c"), nodeSelector={"kubernetes.io/hostname": "n2"})
        await cluster.user.patch(
            NODES, "n2", "", Patch(PatchType.MERGE, {"metadata": {"labels": {"kubernetes.io/hostname": "n2"}}})
        )
        assert await cluster.node_of("p") == "n2"
        assert driver.called("allocate") == [("c", "n2")]
        status = (await cluster.get_claim("c"))["status"]
        assert (status["phase"], status["driverName"], status["attributes"]) == ("Allocated", DRIVER, {"node": "n2"})
        assert status["scheduling"] == {"driver": {"availableOnNodes": on("n2")}}

    run_scenario(scenario)


@pytest.mark.behaviour("CL-38", "CL-39")
def test_the_scheduler_asks_and_selects_in_one_write_and_then_waits_for_nothing_but_the_answer() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.pod("p", inline())
        text = await cluster.message("p", "waiting for resource driver to allocate resource (resourceclaim team/p-gpu")
        assert "node n" in text
        claim = await cluster.get_claim("p-gpu")
        part = scheduling(claim, "scheduler")
        assert (part["potentialNodes"], part["selectedNode"]) == (["n1", "n2"], part["selectedNode"])
        assert len(cluster.transports["scheduler"].writes()) == 1
        assert cluster.scheduler is not None
        [queued] = cluster.scheduler.queue.pending()
        tries = queued.attempts
        # Whatever happens to nodes, other Pods and other claims is none of its business.
        await cluster.node("n3")
        await cluster.user.delete(NODES, "n3")
        await cluster.pod("other")
        await cluster.node_of("other")
        await cluster.claim("unrelated", "Immediate")
        await allocate(cluster, "unrelated", "n1")
        await asyncio.sleep(200)
        assert queued.attempts == tries
        assert cluster.scheduler.queue.counts()["unschedulable"] == 1
        assert len(cluster.transports["scheduler"].writes()) == 1
        await allocate(cluster, "p-gpu", part["selectedNode"])
        assert await cluster.node_of("p") == part["selectedNode"]

    run_scenario(scenario)


@pytest.mark.behaviour("CL-28", "CL-35", "CL-39")
def test_a_refused_node_is_not_tried_again() -> None:
    async def scenario(cluster: Cluster) -> None:
        driver = Boards({"n2": 1})
        cluster.start_driver(driver)
        for name in ("n3", "n4", "n5"):
            await cluster.node(name)
        await cluster.pod("p", inline())
        assert await cluster.node_of("p") == "n2"
        assert len(driver.called("allocate")) <= 2

    run_scenario(scenario)


@pytest.mark.behaviour("CL-27", "CL-35")
def test_a_pod_waits_until_the_driver_finds_a_node_suitable_again() -> None:
    async def scenario(cluster: Cluster) -> None:
        driver = Boards({"n1": 1, "n2": 0})
        cluster.start_driver(driver)
        await cluster.pod("first", inline())
        await cluster.node_of("first")
        await cluster.pod("second", inline())
        text = await cluster.message("second", "2 resourceclaim cannot be allocated for the node (unsuitable)")
        assert text.startswith("0/2 nodes are available:")
        assert scheduling(await cluster.get_claim("second-gpu"), "driver")["unsuitableNodes"] == ["n1", "n2"]
        await cluster.set_phase("first", "Succeeded")
        assert await cluster.node_of("second") == "n1"

    run_scenario(scenario)


@pytest.mark.behaviour("CL-35", "CL-09")
def test_where_a_claim_may_come_to_be_is_known_before_it_is_allocated() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.claim("c")
        await write(cluster, "c", scheduling={"driver": {"availableOnNodes": on("n2")}})
        await cluster.pod("p", named("c"))
        selected = await cluster.eventually(
            lambda: cluster.get_claim("c"), lambda claim: bool(scheduling(claim, "scheduler").get("selectedNode"))
        )
        assert scheduling(selected, "scheduler")["selectedNode"] == "n2"

    run_scenario(scenario)


@pytest.mark.behaviour("CL-34", "CL-51")
def test_a_pod_goes_only_where_its_allocated_claim_is() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.node("n3", feature="on")
        await cluster.claim("c", "Immediate")
        where = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "feature", "operator": "In", "values": ["on"]}]}]}
        await write(
            cluster, "c", phase="Allocated", driverName=DRIVER, scheduling={"driver": {"availableOnNodes": where}}
        )
        await cluster.pod("p", named("c"))
        assert await cluster.node_of("p") == "n3"

    run_scenario(scenario)


@pytest.mark.behaviour("CL-64")
def test_while_a_driver_allocates_there_is_no_warning() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start_driver(Boards({"n1": 1, "n2": 1}))
        await cluster.pod("p", inline())
        await cluster.node_of("p")
        found = (await cluster.user.list(EVENTS, TEAM)).items
        of_pod = [
            (item["type"], item["reason"], item["message"]) for item in found if item["involvedObject"]["name"] == "p"
        ]
        assert [(kind, reason) for kind, reason, _ in of_pod] == [
            ("Normal", "WaitingForDriver"),
            ("Normal", "Scheduled"),
        ]
        assert of_pod[0][2].startswith(
            "waiting for resource driver to allocate resource (resourceclaim team/p-gpu, node n"
        )

    run_scenario(scenario)


@pytest.mark.behaviour("CL-55", "CL-40")
def test_a_hundred_pods_use_one_claim_at_once() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.claim("c", "Immediate")
        await allocate(cluster, "c", "n1", userLimit=-1)
        names = [f"p{number}" for number in range(100)]
        begun = asyncio.get_running_loop().time()
        await asyncio.gather(*(cluster.pod(name, named("c"), cpu="1m") for name in names))
        for name in names:
            assert await cluster.node_of(name) == "n1"
        assert asyncio.get_running_loop().time() - begun < 3
        users = (await cluster.get_claim("c"))["status"]["reservedFor"]
        assert {user["name"] for user in users} == set(names)

    run_scenario(scenario)


@pytest.mark.behaviour("CL-39")
def test_several_claims_are_asked_about_before_a_node_is_selected() -> None:
    async def scenario(cluster: Cluster) -> None:
        driver = Boards({"n1": 1, "n2": 2})
        cluster.start_driver(driver)
        await cluster.pod("p", inline("one"), inline("two"))
        assert await cluster.node_of("p") == "n2"
        assert driver.called("allocate") == [("p-one", "n2"), ("p-two", "n2")]
        assert ("p-one,p-two", "") in driver.called("unsuitable_nodes")

    run_scenario(scenario)


def test_another_node_is_selected_when_the_selected_one_is_gone() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.pod("p", inline())
        await cluster.message("p", "waiting for resource driver")
        first = scheduling(await cluster.get_claim("p-gpu"), "scheduler")["selectedNode"]
        await cluster.user.delete(NODES, first)
        other = "n2" if first == "n1" else "n1"
        await cluster.eventually(
            lambda: cluster.get_claim("p-gpu"),
            lambda claim: scheduling(claim, "scheduler").get("selectedNode") == other,
        )

    run_scenario(scenario)


# --- Reallocation. ---


@pytest.mark.behaviour("CL-29", "CL-36", "CL-37")
def test_an_unused_claim_in_the_way_is_allocated_elsewhere() -> None:
    async def scenario(cluster: Cluster) -> None:
        driver = Boards({"n1": 1, "n2": 1})
        cluster.start_driver(driver)
        await cluster.claim("c")
        await cluster.pod("first", named("c"))
        first = await cluster.node_of("first")
        await cluster.user.delete(PODS, "first", TEAM, NOW)
        # Its node is full when the next one comes.
        await cluster.pod("filler", cpu="7900m", nodeName=first)
        await cluster.pod("second", named("c"), cpu="1")
        assert await cluster.node_of("second") != first
        assert driver.called("deallocate") == [("c", first)]
        assert len(driver.held) == 1

    run_scenario(scenario)


@pytest.mark.behaviour("CL-37")
@pytest.mark.parametrize("obstacle", ["immediate", "in use"])
def test_what_is_not_to_be_freed_stays(obstacle: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        driver = Boards({"n1": 1}, user_limit=-1)
        cluster.start_driver(driver)
        await cluster.node("n1-other")
        await cluster.claim("c", "Immediate" if obstacle == "immediate" else "Delayed")
        if obstacle == "in use":
            await cluster.pod("user", named("c"))
            await cluster.node_of("user")
        await cluster.phase("c", "Allocated")
        await cluster.pod("filler", cpu="7900m", nodeName="n1")
        await cluster.pod("p", named("c"), cpu="1")
        await cluster.message("p", "resourceclaim not available on the node")
        await asyncio.sleep(100)
        assert (await cluster.get_claim("c"))["status"]["phase"] == "Allocated"
        assert driver.called("deallocate") == []

    run_scenario(scenario)


@pytest.mark.behaviour("CL-37")
def test_one_claim_at_a_time_is_freed() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.claim("one")
        await cluster.claim("two")
        await allocate(cluster, "one", "n1")
        await allocate(cluster, "two", "n1")
        await cluster.pod("filler", cpu="7900m", nodeName="n1")
        await cluster.pod("p", named("one", "one"), named("two", "two"), cpu="1")
        await cluster.message("p", "deallocation of ResourceClaim requested")
        await cluster.node("n3")
        await cluster.message("p", "waiting for resource driver to deallocate resource")
        await asyncio.sleep(100)
        phases = sorted([(await cluster.get_claim(name))["status"]["phase"] for name in ("one", "two")])
        assert phases == ["Allocated", "Reallocate"]

    run_scenario(scenario)


def test_half_of_what_a_pod_needs_is_not_kept_from_others() -> None:
    async def scenario(cluster: Cluster) -> None:
        driver = Boards({"n1": 1})
        cluster.start_driver(driver)
        await cluster.user.delete(NODES, "n2")
        await cluster.claim("held")
        await cluster.pod("p", named("held", "held"))
        await cluster.node_of("p")
        await cluster.user.delete(PODS, "p", TEAM, NOW)
        await cluster.pod("needs-two", named("held", "held"), inline("more"))
        await cluster.phase("held", "Pending")
        await cluster.pod("needs-one", inline())
        assert await cluster.node_of("needs-one") == "n1"

    run_scenario(scenario)


# --- Reservation. ---


@pytest.mark.behaviour("CL-11", "CL-12", "CL-40")
@pytest.mark.parametrize(("limit", "placed"), [(1, 1), (2, 2), (-1, 4)])
def test_no_more_pods_than_allowed(limit: int, placed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start_driver(Boards({"n1": 1}, user_limit=limit))
        await cluster.claim("shared")
        for number in range(4):
            await cluster.pod(f"p{number}", named("shared"))
        await asyncio.sleep(100)
        pods = [await cluster.get_pod(f"p{number}") for number in range(4)]
        bound = [pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName")]
        users = [user["name"] for user in (await cluster.get_claim("shared"))["status"]["reservedFor"]]
        assert len(bound) == placed
        assert sorted(users) == sorted(bound)
        waiting = [pod["metadata"]["name"] for pod in pods if not pod["spec"].get("nodeName")]
        if waiting:
            await cluster.message(waiting[0], "resourceclaim in use (team/shared)")
            await cluster.user.delete(PODS, bound[0], TEAM, NOW)
            await cluster.eventually(
                lambda: cluster.get_claim("shared"),
                lambda claim: (
                    {user["name"] for user in claim["status"].get("reservedFor") or ()} & set(waiting) != set()
                ),
            )

    run_scenario(scenario)


@pytest.mark.behaviour("CL-41", "CL-32")
def test_a_pod_that_cannot_be_bound_leaves_its_claims() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start_driver(Boards({"n1": 1}))
        await cluster.claim("c", "Immediate")
        await cluster.phase("c", "Allocated")
        refused: list[str] = []

        def refuse(call: Any) -> Exception | None:
            if call.subresource == "binding" and len(refused) < 2:
                refused.append(call.name)
                return BadRequestError("made up")
            return None

        cluster.transports["scheduler"].fail = refuse
        await cluster.pod("p", named("c"))
        assert await cluster.node_of("p") == "n1"
        users = [
            len(call.body["status"].get("reservedFor") or ())  # type: ignore[index, call-overload]
            for call in cluster.transports["scheduler"].writes()
        ]
        assert users == [1, 0, 1, 0, 1]

    run_scenario(scenario)


# --- Which claims are meant. ---


@pytest.mark.behaviour("CL-14")
def test_a_name_in_both_groups_is_reported_to_the_user() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start_driver(Boards({"n1": 1}))
        await cluster.claim("both", "Immediate")
        spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "none"}}]}}
        await cluster.user.create(STRUCTURED_CLAIMS, {"metadata": {"name": "both", "namespace": TEAM}, "spec": spec})
        await cluster.phase("both", "Allocated")
        await cluster.pod("p", named("both"))
        await asyncio.sleep(50)
        assert cluster.scheduler is not None
        assert cluster.scheduler.queue.counts()["gated"] == 1
        await cluster.user.delete(STRUCTURED_CLAIMS, "both", TEAM)
        assert await cluster.node_of("p") == "n1"

    run_scenario(scenario)


@pytest.mark.behaviour("CL-14")
def test_a_claim_may_come_after_its_pod() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start_driver(Boards({"n1": 1}))
        await cluster.pod("p", named("late"))
        await asyncio.sleep(10)
        await cluster.claim("late")
        assert await cluster.node_of("p") == "n1"

    run_scenario(scenario)


def test_a_class_may_come_after_its_claim() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start_driver(Boards({"n1": 1}))
        await cluster.claim("c", class_name="later")
        await cluster.pod("p", named("c"))
        await cluster.message("p", "resourceclaim team/c: resource class later does not exist")
        await cluster.user.create(CLASSES, {"metadata": {"name": "later"}, "driverName": DRIVER})
        assert await cluster.node_of("p") == "n1"

    run_scenario(scenario)


# --- Together with other ways to ask for devices. ---


async def _device(cluster: Cluster, node: str) -> None:
    expression = 'device.driver == "dev.example.com"'
    spec = {"selectors": [{"cel": {"expression": expression}}], "extendedResourceName": "example.com/dev"}
    if not (await cluster.user.list(DEVICE_CLASSES)).items:
        await cluster.user.create(DEVICE_CLASSES, {"metadata": {"name": "dev"}, "spec": spec})
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    devices = {"driver": "dev.example.com", "nodeName": node, "pool": pool, "devices": [{"name": "d0"}, {"name": "d1"}]}
    await cluster.user.create(SLICES, {"metadata": {"name": node}, "spec": devices})


@pytest.mark.behaviour("CL-32")
def test_a_pod_with_all_kinds_of_claims_is_placed_once_and_whole() -> None:
    async def scenario(cluster: Cluster) -> None:
        driver = Boards({"n1": 1, "n2": 1})
        await _device(cluster, "n2")
        spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "dev"}}]}}
        await cluster.user.create(STRUCTURED_CLAIMS, {"metadata": {"name": "dev", "namespace": TEAM}, "spec": spec})
        container = {"name": "c", "image": "i", "resources": {"limits": {"example.com/dev": "1"}}}
        await cluster.pod("p", inline(), named("dev", "dev"), containers=[container])
        await cluster.message("p", "waiting for resource driver to allocate resource (resourceclaim team/p-gpu")
        await asyncio.sleep(50)
        # Nothing is taken while a driver is at work.
        claims = (await cluster.user.list(STRUCTURED_CLAIMS, TEAM)).items
        assert [claim["metadata"]["name"] for claim in claims] == ["dev"]
        assert "allocation" not in (claims[0].get("status") or {})
        cluster.start_driver(driver)
        assert await cluster.node_of("p") == "n2"
        assert driver.called("allocate") == [("p-gpu", "n2")]
        held = (await cluster.user.list(STRUCTURED_CLAIMS, TEAM)).items
        assert len(held) == 2
        assert all(claim["status"]["reservedFor"][0]["name"] == "p" for claim in held)

    run_scenario(scenario)


@pytest.mark.behaviour("CL-36", "CL-37")
def test_a_classic_claim_follows_the_devices_of_the_others() -> None:
    async def scenario(cluster: Cluster) -> None:
        driver = Boards({"n1": 1, "n2": 1})
        cluster.start_driver(driver)
        await cluster.claim("c")
        await cluster.pod("first", named("c"), nodeSelector={"place": "one"})
        await cluster.user.patch(NODES, "n1", "", Patch(PatchType.MERGE, {"metadata": {"labels": {"place": "one"}}}))
        await cluster.node_of("first")
        await cluster.user.delete(PODS, "first", TEAM, NOW)
        await _device(cluster, "n2")
        container = {"name": "c", "image": "i", "resources": {"limits": {"example.com/dev": "1"}}}
        await cluster.pod("p", named("c"), containers=[container])
        assert await cluster.node_of("p") == "n2"
        assert (await cluster.get_claim("c"))["status"]["attributes"] == {"node": "n2"}

    run_scenario(scenario)


@pytest.mark.behaviour("CL-33")
def test_pods_without_claims_are_left_alone() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.pod("p")
        await cluster.node_of("p")
        assert cluster.transports["scheduler"].writes() == []

    run_scenario(scenario)
