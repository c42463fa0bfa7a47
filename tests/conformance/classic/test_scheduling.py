"""Pods with classic claims on their way to a node: scheduler, claim controller and a driver together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.errors import InternalError
from dray.client.interface import Patch, PatchType
from dray.sim.replica.virtual_time import run_virtually
from tests.conformance.classic.cluster import (
    CLAIMS,
    CLASSES,
    DEVICE_CLASSES,
    DRIVER,
    NODES,
    NOW,
    PODS,
    SLICES,
    STRUCTURED_CLAIMS,
    TEAM,
    Boards,
    Cluster,
    cluster,
    inline,
    named,
)

Story = Callable[[Cluster], Coroutine[Any, Any, None]]


def tell(story: Story, **how: Any) -> None:
    async def told() -> None:
        async with cluster(**how) as world:
            await world.furnish()
            await story(world)

    run_virtually(told())


def scheduling(claim: Document, part: str) -> Document:
    found: Document = (claim["status"].get("scheduling") or {}).get(part) or {}
    return found


def on(node: str) -> Document:
    """A selector of one node by its name."""
    return {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]}


async def write(world: Cluster, name: str, **status: Any) -> Document:
    """As a driver of another make would."""
    claim = await world.get_claim(name)
    return await world.user.update_status(CLAIMS, {**claim, "status": {**claim["status"], **status}})


async def allocate(world: Cluster, name: str, node: str = "", **status: Any) -> Document:
    where = {"driver": {"availableOnNodes": on(node)}} if node else None
    return await write(world, name, phase="Allocated", driverName=DRIVER, scheduling=where, **status)


# --- Immediate. ---


@pytest.mark.behaviour("CL-33", "CL-25", "CL-34", "CL-40")
def test_an_immediate_claim_decides_where_the_pod_goes() -> None:
    async def story(world: Cluster) -> None:
        await world.claim("c", "Immediate")
        await world.pod("p", named("c"))
        text = await world.message("p", "unallocated immediate resourceclaim")
        assert f"(resourceclaim team/c, driver {DRIVER})" in text
        driver = Boards({"n2": 1})
        world.start_driver(driver)
        assert await world.node_of("p") == "n2"
        claim = await world.get_claim("c")
        assert [user["name"] for user in claim["status"]["reservedFor"]] == ["p"]
        assert "selectedNode" not in scheduling(claim, "scheduler")
        assert driver.called("allocate") == [("c", "")]

    tell(story)


@pytest.mark.behaviour("CL-25", "CL-28")
def test_an_immediate_claim_waits_for_room_and_is_not_tried_all_the_time() -> None:
    async def story(world: Cluster) -> None:
        driver = Boards({"n1": 1})
        world.start_driver(driver)
        await world.claim("first", "Immediate")
        await world.phase("first", "Allocated")
        await world.claim("second", "Immediate")
        await asyncio.sleep(60)
        assert 3 < len(driver.called("allocate")) < 12
        assert "finalizers" not in (await world.get_claim("second"))["metadata"]
        await world.user.delete(CLAIMS, "first", TEAM)
        await world.phase("second", "Allocated")

    tell(story)


# --- Delayed. ---


@pytest.mark.behaviour("CL-26", "CL-39", "CL-07", "CL-09", "CL-32")
def test_a_delayed_claim_is_allocated_for_the_node_that_fits_the_pod() -> None:
    async def story(world: Cluster) -> None:
        await world.claim("c")
        await asyncio.sleep(50)
        driver = Boards({"n1": 1, "n2": 1})
        world.start_driver(driver)
        await asyncio.sleep(50)
        assert driver.calls == []
        await world.pod("p", named("c"), nodeSelector={"kubernetes.io/hostname": "n2"})
        await world.user.patch(
            NODES, "n2", "", Patch(PatchType.MERGE, {"metadata": {"labels": {"kubernetes.io/hostname": "n2"}}})
        )
        assert await world.node_of("p") == "n2"
        assert driver.called("allocate") == [("c", "n2")]
        status = (await world.get_claim("c"))["status"]
        assert (status["phase"], status["driverName"], status["attributes"]) == ("Allocated", DRIVER, {"node": "n2"})
        assert status["scheduling"] == {"driver": {"availableOnNodes": on("n2")}}

    tell(story)


@pytest.mark.behaviour("CL-38", "CL-39")
def test_the_scheduler_asks_and_selects_in_one_write_and_then_waits_for_nothing_but_the_answer() -> None:
    async def story(world: Cluster) -> None:
        await world.pod("p", inline())
        text = await world.message("p", "waiting for resource driver to allocate resource (resourceclaim team/p-gpu")
        assert "node n" in text
        claim = await world.get_claim("p-gpu")
        part = scheduling(claim, "scheduler")
        assert (part["potentialNodes"], part["selectedNode"]) == (["n1", "n2"], part["selectedNode"])
        assert len(world.transports["scheduler"].writes()) == 1
        assert world.scheduler is not None
        [queued] = world.scheduler.queue.pending()
        tries = queued.attempts
        # Whatever happens to nodes, other Pods and other claims is none of its business.
        await world.node("n3")
        await world.user.delete(NODES, "n3")
        await world.pod("other")
        await world.node_of("other")
        await world.claim("unrelated", "Immediate")
        await allocate(world, "unrelated", "n1")
        await asyncio.sleep(200)
        assert queued.attempts == tries
        assert world.scheduler.queue.counts()["unschedulable"] == 1
        assert len(world.transports["scheduler"].writes()) == 1
        await allocate(world, "p-gpu", part["selectedNode"])
        assert await world.node_of("p") == part["selectedNode"]

    tell(story)


@pytest.mark.behaviour("CL-28", "CL-35", "CL-39")
def test_a_refused_node_is_not_tried_again() -> None:
    async def story(world: Cluster) -> None:
        driver = Boards({"n2": 1})
        world.start_driver(driver)
        for name in ("n3", "n4", "n5"):
            await world.node(name)
        await world.pod("p", inline())
        assert await world.node_of("p") == "n2"
        assert len(driver.called("allocate")) <= 2

    tell(story)


@pytest.mark.behaviour("CL-27", "CL-35")
def test_a_pod_waits_until_the_driver_finds_a_node_suitable_again() -> None:
    async def story(world: Cluster) -> None:
        driver = Boards({"n1": 1, "n2": 0})
        world.start_driver(driver)
        await world.pod("first", inline())
        await world.node_of("first")
        await world.pod("second", inline())
        text = await world.message("second", "2 resourceclaim cannot be allocated for the node (unsuitable)")
        assert text.startswith("0/2 nodes are available:")
        assert scheduling(await world.get_claim("second-gpu"), "driver")["unsuitableNodes"] == ["n1", "n2"]
        await world.set_phase("first", "Succeeded")
        assert await world.node_of("second") == "n1"

    tell(story)


@pytest.mark.behaviour("CL-35", "CL-09")
def test_where_a_claim_may_come_to_be_is_known_before_it_is_allocated() -> None:
    async def story(world: Cluster) -> None:
        await world.claim("c")
        await write(world, "c", scheduling={"driver": {"availableOnNodes": on("n2")}})
        await world.pod("p", named("c"))
        selected = await world.eventually(
            lambda: world.get_claim("c"), lambda claim: bool(scheduling(claim, "scheduler").get("selectedNode"))
        )
        assert scheduling(selected, "scheduler")["selectedNode"] == "n2"

    tell(story)


@pytest.mark.behaviour("CL-34", "CL-51")
def test_a_pod_goes_only_where_its_allocated_claim_is() -> None:
    async def story(world: Cluster) -> None:
        await world.node("n3", feature="on")
        await world.claim("c", "Immediate")
        where = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "feature", "operator": "In", "values": ["on"]}]}]}
        await write(
            world, "c", phase="Allocated", driverName=DRIVER, scheduling={"driver": {"availableOnNodes": where}}
        )
        await world.pod("p", named("c"))
        assert await world.node_of("p") == "n3"

    tell(story)


@pytest.mark.behaviour("CL-39")
def test_several_claims_are_asked_about_before_a_node_is_selected() -> None:
    async def story(world: Cluster) -> None:
        driver = Boards({"n1": 1, "n2": 2})
        world.start_driver(driver)
        await world.pod("p", inline("one"), inline("two"))
        assert await world.node_of("p") == "n2"
        assert driver.called("allocate") == [("p-one", "n2"), ("p-two", "n2")]
        assert ("p-one,p-two", "") in driver.called("unsuitable_nodes")

    tell(story)


def test_another_node_is_selected_when_the_selected_one_is_gone() -> None:
    async def story(world: Cluster) -> None:
        await world.pod("p", inline())
        await world.message("p", "waiting for resource driver")
        first = scheduling(await world.get_claim("p-gpu"), "scheduler")["selectedNode"]
        await world.user.delete(NODES, first)
        other = "n2" if first == "n1" else "n1"
        await world.eventually(
            lambda: world.get_claim("p-gpu"),
            lambda claim: scheduling(claim, "scheduler").get("selectedNode") == other,
        )

    tell(story)


# --- Reallocation. ---


@pytest.mark.behaviour("CL-29", "CL-36", "CL-37")
def test_an_unused_claim_in_the_way_is_allocated_elsewhere() -> None:
    async def story(world: Cluster) -> None:
        driver = Boards({"n1": 1, "n2": 1})
        world.start_driver(driver)
        await world.claim("c")
        await world.pod("first", named("c"))
        first = await world.node_of("first")
        await world.user.delete(PODS, "first", TEAM, NOW)
        # Its node is full when the next one comes.
        await world.pod("filler", cpu="7900m", nodeName=first)
        await world.pod("second", named("c"), cpu="1")
        assert await world.node_of("second") != first
        assert driver.called("deallocate") == [("c", first)]
        assert len(driver.held) == 1

    tell(story)


@pytest.mark.behaviour("CL-37")
@pytest.mark.parametrize("obstacle", ["immediate", "in use"])
def test_what_is_not_to_be_freed_stays(obstacle: str) -> None:
    async def story(world: Cluster) -> None:
        driver = Boards({"n1": 1}, user_limit=-1)
        world.start_driver(driver)
        await world.node("n1-other")
        await world.claim("c", "Immediate" if obstacle == "immediate" else "Delayed")
        if obstacle == "in use":
            await world.pod("user", named("c"))
            await world.node_of("user")
        await world.phase("c", "Allocated")
        await world.pod("filler", cpu="7900m", nodeName="n1")
        await world.pod("p", named("c"), cpu="1")
        await world.message("p", "resourceclaim not available on the node")
        await asyncio.sleep(100)
        assert (await world.get_claim("c"))["status"]["phase"] == "Allocated"
        assert driver.called("deallocate") == []

    tell(story)


@pytest.mark.behaviour("CL-37")
def test_one_claim_at_a_time_is_freed() -> None:
    async def story(world: Cluster) -> None:
        await world.claim("one")
        await world.claim("two")
        await allocate(world, "one", "n1")
        await allocate(world, "two", "n1")
        await world.pod("filler", cpu="7900m", nodeName="n1")
        await world.pod("p", named("one", "one"), named("two", "two"), cpu="1")
        await world.message("p", "deallocation of ResourceClaim requested")
        await world.node("n3")
        await world.message("p", "waiting for resource driver to deallocate resource")
        await asyncio.sleep(100)
        phases = sorted([(await world.get_claim(name))["status"]["phase"] for name in ("one", "two")])
        assert phases == ["Allocated", "Reallocate"]

    tell(story)


def test_half_of_what_a_pod_needs_is_not_kept_from_others() -> None:
    async def story(world: Cluster) -> None:
        driver = Boards({"n1": 1})
        world.start_driver(driver)
        await world.user.delete(NODES, "n2")
        await world.claim("held")
        await world.pod("p", named("held", "held"))
        await world.node_of("p")
        await world.user.delete(PODS, "p", TEAM, NOW)
        await world.pod("needs-two", named("held", "held"), inline("more"))
        await world.phase("held", "Pending")
        await world.pod("needs-one", inline())
        assert await world.node_of("needs-one") == "n1"

    tell(story)


# --- Reservation. ---


@pytest.mark.behaviour("CL-11", "CL-12", "CL-40")
@pytest.mark.parametrize(("limit", "placed"), [(1, 1), (2, 2), (-1, 4)])
def test_no_more_pods_than_allowed(limit: int, placed: int) -> None:
    async def story(world: Cluster) -> None:
        world.start_driver(Boards({"n1": 1}, user_limit=limit))
        await world.claim("shared")
        for number in range(4):
            await world.pod(f"p{number}", named("shared"))
        await asyncio.sleep(100)
        pods = [await world.get_pod(f"p{number}") for number in range(4)]
        bound = [pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName")]
        users = [user["name"] for user in (await world.get_claim("shared"))["status"]["reservedFor"]]
        assert len(bound) == placed
        assert sorted(users) == sorted(bound)
        waiting = [pod["metadata"]["name"] for pod in pods if not pod["spec"].get("nodeName")]
        if waiting:
            await world.message(waiting[0], "resourceclaim in use (team/shared)")
            await world.user.delete(PODS, bound[0], TEAM, NOW)
            await world.eventually(
                lambda: world.get_claim("shared"),
                lambda claim: (
                    {user["name"] for user in claim["status"].get("reservedFor") or ()} & set(waiting) != set()
                ),
            )

    tell(story)


@pytest.mark.behaviour("CL-41", "CL-32")
def test_a_pod_that_cannot_be_bound_leaves_its_claims() -> None:
    async def story(world: Cluster) -> None:
        world.start_driver(Boards({"n1": 1}))
        await world.claim("c", "Immediate")
        await world.phase("c", "Allocated")
        refused: list[str] = []

        def refuse(call: Any) -> Exception | None:
            if call.subresource == "binding" and len(refused) < 2:
                refused.append(call.name)
                return InternalError("made up")
            return None

        world.transports["scheduler"].fail = refuse
        await world.pod("p", named("c"))
        assert await world.node_of("p") == "n1"
        users = [
            len(call.body["status"].get("reservedFor") or ())  # type: ignore[index, call-overload]
            for call in world.transports["scheduler"].writes()
        ]
        assert users == [1, 0, 1, 0, 1]

    tell(story)


# --- Which claims are meant. ---


@pytest.mark.behaviour("CL-14")
def test_a_name_in_both_groups_is_an_error_that_the_user_is_told_of() -> None:
    async def story(world: Cluster) -> None:
        world.start_driver(Boards({"n1": 1}))
        await world.claim("both", "Immediate")
        spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "none"}}]}}
        await world.user.create(STRUCTURED_CLAIMS, {"metadata": {"name": "both", "namespace": TEAM}, "spec": spec})
        await world.phase("both", "Allocated")
        await world.pod("p", named("both"))
        await asyncio.sleep(50)
        assert world.scheduler is not None
        assert world.scheduler.queue.counts()["gated"] == 1
        await world.user.delete(STRUCTURED_CLAIMS, "both", TEAM)
        assert await world.node_of("p") == "n1"

    tell(story)


@pytest.mark.behaviour("CL-14")
def test_a_claim_may_come_after_its_pod() -> None:
    async def story(world: Cluster) -> None:
        world.start_driver(Boards({"n1": 1}))
        await world.pod("p", named("late"))
        await asyncio.sleep(10)
        await world.claim("late")
        assert await world.node_of("p") == "n1"

    tell(story)


def test_a_class_may_come_after_its_claim() -> None:
    async def story(world: Cluster) -> None:
        world.start_driver(Boards({"n1": 1}))
        await world.claim("c", class_name="later")
        await world.pod("p", named("c"))
        await world.message("p", "resourceclaim team/c: resource class later does not exist")
        await world.user.create(CLASSES, {"metadata": {"name": "later"}, "driverName": DRIVER})
        assert await world.node_of("p") == "n1"

    tell(story)


# --- Together with other ways to ask for devices. ---


async def _device(world: Cluster, node: str) -> None:
    expression = 'device.driver == "dev.example.com"'
    spec = {"selectors": [{"cel": {"expression": expression}}], "extendedResourceName": "example.com/dev"}
    if not (await world.user.list(DEVICE_CLASSES)).items:
        await world.user.create(DEVICE_CLASSES, {"metadata": {"name": "dev"}, "spec": spec})
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    devices = {"driver": "dev.example.com", "nodeName": node, "pool": pool, "devices": [{"name": "d0"}, {"name": "d1"}]}
    await world.user.create(SLICES, {"metadata": {"name": node}, "spec": devices})


@pytest.mark.behaviour("CL-32")
def test_a_pod_with_all_kinds_of_claims_is_placed_once_and_whole() -> None:
    async def story(world: Cluster) -> None:
        driver = Boards({"n1": 1, "n2": 1})
        await _device(world, "n2")
        spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "dev"}}]}}
        await world.user.create(STRUCTURED_CLAIMS, {"metadata": {"name": "dev", "namespace": TEAM}, "spec": spec})
        container = {"name": "c", "image": "i", "resources": {"limits": {"example.com/dev": "1"}}}
        await world.pod("p", inline(), named("dev", "dev"), containers=[container])
        await world.message("p", "waiting for resource driver to allocate resource (resourceclaim team/p-gpu")
        await asyncio.sleep(50)
        # Nothing is taken while a driver is at work.
        claims = (await world.user.list(STRUCTURED_CLAIMS, TEAM)).items
        assert [claim["metadata"]["name"] for claim in claims] == ["dev"]
        assert "allocation" not in (claims[0].get("status") or {})
        world.start_driver(driver)
        assert await world.node_of("p") == "n2"
        assert driver.called("allocate") == [("p-gpu", "n2")]
        held = (await world.user.list(STRUCTURED_CLAIMS, TEAM)).items
        assert len(held) == 2
        assert all(claim["status"]["reservedFor"][0]["name"] == "p" for claim in held)

    tell(story)


@pytest.mark.behaviour("CL-36", "CL-37")
def test_a_classic_claim_follows_the_devices_of_the_others() -> None:
    async def story(world: Cluster) -> None:
        driver = Boards({"n1": 1, "n2": 1})
        world.start_driver(driver)
        await world.claim("c")
        await world.pod("first", named("c"), nodeSelector={"place": "one"})
        await world.user.patch(NODES, "n1", "", Patch(PatchType.MERGE, {"metadata": {"labels": {"place": "one"}}}))
        await world.node_of("first")
        await world.user.delete(PODS, "first", TEAM, NOW)
        await _device(world, "n2")
        container = {"name": "c", "image": "i", "resources": {"limits": {"example.com/dev": "1"}}}
        await world.pod("p", named("c"), containers=[container])
        assert await world.node_of("p") == "n2"
        assert (await world.get_claim("c"))["status"]["attributes"] == {"node": "n2"}

    tell(story)


@pytest.mark.behaviour("CL-33")
def test_pods_without_claims_are_left_alone() -> None:
    async def story(world: Cluster) -> None:
        await world.pod("p")
        await world.node_of("p")
        assert world.transports["scheduler"].writes() == []

    tell(story)
