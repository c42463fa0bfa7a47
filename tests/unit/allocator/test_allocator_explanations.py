"""Why claims do not fit: golden texts."""

from __future__ import annotations

import pytest

from dray.allocator import Reason
from dray.api.types import resource_v1 as r
from dray.scheduler.plugins.dynamic_resources.extended_resources import held_back
from tests.conformance.allocator.builders import (
    all_devices,
    claim,
    counter_set,
    device,
    device_class,
    devices,
    distinct,
    first_of,
    holding,
    in_region,
    match,
    no_such_key,
    no_such_key_text,
    node,
    ranged,
    request,
    shared,
    slice_of,
    sub,
    taint,
)
from tests.conformance.allocator.cases import Case

SPECIAL = 'device.attributes["driver-a"].special'

MANY = Case(
    [claim(request("gpu", "class-a", 2))],
    [
        slice_of(
            *(device(f"used-{n}") for n in range(5)),
            device("tainted", taints=(taint(),)),
        ),
        slice_of("far-0", "far-1", driver="driver-b"),
    ],
    in_use=[holding(*(f"driver-a/pool-1/used-{n}" for n in range(5)))],
)

DERIVED = r.DeviceConstraint(match_attribute="d/x")


def in_group(name: str, group: str) -> r.Device:
    return device(name, consumes={"set": {"n": "1"}}, groups={"set": (group,)})


def parts(*members: r.Device) -> list[r.ResourceSlice]:
    counters = (counter_set("set", n="8"),)
    return [slice_of(*members, name="a", size=2), slice_of(name="b", size=2, shared_counters=counters)]


SUMMARIES = {
    "several reasons": (
        MANY,
        'request "gpu": 8 devices: 5 in use, 2 do not match class selector, 1 tainted (maintenance:NoSchedule)',
    ),
    "nothing there": (Case([claim(request("gpu"))]), 'request "gpu": no devices'),
    "too few": (
        Case([claim(request("gpu", count=3))], [slice_of(*devices(2))]),
        'request "gpu": 2 devices: 2 usable but 3 needed',
    ),
    "kept for a device plugin's Pods": (
        Case([claim(request("gpu", count=2)), *held_back({"class-a": 1})], [slice_of(*devices(2))]),
        'request "gpu": 2 usable, of which 1 is kept for Pods that have it through a device plugin, but 2 needed',
    ),
    "all are kept for a device plugin's Pods": (
        Case([claim(request("gpu")), *held_back({"class-a": 2})], [slice_of(*devices(2))]),
        'request "gpu": 2 usable, of which 2 are kept for Pods that have them through a device plugin, but 1 needed',
    ),
    "request selector": (
        Case([claim(request("gpu", "class-a", 1, SPECIAL))], [slice_of(device("x", {"special": False}))]),
        'request "gpu": 1 device: 1 do not match request selector',
    ),
    "a selector that fails": (
        Case([claim(request("gpu", "class-a", 1, SPECIAL))], [slice_of("x")]),
        no_such_key("special"),
    ),
    "pool being updated": (
        Case([claim(request("gpu"))], [slice_of("x", size=2)]),
        'request "gpu": 1 device: 1 in incomplete pools',
    ),
    "invalid pool": (
        Case([claim(request("gpu"))], [slice_of("x", name="a", size=2), slice_of("x", name="b", size=2)]),
        'request "gpu": 2 devices: 2 in invalid pools',
    ),
    "all devices of a pool being updated": (
        Case([claim(all_devices("gpu"))], [slice_of("x", size=2)]),
        'request "gpu": asks for all devices, but resource pool driver-a/pool-1 is currently being updated',
    ),
    "another region": (
        Case([claim(request("gpu"))], [slice_of("x", node_selector=in_region("mars"))]),
        'request "gpu": 1 device: 1 not reachable from the node',
    ),
    "a feature that is switched off": (
        Case(
            [claim(request("gpu"))],
            [slice_of(device("x", binding_conditions=("Ready",)))],
            gates={"DRADeviceBindingConditions": False},
        ),
        'request "gpu": 1 device: 1 need a disabled feature',
    ),
    "no capacity left": (
        Case(
            [claim(request("gpu", capacity={"cap": "2"}))],
            [slice_of(shared("x", {"cap": ranged("4")}))],
            in_use=[holding("driver-a/pool-1/x", share_id="s", consumed_capacity={"cap": "4"})],
        ),
        'request "gpu": 1 device: 1 lack capacity',
    ),
    "a share of a device that is no longer shared": (
        Case(
            [claim(request("gpu", capacity={"cap": "2"}))],
            [slice_of(device("plain"), shared("x", {"cap": ranged("4")}))],
            in_use=[
                holding("driver-a/pool-1/plain", name="first", share_id="s"),
                holding("driver-a/pool-1/x", share_id="s", consumed_capacity={"cap": "4"}),
            ],
        ),
        'request "gpu": 2 devices: 1 in use, 1 lack capacity',
    ),
    "capacity taken by another request": (
        Case(
            [claim(request("a", capacity={"cap": "4"}), request("b", capacity={"cap": "2"}))],
            [slice_of(device("plain", taints=(taint(),)), shared("x", {"cap": ranged("4")}))],
        ),
        'request "b": 2 devices: 1 tainted (maintenance:NoSchedule), 1 lack capacity',
    ),
    "counters taken by another request": (
        Case(
            [claim(request("a"), request("b"), constraints=[distinct("numa")])],
            [
                slice_of(
                    device("x", {"numa": 0}, consumes={"set": {"m": "3"}}),
                    device("y", {"numa": 1}, consumes={"set": {"m": "2"}}),
                    device("z", {"numa": 0}),
                    size=2,
                ),
                slice_of(name="z", size=2, shared_counters=(counter_set("set", m="4"),)),
            ],
            in_use=[holding("driver-a/pool-1/z")],
        ),
        'request "b": 3 devices: 1 in use, 1 taken by request a, 1 lack counter set/m',
    ),
    "several alternatives after another request": (
        Case([claim(request("a"), first_of("b", sub("big"), sub("small")))], [slice_of("x")]),
        'request "b/big": 1 device: 1 taken by request a; request "b/small": 1 device: 1 taken by request a',
    ),
    "in use, in the node's region": (
        Case(
            [claim(request("gpu"))],
            [slice_of("x", node_selector=in_region())],
            in_use=[holding("driver-a/pool-1/x")],
            node=node(region="region-1"),
        ),
        'request "gpu": 1 device: 1 in use',
    ),
    "devices that choose other nodes": (
        Case(
            [claim(request("gpu"))],
            [slice_of(device("x", node_name="node-2"), per_device_node_selection=True)],
        ),
        'request "gpu": 1 device: 1 not reachable from the node',
    ),
    "no counters left": (
        Case(
            [claim(request("gpu"))],
            [
                slice_of(device("x", consumes={"set": {"m": "3"}}), device("y", consumes={"set": {"m": "2"}}), size=2),
                slice_of(name="z", size=2, shared_counters=(counter_set("set", m="4"),)),
            ],
            in_use=[holding("driver-a/pool-1/y")],
        ),
        'request "gpu": 2 devices: 1 lack counter set/m, 1 in use',
    ),
    "values differ": (
        Case(
            [claim(request("gpu", count=2), constraints=[match("numa")])],
            [slice_of(device("x", {"numa": 0}), device("y", {"numa": 1}), device("z"))],
        ),
        'request "gpu": 3 devices: 1 differ in driver-a/numa, 1 lack driver-a/numa, 1 usable but 2 needed',
    ),
    "values repeat": (
        Case(
            [claim(request("gpu", count=2), constraints=[distinct("numa")])],
            [slice_of(device("x", {"numa": 0}), device("y", {"numa": 0}))],
        ),
        'request "gpu": 2 devices: 1 repeat driver-a/numa, 1 usable but 2 needed',
    ),
    "taken by another request": (
        Case([claim(request("a")), claim(request("b"), name="claim-1")], [slice_of("x")]),
        'claim ns/claim-1, request "b": 1 device: 1 taken by request a',
    ),
    "each alternative": (
        Case(
            [claim(first_of("gpu", sub("big", "class-b"), sub("small", "class-a", 2)))],
            [slice_of("x")],
        ),
        'request "gpu/big": 1 device: 1 do not match class selector; '
        'request "gpu/small": 1 device: 1 usable but 2 needed',
    ),
    "an alternative that is too large": (
        Case([claim(first_of("gpu", sub("big", "class-a", 40), sub("small", "class-b")))], [slice_of("x")]),
        'request "gpu/big": 40 devices needed, more than the claim limit of 32; '
        'request "gpu/small": 1 device: 1 do not match class selector',
    ),
    "a claim that cannot be handled": (
        Case([claim(request("gpu", "nope"))]),
        "claim ns/claim-0, request gpu: could not retrieve device class nope: "
        'deviceclass.resource.k8s.io "nope" not found',
    ),
    "all devices with a selector that fails": (
        Case([claim(all_devices("gpu", "class-a", SPECIAL))], [slice_of("x")]),
        no_such_key("special"),
    ),
    "a group of partitions in use": (
        Case(
            [claim(request("gpu"))],
            parts(in_group("x", "mig"), in_group("y", "whole")),
            in_use=[holding("driver-a/pool-1/x")],
            gates={"DRADeviceCompatibilityGroups": True},
        ),
        'request "gpu": 2 devices: 1 in use, 1 incompatible with devices in use of set',
    ),
    "a group of partitions that was chosen": (
        Case(
            [claim(request("r0"), request("r1"))],
            parts(in_group("x", "mig"), in_group("y", "whole")),
            gates={"DRADeviceCompatibilityGroups": True},
        ),
        'request "r1": 2 devices: 1 taken by request r0, 1 incompatible with devices in use of set',
    ),
    "groups while the gate is off": (
        Case([claim(request("gpu"))], parts(in_group("x", "mig"))),
        'request "gpu": 1 device: 1 in incomplete pools',
    ),
    "a derived attribute that fails": (
        Case(
            [claim(request("gpu", derived={"d/x": SPECIAL}), constraints=[DERIVED])],
            [slice_of("x")],
            gates={"DRADerivedAttributes": True},
        ),
        "claim ns/claim-0: evaluate derived attribute d/x on device driver-a/pool-1/x failed: no such key: special",
    ),
    "different derived attributes": (
        Case(
            [claim(request("gpu", "class-a", 2, derived={"d/x": SPECIAL}), constraints=[DERIVED])],
            [slice_of(device("x", {"special": 1}), device("y", {"special": 2}))],
            gates={"DRADerivedAttributes": True},
        ),
        'request "gpu": 2 devices: 1 differ in d/x, 1 usable but 2 needed',
    ),
    "a capacity that cannot be represented": (
        Case(
            [claim(request("gpu", capacity={"cap": "100100u"}))],
            [slice_of(shared("x", {"cap": ranged("4", "100m", "100m", "100m", "1")}))],
        ),
        'claim ns/claim-0, request gpu, device driver-a/pool-1/x: capacity "cap": '
        "capacity request cannot be represented in the device's range arithmetic: finer than 1m",
    ),
    "a node without the feature": (
        Case(
            [claim(request("gpu"))],
            [slice_of("x", skip_node_operations=("*",))],
            gates={"DRAOptionalNodeOperations": True},
        ),
        'request "gpu": 1 device: 1 need a feature that the node lacks',
    ),
}


@pytest.mark.parametrize("name", SUMMARIES)
def test_summaries(name: str) -> None:
    case, expected = SUMMARIES[name]
    explanation = case.allocator().explain(case.node, case.claims)
    assert not explanation.fits
    assert explanation.summary == expected


def test_nothing_is_to_be_explained_when_it_fits() -> None:
    case = Case([claim(request())], [slice_of("x")])
    explanation = case.allocator().explain(case.node, case.claims)
    assert explanation.fits
    assert explanation.summary == ""


DETAILS = {
    "several reasons": [
        *((f"driver-a/pool-1/used-{n}", Reason.IN_USE, "in use by claim ns/other") for n in range(5)),
        ("driver-a/pool-1/tainted", Reason.TAINT, "taint maintenance:NoSchedule is not tolerated"),
        *(
            (
                f"driver-b/pool-1/far-{n}",
                Reason.SELECTOR,
                'selector #0 of class class-a is false: device.driver == "driver-a"',
            )
            for n in range(2)
        ),
    ],
    "a selector that fails": [
        (
            "driver-a/pool-1/x",
            Reason.SELECTOR_ERROR,
            f"selector #0 of the request: {no_such_key_text('special')}",
        )
    ],
    "invalid pool": [
        ("driver-a/pool-1/x", Reason.POOL_INVALID, "resource pool driver-a/pool-1 is invalid: duplicate device x"),
    ]
    * 2,
    "no capacity left": [("driver-a/pool-1/x", Reason.CAPACITY, "capacity cap: 2 needed, 0 left")],
    "no counters left": [
        ("driver-a/pool-1/x", Reason.COUNTER, "counter m of counter set set: 3 needed, 2 left"),
        ("driver-a/pool-1/y", Reason.IN_USE, "in use by claim ns/other"),
    ],
    "a share of a device that is no longer shared": [
        ("driver-a/pool-1/plain", Reason.IN_USE, "in use by claim ns/first"),
        ("driver-a/pool-1/x", Reason.CAPACITY, "capacity cap: 2 needed, 0 left"),
    ],
    "capacity taken by another request": [
        ("driver-a/pool-1/plain", Reason.TAINT, "taint maintenance:NoSchedule is not tolerated"),
        ("driver-a/pool-1/x", Reason.CAPACITY, "the shares chosen before leave too little capacity"),
    ],
    "counters taken by another request": [
        ("driver-a/pool-1/z", Reason.IN_USE, "in use by claim ns/other"),
        ("driver-a/pool-1/x", Reason.TAKEN, "taken by request a of claim ns/claim-0"),
        ("driver-a/pool-1/y", Reason.COUNTER, "counter m of counter set set: 2 needed, 1 left"),
    ],
    "values differ": [
        (
            "driver-a/pool-1/y",
            Reason.CONSTRAINT,
            "attribute driver-a/numa is 1, but the same value as 0 is needed",
        ),
        (
            "driver-a/pool-1/z",
            Reason.CONSTRAINT,
            "attribute driver-a/numa is not set, which a constraint needs",
        ),
    ],
    "values repeat": [
        (
            "driver-a/pool-1/y",
            Reason.CONSTRAINT,
            "attribute driver-a/numa is 0, but another value than 0 is needed",
        )
    ],
    "taken by another request": [
        ("driver-a/pool-1/x", Reason.TAKEN, "taken by request a of claim ns/claim-0"),
    ],
}


@pytest.mark.parametrize("name", DETAILS)
def test_each_device_has_its_first_reason(name: str) -> None:
    case, _ = SUMMARIES[name]
    explanation = case.allocator().explain(case.node, case.claims)
    found = [(item.device, item.reason, item.text) for item in explanation.requests[-1].reasons]
    assert found == DETAILS[name]


def test_a_request_that_could_be_met_says_so() -> None:
    case = Case(
        [claim(request("a"), request("b", "class-b"))],
        [slice_of("x")],
        classes=[device_class(), device_class("class-b")],
    )
    first, second = case.allocator().explain(case.node, case.claims).requests
    assert first.satisfiable
    assert not second.satisfiable
