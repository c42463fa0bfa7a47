"""The driver kit's promises to the driver's author, and the driver's part of the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

import pytest

from dray.api.document import UID, Document
from dray.api.errors import NotFoundError, ServiceUnavailableError
from dray.client.leader_election import Timing
from dray.client.rest import Call
from dray.driver.classic import Allocation, Claim, ClassicController, Options, serve
from dray.runtime.metrics import Metrics
from dray.runtime.tasks import TaskGroup
from dray.sim.replica.virtual_time import LoopClock, run_virtually
from tests.conformance.classic.cluster import (
    CLAIMS,
    CLASSES,
    DRIVER,
    NOW,
    PODS,
    TEAM,
    Boards,
    Cluster,
    inline,
    named,
    running_cluster,
)

Scenario = Callable[[Cluster], Coroutine[Any, Any, None]]
FINALIZER = f"{DRIVER}/deletion-protection"


def run_scenario(scenario: Scenario, *, scheduler: bool = True) -> None:
    async def run() -> None:
        async with running_cluster(scheduler=scheduler) as cluster:
            await cluster.furnish(tool="init")
            await scenario(cluster)

    run_virtually(run())


async def _gone(cluster: Cluster, name: str) -> bool:
    try:
        await cluster.get_claim(name)
    except NotFoundError:
        return True
    return False


@pytest.mark.behaviour("CL-24", "CL-07", "CL-28")
def test_finalizer_and_name_are_there_before_the_driver_is_called() -> None:
    class Looking(Boards):
        seen: Document

        async def allocate(self, claim: Claim, *rest: Any) -> Allocation:
            Looking.seen = await cluster_of["it"].get_claim(claim.key.name)
            return await super().allocate(claim, *rest)

    cluster_of: dict[str, Cluster] = {}

    async def scenario(cluster: Cluster) -> None:
        cluster_of["it"] = cluster
        cluster.start_driver(Looking({"n1": 1}, user_limit=3))
        await cluster.claim("c", "Immediate", memory=2)
        claim = await cluster.phase("c", "Allocated")
        assert Looking.seen["metadata"]["finalizers"] == [FINALIZER]
        assert (Looking.seen["status"]["phase"], Looking.seen["status"]["driverName"]) == ("Pending", DRIVER)
        assert claim["status"]["userLimit"] == 3
        assert claim["status"]["attributes"] == {"node": "n1", "tool": "init", "memory": "2"}

    run_scenario(scenario)


@pytest.mark.behaviour("CL-02", "CL-17")
def test_parameters_of_class_and_claim_come_apart() -> None:
    given: list[tuple[Mapping[str, Any], Mapping[str, Any], str | None]] = []

    class Asking(Boards):
        async def allocate(
            self,
            claim: Claim,
            class_parameters: Mapping[str, Any],
            claim_parameters: Mapping[str, Any],
            node: str | None,
        ) -> Allocation:
            given.append((class_parameters, claim_parameters, node))
            return Allocation(shareable=True)

    async def scenario(cluster: Cluster) -> None:
        cluster.start_driver(Asking({}))
        await cluster.claim("c", "Immediate", memory=2)
        claim = await cluster.phase("c", "Allocated")
        assert given == [({"tool": "init"}, {"memory": 2}, None)]
        assert claim["status"]["userLimit"] == -1
        assert "scheduling" not in claim["status"]

    run_scenario(scenario)


@pytest.mark.behaviour("CL-30", "CL-24")
def test_a_deleted_claim_is_freed_when_it_is_unused() -> None:
    async def scenario(cluster: Cluster) -> None:
        driver = Boards({"n1": 1})
        cluster.start_driver(driver)
        await cluster.claim("c")
        await cluster.pod("p", named("c"))
        await cluster.node_of("p")
        await cluster.user.delete(CLAIMS, "c", TEAM)
        await asyncio.sleep(100)
        assert driver.called("deallocate") == []
        await cluster.user.delete(PODS, "p", TEAM, NOW)
        await cluster.eventually(lambda: _gone(cluster, "c"), bool)
        assert driver.called("deallocate") == [("c", "n1")]
        assert driver.held == {}

    run_scenario(scenario)


@pytest.mark.behaviour("CL-29")
def test_nothing_is_freed_while_it_is_used() -> None:
    async def scenario(cluster: Cluster) -> None:
        driver = Boards({"n1": 1})
        cluster.start_driver(driver)
        await cluster.claim("c")
        await cluster.pod("p", named("c"))
        await cluster.node_of("p")
        claim = await cluster.get_claim("c")
        await cluster.user.update_status(CLAIMS, {**claim, "status": {**claim["status"], "phase": "Reallocate"}})
        await asyncio.sleep(100)
        assert driver.called("deallocate") == []
        await cluster.user.delete(PODS, "p", TEAM, NOW)
        await cluster.phase("c", "Pending")
        assert driver.called("deallocate") == [("c", "n1")]

    run_scenario(scenario)


@pytest.mark.behaviour("CL-07", "CL-10", "CL-30")
def test_a_claim_is_freed_after_its_class_has_gone() -> None:
    async def scenario(cluster: Cluster) -> None:
        driver = Boards({"n1": 1})
        cluster.start_driver(driver)
        await cluster.claim("c", "Immediate")
        await cluster.phase("c", "Allocated")
        await cluster.user.delete(CLASSES, "gpu")
        await cluster.user.delete(CLAIMS, "c", TEAM)
        await cluster.eventually(lambda: _gone(cluster, "c"), bool)
        assert driver.called("deallocate") == [("c", "n1")]

    run_scenario(scenario)


@pytest.mark.behaviour("CL-32", "CL-24")
def test_a_failing_driver_is_retried_and_reported_to_the_user() -> None:
    async def scenario(cluster: Cluster) -> None:
        driver = Boards({"n1": 1})
        driver.fail = {"allocate": [OSError("cable"), OSError("cable")]}
        cluster.start_driver(driver)
        await cluster.claim("c", "Immediate")
        assert "OSError: cable" in await cluster.events("c", "FailedAllocation")
        await cluster.phase("c", "Allocated")
        # Whether the broken calls left something behind is not known, so it is freed first.
        assert [name for name, _, _ in driver.calls] == ["allocate", "deallocate", "allocate", "deallocate", "allocate"]

    run_scenario(scenario)


@pytest.mark.behaviour("CL-27")
def test_nodes_are_looked_at_again_from_time_to_time() -> None:
    async def scenario(cluster: Cluster) -> None:
        driver = Boards({})
        cluster.start_driver(driver)
        await cluster.pod("p", inline())
        await cluster.message("p", "(unsuitable)")
        # Nobody tells the kit of a new board.
        driver.boards["n2"] = 1
        assert await cluster.node_of("p") == "n2"

    run_scenario(scenario)


@pytest.mark.behaviour("CL-27", "CL-08")
def test_the_answer_is_written_only_when_it_differs() -> None:
    async def scenario(cluster: Cluster) -> None:
        driver = Boards({"n1": 0, "n2": 1})
        cluster.start_driver(driver)
        claim = await cluster.claim("c")
        asked = {"scheduler": {"potentialNodes": ["n1", "n2"]}}
        await cluster.user.update_status(CLAIMS, {**claim, "status": {"phase": "Pending", "scheduling": asked}})
        found = await cluster.eventually(
            lambda: cluster.get_claim("c"), lambda item: "driver" in (item["status"].get("scheduling") or {})
        )
        assert found["status"]["scheduling"] == {**asked, "driver": {"unsuitableNodes": ["n1"]}}
        await asyncio.sleep(200)
        assert len(driver.called("unsuitable_nodes")) > 3
        assert len(cluster.transports["driver"].writes()) == 1

    run_scenario(scenario, scheduler=False)


@pytest.mark.behaviour("CL-06", "CL-29")
def test_an_answer_without_unsuitable_nodes_is_an_answer() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start_driver(Boards({"n1": 1}))
        claim = await cluster.claim("c")
        asked = {"scheduler": {"potentialNodes": ["n1"]}}
        await cluster.user.update_status(CLAIMS, {**claim, "status": {"phase": "Pending", "scheduling": asked}})
        found = await cluster.eventually(
            lambda: cluster.get_claim("c"), lambda item: "driver" in (item["status"].get("scheduling") or {})
        )
        assert found["status"]["scheduling"]["driver"] == {}

    run_scenario(scenario, scheduler=False)


# --- Crashes. ---


class Wired(Boards):
    """Its memory is the hardware's, which outlives it."""

    def __init__(self, boards: dict[UID, str]) -> None:
        super().__init__({"n1": 1, "n2": 1})
        self.held = boards

    async def start(self, held: Sequence[Claim]) -> None:
        return None


def _steps() -> list[Any]:
    names = ["finalizer", "driver name", "allocated", "pending again", "finalizer removed"]
    return [
        pytest.param(number, when, id=f"{when} {name}")
        for number, name in enumerate(names)
        for when in ("before", "after")
    ]


@pytest.mark.behaviour("CL-24", "CL-32")
@pytest.mark.parametrize(("step", "when"), _steps())
def test_a_driver_killed_at_any_write_leaks_nothing(step: int, when: str) -> None:
    """The life of a claim, allocated, freed and gone, with the kit killed around one of its writes."""

    async def scenario(cluster: Cluster) -> None:
        boards: dict[UID, str] = {}
        stop = _doomed(cluster, step, boards, when)
        await cluster.claim("c")
        await cluster.pod("p", named("c"))
        await asyncio.sleep(20)
        await cluster.user.delete(PODS, "p", TEAM, NOW)
        if step >= 3:
            claim = await cluster.phase("c", "Allocated")
            await cluster.user.update_status(CLAIMS, {**claim, "status": {**claim["status"], "phase": "Reallocate"}})
            await asyncio.sleep(20)
        await stop()
        # A new instance knows nothing but what the claims say and what the hardware has.
        cluster.start_driver(Wired(boards), "second")
        await cluster.pod("q", named("c"))
        await cluster.node_of("q")
        assert list(boards.values()) == [(await cluster.get_claim("c"))["status"]["attributes"]["node"]]
        await cluster.user.delete(PODS, "q", TEAM, NOW)
        await cluster.user.delete(CLAIMS, "c", TEAM)
        await cluster.eventually(lambda: _gone(cluster, "c"), bool)
        assert boards == {}

    run_scenario(scenario)


def _doomed(cluster: Cluster, step: int, boards: dict[UID, str], when: str) -> Callable[[], Awaitable[None]]:
    """A driver whose connection ends for good around its write of that number."""
    stop = cluster.start_driver(Wired(boards))
    cluster.transports["driver"].cut_off(step, when)
    return stop


@pytest.mark.behaviour("CL-24")
def test_a_write_that_comes_late_finds_another_version() -> None:
    """Nothing is freed while an earlier attempt could still be recorded as successful."""

    async def scenario(cluster: Cluster) -> None:
        driver = Boards({"n1": 1})
        cluster.start_driver(driver)
        transport = cluster.transports["driver"]
        inner = transport.inner.send
        late: list[Call] = []

        async def send(call: Call) -> Document:
            body = call.body if isinstance(call.body, dict) else {}
            if (body.get("status") or {}).get("phase") == "Allocated" and len(late) < 5:
                late.append(call)
                raise ServiceUnavailableError("on its way")
            return await inner(call)

        transport.inner.send = send  # type: ignore[method-assign]
        deallocations: list[str] = []
        free = driver.deallocate

        async def deallocate(claim: Claim) -> None:
            # The worst moment for it to arrive.
            for call in late:
                with pytest.raises(Exception, match="the object has been modified"):
                    await inner(call)
            deallocations.append(claim.key.name)
            await free(claim)

        driver.deallocate = deallocate  # type: ignore[method-assign]
        await cluster.claim("c", "Immediate")
        await cluster.phase("c", "Allocated")
        assert deallocations == ["c"]
        assert list(driver.held.values()) == ["n1"]

    run_scenario(scenario)


# --- Running. ---


def test_plain_methods_run_in_threads() -> None:
    class Plain(ClassicController):
        name = DRIVER

        def allocate(
            self,
            claim: Claim,
            class_parameters: Mapping[str, Any],
            claim_parameters: Mapping[str, Any],
            node: str | None,
        ) -> Allocation:
            return Allocation({"who": "plain"})

        def deallocate(self, claim: Claim) -> None:
            return None

    async def main() -> None:
        async with running_cluster(scheduler=False) as cluster:
            await cluster.furnish()
            cluster.start_driver(Plain())
            await cluster.claim("c", "Immediate")
            for _ in range(3000):
                if (await cluster.get_claim("c"))["status"]["phase"] == "Allocated":
                    return
                await asyncio.sleep(0.01)
            pytest.fail("never allocated")

    asyncio.run(main())


def test_of_two_instances_one_works_and_the_other_takes_over() -> None:
    async def scenario(cluster: Cluster) -> None:
        first, second = Boards({"n1": 2}), Boards({"n1": 2})
        timing = Timing(lease_seconds=15, renew_deadline_seconds=10, retry_seconds=2)

        async def run(driver: Boards, name: str) -> None:
            options = Options(lease_namespace=TEAM, identity=name, timing=timing)
            await serve(driver, cluster.client(name), LoopClock(), Metrics(), options)

        async with TaskGroup("instances") as group:
            leading = group.spawn(run(first, "first"), "first")
            await asyncio.sleep(1)
            group.spawn(run(second, "second"), "second")
            await cluster.claim("one", "Immediate")
            await cluster.phase("one", "Allocated")
            leading.cancel()
            await asyncio.wait({leading})
            await cluster.claim("two", "Immediate")
            await cluster.phase("two", "Allocated")
            await group.cancel()
        assert first.called("allocate") == [("one", "")]
        assert second.called("allocate") == [("two", "")]
        # It received what the first one had allocated.
        assert sorted(second.held.values()) == ["n1", "n1"]

    run_scenario(scenario, scheduler=False)


def test_the_driver_is_reminded_of_what_it_holds() -> None:
    seen: list[Sequence[Claim]] = []

    class Forgetful(Boards):
        async def start(self, held: Sequence[Claim]) -> None:
            seen.append(held)
            await super().start(held)

    async def scenario(cluster: Cluster) -> None:
        stop = cluster.start_driver(Forgetful({"n1": 1}))
        await cluster.claim("c", "Immediate")
        await cluster.phase("c", "Allocated")
        await stop()
        cluster.start_driver(Forgetful({"n1": 1}))
        await asyncio.sleep(1)
        assert [[(claim.key.name, claim.attributes["node"]) for claim in held] for held in seen] == [[], [("c", "n1")]]
        text = cluster.metrics.exposition().decode()
        assert f'classic_driver_operations_duration_seconds_count{{driver_name="{DRIVER}",is_error="false"' in text

    run_scenario(scenario, scheduler=False)


# --- Available nodes. ---


class Placed(Boards):
    """Its boards can only be plugged in on some nodes, which it knows beforehand."""

    async def available_nodes(self, claim: Claim) -> list[str]:
        return ["n2"]


async def _announced(cluster: Cluster, name: str) -> Document:
    await cluster.claim(name)
    found: Document = await cluster.eventually(
        lambda: cluster.get_claim(name), lambda item: "scheduling" in (item.get("status") or {})
    )
    return found


@pytest.mark.behaviour("CL-54", "CL-35")
def test_a_driver_announces_where_a_claim_can_be_allocated_before_it_is() -> None:
    async def scenario(cluster: Cluster) -> None:
        driver = Placed({"n1": 1, "n2": 1})
        cluster.start_driver(driver)
        claim = await _announced(cluster, "c")
        terms = claim["status"]["scheduling"]["driver"]["availableOnNodes"]["nodeSelectorTerms"]
        assert terms == [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}]
        assert claim["status"]["phase"] == "Pending"
        await cluster.pod("p", named("c"))
        assert await cluster.node_of("p") == "n2"
        # The scheduler has not even tried the other node.
        assert driver.called("allocate") == [("c", "n2")]

    run_scenario(scenario)


@pytest.mark.behaviour("CL-54")
def test_available_nodes_do_not_replace_the_answer_about_unsuitable_ones() -> None:
    async def scenario(cluster: Cluster) -> None:
        driver = Placed({"n1": 2, "n2": 0})
        cluster.start_driver(driver)
        for name in ("a", "b"):
            await _announced(cluster, name)
        await cluster.pod("p", named("a", "a"), named("b", "b"))
        await cluster.message("p", "(unsuitable)")
        assert driver.called("allocate") == []

    run_scenario(scenario)
