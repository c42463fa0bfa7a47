"""The counts of pools, and their two views."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dray.allocator.taints import TaintRule
from dray.api.codec import from_document
from dray.api.document import Document
from dray.api.features import FeatureGates
from dray.api.types.resource_v1 import ResourceClaim, ResourceSlice
from dray.controllers.resource_pool_status import pools, summaries
from dray.controllers.resource_pool_status.pools import Pool
from dray.controllers.resource_pool_status.reconciler import completed, failed, is_outdated, pool_status

DRIVER = "gpu.example.com"
TYPES = FeatureGates.parse("DRAPartitionableDevicesType=true,DRAResourcePoolStatus=true")
PLAIN = FeatureGates()


def resource_slice(
    name: str, *devices: Document, pool: str = "p", of: int = 1, generation: int = 1, **spec: Any
) -> ResourceSlice:
    place = {"name": pool, "generation": generation, "resourceSliceCount": of}
    body = {"driver": DRIVER, "pool": place, "devices": list(devices), "nodeName": "n", **spec}
    return from_document(ResourceSlice, {"metadata": {"name": name}, "spec": body})


def claim(*results: Document) -> ResourceClaim:
    made = [{"driver": DRIVER, "pool": "p", "request": "r", **item} for item in results]
    return from_document(ResourceClaim, {"status": {"allocation": {"devices": {"results": made}}}})


def devices(*names: str, **fields: Any) -> list[Document]:
    return [{"name": name, **fields} for name in names]


def one_pool(*slices: ResourceSlice) -> Pool:
    (pool,) = pools.pools_of(slices, DRIVER)
    return pool


def status(
    pool: Pool, *claims: ResourceClaim, rules: list[TaintRule] | None = None, default: str | None = None
) -> Document:
    used = pools.consumption(claims, DRIVER)
    return pool_status(pool, used.get(pool.name) or {}, rules or [], default, TYPES)


@pytest.mark.behaviour("N-75")
def test_pools_are_sorted_and_at_their_highest_generation() -> None:
    slices = [
        resource_slice("b", *devices("x"), pool="b"),
        resource_slice("old", *devices("x", "y"), pool="a", generation=1),
        resource_slice("new", *devices("z"), pool="a", generation=2),
    ]
    other = resource_slice("other", *devices("o"), driver="nic.example.com")
    found = pools.pools_of([*slices, other], DRIVER)
    assert [(pool.name, pool.generation, [device.name for device in pool.devices()]) for pool in found] == [
        ("a", 2, ["z"]),
        ("b", 1, ["x"]),
    ]
    assert [pool.name for pool in pools.pools_of(slices, DRIVER, "b")] == ["b"]
    assert pools.pools_of(slices, DRIVER, "gone") == []


@pytest.mark.behaviour("N-76", "N-77")
def test_counts() -> None:
    broken = [{"key": "k", "effect": "NoSchedule"}]
    pool = one_pool(
        resource_slice("1", *devices("a", "b"), of=2),
        resource_slice("2", *devices("c", taints=broken), *devices("d", taints=[{"key": "k", "effect": "None"}]), of=2),
    )
    claims = (
        claim({"device": "a"}, {"device": "a", "shareID": "1"}),
        # Another pool, another driver, and access for repair do not count.
        claim({"device": "b", "adminAccess": True}, {"device": "b", "pool": "q"}, {"device": "b", "driver": "x.io"}),
        claim({"device": "gone"}),
    )
    expected = {
        "driver": DRIVER,
        "poolName": "p",
        "generation": 1,
        "nodeName": "n",
        "resourceSliceCount": 2,
        "totalDevices": 4,
        "allocatedDevices": 1,
        "unavailableDevices": 1,
        "availableDevices": 2,
    }
    assert status(pool, *claims) == expected
    rules = [
        TaintRule.from_document(
            {
                "metadata": {"name": "r"},
                "spec": {"deviceSelector": {"pool": "p"}, "taint": {"key": "k", "effect": effect}},
            }
        )
        for effect in ("None", "NoExecute")
    ]
    assert status(pool, *claims, rules=rules[:1]) == expected
    # Allocated devices count as unavailable too, and the number of available ones is not negative.
    assert status(pool, *claims, rules=rules) == {**expected, "unavailableDevices": 4, "availableDevices": 0}


@pytest.mark.behaviour("N-76")
def test_the_node_is_that_of_all_slices() -> None:
    one, two = resource_slice("1", of=2), resource_slice("2", of=2, nodeName="m")
    assert "nodeName" not in status(one_pool(one, two))
    assert "nodeName" not in status(one_pool(resource_slice("1", nodeName=None, allNodes=True)))


@pytest.mark.behaviour("N-78")
def test_an_incomplete_pool_has_no_counts() -> None:
    pool = one_pool(resource_slice("1", *devices("a"), of=3, generation=7), resource_slice("2", of=3, generation=7))
    assert not pool.is_complete
    assert pools.incomplete(pool) == {
        "driver": DRIVER,
        "poolName": "p",
        "generation": 7,
        "nodeName": "n",
        "validationError": "PoolIncomplete: pool gpu.example.com/p is incomplete: observed 2/3 slices at generation 7",
    }


@pytest.mark.behaviour("N-78")
def test_texts_are_cut_at_256_bytes() -> None:
    assert pools.shortened("x" * 256) == "x" * 256
    assert pools.shortened("x" * 300) == "x" * 256
    # Not within a character.
    assert pools.shortened("x" * 255 + "ä") == "x" * 255


NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)


@pytest.mark.behaviour("N-79")
def test_conditions() -> None:
    answers: list[Document] = [{"poolName": "a"}, {"poolName": "b", "validationError": "x"}]
    made = completed(answers, 5, NOW)
    assert (made["poolCount"], made["pools"]) == (5, answers)
    assert made["conditions"] == [
        {
            "type": "Complete",
            "status": "True",
            "reason": "CalculationComplete",
            "message": "Calculated status for 2 pools (1 incomplete)",
            "lastTransitionTime": "2026-01-02T12:00:00Z",
        }
    ]
    none = completed([], 0, NOW)
    assert "pools" not in none
    assert none["conditions"][0]["message"] == "Calculated status for 0 pools"
    (condition,) = failed("no" * 200, NOW)["conditions"]
    assert (condition["type"], condition["reason"]) == ("Failed", "CalculationFailed")
    assert len(condition["message"]) == 256


@pytest.mark.behaviour("N-80")
@pytest.mark.parametrize(
    ("created", "answered", "outdated"),
    [
        ("2026-01-01T11:00:00Z", "2026-01-02T11:00:01Z", False),
        ("2026-01-01T11:00:00Z", "2026-01-02T11:00:00Z", True),
        ("2026-01-01T12:00:01Z", None, False),
        ("2026-01-01T12:00:00Z", None, True),
    ],
)
def test_when_requests_are_deleted(created: str, answered: str | None, outdated: bool) -> None:
    request: Document = {"metadata": {"creationTimestamp": created}}
    if answered:
        request["status"] = {"conditions": [{"type": "Complete", "lastTransitionTime": answered}]}
    assert is_outdated(request, NOW) is outdated


def shared(name: str, memory: str) -> Document:
    return {"name": name, "allowMultipleAllocations": True, "capacity": {"memory": {"value": memory}}}


@pytest.mark.behaviour("N-81")
def test_what_is_left_of_shareable_devices() -> None:
    whole = {"name": "whole", "capacity": {"memory": {"value": "100Gi"}}}
    pool = one_pool(resource_slice("1", shared("a", "40Gi"), shared("b", "40Gi"), shared("c", "1Gi"), whole))
    used = claim(
        {"device": "a", "shareID": "1", "consumedCapacity": {"memory": "10Gi"}},
        {"device": "a", "shareID": "2", "consumedCapacity": {"gpu.example.com/memory": "5Gi"}},
        {"device": "c", "shareID": "3", "consumedCapacity": {"memory": "1Gi"}},
        {"device": "whole"},
    )
    found = status(pool, used)
    assert found["shareableSummary"] == {
        "fullyAvailableDevices": 1,
        "partiallyAvailableDevices": 2,
        "capacity": [{"name": "memory", "total": "81Gi", "consumed": "16Gi", "available": "65Gi"}],
    }
    over = claim({"device": "c", "consumedCapacity": {"memory": "900Gi"}})
    assert status(pool, over)["shareableSummary"]["capacity"][0]["available"] == "0"
    assert "shareableSummary" not in status(one_pool(resource_slice("1", whole)))


@pytest.mark.behaviour("N-81")
def test_too_many_capacities() -> None:
    def many(count: int) -> Document:
        capacity = {f"c{number}": {"value": "1"} for number in range(count)}
        device = {"name": "a", "allowMultipleAllocations": True, "capacity": capacity}
        return status(one_pool(resource_slice("1", device)))

    assert len(many(32)["shareableSummary"]["capacity"]) == 32
    over = many(33)
    assert "shareableSummary" not in over
    assert over["validationError"].startswith("ShareableSummaryOverCap: ")
    assert over["totalDevices"] == 1


def partition(name: str, kind: str | None, cost: str, **fields: Any) -> Document:
    attributes = {} if kind is None else {"profile": {"string": kind}}
    consumed = [{"counterSet": "gpu", "counters": {"slices": {"value": cost}, "none": {"value": "0"}}}]
    return {"name": name, "attributes": attributes, "consumesCounters": consumed, **fields}


COUNTERS = [{"name": "gpu", "counters": {"slices": {"value": "7"}, "none": {"value": "0"}}}]
PROFILE = f"{DRIVER}/profile"


def partitions(*items: Document, attribute: str | None = PROFILE) -> Pool:
    return one_pool(
        resource_slice("counters", of=2, sharedCounters=COUNTERS),
        resource_slice("devices", *items, of=2, partitionTypeAttribute=attribute),
    )


HALVES = [partition(f"half-{number}", "Half", "3") for number in range(3)]
SMALL = [partition(f"small-{number}", "Small", "1") for number in range(7)]


@pytest.mark.behaviour("N-84")
def test_how_many_partitions_fit() -> None:
    pool = partitions(*HALVES, *SMALL, {"name": "plain"})

    def fitting(*used: str) -> list[tuple[str, int, int]]:
        found = status(pool, claim(*({"device": name} for name in used)))["partitionSummary"]
        assert {item["attribute"] for item in found} == {PROFILE}
        return [(item["type"], item["total"], item["allocatable"]) for item in found]

    assert fitting() == [("Half", 3, 2), ("Small", 7, 7)]
    assert fitting("half-0") == [("Half", 3, 1), ("Small", 7, 4)]
    assert fitting("half-0", "half-1") == [("Half", 3, 0), ("Small", 7, 1)]
    # Of those that are unused.
    assert fitting("small-0", "small-1", "small-2") == [("Half", 3, 1), ("Small", 7, 4)]
    assert fitting("plain") == [("Half", 3, 2), ("Small", 7, 7)]


@pytest.mark.behaviour("N-84")
def test_whose_attribute_counts() -> None:
    pool = partitions(*HALVES, attribute=None)
    assert "partitionSummary" not in status(pool)
    assert status(pool, default=PROFILE)["partitionSummary"][0]["total"] == 3
    # The default does not apply to a pool with an attribute of its own, not even to its other slices.
    mixed = one_pool(
        resource_slice("counters", of=3, sharedCounters=COUNTERS),
        resource_slice("one", HALVES[0], of=3, partitionTypeAttribute=PROFILE),
        resource_slice("two", HALVES[1], of=3),
    )
    assert [item["total"] for item in status(mixed, default="other.io/x")["partitionSummary"]] == [1]
    assert "partitionSummary" not in pool_status(partitions(*HALVES), {}, [], None, PLAIN)


@pytest.mark.behaviour("N-84")
@pytest.mark.parametrize(
    ("items", "reason"),
    [
        ((partition("a", None, "1"),), "PartitionTypeMissing: "),
        ((partition("a", "Half", "1", attributes={"profile": {"int": 1}}),), "PartitionTypeMissing: "),
        ((partition("a", "Half", "3"), partition("b", "Half", "4")), "PartitionCostMismatch: "),
        (tuple(partition(f"a{number}", f"t{number}", "1") for number in range(33)), "PartitionSummaryOverCap: "),
        (
            (partition("a", "Half", "1", consumesCounters=[{"counterSet": "x", "counters": {"y": {"value": "1"}}}]),),
            "PartitionTypeMissing: ",
        ),
    ],
)
def test_a_view_with_an_error_is_left_out(items: tuple[Document, ...], reason: str) -> None:
    found = status(partitions(*items))
    assert found["validationError"].startswith(reason)
    assert "partitionSummary" not in found
    assert found["totalDevices"] == len(items)


@pytest.mark.behaviour("N-84")
def test_the_full_name_wins_over_the_short_one() -> None:
    both = {**partition("a", "short", "1"), "attributes": {"profile": {"string": "x"}, PROFILE: {"string": "full"}}}
    assert [item["type"] for item in summaries.partition_summary(partitions(both), {}, None)] == ["full"]
