"""Prioritized alternatives in requests (KEP-4816): PL-15 to PL-25."""

from __future__ import annotations

import pytest

from dray.allocator import AllocationError, AllocatorError, NodeAllocationError, allocation_score, normalized_scores
from dray.api.types import resource_v1 as r
from tests.conformance.allocator.builders import (
    all_devices,
    claim,
    config,
    device,
    device_class,
    devices,
    first_of,
    holding,
    match,
    no_such_key,
    opaque,
    request,
    slice_of,
    sub,
    sub_all,
)
from tests.conformance.allocator.cases import Case, allocated, devices_of

pytestmark = pytest.mark.api_allocator

B = "driver-b"


def memory(least: str) -> str:
    return f'device.capacity["driver-a"].memory.compareTo(quantity("{least}")) >= 0'


def of_type(wanted: str) -> str:
    return f'device.attributes["driver-a"].type == "{wanted}"'


def sized(name: str, amount: str, **attributes: object) -> r.Device:
    return device(name, attributes, capacity={"memory": amount})


def row(identifier: str, name: str, case: Case) -> object:
    return pytest.param(case, id=name, marks=pytest.mark.behaviour(identifier))


CASES = [
    row(
        "PL-15",
        "the first alternative that can be met is used",
        Case(
            [claim(first_of("gpu", sub("big"), sub("small", "class-b")))],
            [slice_of("a"), slice_of("b", driver=B)],
            [["gpu/big driver-a/pool-1/a"]],
        ),
    ),
    row(
        "PL-15",
        "a later one is used when the earlier cannot be met",
        Case(
            [claim(first_of("gpu", sub("big", "class-b"), sub("small")))],
            [slice_of("a")],
            [["gpu/small driver-a/pool-1/a"]],
        ),
    ),
    row(
        "PL-16",
        "none of them can be met",
        Case(
            [claim(first_of("gpu", sub("big", "class-b", 2), sub("small", "class-a", 2)))],
            [slice_of("a"), slice_of("b", driver=B)],
        ),
    ),
    row(
        "PL-17",
        "a later request pushes an earlier one to a lower alternative",
        Case(
            [
                claim(
                    first_of("r0", sub("large", "class-a", 1, memory("8Gi")), sub("fair", "class-a", 1, memory("4Gi"))),
                    request("r1", "class-a", 1, memory("8Gi")),
                )
            ],
            [slice_of(sized("big", "8Gi")), slice_of(sized("little", "4Gi"), pool="pool-2")],
            [["r0/fair driver-a/pool-2/little", "r1 driver-a/pool-1/big"]],
        ),
    ),
    row(
        "PL-17",
        "an earlier request leaves a later one its lower alternative",
        Case(
            [
                claim(
                    request("r1", "class-a", 1, memory("8Gi")),
                    first_of("r0", sub("large", "class-a", 1, memory("8Gi")), sub("fair", "class-a", 1, memory("4Gi"))),
                )
            ],
            [slice_of(sized("big", "8Gi")), slice_of(sized("little", "4Gi"), pool="pool-2")],
            [["r1 driver-a/pool-1/big", "r0/fair driver-a/pool-2/little"]],
        ),
    ),
    row(
        "PL-17",
        "a later claim pushes an earlier one to a lower alternative",
        Case(
            [
                claim(first_of("r", sub("two", "class-a", 2), sub("one"))),
                claim(request("r", "class-a", 2), name="claim-1"),
            ],
            [slice_of(*devices(3))],
            [["r/one driver-a/pool-1/device-0"], ["r driver-a/pool-1/device-1", "r driver-a/pool-1/device-2"]],
        ),
    ),
    row(
        "PL-17",
        "alternatives and combinations are gone through together",
        Case(
            [
                claim(
                    first_of(
                        "r1",
                        sub("y", "class-a", 3, 'device.attributes["driver-a"].type == "Y"'),
                        sub("any", "class-a", 2),
                    ),
                    first_of(
                        "r2",
                        sub("two", "class-a", 2),
                        sub("x", "class-a", 1, 'device.attributes["driver-a"].type == "X"'),
                    ),
                )
            ],
            [slice_of(device("a", {"type": "X"}), device("b", {"type": "Y"}), device("c", {"type": "Y"}))],
            [["r1/any driver-a/pool-1/b", "r1/any driver-a/pool-1/c", "r2/x driver-a/pool-1/a"]],
        ),
    ),
    row(
        "PL-17",
        "too many devices for one claim push an earlier request to a lower alternative",
        Case(
            [
                claim(
                    request("r0", "class-a", 1, of_type("C")),
                    first_of("r1", sub("many", "class-a", 20, of_type("A")), sub("few", "class-a", 10, of_type("A"))),
                    first_of("r2", sub("many", "class-a", 20, of_type("B")), sub("one", "class-a", 1, of_type("C"))),
                )
            ],
            [
                slice_of(
                    device("c", {"type": "C"}),
                    *(device(f"a-{index}", {"type": "A"}) for index in range(20)),
                    *(device(f"b-{index}", {"type": "B"}) for index in range(20)),
                )
            ],
            [
                [
                    "r0 driver-a/pool-1/c",
                    *(f"r1/few driver-a/pool-1/a-{index}" for index in range(10)),
                    *(f"r2/many driver-a/pool-1/b-{index}" for index in range(20)),
                ]
            ],
        ),
    ),
    row(
        "PL-18",
        "an alternative of all devices where there are none",
        Case(
            [claim(first_of("gpu", sub_all("all", "class-b"), sub("one")))],
            [slice_of("a")],
            [["gpu/one driver-a/pool-1/a"]],
        ),
    ),
    row(
        "PL-18",
        "an alternative of all devices where some are in use",
        Case(
            [claim(first_of("gpu", sub_all("all"), sub("one")))],
            [slice_of("a", "b")],
            [["gpu/one driver-a/pool-1/b"]],
            in_use=[holding("driver-a/pool-1/a")],
        ),
    ),
    row(
        "PL-18",
        "an alternative of all devices where an earlier request took one",
        Case(
            [claim(request("r"), first_of("gpu", sub_all("all"), sub("one")))],
            [slice_of("a", "b")],
            [["r driver-a/pool-1/a", "gpu/one driver-a/pool-1/b"]],
        ),
    ),
    row(
        "PL-18",
        "all devices of all pools",
        Case(
            [claim(first_of("gpu", sub_all("all"), sub("one")))],
            [slice_of("a"), slice_of("b", pool="pool-2")],
            [["gpu/all driver-a/pool-1/a", "gpu/all driver-a/pool-2/b"]],
        ),
    ),
    row(
        "PL-18",
        "all devices are passed over while a pool is being updated",
        Case(
            [claim(first_of("gpu", sub_all("all"), sub("one")))],
            [slice_of("a"), slice_of("b", pool="pool-2", size=2)],
            [["gpu/one driver-a/pool-1/a"]],
        ),
    ),
    row(
        "PL-19",
        "an alternative that is too large is skipped",
        Case(
            [claim(first_of("gpu", sub("many", "class-a", 500), sub("one")))],
            [slice_of("a")],
            [["gpu/one driver-a/pool-1/a"]],
        ),
    ),
    row(
        "PL-19",
        "two lists share the limit of the claim",
        Case(
            [claim(*(first_of(name, sub("x", "class-a", 32), sub("y", "class-a", 16)) for name in ("r0", "r1")))],
            [slice_of(*devices(64))],
            [[f"r{n // 16}/y driver-a/pool-1/device-{n}" for n in range(32)]],
            steps=32,
        ),
    ),
    row(
        "PL-19",
        "all devices would be too many with what comes later",
        Case(
            [claim(first_of("r0", sub_all("all"), sub("two", "class-a", 2)), request("r1", "class-b", 2))],
            [slice_of(*devices(31)), slice_of("x", "y", driver=B)],
            [
                [
                    "r0/two driver-a/pool-1/device-0",
                    "r0/two driver-a/pool-1/device-1",
                    "r1 driver-b/pool-1/x",
                    "r1 driver-b/pool-1/y",
                ]
            ],
            steps=4,
        ),
    ),
    row(
        "PL-20",
        "an alternative that is never tried may have a selector that fails",
        Case(
            [claim(first_of("gpu", sub("one"), sub("bad", "class-a", 1, "noSuchVar")))],
            [slice_of("a")],
            [["gpu/one driver-a/pool-1/a"]],
        ),
    ),
    row(
        "PL-21",
        "a constraint on a request holds for the alternative that is chosen",
        Case(
            [
                claim(
                    request("r0", "class-a", 1, memory("8Gi")),
                    first_of("r1", sub("x", "class-a", 1, memory("2Gi")), sub("y", "class-a", 1, memory("1Gi"))),
                    constraints=[match("version", "r0", "r1")],
                )
            ],
            [
                slice_of(sized("a", "8Gi", version="v1.0.0")),
                slice_of(sized("b", "2Gi", version="v2.0.0"), sized("c", "1Gi", version="v1.0.0"), pool="pool-2"),
            ],
            [["r0 driver-a/pool-1/a", "r1/y driver-a/pool-2/c"]],
        ),
    ),
    row(
        "PL-21",
        "a constraint on one alternative leaves the other free",
        Case(
            [
                claim(
                    request("r0", "class-a", 1, memory("8Gi")),
                    first_of("r1", sub("x", "class-a", 1, memory("2Gi")), sub("y", "class-a", 1, memory("1Gi"))),
                    constraints=[match("version", "r0", "r1/x")],
                )
            ],
            [
                slice_of(sized("a", "8Gi", version="v1.0.0")),
                slice_of(sized("b", "2Gi", version="v2.0.0"), pool="pool-2"),
            ],
            [["r0 driver-a/pool-1/a", "r1/y driver-a/pool-2/b"]],
        ),
    ),
    row(
        "PL-23",
        "each alternative has its own selectors",
        Case(
            [
                claim(
                    request("r0", "class-a", 1, memory("1Gi")),
                    first_of("r1", sub("x", "class-a", 1, memory("4Gi")), sub("y", "class-a", 2, memory("2Gi"))),
                )
            ],
            [slice_of(sized("a", "2Gi"), sized("b", "2Gi"), sized("c", "1Gi"))],
            [["r0 driver-a/pool-1/c", "r1/y driver-a/pool-1/a", "r1/y driver-a/pool-1/b"]],
        ),
    ),
]


@pytest.mark.parametrize("case", CASES)
def test_devices(case: Case) -> None:
    allocations = allocated(case)
    found = None if allocations is None else [devices_of(item) for item in allocations]
    assert found == (None if case.expected is None else [list(item) for item in case.expected])


ERRORS = [
    row(
        "PL-19",
        "even the smallest alternatives are too large",
        Case(
            [claim(first_of("r0", sub("x", "class-a", 40), sub("y", "class-a", 20)), request("r1", "class-a", 13))],
            error="claim ns/claim-0: number of requested devices 33 exceeds the claim limit of 32",
        ),
    ),
    row(
        "PL-20",
        "the class of an alternative that would never be tried is missing",
        Case(
            [claim(first_of("gpu", sub("one"), sub("two", "nope")))],
            [slice_of("a")],
            error="claim ns/claim-0, request gpu/two: could not retrieve device class nope: "
            'deviceclass.resource.k8s.io "nope" not found',
        ),
    ),
    row(
        "PL-20",
        "the selector of an alternative that is tried fails",
        Case(
            [claim(first_of("gpu", sub("bad", "class-a", 1, "device.attributes['x'].y"), sub("one")))],
            [slice_of("a")],
            error=no_such_key("y", "a"),
        ),
    ),
    row(
        "PL-20",
        "the selector of all devices fails although it would never be tried",
        Case(
            [claim(first_of("gpu", sub("one"), sub_all("bad", "class-a", "device.attributes['x'].y")))],
            [slice_of("a")],
            error=no_such_key("y", "a"),
        ),
    ),
    row(
        "PL-24",
        "lists are switched off",
        Case(
            [claim(first_of("gpu", sub("one")))],
            [slice_of("a")],
            gates={"DRAPrioritizedList": False},
            error="claim ns/claim-0, request gpu: has subrequests, but the DRAPrioritizedList feature is disabled",
        ),
    ),
    row(
        "PL-18",
        "only all devices would do, and a pool is being updated",
        Case(
            [claim(first_of("gpu", sub("b", "class-b"), sub_all("all")))],
            [slice_of("a", size=2)],
            error="node: claim ns/claim-0, request gpu/all: "
            "asks for all devices, but resource pool driver-a/pool-1 is currently being updated",
        ),
    ),
]


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case: Case) -> None:
    with pytest.raises(AllocatorError) as caught:
        allocated(case)
    expected = case.error or ""
    assert isinstance(caught.value, NodeAllocationError if expected.startswith("node: ") else AllocationError)
    assert str(caught.value) == expected.removeprefix("node: ")


@pytest.mark.behaviour("PL-22", "N-115")
def test_configuration_follows_the_chosen_alternative() -> None:
    case = Case(
        [
            claim(
                first_of("gpu", sub("a", "class-a", 2), sub("b", "class-b", 2)),
                config=[config("for a", "gpu/a"), config("for b", "gpu/b"), config("for either", "gpu")],
            )
        ],
        [slice_of("x"), slice_of("y", "z", driver=B)],
        classes=[device_class("class-a", config=["class a"]), device_class("class-b", config=["class b"])],
    )
    (allocation,) = allocated(case) or ()
    assert allocation.devices.config == (
        r.DeviceAllocationConfiguration(source="FromClass", opaque=opaque("class b")),
        r.DeviceAllocationConfiguration(source="FromClaim", opaque=opaque("for b")),
        r.DeviceAllocationConfiguration(source="FromClaim", opaque=opaque("for either")),
    )


@pytest.mark.behaviour("PL-25")
@pytest.mark.parametrize(("position", "score"), [(0, 8), (1, 7), (7, 1)])
def test_the_earlier_the_alternative_the_better_the_score(position: int, score: int) -> None:
    names = ["none"] * 8
    names[position] = "class-a"
    ways = [sub(f"s{number}", name) for number, name in enumerate(names)]
    case = Case(
        [claim(first_of("gpu", *ways))], [slice_of("x")], classes=[device_class(), device_class("none", "false")]
    )
    assert allocation_score(case.claims, allocated(case) or ()) == score


@pytest.mark.behaviour("PL-25")
def test_scores_add_up_over_claims_and_leave_out_exact_requests() -> None:
    case = Case(
        [
            claim(first_of("r0", sub("a")), all_devices("r1", "class-b")),
            claim(
                first_of("r0", sub("b", "class-b"), sub("a")), first_of("r1", sub("a", "class-a", 2)), name="claim-1"
            ),
        ],
        [slice_of(*devices(4)), slice_of("x", driver=B)],
    )
    assert allocation_score(case.claims, allocated(case) or ()) == 8 + 7 + 8
    exact = Case([claim(request())], [slice_of("x")])
    assert allocation_score(exact.claims, allocated(exact) or ()) == 0


@pytest.mark.behaviour("PL-26")
def test_nothing_allocated_scores_nothing() -> None:
    assert allocation_score([], []) == 0


@pytest.mark.behaviour("PL-27")
@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ({}, {}),
        ({"a": 14, "b": 15, "c": 13}, {"a": 50, "b": 100, "c": 0}),
        ({"a": 0, "b": 0}, {"a": 100, "b": 100}),
        ({"a": 8, "b": 7, "c": 5}, {"a": 100, "b": 66, "c": 0}),
    ],
)
def test_scores_are_spread_from_worst_to_best(scores: dict[str, int], expected: dict[str, int]) -> None:
    assert normalized_scores(scores) == expected
