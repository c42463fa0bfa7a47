"""Which devices a request gets: pools, selectors, counts, constraints, order, errors (SP-45 to SP-65, SP-69)."""

from __future__ import annotations

import pytest

from dray.allocator import (
    AllocationError,
    AllocatorError,
    NodeAllocationError,
    SearchStoppedError,
    StopReason,
)
from dray.api.types import resource_v1 as r
from tests.conformance.allocator.builders import (
    all_devices,
    cel,
    claim,
    counter_set,
    device,
    device_class,
    devices,
    distinct,
    first_of,
    holding,
    in_region,
    labelled,
    match,
    no_such_key,
    node,
    on_node,
    request,
    requirement,
    slice_of,
    sub,
)
from tests.conformance.allocator.cases import Case, allocated, devices_of

pytestmark = pytest.mark.api_allocator

SPECIAL = 'device.attributes["driver-a"].special'
LARGE = 'device.capacity["driver-a"].memory.compareTo(quantity("8Gi")) >= 0'
LISTS = {"DRAListTypeAttributes": True}
SMALL = 'device.capacity["driver-a"].memory.compareTo(quantity("4Gi")) >= 0'


def sized(name: str, memory: str) -> r.Device:
    return device(name, capacity={"memory": memory})


def row(identifier: str, name: str, case: Case) -> object:
    return pytest.param(case, id=name, marks=pytest.mark.behaviour(identifier))


FITS = [
    row("SP-45", "no claims need nothing", Case([], expected=[])),
    row("SP-45", "one device", Case([claim(request())], [slice_of("gpu-0")], [["req-0 driver-a/pool-1/gpu-0"]])),
    row(
        "SP-45",
        "results follow the order of the claims",
        Case(
            [claim(request(), name="b"), claim(request(), name="a")],
            [slice_of("x", "y")],
            [["req-0 driver-a/pool-1/x"], ["req-0 driver-a/pool-1/y"]],
        ),
    ),
    row("SP-45", "all or nothing", Case([claim(request(), name="a"), claim(request(), name="b")], [slice_of("x")])),
    row("SP-45", "too few devices", Case([claim(request(count=3))], [slice_of("x", "y")])),
    row(
        "SP-46",
        "a request gives way to a later one of its claim",
        Case(
            [claim(request("small", "class-a", 1, SMALL), request("large", "class-a", 1, LARGE))],
            [slice_of(sized("big", "8Gi"), sized("little", "4Gi"))],
            [["small driver-a/pool-1/little", "large driver-a/pool-1/big"]],
        ),
    ),
    row(
        "SP-46",
        "a claim gives way to a later one",
        Case(
            [claim(request("r", "class-a", 1, SMALL)), claim(request("r", "class-a", 1, LARGE), name="claim-1")],
            [slice_of(sized("big", "8Gi"), sized("little", "4Gi"))],
            [["r driver-a/pool-1/little"], ["r driver-a/pool-1/big"]],
        ),
    ),
    row(
        "SP-47",
        "combinations, not permutations",
        Case(
            [claim(request("two", count=2), request("x", "class-a", 1, 'device.attributes["driver-a"].type == "X"'))],
            [slice_of(device("a", {"type": "X"}), device("b", {"type": "Y"}), device("c", {"type": "Y"}))],
            [["two driver-a/pool-1/b", "two driver-a/pool-1/c", "x driver-a/pool-1/a"]],
            steps=5,
        ),
    ),
    row(
        "SP-48",
        "pools by driver and name, slices by name, devices as listed",
        Case(
            [claim(request("all", "any", 6))],
            [
                slice_of("b1", driver="driver-b", pool="a"),
                slice_of("a4", pool="pool-2"),
                slice_of("a3", pool="pool-1", name="z", size=2),
                slice_of("a2", "a1", pool="pool-1", name="y", size=2),
                slice_of("b0", driver="driver-b", pool="A"),
            ],
            [
                [
                    "all driver-a/pool-1/a2",
                    "all driver-a/pool-1/a1",
                    "all driver-a/pool-1/a3",
                    "all driver-a/pool-2/a4",
                    "all driver-b/A/b0",
                    "all driver-b/a/b1",
                ]
            ],
            classes=[device_class("any", "true")],
        ),
    ),
    row(
        "SP-48",
        "pools with binding conditions come last",
        Case(
            [claim(request(count=2))],
            [slice_of(device("slow", binding_conditions=("Ready",)), pool="pool-1"), slice_of("fast", pool="pool-2")],
            [["req-0 driver-a/pool-2/fast", "req-0 driver-a/pool-1/slow"]],
        ),
    ),
    row(
        "SP-49",
        "only the newest generation counts",
        Case(
            [claim(request())],
            [slice_of("old", name="a", generation=1), slice_of("new", name="b", generation=2)],
            [["req-0 driver-a/pool-1/new"]],
        ),
    ),
    row(
        "SP-50",
        "a pool is counted over all nodes",
        Case(
            [claim(request())],
            [slice_of("here", name="a", size=2), slice_of("there", name="b", size=2, node_name="node-2")],
            [["req-0 driver-a/pool-1/here"]],
        ),
    ),
    row("SP-50", "nothing is taken from an incomplete pool", Case([claim(request())], [slice_of("x", size=2)])),
    # In Kubernetes, the slice that comes first decides: https://github.com/kubernetes/kubernetes/issues/141117.
    *(
        row(
            "SP-50",
            f"a pool whose slices disagree about their number is incomplete, {first} before {second}",
            Case([claim(request())], [slice_of("x", name="a", size=first), slice_of("y", name="b", size=second)]),
        )
        for first, second in ((1, 2), (2, 1))
    ),
    row(
        "SP-50",
        "too many slices are no complete pool either",
        Case([claim(request())], [slice_of("x", name="a", size=1), slice_of("y", name="b", size=1)]),
    ),
    row(
        "SP-50",
        "one pool name on several nodes is a pool of each",
        Case(
            [claim(request())],
            [slice_of("here", name="a"), *(slice_of(f"on-{n}", name=n, node_name=n) for n in ("node-2", "node-3"))],
            [["req-0 driver-a/pool-1/here"]],
        ),
    ),
    row(
        "SP-50",
        "a pool of several nodes with other generations and sizes, one of them incomplete",
        Case(
            [claim(all_devices())],
            [
                slice_of("x", name="a", generation=4, size=2),
                slice_of("y", name="b", generation=4, size=2),
                slice_of("old", name="c", generation=3),
                slice_of("x", name="d", generation=9, node_name="node-2"),
                slice_of("x", name="e", generation=4, size=2, node_name="node-3"),
            ],
            [["req-0 driver-a/pool-1/x", "req-0 driver-a/pool-1/y"]],
        ),
    ),
    row(
        "SP-50",
        "racks that share a pool name are one pool",
        Case(
            [claim(request())],
            [
                slice_of("x", name="a", size=2, node_selector=in_region()),
                slice_of("y", name="b", size=2, node_selector=in_region("r-2")),
            ],
            [["req-0 driver-a/pool-1/x"]],
        ),
    ),
    row(
        "SP-50",
        "a rack does not complete a pool that counts itself alone",
        Case(
            [claim(request())],
            [
                slice_of("x", name="a", size=1, node_selector=in_region()),
                slice_of("y", name="b", size=1, node_selector=in_region("r-2")),
            ],
        ),
    ),
    row(
        "SP-50",
        "the other nodes do not complete the pool of this one",
        Case(
            [claim(request())],
            [slice_of("x", name="a", size=3), *(slice_of("y", name=n, node_name=n) for n in ("node-2", "node-3"))],
        ),
    ),
    row(
        "SP-52",
        "equal device names on two nodes",
        Case(
            [claim(request())],
            [slice_of("x", name="a"), slice_of("x", name="b", node_name="node-2")],
            [["req-0 driver-a/pool-1/x"]],
        ),
    ),
    row(
        "SP-52",
        "equal device names on two nodes of one pool",
        Case(
            [claim(request())],
            [slice_of("x", name="a", size=2), slice_of("x", name="b", size=2, node_name="node-2")],
            [["req-0 driver-a/pool-1/x"]],
        ),
    ),
    row(
        "SP-61",
        "a device of another node with the same name and pool is the same device",
        Case(
            [claim(request())],
            [slice_of("x", "y", name="a"), slice_of("x", name="b", node_name="node-2")],
            [["req-0 driver-a/pool-1/y"]],
            in_use=[holding("driver-a/pool-1/x")],
        ),
    ),
    row(
        "SP-52",
        "an invalid pool of another node",
        Case(
            [claim(request())],
            [slice_of("x", name="a"), *(slice_of("y", name=n, size=2, node_name="node-2") for n in ("b", "c"))],
            [["req-0 driver-a/pool-1/x"]],
        ),
    ),
    row(
        "SP-51",
        "an old slice is ignored once a newer generation is seen elsewhere",
        Case(
            [claim(request())],
            [slice_of("old", name="a"), slice_of("new", name="b", generation=2, size=2, node_name="node-2")],
        ),
    ),
    row(
        "SP-51",
        "an incomplete newer generation here hides the complete older one",
        Case(
            [claim(request())],
            [slice_of("old", name="a", node_name="node-2"), slice_of("new", name="b", generation=2, size=2)],
        ),
    ),
    row(
        "SP-52",
        "another pool makes up for an invalid one",
        Case(
            [claim(request())],
            [slice_of("x", name="a", size=2), slice_of("x", name="b", size=2), slice_of("y", pool="pool-2")],
            [["req-0 driver-a/pool-2/y"]],
        ),
    ),
    row("SP-53", "another node's slice", Case([claim(request())], [slice_of("x", node_name="node-2")])),
    row(
        "SP-53",
        "a slice for all nodes",
        Case([claim(request())], [slice_of("x", all_nodes=True)], [["req-0 driver-a/pool-1/x"]]),
    ),
    row(
        "SP-53",
        "a slice for a region",
        Case([claim(request())], [slice_of("x", node_selector=in_region())], [["req-0 driver-a/pool-1/x"]]),
    ),
    row(
        "SP-53", "a slice for another region", Case([claim(request())], [slice_of("x", node_selector=in_region("r-2"))])
    ),
    row("SP-53", "a slice that says nothing of nodes", Case([claim(request())], [slice_of("x", node_name=None)])),
    row(
        "SP-53",
        "slices of one pool for different nodes",
        Case(
            [claim(request())],
            [slice_of("far", name="a", size=2, node_name="node-2"), slice_of("near", name="b", size=2)],
            [["req-0 driver-a/pool-1/near"]],
        ),
    ),
    row(
        "SP-54",
        "class and request selectors must all be true",
        Case(
            [claim(request("r", "class-a", 1, SPECIAL, "true"))],
            [
                slice_of("far", driver="driver-b"),
                slice_of(device("dull", {"special": False}), device("s", {"special": True})),
            ],
            [["r driver-a/pool-1/s"]],
        ),
    ),
    row(
        "SP-54",
        "a class without selectors takes any driver",
        Case(
            [claim(request("r", "empty", 2))],
            [slice_of("x"), slice_of("y", driver="driver-b")],
            [["r driver-a/pool-1/x", "r driver-b/pool-1/y"]],
            classes=[r.DeviceClass(metadata=device_class("empty").metadata)],
        ),
    ),
    row(
        "SP-55",
        "a selector that would fail on a device that is not needed",
        Case(
            [claim(request("r", "class-a", 1, SPECIAL))],
            [slice_of(device("good", {"special": True}), device("bare"))],
            [["r driver-a/pool-1/good"]],
        ),
    ),
    row(
        "SP-57",
        "32 devices are allowed",
        Case(
            [claim(request(count=32))],
            [slice_of(*devices(33))],
            [[f"req-0 driver-a/pool-1/device-{number}" for number in range(32)]],
        ),
    ),
    row("SP-57", "32 devices may be asked for where there are none", Case([claim(request(count=32))])),
    row("SP-58", "all of one", Case([claim(all_devices())], [slice_of("x")], [["req-0 driver-a/pool-1/x"]])),
    row(
        "SP-58",
        "all that match, of every pool",
        Case(
            [claim(all_devices("r", "class-a", SPECIAL))],
            [
                slice_of(device("a", {"special": True}), device("b", {"special": False})),
                slice_of(device("c", {"special": True}), pool="pool-2"),
            ],
            [["r driver-a/pool-1/a", "r driver-a/pool-2/c"]],
        ),
    ),
    row("SP-58", "all of nothing", Case([claim(all_devices())])),
    row("SP-58", "all of a slice without devices", Case([claim(all_devices())], [slice_of()])),
    row(
        "SP-58",
        "one of all is in use",
        Case([claim(all_devices())], [slice_of("x", "y")], in_use=[holding("driver-a/pool-1/y")]),
    ),
    row(
        "SP-58",
        "administrators get all in use or not",
        Case(
            [claim(all_devices(admin_access=True))],
            [slice_of("x", "y")],
            [["req-0 driver-a/pool-1/x", "req-0 driver-a/pool-1/y"]],
            in_use=[holding("driver-a/pool-1/y")],
        ),
    ),
    row(
        "SP-59",
        "an incomplete pool is merely skipped when devices are counted",
        Case([claim(request())], [slice_of("x", size=2), slice_of("y", pool="p2")], [["req-0 driver-a/p2/y"]]),
    ),
    row(
        "SP-60",
        "all of one kind beside one of another",
        Case(
            [claim(all_devices()), claim(request("r", "class-b"), name="claim-1")],
            [slice_of("x", "y"), slice_of("z", driver="driver-b")],
            [["req-0 driver-a/pool-1/x", "req-0 driver-a/pool-1/y"], ["r driver-b/pool-1/z"]],
        ),
    ),
    row(
        "SP-60",
        "one of any kind, then all of one kind",
        Case(
            [claim(request("one", "any"), all_devices("all", "class-a"))],
            [slice_of("x"), slice_of("z", driver="driver-b")],
            [["one driver-b/pool-1/z", "all driver-a/pool-1/x"]],
            classes=[device_class("any", "true"), device_class("class-a")],
        ),
    ),
    row("SP-60", "one, then all of the same", Case([claim(request("a"), all_devices("b"))], [slice_of("x", "y")])),
    row(
        "SP-61",
        "a device in use is passed over",
        Case(
            [claim(request())],
            [slice_of("x", "y")],
            [["req-0 driver-a/pool-1/y"]],
            in_use=[holding("driver-a/pool-1/x")],
        ),
    ),
    row(
        "SP-61",
        "the same name in another pool is another device",
        Case(
            [claim(request())],
            [slice_of("x"), slice_of("x", pool="pool-2")],
            [["req-0 driver-a/pool-2/x"]],
            in_use=[holding("driver-a/pool-1/x")],
        ),
    ),
    row(
        "SP-62",
        "administrators may have a device that is in use",
        Case(
            [claim(request(admin_access=True))],
            [slice_of("x")],
            [["req-0 driver-a/pool-1/x"]],
            in_use=[holding("driver-a/pool-1/x")],
        ),
    ),
    row(
        "SP-62",
        "administrative access to it leaves a device free",
        Case(
            [claim(request())],
            [slice_of("x")],
            [["req-0 driver-a/pool-1/x"]],
            in_use=[holding("driver-a/pool-1/x", admin_access=True)],
        ),
    ),
    row(
        "SP-62",
        "no device twice within a claim",
        Case([claim(request("a", admin_access=True), request("b", admin_access=True))], [slice_of("x")]),
    ),
    row(
        "SP-62",
        "two claims share a device",
        Case(
            [claim(request(admin_access=True)), claim(request(admin_access=True), name="claim-1")],
            [slice_of("x")],
            [["req-0 driver-a/pool-1/x"], ["req-0 driver-a/pool-1/x"]],
        ),
    ),
    row(
        "SP-62",
        "an ordinary claim gets the device of an administrator's claim before it",
        Case(
            [claim(request(admin_access=True)), claim(request(), name="claim-1")],
            [slice_of("x")],
            [["req-0 driver-a/pool-1/x"], ["req-0 driver-a/pool-1/x"]],
        ),
    ),
    row(
        "SP-62",
        "an ordinary claim gets the device of an administrator's claim after it",
        Case(
            [claim(request()), claim(request(admin_access=True), name="claim-1")],
            [slice_of("x")],
            [["req-0 driver-a/pool-1/x"], ["req-0 driver-a/pool-1/x"]],
        ),
    ),
    row(
        "SP-62",
        "an administrator's choice gives way to an ordinary request of the claim",
        Case(
            [claim(request("admin", admin_access=True), request("mine", "class-a", 1, SPECIAL))],
            [slice_of(device("a", {"special": True}), device("b", {"special": False}))],
            [["admin driver-a/pool-1/b", "mine driver-a/pool-1/a"]],
        ),
    ),
    row(
        "SP-63",
        "the first device fixes the value",
        Case(
            [claim(request(count=2), constraints=[match("numa")])],
            [slice_of(device("a", {"numa": 0}), device("b", {"numa": 1}), device("c", {"numa": 1}))],
            [["req-0 driver-a/pool-1/b", "req-0 driver-a/pool-1/c"]],
        ),
    ),
    row(
        "SP-63",
        "the same value of another type does not match",
        Case(
            [claim(request(count=2), constraints=[match("x")])],
            [slice_of(device("a", {"x": 1}), device("b", {"x": True}), device("c", {"x": "1"}))],
        ),
    ),
    row(
        "SP-63",
        "a device without the attribute is not eligible",
        Case(
            [claim(request(), constraints=[match("numa")])],
            [slice_of(device("a"), device("b", {"numa": 0}))],
            [["req-0 driver-a/pool-1/b"]],
        ),
    ),
    row(
        "SP-63",
        "a name with its domain is the same as without it",
        Case(
            [claim(request(count=2), constraints=[match("numa")])],
            [slice_of(device("a", {"driver-a/numa": 0}), device("b", {"numa": 0}))],
            [["req-0 driver-a/pool-1/a", "req-0 driver-a/pool-1/b"]],
        ),
    ),
    row(
        "SP-63",
        "a bare name belongs to its driver alone",
        Case(
            [claim(request("r", "any", 1), constraints=[match("numa")])],
            [slice_of(device("b", {"numa": 0}), driver="driver-b")],
            classes=[device_class("any", "true")],
        ),
    ),
    *(
        row(
            "SP-63",
            f"different {kind}s do not match",
            Case(
                [claim(request(count=2), constraints=[match("x")])],
                [slice_of(device("a", {"x": one}), device("b", {"x": other}))],
            ),
        )
        for kind, one, other in (
            ("int", 0, 1),
            ("bool", True, False),
            ("string", "s", "t"),
            ("version", "v1.0.0", "v2.0.0"),
        )
    ),
    row(
        "SP-64",
        "a constraint on one request leaves the others free",
        Case(
            [claim(request("a"), request("b"), constraints=[match("numa", "a")])],
            [slice_of(device("x", {"numa": 0}), device("y", {"numa": 1}))],
            [["a driver-a/pool-1/x", "b driver-a/pool-1/y"]],
        ),
    ),
    row(
        "SP-64",
        "what a constraint has seen is undone on the way back",
        Case(
            [claim(request("a"), request("b"), constraints=[match("version", "a"), match("name")])],
            [
                slice_of(
                    device("x", {"version": "v1.0.0", "name": "n"}),
                    device("y", {"version": "v2.0.0", "name": "m"}),
                    device("z", {"version": "v3.0.0", "name": "m"}),
                )
            ],
            [["a driver-a/pool-1/y", "b driver-a/pool-1/z"]],
        ),
    ),
    row(
        "SP-64",
        "different values inside one request",
        Case(
            [claim(request(count=3), constraints=[distinct("numa")])],
            [slice_of(*(device(f"d{numa}-{n}", {"numa": numa}) for numa in range(3) for n in range(2)))],
            [["req-0 driver-a/pool-1/d0-0", "req-0 driver-a/pool-1/d1-0", "req-0 driver-a/pool-1/d2-0"]],
        ),
    ),
    row(
        "SP-64",
        "values used by the first of two devices are not forgotten",
        Case(
            [claim(request(count=3), constraints=[distinct("numa")])],
            [slice_of(device("a", {"numa": 0}), device("b", {"numa": 1}), device("c", {"numa": 0}))],
        ),
    ),
    row(
        "SP-65",
        "all of them violate a constraint",
        Case(
            [claim(all_devices(), constraints=[match("numa")])],
            [slice_of(device("a", {"numa": 0}), device("b", {"numa": 0}), device("c", {"numa": 1}))],
        ),
    ),
]


@pytest.mark.parametrize("case", FITS)
def test_devices(case: Case) -> None:
    allocations = allocated(case)
    found = None if allocations is None else [devices_of(item) for item in allocations]
    assert found == (None if case.expected is None else [list(item) for item in case.expected])


NO_SLICE: list[r.ResourceSlice] = []
ERRORS = [
    row(
        "SP-52",
        "nothing fits and a pool has a device twice",
        Case(
            [claim(request())],
            [slice_of("x", name="a", size=2), slice_of("x", name="b", size=2)],
            error="node: invalid resource pools were encountered",
        ),
    ),
    row(
        "SP-52",
        "the other pool is in use",
        Case(
            [claim(request())],
            [slice_of("x", name="a", size=2), slice_of("x", name="b", size=2), slice_of("y", pool="pool-2")],
            in_use=[holding("driver-a/pool-2/y")],
            error="node: invalid resource pools were encountered",
        ),
    ),
    row(
        "SP-52",
        "all devices where a pool is invalid",
        Case(
            [claim(all_devices())],
            [slice_of("x", name="a", size=2), slice_of("x", name="b", size=2)],
            error="node: claim ns/claim-0, request req-0: "
            "asks for all devices, but resource pool driver-a/pool-1 is currently invalid",
        ),
    ),
    row(
        "SP-55",
        "a request's selector does not compile",
        Case(
            [claim(request("r", "class-a", 1, "true", "noSuchVar"))],
            [slice_of("x")],
            error="claim ns/claim-0: selector #1: CEL compile error: compilation failed: "
            "ERROR: <input>:1:1: undeclared reference to 'noSuchVar' (in container '')",
        ),
    ),
    row(
        "SP-55",
        "a class's selector does not compile",
        Case(
            [claim(request())],
            [slice_of("x")],
            classes=[device_class("class-a", "noSuchVar")],
            error="class class-a: selector #0: CEL compile error: compilation failed: "
            "ERROR: <input>:1:1: undeclared reference to 'noSuchVar' (in container '')",
        ),
    ),
    row(
        "N-116",
        "a selector fails on a device that is needed",
        Case(
            [claim(request("r", "class-a", 1, SPECIAL))],
            [slice_of("x")],
            error=no_such_key("special"),
        ),
    ),
    row(
        "SP-55",
        "a selector of a request for all devices fails on one",
        Case(
            [claim(all_devices("r", "class-a", SPECIAL))],
            [slice_of(device("good", {"special": True}), device("bare"))],
            error=no_such_key("special", "bare"),
        ),
    ),
    row(
        "SP-56",
        "no class",
        Case(
            [claim(request("r", ""))],
            error="claim ns/claim-0, request r: missing device class name (unsupported request type?)",
        ),
    ),
    row(
        "SP-56",
        "neither one request nor alternatives",
        Case(
            [claim(r.DeviceRequest(name="r"))],
            error="claim ns/claim-0, request r: missing device class name (unsupported request type?)",
        ),
    ),
    row(
        "SP-56",
        "an unknown class",
        Case(
            [claim(request("r", "nope"))],
            error="claim ns/claim-0, request r: could not retrieve device class nope: "
            'deviceclass.resource.k8s.io "nope" not found',
        ),
    ),
    row(
        "SP-56",
        "an unknown mode",
        Case(
            [claim(request(allocation_mode="future-mode"))],
            error="claim ns/claim-0, request req-0: unsupported count mode future-mode",
        ),
    ),
    row(
        "SP-56",
        "a selector without an expression",
        Case(
            [
                claim(
                    r.DeviceRequest(
                        name="r",
                        exactly=r.ExactDeviceRequest(
                            device_class_name="class-a", selectors=(cel("true"), r.DeviceSelector())
                        ),
                    )
                )
            ],
            error="claim ns/claim-0, request r, selector #1: CEL expression empty (unsupported selector type?)",
        ),
    ),
    row(
        "SP-56",
        "a constraint of no kind",
        Case(
            [claim(request(), constraints=[r.DeviceConstraint()])],
            error="claim ns/claim-0, constraint #0: empty constraint (unsupported constraint type?)",
        ),
    ),
    row(
        "SP-57",
        "500 devices",
        Case(
            [claim(request(count=500))],
            error="claim ns/claim-0: number of requested devices 500 exceeds the claim limit of 32",
        ),
    ),
    row(
        "SP-57",
        "33 in all",
        Case(
            [claim(request("a", count=32), request("b"))],
            [slice_of(*devices(33))],
            error="claim ns/claim-0: number of requested devices 33 exceeds the claim limit of 32",
        ),
    ),
    row(
        "SP-57",
        "all devices of this node and one more",
        Case(
            [claim(all_devices("a"), request("b", "class-b"))],
            [slice_of(*devices(32)), slice_of("x", driver="driver-b")],
            error="node: claim ns/claim-0: number of requested devices 33 exceeds the claim limit of 32",
        ),
    ),
    row(
        "SP-59",
        "all devices while a pool is being updated",
        Case(
            [claim(all_devices())],
            [slice_of("x", size=2)],
            error="node: claim ns/claim-0, request req-0: "
            "asks for all devices, but resource pool driver-a/pool-1 is currently being updated",
        ),
    ),
    row(
        "SP-62",
        "administrative access is switched off",
        Case(
            [claim(request(admin_access=True))],
            [slice_of("x")],
            gates={"DRAAdminAccess": False},
            error="claim ns/claim-0, request req-0: admin access is requested, but the feature is disabled",
        ),
    ),
]


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case: Case) -> None:
    """An error for this node alone is written with `node: ` in front."""
    with pytest.raises(AllocatorError) as caught:
        allocated(case)
    expected = case.error or ""
    kind = NodeAllocationError if expected.startswith("node: ") else AllocationError
    assert isinstance(caught.value, kind)
    assert str(caught.value).split("\n")[0] == expected.removeprefix("node: ")


@pytest.mark.behaviour("SP-69")
def test_an_expired_deadline_ends_the_search_before_it_starts() -> None:
    case = Case([claim(request(count=2))], [slice_of("x", "y")])
    with pytest.raises(SearchStoppedError) as caught:
        case.allocator().allocate(case.node, case.claims, expired=lambda: True)
    assert caught.value.reason is StopReason.DEADLINE
    assert str(caught.value) == "node node-1: claim ns/claim-0, request req-0: deadline exceeded"


@pytest.mark.behaviour("SP-69")
def test_a_deadline_ends_a_long_search() -> None:
    # Sixteen devices that are all different, of which no nine have values that are.
    members = [device(f"d{n}", {"list": [f"a{n}", f"b{(n * 7) % 5}"]}) for n in range(16)]
    case = Case(
        [claim(request(count=6), constraints=[distinct("list")])],
        [slice_of(*members)],
        gates={"DRAListTypeAttributes": True},
    )
    looks = iter([False, False])
    with pytest.raises(SearchStoppedError, match=r"deadline exceeded while trying device driver-a/pool-1/d"):
        case.allocator().allocate(case.node, case.claims, expired=lambda: next(looks, True))


@pytest.mark.parametrize(
    ("operator", "values", "reached"),
    [
        ("In", ("region-1", "x"), True),
        ("In", ("x",), False),
        ("NotIn", ("x",), True),
        ("NotIn", ("region-1",), False),
        ("Exists", (), True),
        ("DoesNotExist", (), False),
        ("Gt", ("4",), False),
        ("Near", ("region-1",), False),
    ],
)
@pytest.mark.behaviour("SP-53")
def test_operators_on_a_label(operator: str, values: tuple[str, ...], reached: bool) -> None:
    selector = labelled(requirement("region", operator, *values))
    assert (allocated(Case([claim(request())], [slice_of("x", node_selector=selector)])) is not None) is reached


@pytest.mark.parametrize(
    ("operator", "bound", "reached"),
    [("Gt", "4", True), ("Gt", "5", False), ("Lt", "6", True), ("Lt", "5", False), ("Gt", "x", False)],
)
@pytest.mark.behaviour("SP-53")
def test_operators_on_a_number(operator: str, bound: str, reached: bool) -> None:
    selector = labelled(requirement("cores", operator, bound))
    case = Case([claim(request())], [slice_of("x", node_selector=selector)], node=node(cores="5"))
    assert (allocated(case) is not None) is reached


@pytest.mark.behaviour("SP-53")
def test_an_absent_label_is_not_in_any_set() -> None:
    absent = [("NotIn", True), ("DoesNotExist", True), ("In", False), ("Exists", False), ("Lt", False)]
    for operator, reached in absent:
        selector = labelled(requirement("zone", operator, "1"))
        assert (allocated(Case([claim(request())], [slice_of("x", node_selector=selector)])) is not None) is reached


@pytest.mark.behaviour("SP-53")
def test_a_selector_can_name_the_node() -> None:
    for name, reached in (("node-1", True), ("node-2", False)):
        case = Case([claim(request())], [slice_of("x", node_selector=on_node(name))])
        assert (allocated(case) is not None) is reached


def gpus(count: int) -> list[r.ResourceSlice]:
    """GPUs of seven slots and 80 units of memory, cut in every way there is."""
    members, sets = [], []
    for gpu in range(count):
        sets.append(counter_set(f"gpu-{gpu}", memory="80", **{f"slot-{n}": "1" for n in range(7)}))
        for size, amount in ((7, 80), (4, 40), (3, 40), (2, 20), (1, 10)):
            for start in range(8 - size):
                slots = {f"slot-{n}": "1" for n in range(start, start + size)}
                consumes = {f"gpu-{gpu}": {"memory": str(amount), **slots}}
                members.append(device(f"gpu-{gpu}-{size}g-{start}", {"size": size, "gpu": gpu}, consumes=consumes))
    return [slice_of(*members, name="a", size=2), slice_of(name="b", size=2, shared_counters=tuple(sets))]


def cut(name: str, size: int, count: int = 1) -> r.DeviceRequest:
    return request(name, "class-a", count, f'device.attributes["driver-a"].size == {size}')


def hard_cases() -> dict[str, tuple[Case, int]]:
    """Cases without a solution, for which Kubernetes needs up to 2^n or 8^n steps, and the steps needed here."""
    numa = [device(f"d{numa}-{n}", {"numa": numa}) for numa in range(4) for n in range(7)]
    values = [device(f"d{n}", {"values": [n % 5, n % 7, n % 11]}) for n in range(24)]
    partitions = [device(f"p{n}", consumes={"s": {"m": str(n % 3 + 2)}}) for n in range(24)]
    counters = [
        slice_of(*partitions, name="a", size=2),
        slice_of(name="b", size=2, shared_counters=(counter_set("s", m="23"),)),
    ]
    eight = [first_of(f"r{n}", *(sub(f"s{m}") for m in range(8))) for n in range(8)]
    sizes = [first_of(f"r{n}", *(sub(f"s{m}", "class-a", 8 - m) for m in range(8))) for n in range(8)]
    odd = 'device.attributes["driver-a"].odd'
    mixed = [device(f"m{n}", {"odd": n > 6}) for n in range(12)]
    whole = [claim(cut("a", 4), cut("b", 3), name=f"c{n}", constraints=[match("gpu")]) for n in range(9)]
    return {
        "32 of 31": (Case([claim(request(count=32))], [slice_of(*devices(31))]), 0),
        "eight that match, of four times seven": (
            Case([claim(request(count=8), constraints=[match("numa")])], [slice_of(*numa)]),
            48,
        ),
        "seven lists that have nothing in common": (
            Case([claim(request(count=7), constraints=[distinct("values")])], [slice_of(*values)], gates=LISTS),
            153,
        ),
        "eight lists of eight alternatives, seven devices": (Case([claim(*eight)], [slice_of(*devices(7))]), 7),
        "eight lists of eight sizes, seven devices and others": (
            Case([claim(*sizes, request("odd", "class-a", 5, odd))], [slice_of(*mixed)]),
            12,
        ),
        "twelve partitions where nine fit": (Case([claim(request(count=12))], counters), 21),
        "17 thirds of 8 GPUs": (Case([claim(cut("r", 3, 17))], gpus(8)), 40),
        "16 thirds and 8 sevenths of 8 GPUs": (Case([claim(cut("r", 3, 16), cut("q", 1, 8))], gpus(8)), 88),
        "29 sevenths of 4 GPUs": (Case([claim(*(cut(f"r{n}", 1, 7) for n in range(4)), cut("q", 1))], gpus(4)), 28),
        "9 times a whole GPU in two parts, of 8": (Case(whole, gpus(8)), 268),
    }


@pytest.mark.behaviour("SP-46", "SP-47", "PL-17")
@pytest.mark.parametrize("name", hard_cases())
def test_hard_cases_are_decided_in_few_steps(name: str) -> None:
    case, steps = hard_cases()[name]
    outcome = case.allocator().allocate(case.node, case.claims)
    assert not outcome.fits
    assert outcome.steps == steps


@pytest.mark.behaviour("SP-69")
def test_a_step_bound_ends_the_search() -> None:
    case, _ = hard_cases()["9 times a whole GPU in two parts, of 8"]
    with pytest.raises(SearchStoppedError) as caught:
        case.allocator().allocate(case.node, case.claims, steps_max=100)
    assert caught.value.reason is StopReason.STEPS
    assert caught.value.steps == 101
    assert str(caught.value).startswith("node node-1: claim ns/c")
    assert ": limit of 100 steps exceeded while trying device driver-a/pool-1/gpu-" in str(caught.value)
