"""Preemption and classic claims: nobody goes on a guess, and a place in a claim that is in use is certain."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import pytest

from dray.api.document import Document
from dray.client.resources import CLASSIC_CLAIMS
from dray.framework.plugins import POST_FILTER
from dray.framework.status import Code
from dray.scheduler.plugins.classic_resources.classic_state import ABANDONED
from dray.scheduler.plugins.classic_resources.plugin import (
    DEALLOCATING,
    IN_USE,
    NOT_AVAILABLE,
    SETTLING,
    UNALLOCATED_IMMEDIATE,
    UNSUITABLE,
    ClassicResources,
)
from dray.scheduler.plugins.classic_resources.pre_binder import WAIT_ALLOCATION
from tests.unit.scheduler.preemption.device_cluster import DeviceCluster, request

CLASSIC = "DRAControlPlaneController=true"
HIGH: dict[str, Any] = {"priority": 100}


def on(*names: str) -> Document:
    """A selector of nodes."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": list(names)}]}
    return {"availableOnNodes": {"nodeSelectorTerms": [term]}}


def cluster_with(*nodes: str, gates: str = CLASSIC) -> DeviceCluster:
    cluster = DeviceCluster(gates)
    for name in nodes:
        cluster.add_node(name)
    return cluster


def use(cluster: DeviceCluster, name: str, node: str, **words: Any) -> None:
    cluster.run(name, node, claims=["shared"], **words)


@pytest.mark.behaviour("PE-77")
@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        pytest.param({"phase": "Pending", "unsuitableNodes": ["n"]}, UNSUITABLE, id="unsuitable"),
        pytest.param(on("elsewhere"), NOT_AVAILABLE, id="not available"),
    ],
)
def test_nobody_goes_for_what_a_driver_decides(claim: Document, reason: str) -> None:
    cluster = cluster_with("n")
    cluster.set_classic("wanted", **claim)
    cluster.set_classic("other", "low")
    cluster.run("low", "n", claims=["other"])
    urgent = cluster.pending("urgent", claims=["wanted"], **HIGH)
    _, found = cluster.place(urgent)
    status = found.statuses["n"]
    assert (status.code, status.message) == (Code.UNSCHEDULABLE_AND_UNRESOLVABLE, reason)
    _, told = cluster.preempt(urgent)
    assert told.message.endswith("1 Preemption is not helpful for scheduling.")
    assert not cluster.started


@pytest.mark.behaviour("PE-77")
@pytest.mark.parametrize(
    ("mode", "selected", "reason"),
    [
        pytest.param("Immediate", "", UNALLOCATED_IMMEDIATE, id="immediate"),
        pytest.param("Delayed", "n", WAIT_ALLOCATION, id="driver is allocating"),
    ],
)
def test_nobody_goes_while_a_driver_works(mode: str, selected: str, reason: str) -> None:
    cluster = cluster_with("n")
    cluster.set_classic("wanted", phase="Pending", mode=mode, selected=selected)
    cluster.set_classic("other", "low")
    cluster.run("low", "n", claims=["other"])
    urgent = cluster.pending("urgent", claims=["wanted"], **HIGH)
    state, found = cluster.place(urgent)
    assert reason in found.message()
    cluster.post_filter(state, urgent, found.statuses)
    assert not cluster.started


@pytest.mark.behaviour("PE-76")
def test_nobody_goes_while_a_driver_is_asked_to_deallocate() -> None:
    """The claim is on another node, and unused: what is freed may suffice."""
    cluster = cluster_with("n")
    cluster.set_classic("wanted", **on("elsewhere"))
    urgent = cluster.pending("urgent", claims=["wanted"], **HIGH)
    state, found = cluster.place(urgent)
    plugin = next(item for item in cluster.profile.at(POST_FILTER) if isinstance(item, ClassicResources))
    written: list[str] = []

    async def write(claim: Any, _change: Any) -> None:
        written.append(claim.metadata.name)

    with mock.patch.object(plugin._writer, "write", write):
        _, status = asyncio.run(plugin.post_filter(state, urgent, found.statuses))
    assert (status.code, status.message) == (Code.UNSCHEDULABLE_AND_UNRESOLVABLE, DEALLOCATING)
    assert written == ["wanted"]


@pytest.mark.behaviour("PE-77")
def test_the_classic_claims_of_a_victim_are_not_released() -> None:
    """It goes for the processors; what its driver has allocated for it stays allocated."""
    cluster = cluster_with("n")
    cluster.set_classic("other", "low", limit=1)
    cluster.run("low", "n", claims=["other"], requests={"cpu": "8"})
    urgent = cluster.pending("urgent", requests={"cpu": "8"}, **HIGH)
    assert cluster.nominated(urgent) == ["low"]
    assert not cluster.held(urgent)
    assert cluster.informers.informer(CLASSIC_CLAIMS).get("other", "default").status.phase == "Allocated"


@pytest.mark.behaviour("PE-78")
@pytest.mark.parametrize(
    ("users", "limit", "expected"),
    [
        pytest.param([("a", "n", 1)], 1, ["a"], id="the only user"),
        pytest.param([("a", "n", 1), ("b", "n", 2)], 2, ["a"], id="one place of two, the less important"),
        pytest.param([("a", "n", 1), ("b", "n", 2), ("c", "n", 3)], 2, ["a", "b"], id="as many as places are missing"),
        pytest.param([("a", "n", 1), ("b", "m", 1)], 2, ["a"], id="users elsewhere are not touched"),
        pytest.param([("a", "n", 100)], 1, [], id="equal priority"),
        pytest.param([("a", "m", 1)], 1, [], id="only users elsewhere"),
    ],
)
def test_a_user_makes_room_in_a_claim(users: list[tuple[str, str, int]], limit: int, expected: list[str]) -> None:
    cluster = cluster_with("n", "m")
    cluster.set_classic("shared", *(name for name, _, _ in users), limit=limit, **on("n", "m"))
    for name, node, priority in users:
        use(cluster, name, node, priority=priority)
    urgent = cluster.pending("urgent", claims=["shared"], **HIGH)
    _, found = cluster.place(urgent)
    status = found.statuses["n"]
    assert status.message == f"{IN_USE} (default/shared)"
    assert status.code is (Code.UNSCHEDULABLE if expected else Code.UNSCHEDULABLE_AND_UNRESOLVABLE)
    assert cluster.victims(urgent, "n") == expected


@pytest.mark.behaviour("PE-78")
def test_nobody_goes_where_the_claim_is_not_available() -> None:
    cluster = cluster_with("n", "m")
    cluster.set_classic("shared", "a", **on("m"))
    use(cluster, "a", "n", priority=1)
    _, found = cluster.place(cluster.pending("urgent", claims=["shared"], **HIGH))
    assert found.statuses["n"].message == NOT_AVAILABLE
    assert found.statuses["m"].code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE


@pytest.mark.behaviour("PE-78")
def test_without_the_gate_nobody_goes_for_a_place() -> None:
    cluster = cluster_with("n", gates=f"{CLASSIC},DRAPreemption=false")
    cluster.set_classic("shared", "a")
    use(cluster, "a", "n")
    cluster.preempt(cluster.pending("urgent", claims=["shared"], **HIGH))
    assert not cluster.started


@pytest.mark.behaviour("PE-78")
def test_a_place_and_a_device_together() -> None:
    """The user of the claim and the holder of the device both go; neither alone would help."""
    cluster = DeviceCluster(CLASSIC)
    cluster.add_node("n", "d")
    cluster.set_classic("shared", "a")
    use(cluster, "a", "n", priority=1)
    cluster.run("b", "n", "d", priority=2)
    cluster.run("c", "n", priority=3)
    urgent = cluster.pending("urgent", request(), claims=["shared"], **HIGH)
    assert cluster.victims(urgent, "n") == ["a", "b"]


@pytest.mark.behaviour("PE-79")
def test_a_preemptor_waits_until_its_victims_have_left_the_claim() -> None:
    cluster = cluster_with("n")
    cluster.set_classic("shared", "low")
    use(cluster, "low", "n")
    urgent = cluster.pending("urgent", claims=["shared"], **HIGH)
    assert cluster.nominated(urgent) == ["low"]
    cluster.run("other", "n", claims=[], priority=1)
    cluster.delete("low")
    # The Pod is gone, and its entry is not: the Pod neither fits nor may it preempt others.
    _, status = cluster.preempt(urgent)
    assert status.message == f"preemption: {SETTLING}"
    assert len(cluster.started) == 1
    cluster.set_classic("shared")
    assert cluster.node_of(urgent) == "n"


@pytest.mark.behaviour("PE-79")
def test_the_place_is_kept_for_the_preemptor() -> None:
    cluster = cluster_with("n")
    cluster.set_classic("shared", "low")
    use(cluster, "low", "n")
    urgent = cluster.pending("urgent", claims=["shared"], **HIGH)
    cluster.nominated(urgent)
    equal = cluster.pending("equal", claims=["shared"], **HIGH)
    cluster.preempt(equal)
    assert len(cluster.started) == 1, "the place of the victim is not given twice"
    cluster.delete("low")
    cluster.set_classic("shared")
    assert cluster.node_of(equal) == ""
    assert cluster.node_of(cluster.pending("higher", claims=["shared"], priority=200)) == "n"
    assert cluster.node_of(urgent) == "n"
    # The preemptor is gone: others may have the place, and are told.
    cluster.handle.nominations.set(cluster.info_of(urgent), "")
    assert [event for event, _, _ in cluster.notified] == [ABANDONED]
    assert cluster.node_of(equal) == "n"


@pytest.mark.behaviour("PE-79")
def test_a_place_beside_the_one_that_is_kept_is_free() -> None:
    cluster = cluster_with("n")
    cluster.set_classic("shared", "low", "keeps", limit=2)
    use(cluster, "low", "n")
    use(cluster, "keeps", "n", priority=50)
    urgent = cluster.pending("urgent", claims=["shared"], **HIGH)
    assert cluster.nominated(urgent) == ["low"]
    # Another user leaves by itself; its place is nobody's.
    cluster.delete("keeps")
    cluster.set_classic("shared", "low", limit=2)
    assert cluster.node_of(cluster.pending("equal", claims=["shared"], **HIGH)) == "n"
