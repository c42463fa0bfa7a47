"""Constraints on lists of values, on NUMA nodes and on derived attributes (N-59, N-60, N-85 to N-91)."""

from __future__ import annotations

from typing import Any

import pytest

from dray.allocator import AllocationError
from dray.api.types import resource_v1 as r
from tests.conformance.allocator.builders import (
    claim,
    device,
    device_class,
    distinct,
    first_of,
    match,
    request,
    slice_of,
    sub,
    sub_all,
)
from tests.conformance.allocator.cases import Case, allocated, devices_of

pytestmark = pytest.mark.api_allocator

LISTS = {"DRAListTypeAttributes": True}
DERIVED = {"DRADerivedAttributes": True}
NUMA = "resource.kubernetes.io/numaNode"
SAME_NUMA = r.DeviceConstraint(match_attribute=NUMA)
SOCKET = "derived/socket"
SAME_SOCKET = r.DeviceConstraint(match_attribute=SOCKET)
OTHER_SOCKETS = r.DeviceConstraint(distinct_attribute=SOCKET)
CLASSES = (device_class("class-a"), device_class("class-b"), device_class("class-c"))


def row(identifier: str, name: str, case: Case) -> Any:
    return pytest.param(case, id=name, marks=pytest.mark.behaviour(identifier))


def numa(name: str, node: int | list[int]) -> r.Device:
    return device(name, {NUMA: node})


def own(attribute: str) -> str:
    return f'device.attributes["driver-a"].{attribute}'


GPU_NIC_CPU = claim(request("gpu"), request("nic", "class-b"), request("cpu", "class-c"), constraints=[SAME_NUMA])
BY_CAGE = request(derived={SOCKET: own("cage")}, count=2)

FITS = [
    row(
        "N-59",
        "one constraint for GPU, NIC and CPU",
        Case(
            [GPU_NIC_CPU],
            [
                slice_of(numa("gpu-0", 0), numa("gpu-1", 1)),
                slice_of(numa("nic-0", 1), driver="driver-b"),
                slice_of(numa("cpu-0", 0), numa("cpu-1", 1), driver="driver-c"),
            ],
            [["gpu driver-a/pool-1/gpu-1", "nic driver-b/pool-1/nic-0", "cpu driver-c/pool-1/cpu-1"]],
            classes=CLASSES,
        ),
    ),
    row(
        "N-59",
        "NUMA nodes overlap",
        Case(
            [GPU_NIC_CPU],
            [
                slice_of(numa("gpu-0", [0, 1])),
                slice_of(numa("nic-0", [1, 0]), driver="driver-b"),
                slice_of(numa("cpu-2", 2), numa("cpu-1", 1), driver="driver-c"),
            ],
            [["gpu driver-a/pool-1/gpu-0", "nic driver-b/pool-1/nic-0", "cpu driver-c/pool-1/cpu-1"]],
            classes=CLASSES,
            gates=LISTS,
        ),
    ),
    row(
        "N-59",
        "NUMA nodes are disjoint",
        Case(
            [GPU_NIC_CPU],
            [
                slice_of(numa("gpu-0", [0, 1])),
                slice_of(numa("nic-0", [2, 3]), driver="driver-b"),
                slice_of(numa("cpu-1", 1), driver="driver-c"),
            ],
            classes=CLASSES,
            gates=LISTS,
        ),
    ),
    row(
        "N-59",
        "distinct values within one request",
        Case(
            [claim(request(count=3), constraints=[distinct("x")])],
            [slice_of(device("a", {"x": 1}), device("b", {"x": 2}), device("c", {"x": 1}), device("d", {"x": 3}))],
            [["req-0 driver-a/pool-1/a", "req-0 driver-a/pool-1/b", "req-0 driver-a/pool-1/d"]],
        ),
    ),
    row(
        "N-60",
        "with the gate off, selectors see lists",
        Case(
            [claim(request("r", "class-a", 1, f"{own('x')}.includes(2)"))],
            [slice_of(device("a", {"x": [1]}), device("b", {"x": [1, 2]}))],
            [["r driver-a/pool-1/b"]],
        ),
    ),
    row(
        "N-60",
        "with the gate off, one device with a list matches",
        Case(
            [claim(request(), constraints=[match("x")])],
            [slice_of(device("a", {"x": [1]}))],
            [["req-0 driver-a/pool-1/a"]],
        ),
    ),
    row(
        "N-60",
        "with the gate off, two devices with a list do not match",
        Case(
            [claim(request(count=2), constraints=[match("x")])],
            [slice_of(device("a", {"x": [1]}), device("b", {"x": [1]}))],
        ),
    ),
    row(
        "N-60",
        "with the gate off, a list is not distinct from anything",
        Case(
            [claim(request(count=2), constraints=[distinct("x")])],
            [slice_of(device("a", {"x": [1]}), device("b", {"x": 2}), device("c", {"x": 3}))],
            [["req-0 driver-a/pool-1/b", "req-0 driver-a/pool-1/c"]],
        ),
    ),
    row(
        "N-89",
        "devices of two drivers match by values that they name differently",
        Case(
            [
                claim(
                    request("gpu", derived={SOCKET: own("cage")}),
                    request("nic", "class-b", derived={SOCKET: 'int(device.attributes["driver-b"].socket)'}),
                    constraints=[SAME_SOCKET],
                )
            ],
            [
                slice_of(device("gpu-0", {"cage": 0}), device("gpu-1", {"cage": 1})),
                slice_of(device("nic-0", {"socket": "1"}), driver="driver-b"),
            ],
            [["gpu driver-a/pool-1/gpu-1", "nic driver-b/pool-1/nic-0"]],
            gates=DERIVED,
        ),
    ),
    row(
        "N-89",
        "a derived value precedes the device's own",
        Case(
            [claim(request("r", count=2, derived={"driver-a/x": own("y")}), constraints=[match("x")])],
            [slice_of(device("a", {"x": 1, "y": 1}), device("b", {"x": 1, "y": 2}), device("c", {"x": 3, "y": 1}))],
            [["r driver-a/pool-1/a", "r driver-a/pool-1/c"]],
            gates=DERIVED,
        ),
    ),
    row(
        "N-89",
        "a request without it uses the device's own",
        Case(
            [claim(request("r0", derived={"driver-a/x": own("y")}), request("r1"), constraints=[match("x")])],
            [slice_of(device("a", {"x": 5, "y": 7}), device("b", {"x": 6, "y": 8}), device("c", {"x": 8, "y": 9}))],
            [["r0 driver-a/pool-1/b", "r1 driver-a/pool-1/c"]],
            gates=DERIVED,
        ),
    ),
    row(
        "N-89",
        "alternatives derive the value in different ways",
        Case(
            [
                claim(
                    first_of(
                        "gpu",
                        sub("big", "class-a", 2, derived={SOCKET: own("cage")}),
                        sub("small", "class-a", 1, derived={SOCKET: f"{own('cage')} + 10"}),
                    ),
                    request("nic", "class-b", derived={SOCKET: "11"}),
                    constraints=[SAME_SOCKET],
                )
            ],
            [
                slice_of(device("gpu-0", {"cage": 0}), device("gpu-1", {"cage": 1}), device("gpu-2", {"cage": 1})),
                slice_of("nic-0", driver="driver-b"),
            ],
            [["gpu/small driver-a/pool-1/gpu-1", "nic driver-b/pool-1/nic-0"]],
            gates=DERIVED,
        ),
    ),
    row(
        "N-89",
        "derived values are distinct",
        Case(
            [claim(BY_CAGE, constraints=[OTHER_SOCKETS])],
            [slice_of(device("a", {"cage": 1}), device("b", {"cage": 1}), device("c", {"cage": 2}))],
            [["req-0 driver-a/pool-1/a", "req-0 driver-a/pool-1/c"]],
            gates=DERIVED,
        ),
    ),
    row(
        "N-89",
        "selectors do not see derived values",
        Case(
            [
                claim(
                    request("r", "class-a", 1, '!("derived" in device.attributes)', derived={SOCKET: own("cage")}),
                    constraints=[SAME_SOCKET],
                )
            ],
            [slice_of(device("a", {"cage": 1}))],
            [["r driver-a/pool-1/a"]],
            gates=DERIVED,
        ),
    ),
    row(
        "N-89",
        "lists are derived",
        Case(
            [
                claim(
                    request("gpu", derived={SOCKET: own("cages")}),
                    request("nic", "class-b", derived={SOCKET: "2"}),
                    constraints=[SAME_SOCKET],
                )
            ],
            [
                slice_of(device("gpu-0", {"cages": [0, 1]}), device("gpu-1", {"cages": [1, 2]})),
                slice_of("nic-0", driver="driver-b"),
            ],
            [["gpu driver-a/pool-1/gpu-1", "nic driver-b/pool-1/nic-0"]],
            gates={**LISTS, **DERIVED},
        ),
    ),
    row(
        "N-89",
        "versions are derived",
        Case(
            [
                claim(
                    request(derived={SOCKET: own("version")}),
                    request("r1", derived={SOCKET: 'semver("1.2.0")'}),
                    constraints=[SAME_SOCKET],
                )
            ],
            [slice_of(device("a", {"version": "v1.0.0"}), device("b", {"version": "v1.2.0"}))],
            [["req-0 driver-a/pool-1/b", "r1 driver-a/pool-1/a"]],
            gates=DERIVED,
        ),
    ),
    row(
        "N-90",
        "an empty list has nothing in common with another one",
        Case(
            [claim(request(count=2, derived={SOCKET: "[]"}), constraints=[SAME_SOCKET])],
            [slice_of("a", "b")],
            gates={**LISTS, **DERIVED},
        ),
    ),
    row(
        "N-90",
        "empty lists are distinct",
        Case(
            [claim(request("r0", derived={SOCKET: "[]"}, count=3), constraints=[OTHER_SOCKETS])],
            [slice_of("a", "b", "c")],
            [["r0 driver-a/pool-1/a", "r0 driver-a/pool-1/b", "r0 driver-a/pool-1/c"]],
            gates={**LISTS, **DERIVED},
        ),
    ),
    row(
        "N-90",
        "only devices that the selectors match are evaluated",
        Case(
            [
                claim(
                    request("r", "class-a", 1, f"has({own('cage')})", derived={SOCKET: own("cage")}),
                    constraints=[SAME_SOCKET],
                )
            ],
            [slice_of(device("a"), device("b", {"cage": 1}))],
            [["r driver-a/pool-1/b"]],
            gates=DERIVED,
        ),
    ),
    row(
        "N-90",
        "a device that fails is not reached",
        Case(
            [claim(request(derived={SOCKET: own("cage")}), constraints=[SAME_SOCKET])],
            [slice_of(device("a", {"cage": 1}), device("b"))],
            [["req-0 driver-a/pool-1/a"]],
            gates=DERIVED,
        ),
    ),
]


@pytest.mark.parametrize("case", FITS)
def test_devices(case: Case) -> None:
    allocations = allocated(case)
    found = None if allocations is None else [devices_of(item) for item in allocations]
    assert found == (None if case.expected is None else [list(item) for item in case.expected])


PREFIX = "claim ns/claim-0: evaluate derived attribute derived/socket on device driver-a/pool-1/a failed: "
ERRORS = [
    row(
        "N-90",
        "an attribute is missing",
        Case([claim(BY_CAGE, constraints=[SAME_SOCKET])], [slice_of("a", "b")], error=f"{PREFIX}no such key: cage"),
    ),
    row(
        "N-90",
        "an attribute is missing for all devices",
        Case(
            [claim(first_of("r", sub_all("s", derived={SOCKET: own("cage")})), constraints=[SAME_SOCKET])],
            [slice_of("a")],
            error=f"{PREFIX}no such key: cage",
        ),
    ),
    row(
        "N-90",
        "a mixed list",
        Case(
            [claim(request(derived={SOCKET: '[dyn(1), dyn("a")]'}), constraints=[SAME_SOCKET])],
            [slice_of("a")],
            error=f"{PREFIX}list has elements of different types: int, string",
        ),
    ),
    row(
        "N-90",
        "another type",
        Case(
            [claim(request(derived={SOCKET: "dyn(1.5)"}), constraints=[SAME_SOCKET])],
            [slice_of("a")],
            error=f"{PREFIX}unsupported result type float",
        ),
    ),
    row(
        "N-91",
        "derived attributes are switched off",
        Case(
            [claim(BY_CAGE, constraints=[SAME_SOCKET])],
            [slice_of("a", "b")],
            gates={"DRADerivedAttributes": False},
            error="claim ns/claim-0, request req-0: "
            "cannot handle request with derived attributes, the feature is disabled",
        ),
    ),
]


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case: Case) -> None:
    gates = {**DERIVED, **LISTS, **case.gates}
    with pytest.raises(AllocationError) as caught:
        allocated(Case(**{**vars(case), "gates": gates}))
    assert str(caught.value) == case.error
