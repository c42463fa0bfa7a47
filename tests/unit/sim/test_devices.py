from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dray.api.features import FeatureGates
from dray.sim import usage
from dray.sim.claims import ClaimState, claim_rows
from dray.sim.devices import DeviceState, device_rows
from dray.sim.physical_devices import physical_devices
from dray.sim.snapshot import Snapshot
from dray.sim.usage import NamespaceRow, UsageRow
from tests.unit.sim.cluster import GPU, claim, cluster, device, resource_slice

NOW = datetime(2026, 1, 1, 2, 30, tzinfo=UTC)


def test_each_device_has_a_state_and_a_reason() -> None:
    assert [(row.node, row.name, str(row.state), row.note) for row in device_rows(cluster())] == [
        ("node-a", "gpu-0", "held", "held by team/one"),
        ("node-a", "gpu-1", "free", ""),
        ("node-a", "gpu-2", "tainted", "tainted: broken:NoSchedule"),
        ("node-b", "gpu-0", "unusable", "its pool is incomplete: 1 of 2 slices of generation 1"),
        ("*", "nic-0", "shared", "shared by other/share"),
    ]


def test_a_row_says_what_a_device_is_and_who_has_it() -> None:
    row = device_rows(cluster())[0]
    assert row.classes == ("any", "gpu")
    assert row.attributes == {"model": "a100"}
    assert row.capacity == {"memory": "40Gi"}
    (holder,) = row.holders
    assert (holder.claim, holder.pods, holder.since) == ("team/one", ("p",), datetime(2026, 1, 1, tzinfo=UTC))


def test_partitions_whose_counters_are_used_up_are_blocked() -> None:
    def partition(name: str, amount: str) -> dict[str, object]:
        consumed = {"counterSet": "card", "counters": {"memory": {"value": amount}}}
        return device(name, consumesCounters=[consumed])

    counters = resource_slice("counters", GPU, count=2, nodeName="n")
    counters["spec"] |= {"sharedCounters": [{"name": "card", "counters": {"memory": {"value": "40Gi"}}}]}
    partitions = resource_slice("counters", GPU, partition("half", "20Gi"), partition("whole", "40Gi"), count=2)
    partitions["metadata"]["name"] = "partitions"
    partitions["spec"]["nodeName"] = "n"
    rows = device_rows(Snapshot.of([counters, partitions, claim("c", f"{GPU}/counters/half")]))
    assert [(row.name, row.state, row.note) for row in rows] == [
        ("half", DeviceState.HELD, "held by team/c"),
        ("whole", DeviceState.BLOCKED, "counter card/memory is used up"),
    ]


def test_taints_count_only_while_their_gate_is_on() -> None:
    rows = device_rows(cluster(), FeatureGates.parse("DRADeviceTaints=false,DRADeviceTaintRules=false"))
    assert rows[2].state is DeviceState.FREE


def test_use_is_counted_by_node_class_and_driver() -> None:
    devices = physical_devices(cluster())
    tainted, incomplete = {"device taint broken": 1}, {"pool is incomplete": 1}
    assert usage.by_node(devices) == [
        UsageRow("*", 1, 1, 0, 0, 1.0),
        UsageRow("node-a", 3, 1, 1, 1, 1.0, tainted),
        UsageRow("node-b", 1, 0, 0, 1, 0.0, incomplete),
    ]
    out = tainted | incomplete
    assert usage.by_class(devices) == [UsageRow("any", 5, 2, 1, 2, 2.0, out), UsageRow("gpu", 4, 1, 1, 2, 1.0, out)]
    assert [row.name for row in usage.by_driver(devices)] == ["gpu.example.com", "nic.example.com"]


def test_device_hours_run_from_the_allocation() -> None:
    assert usage.by_namespace(cluster(), NOW) == [
        NamespaceRow("other", 1, 0, 1, 2.5),
        NamespaceRow("team", 2, 1, 1, 2.5),
    ]


def test_claims_in_rows() -> None:
    one, waiting = claim_rows(cluster(), "team")
    assert (one.state, one.devices, one.node, one.pods) == (
        ClaimState.RESERVED,
        ("gpu.example.com/node-a/gpu-0",),
        "node-a",
        ("p",),
    )
    assert (waiting.state, waiting.requests, waiting.node) == (ClaimState.PENDING, ("1 gpu",), "")


@pytest.mark.parametrize(
    ("document", "state"),
    [
        (claim("c"), ClaimState.PENDING),
        (claim("c", f"{GPU}/a/b"), ClaimState.ALLOCATED),
        (claim("c", f"{GPU}/a/b", pods=("p",)), ClaimState.RESERVED),
        (claim("c", f"{GPU}/a/b", deletionTimestamp="2026-01-01T00:00:00Z"), ClaimState.DELETING),
    ],
)
def test_where_a_claim_is_in_its_life(document: dict[str, object], state: ClaimState) -> None:
    assert claim_rows(Snapshot.of([document]))[0].state is state
