"""What claims hold, and which allocations take what another claim holds."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.document import Document
from dray.apiserver.device_ledger import IN_DOUBT_SECONDS, DeviceLedger, Use, uses_of

POOL = "gpu.example.com/node-1"


def claim(*results: Document) -> Document:
    return {"status": {"allocation": {"devices": {"results": list(results)}}}}


def result(device: str, **fields: Any) -> Document:
    return {"request": "r", "driver": "gpu.example.com", "pool": "node-1", "device": device, **fields}


def uses(*devices: str) -> tuple[Use, ...]:
    return uses_of(claim(*(result(device) for device in devices)))


def share(device: str, share_id: str, memory: str = "") -> tuple[Use, ...]:
    consumed = {"consumedCapacity": {"memory": memory}} if memory else {}
    return uses_of(claim(result(device, shareID=share_id, **consumed)))


def slice_of(name: str, *devices: Document, generation: int = 1, **spec: Any) -> Document:
    pool = {"name": "node-1", "generation": generation, "resourceSliceCount": 1}
    return {
        "metadata": {"name": name},
        "spec": {"driver": "gpu.example.com", "pool": pool, "devices": list(devices), **spec},
    }


SHARED = {"name": "gpu-0", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "10Gi"}}}
COUNTERS = [{"name": "card", "counters": {"memory": {"value": "80Gi"}, "engines": {"value": "7"}}}]


def partition(name: str, memory: str, engines: str = "1") -> Document:
    counters = {"memory": {"value": memory}, "engines": {"value": engines}}
    return {"name": name, "consumesCounters": [{"counterSet": "card", "counters": counters}]}


def holding(**claims: tuple[Use, ...]) -> DeviceLedger:
    ledger = DeviceLedger()
    for revision, (name, held) in enumerate(claims.items(), 1):
        ledger.observe(f"ns/{name}", held, revision)
    return ledger


def message(ledger: DeviceLedger, new: tuple[Use, ...], old: tuple[Use, ...] = (), name: str = "ns/new") -> str:
    conflict = ledger.check(name, old, new)
    return "" if conflict is None else conflict.message


# --- Devices. ---


def test_a_device_of_another_claim_is_refused_with_its_holder() -> None:
    ledger = holding(a=uses("gpu-0"), b=uses("gpu-1"))
    assert message(ledger, uses("gpu-2")) == ""
    assert message(ledger, uses("gpu-2", "gpu-1")) == "device gpu.example.com/node-1/gpu-1 is allocated to claim ns/b"
    conflict = ledger.check("ns/new", (), uses("gpu-0"))
    assert conflict is not None
    assert conflict.holders == ("ns/a",)


def test_a_device_of_the_same_name_elsewhere_is_another_one() -> None:
    other_pool = {**result("gpu-0"), "pool": "node-2"}
    other_driver = {**result("gpu-0"), "driver": "nic.example.com"}
    assert message(holding(a=uses("gpu-0")), uses_of(claim(other_pool, other_driver))) == ""


def test_the_holder_may_keep_and_change_its_own_devices() -> None:
    ledger = holding(a=uses("gpu-0", "gpu-1"))
    assert message(ledger, uses("gpu-0", "gpu-1"), uses("gpu-0", "gpu-1"), "ns/a") == ""
    assert message(ledger, uses("gpu-1", "gpu-2"), uses("gpu-0", "gpu-1"), "ns/a") == ""


def test_what_a_claim_had_stays_allowed_though_another_has_it_too() -> None:
    """Otherwise neither of two claims with one device could be written again, not even to give it back in part."""
    ledger = holding(a=uses("gpu-0"), b=uses("gpu-0", "gpu-1"))
    assert message(ledger, uses("gpu-0"), uses("gpu-0", "gpu-1"), "ns/b") == ""
    assert message(ledger, uses("gpu-0"), (), "ns/b") != ""


def test_admin_access_holds_and_needs_nothing() -> None:
    admin = uses_of(claim(result("gpu-0", adminAccess=True)))
    assert admin == ()
    assert message(holding(a=admin), uses("gpu-0")) == ""
    assert message(holding(a=uses("gpu-0")), admin) == ""


@pytest.mark.parametrize("document", [{}, {"status": {}}, {"status": None}, {"status": {"allocation": {}}}])
def test_a_claim_without_devices_holds_nothing(document: Document) -> None:
    assert uses_of(document) == ()


# --- Shares. ---


def test_shares_fit_until_the_capacity_is_used() -> None:
    ledger = holding(a=share("gpu-0", "1", "4Gi"), b=share("gpu-0", "2", "4Gi"))
    ledger.apply_slice(slice_of("s", SHARED))
    assert message(ledger, share("gpu-0", "3", "2Gi")) == ""
    assert message(ledger, share("gpu-0", "3", "2049Mi")) == (
        "device gpu.example.com/node-1/gpu-0 has not enough capacity memory, of which claim ns/a, ns/b holds a part"
    )


def test_the_shares_of_one_claim_count_together() -> None:
    ledger = holding()
    ledger.apply_slice(slice_of("s", SHARED))
    two = share("gpu-0", "1", "6Gi") + share("gpu-0", "2", "6Gi")
    assert message(ledger, two) == "device gpu.example.com/node-1/gpu-0 has not enough capacity memory"
    grown = share("gpu-0", "1", "6Gi") + share("gpu-0", "2", "4Gi")
    assert message(ledger, grown, share("gpu-0", "1", "6Gi")) == ""


def test_a_share_and_the_whole_device_exclude_each_other() -> None:
    whole, part = holding(a=uses("gpu-0")), holding(a=share("gpu-0", "1", "1Gi"))
    for ledger in (whole, part):
        ledger.apply_slice(slice_of("s", SHARED))
    assert "is allocated to claim ns/a" in message(whole, share("gpu-0", "2", "1Gi"))
    assert "is allocated to claim ns/a" in message(part, uses("gpu-0"))


def test_a_share_of_a_device_that_is_not_published_as_shareable_is_the_whole_device() -> None:
    ledger = holding(a=share("gpu-0", "1", "1Gi"))
    assert "is allocated to claim ns/a" in message(ledger, share("gpu-0", "2", "1Gi"))
    ledger.apply_slice(slice_of("s", {"name": "gpu-0", "capacity": SHARED["capacity"]}))
    assert "is allocated to claim ns/a" in message(ledger, share("gpu-0", "2", "1Gi"))


@pytest.mark.parametrize("older", [0, 1])
def test_capacity_is_that_of_the_newest_generation(older: int) -> None:
    ledger = holding(a=share("gpu-0", "1", "8Gi"))
    ledger.apply_slice(slice_of("old", SHARED, generation=older))
    assert "not enough capacity" in message(ledger, share("gpu-0", "2", "8Gi"))
    wide = {**SHARED, "capacity": {"memory": {"value": "16Gi"}}}
    ledger.apply_slice(slice_of("new", wide, generation=older + 1))
    assert message(ledger, share("gpu-0", "2", "8Gi")) == ""
    ledger.remove_slice("new")
    assert "not enough capacity" in message(ledger, share("gpu-0", "2", "8Gi"))


def test_a_claim_does_not_stand_in_its_own_way() -> None:
    ledger = holding(a=share("gpu-0", "1", "8Gi"))
    ledger.apply_slice(slice_of("s", SHARED))
    assert message(ledger, share("gpu-0", "2", "8Gi"), share("gpu-0", "1", "8Gi"), "ns/a") == ""
    assert message(ledger, uses("gpu-0"), share("gpu-0", "1", "8Gi"), "ns/a") == ""


def test_nodes_with_the_same_pool_name_have_generations_of_their_own() -> None:
    ledger = holding(a=share("gpu-0", "1", "4Gi"))
    ledger.apply_slice(slice_of("here", SHARED, nodeName="node-1"))
    ledger.apply_slice(slice_of("there", {**SHARED, "name": "gpu-1"}, generation=7, nodeName="node-2"))
    assert message(ledger, share("gpu-0", "2", "4Gi")) == ""
    # Published anew elsewhere, and for exclusive use.
    ledger.apply_slice(slice_of("there", {"name": "gpu-0"}, generation=8, nodeName="node-2"))
    assert "is allocated to claim ns/a" in message(ledger, share("gpu-0", "2", "4Gi"))


def test_shares_of_another_device_of_the_pool_do_not_count() -> None:
    ledger = holding()
    ledger.apply_slice(slice_of("s", SHARED, {**SHARED, "name": "gpu-1"}))
    assert message(ledger, share("gpu-0", "1", "6Gi") + share("gpu-1", "2", "6Gi")) == ""


def test_a_slice_that_moves_to_another_pool_leaves_the_one_before() -> None:
    ledger = holding(a=share("gpu-0", "1", "1Gi"))
    ledger.apply_slice(slice_of("s", SHARED))
    moved = slice_of("s", SHARED)
    moved["spec"]["pool"] = {**moved["spec"]["pool"], "name": "node-2"}
    ledger.apply_slice(moved)
    assert "is allocated to claim ns/a" in message(ledger, share("gpu-0", "2", "1Gi"))


def test_slices_can_be_replaced_by_others() -> None:
    ledger = holding(a=share("gpu-0", "1", "1Gi"), b=share("gpu-1", "1", "1Gi"))
    ledger.apply_slice(slice_of("gone", SHARED))
    ledger.replace_slices([slice_of("new", {**SHARED, "name": "gpu-1"})])
    assert "is allocated to claim ns/a" in message(ledger, share("gpu-0", "2", "1Gi"))
    assert message(ledger, share("gpu-1", "2", "1Gi")) == ""
    ledger.apply_slice(slice_of("gone", SHARED))
    assert message(ledger, share("gpu-0", "2", "1Gi")) == ""


# --- Counters. ---


def partitioned(**claims: tuple[Use, ...]) -> DeviceLedger:
    ledger = holding(**claims)
    parts = [partition("half-0", "40Gi", "3"), partition("half-1", "40Gi", "3"), partition("tiny", "1Gi", "1")]
    ledger.apply_slice(slice_of("devices", *parts))
    ledger.apply_slice(slice_of("counters", sharedCounters=COUNTERS))
    return ledger


def test_partitions_beyond_a_counter_are_refused_with_the_holders() -> None:
    assert message(partitioned(a=uses("half-0")), uses("half-1")) == ""
    ledger = partitioned(a=uses("half-0"), b=uses("half-1"))
    assert message(ledger, uses("tiny")) == (
        "device gpu.example.com/node-1/tiny has not enough counter memory of card, "
        "of which claim ns/a, ns/b holds a part"
    )


def test_the_partitions_of_one_claim_count_together() -> None:
    ledger = partitioned()
    assert message(ledger, uses("half-0", "half-1")) == ""
    assert "has not enough counter memory of card" in message(ledger, uses("half-0", "half-1", "tiny"))


def test_a_partition_that_is_given_back_frees_its_counters() -> None:
    ledger = partitioned(a=uses("half-0"), b=uses("half-1"))
    assert message(ledger, uses("tiny"), uses("half-1"), "ns/b") == ""
    ledger.observe("ns/b", (), 10)
    assert message(ledger, uses("tiny")) == ""


def test_guards_are_the_devices_and_the_pools_with_counters() -> None:
    ledger = partitioned()
    assert ledger.guards(uses("gpu-9")) == (f"{POOL}/gpu-9",)
    assert ledger.guards(uses("half-0", "tiny")) == (f"{POOL}/half-0", POOL, f"{POOL}/tiny")


# --- Observations and writes. ---


def test_deallocation_and_deletion_free_the_devices() -> None:
    ledger = holding(a=uses("gpu-0"), b=uses("gpu-1"))
    ledger.observe("ns/a", (), 5)
    ledger.observe("ns/b", (), 6, deleted=True)
    assert message(ledger, uses("gpu-0", "gpu-1")) == ""
    assert ledger._held == {}


def test_an_older_observation_changes_nothing() -> None:
    ledger = holding()
    ledger.observe("ns/a", uses("gpu-1"), 5)
    ledger.observe("ns/a", uses("gpu-0"), 4)
    assert message(ledger, uses("gpu-0")) == ""
    assert message(ledger, uses("gpu-1")) != ""


def test_a_running_write_holds_its_devices_until_it_has_failed() -> None:
    ledger = holding()
    reservation = ledger.reserve("ns/a", uses("gpu-0"), base=3)
    assert "ns/a" in message(ledger, uses("gpu-0"))
    ledger.release(reservation)
    assert message(ledger, uses("gpu-0")) == ""


def test_a_committed_write_holds_its_devices_whichever_comes_first() -> None:
    for event_first in (True, False):
        ledger = holding()
        reservation = ledger.reserve("ns/a", uses("gpu-0"), base=3)
        if event_first:
            ledger.observe("ns/a", uses("gpu-0"), 4)
        ledger.confirm(reservation, 4)
        if not event_first:
            ledger.observe("ns/a", uses("gpu-0"), 4)
        assert len(ledger._held[POOL]["gpu-0"]) == 1
        ledger.observe("ns/a", (), 5)
        assert message(ledger, uses("gpu-0")) == ""


def test_a_write_in_doubt_holds_its_devices_until_an_event_or_the_deadline() -> None:
    ledger = holding()
    landed, lost = (ledger.reserve(f"ns/{name}", uses(device), base=3) for name, device in (("a", "x"), ("b", "y")))
    ledger.doubt(landed, 100.0)
    ledger.doubt(lost, 100.0)
    ledger.observe("ns/a", uses("x"), 4)
    assert message(ledger, uses("x")) != ""
    assert message(ledger, uses("y")) != ""
    ledger.expire(100.0 + IN_DOUBT_SECONDS - 1)
    assert message(ledger, uses("y")) != ""
    ledger.expire(100.0 + IN_DOUBT_SECONDS)
    assert message(ledger, uses("y")) == ""
    assert message(ledger, uses("x")) != ""


def test_a_doubt_after_the_event_is_none() -> None:
    ledger = holding(a=uses("y"))
    reservation = ledger.reserve("ns/a", uses("x"), base=3)
    ledger.observe("ns/a", (), 5)
    ledger.doubt(reservation, 100.0)
    assert message(ledger, uses("x")) == ""


@pytest.mark.parametrize("before", [(), ("y",)], ids=["nothing", "another"])
def test_a_write_in_doubt_holds_its_devices_while_only_what_it_replaces_is_observed(before: tuple[str, ...]) -> None:
    ledger = holding()
    ledger.observe("ns/a", uses(*before), 3)
    reservation = ledger.reserve("ns/a", uses("x"), base=3)
    ledger.doubt(reservation, 100.0)
    assert message(ledger, uses("x")) != ""
    # The event of that revision may be delivered again.
    ledger.observe("ns/a", uses(*before), 3)
    assert message(ledger, uses("x")) != ""
    ledger.observe("ns/a", (), 4)
    assert message(ledger, uses("x")) == ""


def test_progress_is_reported_once_for_each_revision() -> None:
    ledger, seen = holding(), []
    ledger.on_progress = lambda: seen.append(ledger.revision)
    for revision in (3, 3, 2, 5):
        ledger.progressed(revision)
    assert seen == [3, 5]


def test_a_claim_is_observed_at_the_revision_of_its_confirmed_write_alone() -> None:
    ledger = DeviceLedger()
    assert not ledger.is_observed("ns/a", 5)
    ledger.confirm(ledger.reserve("ns/a", uses("gpu-0"), base=4), 5)
    assert ledger.is_observed("ns/a", 5)
    assert not ledger.is_observed("ns/a", 4)
    assert not ledger.is_observed("ns/a", 6)
    assert not ledger.is_observed("ns/b", 5)
    # The write could not be stored after all, and another one gets its revision.
    ledger.restore("ns/a", (), 3)
    assert not ledger.is_observed("ns/a", 5)
