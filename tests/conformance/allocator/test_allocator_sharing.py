"""Requests of capacity that a device cannot serve, compatibility groups and skipped operations (N-96 to N-107)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from dray.allocator import AllocationError
from dray.api.types import core_v1
from dray.api.types import resource_v1 as r
from tests.conformance.allocator.builders import (
    all_devices,
    claim,
    counter_set,
    device,
    first_of,
    holding,
    listed,
    node,
    ranged,
    request,
    shared,
    slice_of,
    sub,
    taint,
)
from tests.conformance.allocator.cases import Case, allocated, devices_of

pytestmark = pytest.mark.api_allocator

GROUPS = {"DRADeviceCompatibilityGroups": True}
SKIPS = {"DRAOptionalNodeOperations": True}


def row(identifier: str, name: str, case: Case) -> Any:
    return pytest.param(case, id=name, marks=pytest.mark.behaviour(identifier))


# ---- capacity


def share_of(amount: str, **policy: str) -> Case:
    capacity = ranged("9223372036854775807", **policy)
    return Case([claim(request(capacity={"cap": amount}))], [slice_of(shared("a", {"cap": capacity}))])


@pytest.mark.behaviour("N-96")
@pytest.mark.parametrize(
    ("amount", "policy", "expected"),
    [
        ("250m", {"default": "100m", "least": "100m", "step": "100m", "most": "1"}, "300m"),
        ("10m", {"default": "100m", "least": "100m", "step": "100m", "most": "1"}, "100m"),
        ("1500m", {"default": "1", "least": "1", "step": "1", "most": "4"}, "2"),
        ("1", {"default": "500m", "least": "500m", "step": "1", "most": "4500m"}, "1500m"),
        ("3", {"default": "2", "least": "2", "step": "2", "most": "4"}, "4"),
    ],
)
def test_a_share_is_rounded_up_to_the_next_step(amount: str, policy: dict[str, str], expected: str) -> None:
    (allocation,) = allocated(share_of(amount, **policy)) or ()
    assert allocation.devices.results[0].consumed_capacity == {"cap": expected}


FRACTIONS = {"default": "100m", "least": "100m", "step": "100m", "most": "1"}
WHOLE = {"default": "1", "least": "1", "step": "2", "most": "9"}
UNREPRESENTABLE = (
    'claim ns/claim-0, request req-0, device driver-a/pool-1/a: capacity "cap": '
    "capacity request cannot be represented in the device's range arithmetic: "
)
LARGEST = 9223372036854775807


@pytest.mark.behaviour("N-97")
@pytest.mark.parametrize(
    ("case", "problem"),
    [
        pytest.param(share_of("9223372036854775808", **WHOLE), f"more than {LARGEST}", id="too large"),
        pytest.param(
            share_of("9223372036854775807", default="2", least="2", step="2", most="9"),
            f"more than {LARGEST}",
            id="too large when rounded",
        ),
        pytest.param(share_of("9223372036854776", **FRACTIONS), f"more than {LARGEST}m", id="too large in thousandths"),
        pytest.param(share_of("100100u", **FRACTIONS), "finer than 1m", id="too fine"),
    ],
)
def test_a_request_that_cannot_be_represented_ends_the_attempt(case: Case, problem: str) -> None:
    with pytest.raises(AllocationError) as caught:
        allocated(case)
    assert str(caught.value) == UNREPRESENTABLE + problem


@pytest.mark.behaviour("N-97")
def test_a_negative_share_ends_the_attempt() -> None:
    device_with_fault = shared("a", {"cap": listed("4", default="-1")})
    with pytest.raises(AllocationError) as caught:
        allocated(Case([claim(request())], [slice_of(device_with_fault)]))
    expected = 'claim ns/claim-0, request req-0, device driver-a/pool-1/a: capacity "cap": capacity value is negative'
    assert str(caught.value) == expected


@pytest.mark.behaviour("N-97")
def test_a_request_that_cannot_be_represented_precedes_one_that_does_not_fit() -> None:
    capacity = {"aaa": ranged("4"), "cap": ranged("4", **FRACTIONS)}
    for wanted in ({"aaa": "100", "cap": "100100u"}, {"cap": "100100u", "aaa": "100"}):
        with pytest.raises(AllocationError, match="finer than 1m"):
            allocated(Case([claim(request(capacity=wanted))], [slice_of(shared("a", capacity))]))


@pytest.mark.parametrize("make", [shared, device], ids=["shared", "exclusive"])
@pytest.mark.parametrize("own", ["cap", "driver-a/cap"])
@pytest.mark.parametrize("wanted", [{"cap": "1", "driver-a/cap": "2"}, {"driver-a/cap": "2", "cap": "1"}])
def test_a_capacity_that_is_requested_by_two_names_ends_the_attempt(make: Any, own: str, wanted: Any) -> None:
    """As in kubernetes/kubernetes#142202; no order of the names gives one of them precedence."""
    case = Case([claim(request(capacity=wanted))], [slice_of(make("a", capacity={own: "4"}))])
    with pytest.raises(AllocationError) as caught:
        allocated(case)
    problem = 'capacity "cap" requested both as "cap" and as "driver-a/cap"'
    assert str(caught.value) == f"claim ns/claim-0, request req-0, device driver-a/pool-1/a: {problem}"


def test_two_names_end_the_attempt_only_at_a_device_that_has_the_capacity() -> None:
    wanted = {"cap": "1", "driver-b/cap": "2"}
    case = Case([claim(request(capacity=wanted))], [slice_of(device("a", capacity={"cap": "4"}))])
    assert allocated(case) is None
    both = {"cap": "4", "driver-b/cap": "4"}
    assert allocated(Case(case.claims, [slice_of(device("a", capacity=both))])) is not None


@pytest.mark.behaviour("N-97")
def test_a_device_that_is_not_reached_does_not_end_the_attempt() -> None:
    case = Case(
        [claim(request(capacity={"cap": "100100u"}))],
        [slice_of(shared("a", {"cap": "4"}), shared("b", {"cap": ranged("4", **FRACTIONS)}))],
    )
    (allocation,) = allocated(case) or ()
    assert devices_of(allocation) == ["req-0 driver-a/pool-1/a"]


CAPACITY = [
    row(
        "N-98",
        "all devices, one of which has too little left",
        Case(
            [claim(all_devices(capacity={"cap": "3"}))],
            [slice_of(shared("a", {"cap": "4"}), shared("b", {"cap": "4"}))],
            in_use=[holding("driver-a/pool-1/b", share_id="s", consumed_capacity={"cap": "2"})],
        ),
    ),
    row(
        "N-98",
        "all devices that could ever hold the request",
        Case(
            [claim(all_devices(capacity={"cap": "3"}))],
            [slice_of(shared("a", {"cap": "4"}), shared("b", {"cap": "2"}))],
            [["req-0 driver-a/pool-1/a"]],
        ),
    ),
    row(
        "N-99",
        "a device without the capacity is passed over",
        Case(
            [claim(request(capacity={"cap": "1"}))],
            [slice_of(shared("a", {"other": "4"}), shared("b", {"cap": "4"}))],
            [["req-0 driver-a/pool-1/b"]],
        ),
    ),
    row(
        "N-99",
        "a shared device without consumed capacity takes its counters once",
        Case(
            [claim(request("r0"), request("r1"))],
            [
                slice_of(device("a", consumes={"set": {"n": "1"}}, allow_multiple_allocations=True), name="a", size=2),
                slice_of(name="b", size=2, shared_counters=(counter_set("set", n="1"),)),
            ],
            [["r0 driver-a/pool-1/a", "r1 driver-a/pool-1/a"]],
        ),
    ),
]


# ---- compatibility groups


def part(name: str, *groups: str, sets: Sequence[str] = ("set",), **fields: Any) -> r.Device:
    return device(name, consumes={item: {"n": "1"} for item in sets}, groups=dict.fromkeys(sets, groups), **fields)


def parts(*members: r.Device, total: str = "8", sets: Sequence[str] = ("set",), **fields: Any) -> list[r.ResourceSlice]:
    counters = tuple(counter_set(item, n=total) for item in sets)
    return [
        slice_of(*members, name="devices", size=2, **fields),
        slice_of(name="sets", size=2, shared_counters=counters),
    ]


def two(*members: r.Device, expected: Sequence[str] | None = None, **fields: Any) -> Case:
    """Two requests for the devices."""
    keys = None if expected is None else [[f"r{i} driver-a/pool-1/{name}" for i, name in enumerate(expected)]]
    return Case([claim(request("r0"), request("r1"))], parts(*members), keys, gates=GROUPS, **fields)


COMPATIBILITY = [
    row("N-101", "one group in common", two(part("a", "x", "y"), part("b", "y"), expected=["a", "b"])),
    row("N-101", "no group in common", two(part("a", "x"), part("b", "y"))),
    row("N-101", "none is a kind of its own", two(part("a"), part("b", "x"), part("c"), expected=["a", "c"])),
    row(
        "N-101",
        "one group is common to all",
        Case(
            [claim(request(count=3))],
            parts(part("a", "x", "y"), part("b", "y", "z"), part("c", "z", "x"), part("d", "y", "w")),
            [["req-0 driver-a/pool-1/a", "req-0 driver-a/pool-1/b", "req-0 driver-a/pool-1/d"]],
            gates=GROUPS,
        ),
    ),
    row(
        "N-101",
        "different sets are not compared",
        Case(
            [claim(request("r0"), request("r1"))],
            parts(part("a", "x", sets=["s1"]), part("b", "y", sets=["s2"]), sets=["s1", "s2"]),
            [["r0 driver-a/pool-1/a", "r1 driver-a/pool-1/b"]],
            gates=GROUPS,
        ),
    ),
    row(
        "N-101",
        "both sets of a device must be compatible",
        Case(
            [claim(request("r0"), request("r1"))],
            parts(
                part("a", "x", sets=["s1", "s2"]),
                device("b", consumes={"s1": {"n": "1"}, "s2": {"n": "1"}}, groups={"s1": ("x",), "s2": ("y",)}),
                sets=["s1", "s2"],
            ),
            gates=GROUPS,
        ),
    ),
    row(
        "N-102",
        "devices in use count with their groups",
        Case(
            [claim(request())],
            parts(part("a", "x"), part("b", "y"), part("c", "y")),
            [["req-0 driver-a/pool-1/b"]],
            in_use=[holding("driver-a/pool-1/c"), holding("driver-a/pool-1/gone", name="another")],
            gates=GROUPS,
        ),
    ),
    row(
        "N-102",
        "devices in use without a common group allow no other",
        Case(
            [claim(request())],
            parts(part("a", "x"), part("b", "y"), part("c", "x"), part("d")),
            in_use=[holding("driver-a/pool-1/a"), holding("driver-a/pool-1/b", name="b")],
            gates=GROUPS,
        ),
    ),
    row(
        "N-102",
        "groups are taken back on the way back",
        Case(
            [claim(request(count=2))],
            parts(part("a", "x"), part("b", "y"), part("c", "y")),
            [["req-0 driver-a/pool-1/b", "req-0 driver-a/pool-1/c"]],
            gates=GROUPS,
        ),
    ),
    row(
        "N-102",
        "a taint does not leave its groups behind",
        Case(
            [claim(request("r0"), request("r1"))],
            parts(part("a", "x", taints=(taint(),)), part("b", "y"), part("c", "y")),
            [["r0 driver-a/pool-1/b", "r1 driver-a/pool-1/c"]],
            gates=GROUPS,
        ),
    ),
    row(
        "N-102",
        "a lower alternative has another group",
        Case(
            [
                claim(
                    request("r0", "class-a", 1, 'device.attributes["driver-a"].size == 1'),
                    first_of(
                        "r1",
                        sub("big", "class-a", 1, 'device.attributes["driver-a"].size == 2'),
                        sub("small", "class-a", 1, 'device.attributes["driver-a"].size == 1'),
                    ),
                )
            ],
            parts(
                part("a", "x", attributes={"size": 1}),
                part("b", "y", attributes={"size": 2}),
                part("c", "x", attributes={"size": 1}),
            ),
            [["r0 driver-a/pool-1/a", "r1/small driver-a/pool-1/c"]],
            gates=GROUPS,
        ),
    ),
    row(
        "N-102",
        "a further share is not compared again",
        Case(
            [claim(request("r0", capacity={"cap": "1"}), request("r1", capacity={"cap": "1"}))],
            parts(
                part("a", "x", capacity={"cap": "2"}, allow_multiple_allocations=True),
                part("b", "y", capacity={"cap": "2"}, allow_multiple_allocations=True),
            ),
            [["r0 driver-a/pool-1/a", "r1 driver-a/pool-1/a"]],
            gates=GROUPS,
        ),
    ),
    row(
        "N-103",
        "switched off, a pool with groups is not used",
        Case([claim(request())], parts(part("a", "x"), part("b"))),
    ),
    row(
        "N-103",
        "switched off, a pool without groups is used",
        Case([claim(request())], parts(part("a"), part("b")), [["req-0 driver-a/pool-1/a"]]),
    ),
]


# ---- skipped operations


def network_attached(*members: str) -> r.ResourceSlice:
    return slice_of(*members, all_nodes=True, skip_node_operations=("*",))


def declaring(*features: str) -> core_v1.Node:
    return msgspec.structs.replace(node(), status=core_v1.NodeStatus(declared_features=features))


SKIPPED = [
    row(
        "N-107",
        "a node that declares the feature",
        Case(
            [claim(request())],
            [network_attached("a")],
            [["req-0 driver-a/pool-1/a"]],
            node=declaring("DRAOptionalNodeOperations"),
            gates=SKIPS,
        ),
    ),
    row(
        "N-107",
        "a node that does not declare the feature",
        Case([claim(request())], [network_attached("a")], node=declaring("Other"), gates=SKIPS),
    ),
    row(
        "N-107",
        "switched off in the scheduler",
        Case([claim(request())], [network_attached("a")], node=declaring("DRAOptionalNodeOperations")),
    ),
    row(
        "N-107",
        "other devices are given instead",
        Case(
            [claim(request())],
            [network_attached("a"), slice_of("b", pool="pool-2")],
            [["req-0 driver-a/pool-2/b"]],
            gates=SKIPS,
        ),
    ),
]


@pytest.mark.parametrize("case", [*CAPACITY, *COMPATIBILITY, *SKIPPED])
def test_devices(case: Case) -> None:
    allocations = allocated(case)
    found = None if allocations is None else [devices_of(item) for item in allocations]
    assert found == (None if case.expected is None else [list(item) for item in case.expected])


@pytest.mark.behaviour("N-106")
def test_a_result_has_the_skipped_operations_of_its_slice() -> None:
    case = Case(
        [claim(request(count=2))],
        [network_attached("a"), slice_of("b", pool="pool-2")],
        node=declaring("DRAOptionalNodeOperations"),
        gates=SKIPS,
    )
    (allocation,) = allocated(case) or ()
    assert [item.skip_node_operations for item in allocation.devices.results] == [("*",), ()]
