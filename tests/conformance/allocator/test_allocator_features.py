"""Counters, taints, shares, conditions and lists, and the form of results (SP-66 to SP-73)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from dray.allocator import AllocationError, AllocatorError, NodeAllocationError
from dray.api.types import core_v1
from dray.api.types import resource_v1 as r
from tests.conformance.allocator.builders import (
    all_devices,
    claim,
    config,
    counter_set,
    device,
    device_class,
    devices,
    distinct,
    first_of,
    holding,
    in_region,
    labelled,
    listed,
    match,
    on_node,
    opaque,
    ranged,
    request,
    requirement,
    result,
    shared,
    slice_of,
    sub,
    taint,
    toleration,
)
from tests.conformance.allocator.cases import Case, allocated, devices_of

pytestmark = pytest.mark.api_allocator

SHARE = "a share"
LISTS = {"DRAListTypeAttributes": True}


def row(identifier: str, name: str, case: Case) -> Any:
    return pytest.param(case, id=name, marks=pytest.mark.behaviour(identifier) if identifier else ())


def partition(name: str, amount: int | str, **fields: Any) -> r.Device:
    return device(name, consumes={"set": {"memory": f"{amount}Gi"}}, capacity={"memory": f"{amount}Gi"}, **fields)


def partitioned(*members: r.Device, total: str = "8Gi", pool: str = "pool-1", **fields: Any) -> list[r.ResourceSlice]:
    return [
        slice_of(*members, pool=pool, name=f"{pool}-devices", size=2, **fields),
        slice_of(pool=pool, name=f"{pool}-sets", size=2, shared_counters=(counter_set("set", memory=total),)),
    ]


def memory(least: str) -> str:
    return f'device.capacity["driver-a"].memory.compareTo(quantity("{least}")) >= 0'


COUNTERS = [
    row(
        "SP-70",
        "a partition fits its set",
        Case([claim(request())], partitioned(partition("a", 4)), [["req-0 driver-a/pool-1/a"]]),
    ),
    row(
        "SP-70",
        "the second takes what the first left",
        Case(
            [claim(request("r0"), request("r1"))],
            partitioned(partition("a", 4), partition("b", 6), partition("c", 4)),
            [["r0 driver-a/pool-1/a", "r1 driver-a/pool-1/c"]],
        ),
    ),
    row(
        "SP-70",
        "what was consumed is given back on the way back",
        Case(
            [claim(request(count=2))],
            partitioned(partition("a", 5), partition("b", 4), partition("c", 4)),
            [["req-0 driver-a/pool-1/b", "req-0 driver-a/pool-1/c"]],
        ),
    ),
    row(
        "SP-70",
        "a lower alternative takes what is left",
        Case(
            [
                claim(
                    request("r0"),
                    first_of("r1", sub("x", "class-a", 1, memory("6Gi")), sub("y", "class-a", 1, memory("4Gi"))),
                )
            ],
            partitioned(partition("a", 4), partition("b", 6), partition("c", 4)),
            [["r0 driver-a/pool-1/a", "r1/y driver-a/pool-1/c"]],
        ),
    ),
    row(
        "SP-70",
        "each pool has its own counters",
        Case(
            [claim(request(count=2))],
            partitioned(partition("a", 6), partition("b", 6))
            + partitioned(partition("a", 6), partition("b", 6), pool="pool-2"),
            [["req-0 driver-a/pool-1/a", "req-0 driver-a/pool-2/a"]],
        ),
    ),
    row(
        "SP-70",
        "devices in use consume",
        Case(
            [claim(request())],
            partitioned(partition("a", 4), partition("b", 16), total="18Gi"),
            in_use=[holding("driver-a/pool-1/b")],
        ),
    ),
    row(
        "SP-70",
        "devices in use consume more than there is",
        Case(
            [claim(request())],
            partitioned(partition("a", 4), partition("b", 20), total="18Gi"),
            in_use=[holding("driver-a/pool-1/b")],
        ),
    ),
    row(
        "N-119",
        "devices in use on another node consume",
        Case(
            [claim(first_of("r", sub("x", "class-a", 1, memory("6Gi")), sub("y", "class-a", 1, memory("2Gi"))))],
            [
                slice_of(partition("a", 6), partition("b", 2), name="a", size=3),
                slice_of(partition("c", 6), name="b", size=3, node_name="node-2"),
                slice_of(name="c", size=3, shared_counters=(counter_set("set", memory="8Gi"),)),
            ],
            [["r/y driver-a/pool-1/b"]],
            in_use=[holding("driver-a/pool-1/c")],
        ),
    ),
    row(
        "SP-70",
        "an administrator consumes nothing",
        Case(
            [claim(request("a", admin_access=True, count=2), request("b", "class-a", 1, memory("8Gi")))],
            partitioned(partition("x", 4), partition("y", 4), partition("z", 8)),
            [["a driver-a/pool-1/x", "a driver-a/pool-1/y", "b driver-a/pool-1/z"]],
        ),
    ),
    # Kubernetes 1.37 reserves counters for an administrator, too: https://github.com/kubernetes/kubernetes/issues/140729.
    row(
        "SP-70",
        "an administrator reaches a partition whose counters are used up",
        Case(
            [claim(request(admin_access=True))],
            partitioned(partition("whole", 8)),
            [["req-0 driver-a/pool-1/whole"]],
            in_use=[holding("driver-a/pool-1/whole")],
        ),
    ),
    # As in Kubernetes 1.37; https://github.com/kubernetes/kubernetes/issues/141216 is about refusing it.
    row(
        "SP-70",
        "a device in use that consumes a negative amount adds to its set",
        Case(
            [claim(request())],
            partitioned(partition("minus", -8), partition("large", 16)),
            [["req-0 driver-a/pool-1/large"]],
            in_use=[holding("driver-a/pool-1/minus")],
        ),
    ),
    # Kubernetes 1.37 finds nothing; https://github.com/kubernetes/kubernetes/pull/141091 proposes this.
    row(
        "SP-70",
        "switched off, such devices are not a part of all",
        Case(
            [claim(all_devices())],
            partitioned(partition("a", 4), device("plain")),
            [["req-0 driver-a/pool-1/plain"]],
            gates={"DRAPartitionableDevices": False},
        ),
    ),
    row(
        "SP-70",
        "switched off, such devices are not used",
        Case(
            [claim(request())],
            partitioned(partition("a", 4), device("plain")),
            [["req-0 driver-a/pool-1/plain"]],
            gates={"DRAPartitionableDevices": False},
        ),
    ),
    row(
        "SP-70",
        "devices choose their nodes",
        Case(
            [claim(request(count=3))],
            [
                slice_of(
                    device("far", node_name="node-2"),
                    device("near", node_name="node-1"),
                    device("region", node_selector=in_region()),
                    device("elsewhere", node_selector=in_region("x")),
                    device("all", all_nodes=True),
                    device("none"),
                    per_device_node_selection=True,
                )
            ],
            [["req-0 driver-a/pool-1/near", "req-0 driver-a/pool-1/region", "req-0 driver-a/pool-1/all"]],
        ),
    ),
    row(
        "SP-70",
        "switched off, devices that choose their nodes are not used",
        Case(
            [claim(request())],
            [slice_of(device("near", node_name="node-1"), per_device_node_selection=True)],
            gates={"DRAPartitionableDevices": False},
        ),
    ),
]

SCHEDULE, EXECUTE = taint("NoSchedule"), taint("NoExecute", "broken", "yes")
TAINTS = [
    row(
        "SP-71",
        "tainted devices are not used",
        Case([claim(request())], [slice_of(device("a", taints=(SCHEDULE,)), device("b", taints=(EXECUTE,)))]),
    ),
    row(
        "SP-71",
        "a tolerated taint does not matter",
        Case(
            [claim(request(tolerations=(toleration("broken"),)))],
            [slice_of(device("a", taints=(SCHEDULE,)), device("b", taints=(EXECUTE,)))],
            [["req-0 driver-a/pool-1/b"]],
        ),
    ),
    row(
        "SP-71",
        "every taint must be tolerated",
        Case(
            [claim(request(tolerations=(toleration("broken"),)))],
            [slice_of(device("a", taints=(SCHEDULE, EXECUTE)))],
        ),
    ),
    row(
        "SP-71",
        "None and effects of the future do not matter",
        Case(
            [claim(request(count=2))],
            [slice_of(device("a", taints=(taint("None"),)), device("b", taints=(taint("NoFuture"),)))],
            [["req-0 driver-a/pool-1/a", "req-0 driver-a/pool-1/b"]],
        ),
    ),
    row(
        "SP-71",
        "administrators are kept away as well",
        Case([claim(request(admin_access=True))], [slice_of(device("a", taints=(SCHEDULE,)))]),
    ),
    row("SP-71", "all devices", Case([claim(all_devices())], [slice_of(device("a", taints=(SCHEDULE,)), "b")])),
    row(
        "SP-71",
        "an alternative that tolerates",
        Case(
            [claim(first_of("r", sub("x"), sub("y", tolerations=(toleration(),))))],
            [slice_of(device("a", taints=(SCHEDULE,)))],
            [["r/y driver-a/pool-1/a"]],
        ),
    ),
    row(
        "SP-71",
        "switched off, taints do not matter",
        Case(
            [claim(request())],
            [slice_of(device("a", taints=(SCHEDULE,)))],
            [["req-0 driver-a/pool-1/a"]],
            gates={"DRADeviceTaints": False},
        ),
    ),
    row(
        "SP-71",
        "a rule taints what it selects",
        Case(
            [claim(request())],
            [slice_of("a", "b"), slice_of("a", pool="pool-2")],
            [["req-0 driver-a/pool-1/b"]],
            rules=[
                {
                    "metadata": {"name": "rule"},
                    "spec": {
                        "deviceSelector": {"driver": "driver-a", "pool": "pool-1", "device": "a"},
                        "taint": {"key": "k", "effect": "NoSchedule"},
                    },
                }
            ],
        ),
    ),
    row(
        "SP-71",
        "a rule for a driver taints all of its devices",
        Case(
            [claim(request("r", "any"))],
            [slice_of("a"), slice_of("a", driver="driver-b")],
            [["r driver-b/pool-1/a"]],
            classes=[device_class("any", "true")],
            rules=[
                {
                    "metadata": {"name": "rule"},
                    "spec": {"deviceSelector": {"driver": "driver-a"}, "taint": {"key": "k", "effect": "NoExecute"}},
                }
            ],
        ),
    ),
    row(
        "SP-71",
        "a rule without a selector taints nothing",
        Case(
            [claim(request())],
            [slice_of("a")],
            [["req-0 driver-a/pool-1/a"]],
            rules=[{"metadata": {"name": "rule"}, "spec": {"taint": {"key": "k", "effect": "NoExecute"}}}],
        ),
    ),
]

TWO = {"cap": "2"}
SHARES = [
    # Kubernetes 1.37 allocates it; https://github.com/kubernetes/kubernetes/pull/140798 is merged since.
    row(
        "SP-72",
        "a device that can no longer be shared is not given away while somebody has a share",
        Case([claim(request())], [slice_of("x")], in_use=[holding("driver-a/pool-1/x", share_id="share")]),
    ),
    row(
        "SP-72",
        "two claims share a device",
        Case(
            [claim(request(capacity={"cap": "1"})), claim(request(capacity={"cap": "1"}), name="claim-1")],
            [slice_of(shared("a", {"cap": "2"}))],
            [["req-0 driver-a/pool-1/a"], ["req-0 driver-a/pool-1/a"]],
        ),
    ),
    row(
        "SP-72",
        "a device lacking the capacity is skipped",
        Case([claim(request(capacity={"cap": "1"}))], [slice_of(shared("a", {"other": "1"}))]),
    ),
    row(
        "SP-72",
        "without a request or a policy all of it is taken",
        Case(
            [claim(request()), claim(request(), name="claim-1")],
            [slice_of(shared("a", {"cap": "1"}), shared("b", {"cap": "1"}))],
            [["req-0 driver-a/pool-1/a"], ["req-0 driver-a/pool-1/b"]],
        ),
    ),
    row(
        "SP-72",
        "a device without capacities can be shared without end",
        Case(
            [claim(request(), name=f"claim-{n}") for n in range(3)],
            [slice_of(shared("a"))],
            [["req-0 driver-a/pool-1/a"]] * 3,
        ),
    ),
    row("SP-72", "not within one request", Case([claim(request(count=2))], [slice_of(shared("a"))])),
    row(
        "SP-72",
        "shares in use count",
        Case(
            [claim(request(capacity=TWO))],
            [slice_of(shared("a", {"cap": ranged("2")}), shared("b", {"cap": ranged("2")}))],
            [["req-0 driver-a/pool-1/b"]],
            in_use=[holding("driver-a/pool-1/a", share_id="s", consumed_capacity={"cap": "2"})],
        ),
    ),
    row(
        "SP-72",
        "a device that a claim has alone is not shared",
        Case([claim(request())], [slice_of(shared("a"))], in_use=[holding("driver-a/pool-1/a")]),
    ),
    row(
        "SP-72",
        "a device of which there are shares is not had alone",
        Case([claim(request())], [slice_of("a")], in_use=[holding("driver-a/pool-1/a", share_id="s")]),
    ),
    row(
        "SP-72",
        "more than the policy allows",
        Case([claim(request(capacity={"cap": "6"}))], [slice_of(shared("a", {"cap": ranged("10")}))]),
    ),
    row(
        "SP-72",
        "more than any valid value",
        Case([claim(request(capacity={"cap": "1"}))], [slice_of(shared("a", {"cap": listed("1", default="0")}))]),
    ),
    row(
        "SP-72",
        "the way back gives shares back",
        Case(
            [
                claim(request("r0", capacity=TWO), request("r1", capacity=TWO), constraints=[match("name")]),
                claim(request(capacity=TWO), name="claim-1"),
            ],
            [
                slice_of(
                    shared("a", {"cap": ranged("2")}, {"name": "x"}), shared("b", {"cap": ranged("4")}, {"name": "y"})
                )
            ],
            [["r0 driver-a/pool-1/b", "r1 driver-a/pool-1/b"], ["req-0 driver-a/pool-1/a"]],
        ),
    ),
    row(
        "SP-72",
        "a smaller share leaves enough for what comes later",
        Case(
            [
                claim(
                    first_of("r0", sub("x", capacity={"cap": "4"}), sub("y", capacity={"cap": "2"})),
                    request("r1", capacity={"cap": "4"}),
                )
            ],
            [slice_of(shared("a", {"cap": "6"}))],
            [["r0/y driver-a/pool-1/a", "r1 driver-a/pool-1/a"]],
        ),
    ),
    row(
        "SP-72",
        "all devices are those with enough capacity",
        Case(
            [claim(all_devices(capacity=TWO))],
            [slice_of(shared("a", {"cap": "2"}), shared("b"), shared("c", {"cap": "1"}))],
            [["req-0 driver-a/pool-1/a"]],
        ),
    ),
    row(
        "SP-72",
        "all devices are not only those of which others have left something",
        Case(
            [claim(all_devices(capacity={"cap": "1"}))],
            [slice_of(shared("a", {"cap": "2"}), shared("b", {"cap": "2"}))],
            in_use=[holding("driver-a/pool-1/b", share_id="s", consumed_capacity={"cap": "2"})],
        ),
    ),
    row(
        "SP-72",
        "all devices with a share left of each",
        Case(
            [claim(all_devices(capacity={"cap": "1"}))],
            [slice_of(shared("a", {"cap": "2"}), shared("b", {"cap": "2"}))],
            [["req-0 driver-a/pool-1/a", "req-0 driver-a/pool-1/b"]],
            in_use=[holding("driver-a/pool-1/b", share_id="s", consumed_capacity={"cap": "1"})],
        ),
    ),
    row(
        "SP-62",
        "an administrator's all and an ordinary request on one shareable device",
        Case(
            [claim(all_devices("admin", admin_access=True), request("user", capacity={"cap": "2"}))],
            [slice_of(shared("a", {"cap": "2"}))],
            [["admin driver-a/pool-1/a", "user driver-a/pool-1/a"]],
        ),
    ),
    row(
        "SP-62",
        "an ordinary request and an administrator's all on one shareable device",
        Case(
            [claim(request("user", capacity={"cap": "2"}), all_devices("admin", admin_access=True))],
            [slice_of(shared("a", {"cap": "2"}))],
            [["user driver-a/pool-1/a", "admin driver-a/pool-1/a"]],
        ),
    ),
    row(
        "SP-72",
        "all devices, one of which an earlier request used up",
        Case(
            [claim(request("r0", capacity={"cap": "1"}), all_devices("r1", capacity={"cap": "1"}))],
            [slice_of(shared("a", {"cap": "1"}), shared("b", {"cap": "1"}))],
        ),
    ),
    row(
        "SP-72",
        "a shared partition takes its counters once",
        Case(
            [claim(request("r0", capacity={"memory": "1Gi"}), request("r1", capacity={"memory": "1Gi"}))],
            partitioned(partition("a", 4, allow_multiple_allocations=True), total="4Gi"),
            [["r0 driver-a/pool-1/a", "r1 driver-a/pool-1/a"]],
        ),
    ),
    row(
        "SP-72",
        "a shared partition in use has its counters already",
        Case(
            [claim(request(capacity={"memory": "1Gi"}))],
            partitioned(partition("a", 4, allow_multiple_allocations=True), total="4Gi"),
            [["req-0 driver-a/pool-1/a"]],
            in_use=[holding("driver-a/pool-1/a", share_id="s", consumed_capacity={"memory": "1Gi"})],
        ),
    ),
    row(
        "SP-72",
        "a shared partition beside one that is not",
        Case(
            [claim(request(count=2), constraints=[distinct("bus")])],
            partitioned(
                partition("a", 3, attributes={"bus": 0}),
                device("b", {"bus": 0}),
                partition("c", 1, attributes={"bus": 1}, allow_multiple_allocations=True),
                total="3Gi",
            ),
            [["req-0 driver-a/pool-1/b", "req-0 driver-a/pool-1/c"]],
        ),
    ),
    row(
        "SP-72",
        "values must be different between shares",
        Case(
            [claim(request("r0"), request("r1"), constraints=[distinct("name")])],
            [slice_of(shared("a", None, {"name": "x"}), shared("b", None, {"name": "y"}))],
            [["r0 driver-a/pool-1/a", "r1 driver-a/pool-1/b"]],
        ),
    ),
    row(
        "SP-72",
        "the selector can see whether a device is shared",
        Case(
            [claim(request("r", "class-a", 1, "!device.allowMultipleAllocations"))],
            [slice_of(shared("a"), "b")],
            [["r driver-a/pool-1/b"]],
        ),
    ),
    row(
        "SP-72",
        "a stored selector on shareable devices, with the gate off",
        Case(
            [claim(request("r", "class-a", 1, "!device.allowMultipleAllocations"))],
            [slice_of("b")],
            [["r driver-a/pool-1/b"]],
            gates={"DRAConsumableCapacity": False},
        ),
    ),
]

CONDITIONS = [
    row(
        "",
        "switched off, devices with binding conditions are not used",
        Case(
            [claim(request())],
            [slice_of(device("a", binding_conditions=("Ready",)))],
            gates={"DRADeviceBindingConditions": False},
        ),
    ),
    row(
        "SP-63",
        "lists match when they have a value in common",
        Case(
            [claim(request(count=2), constraints=[match("x")])],
            [slice_of(device("a", {"x": ["p", "q"]}), device("b", {"x": ["r"]}), device("c", {"x": "q"}))],
            [["req-0 driver-a/pool-1/a", "req-0 driver-a/pool-1/c"]],
            gates=LISTS,
        ),
    ),
    row(
        "SP-63",
        "in common means to all of them",
        Case(
            [claim(request(count=3), constraints=[match("x")])],
            [slice_of(device("a", {"x": ["p", "q"]}), device("b", {"x": ["q", "r"]}), device("c", {"x": ["r", "p"]}))],
            gates=LISTS,
        ),
    ),
    row(
        "SP-64",
        "what lists had in common is restored on the way back",
        Case(
            [claim(request(count=3), constraints=[match("x")])],
            [
                slice_of(
                    device("a", {"x": ["p", "q"]}),
                    device("b", {"x": ["p"]}),
                    device("c", {"x": ["q"]}),
                    device("d", {"x": ["q"]}),
                )
            ],
            [["req-0 driver-a/pool-1/a", "req-0 driver-a/pool-1/c", "req-0 driver-a/pool-1/d"]],
            gates=LISTS,
        ),
    ),
    row(
        "",
        "lists are distinct when they have nothing in common",
        Case(
            [claim(request(count=2), constraints=[distinct("x")])],
            [slice_of(device("a", {"x": [1, 2]}), device("b", {"x": [2, 3]}), device("c", {"x": [3, 4]}))],
            [["req-0 driver-a/pool-1/a", "req-0 driver-a/pool-1/c"]],
            gates=LISTS,
        ),
    ),
]


@pytest.mark.parametrize("case", [*COUNTERS, *TAINTS, *SHARES, *CONDITIONS])
def test_devices(case: Case) -> None:
    allocations = allocated(case)
    found = None if allocations is None else [devices_of(item) for item in allocations]
    assert found == (None if case.expected is None else [list(item) for item in case.expected])


INVALID = "node: invalid resource pools were encountered"
SETS = (counter_set("set", memory="8Gi"),)
ERRORS = [
    row(
        "SP-72",
        "a negative capacity request",
        Case(
            [claim(request(capacity={"cap": "-1"}))],
            [slice_of(shared("a", {"cap": "2"}))],
            error='claim ns/claim-0, request req-0: capacity "cap": capacity value is negative',
        ),
    ),
    row(
        "SP-70",
        "a counter set twice",
        Case(
            [claim(request())],
            [
                slice_of("a", name="a", size=3),
                slice_of(name="b", size=3, shared_counters=SETS),
                slice_of(name="c", size=3, shared_counters=SETS),
            ],
            error=INVALID,
        ),
    ),
    row(
        "N-119",
        "an unknown counter set in a slice for another node",
        Case(
            [claim(request())],
            [
                slice_of("a", name="a", size=2),
                slice_of(partition("b", 1), name="b", size=2, node_name="node-2"),
            ],
            error=INVALID,
        ),
    ),
    row("SP-70", "an unknown counter set", Case([claim(request())], [slice_of(partition("a", 1))], error=INVALID)),
    row(
        "SP-70",
        "an unknown counter",
        Case(
            [claim(request())],
            [
                slice_of(partition("a", 1), name="a", size=2),
                slice_of(name="b", size=2, shared_counters=(counter_set("set", other="1"),)),
            ],
            error=INVALID,
        ),
    ),
    row(
        "SP-70",
        "a counter set of another pool",
        Case(
            [claim(request())],
            [slice_of(partition("a", 1)), slice_of(pool="pool-2", shared_counters=SETS)],
            error=INVALID,
        ),
    ),
    row(
        "SP-70",
        "an unknown counter set in a slice for another node",
        Case(
            [claim(request())],
            [
                slice_of(partition("a", 1), name="a", size=3),
                slice_of(device("b", consumes={"nope": {}}), name="b", size=3, node_name="node-2"),
                slice_of(name="c", size=3, shared_counters=SETS),
            ],
            error=INVALID,
        ),
    ),
    row(
        "SP-72",
        "shares are switched off",
        Case(
            [claim(request(capacity={"cap": "1"}))],
            gates={"DRAConsumableCapacity": False},
            error="claim ns/claim-0, request req-0: "
            "has capacity requests, but the DRAConsumableCapacity feature is disabled",
        ),
    ),
    row(
        "SP-72",
        "shares are switched off, in an alternative",
        Case(
            [claim(first_of("r", sub("s", capacity={"cap": "1"})))],
            gates={"DRAConsumableCapacity": False},
            error="claim ns/claim-0, subrequest s: "
            "has capacity requests, but the DRAConsumableCapacity feature is disabled",
        ),
    ),
    row(
        "SP-56",
        "distinct attributes are switched off",
        Case(
            [claim(request(), constraints=[distinct("x")])],
            gates={"DRAConsumableCapacity": False},
            error="claim ns/claim-0, constraint #0: empty constraint (unsupported constraint type?)",
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


# ---- the form of results


def only(case: Case) -> r.AllocationResult:
    (allocation,) = allocated(case) or ()
    return allocation


@pytest.mark.behaviour("SP-66")
def test_a_result_names_request_driver_pool_and_device() -> None:
    allocation = only(Case([claim(request("gpu"))], [slice_of("x")]))
    assert allocation.devices.results == (result("gpu", "driver-a/pool-1/x"),)
    assert allocation.devices.config == ()
    assert allocation.allocation_timestamp is None


@pytest.mark.behaviour("SP-66")
def test_a_result_says_how_the_device_may_be_used() -> None:
    tolerated = (toleration(),)
    allocation = only(Case([claim(request("gpu", admin_access=True, tolerations=tolerated))], [slice_of("x")]))
    assert allocation.devices.results == (result("gpu", "driver-a/pool-1/x", admin_access=True, tolerations=tolerated),)


@pytest.mark.behaviour("SP-67")
def test_configuration_of_classes_comes_first_and_once() -> None:
    allocation = only(
        Case(
            [
                claim(
                    request("r0"),
                    request("r1", "class-b"),
                    request("r2"),
                    config=[config("for all"), config("for two", "r0", "r2"), config("for r1", "r1")],
                )
            ],
            [slice_of("x", "y"), slice_of("z", driver="driver-b")],
            classes=[device_class("class-a", config=["a1", "a2"]), device_class("class-b", config=["b"])],
        )
    )
    found = [(item.source, item.requests, item.opaque) for item in allocation.devices.config]
    assert found == [
        ("FromClass", ("r0", "r2"), opaque("a1")),
        ("FromClass", ("r0", "r2"), opaque("a2")),
        ("FromClass", ("r1",), opaque("b")),
        ("FromClaim", (), opaque("for all")),
        ("FromClaim", ("r0", "r2"), opaque("for two")),
        ("FromClaim", ("r1",), opaque("for r1")),
    ]


@pytest.mark.behaviour("N-115")
def test_configuration_for_every_request_names_none() -> None:
    allocation = only(
        Case(
            [
                claim(
                    request("r0"),
                    first_of("r1", sub("x", "class-a", 5), sub("y")),
                    config=[
                        config("both", "r0", "r1"),
                        config("both with the chosen alternative", "r1/y", "r0"),
                        config("one", "r0"),
                        config("another alternative", "r0", "r1/x"),
                    ],
                )
            ],
            [slice_of("a", "b")],
            classes=[device_class("class-a", config=["a"])],
        )
    )
    assert [item.requests for item in allocation.devices.config] == [(), (), (), ("r0",), ("r0", "r1/x")]


ZONE = requirement("zone", "Exists")
REGION = requirement("region", "In", "region-1")


@pytest.mark.behaviour("SP-68")
@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        pytest.param([slice_of("x")], on_node(), id="a device of the node"),
        pytest.param([slice_of("x", all_nodes=True)], None, id="a device for all nodes"),
        pytest.param([slice_of("x", node_selector=in_region())], in_region(), id="a device of the region"),
        pytest.param(
            [slice_of("x", node_selector=in_region()), slice_of("y", pool="p2", all_nodes=True)],
            in_region(),
            id="one of the region, one for all",
        ),
        pytest.param(
            [
                slice_of("x", node_selector=in_region()),
                slice_of("y", pool="p2", node_selector=labelled(REGION, requirement("planet", "NotIn", "mars"))),
            ],
            labelled(REGION, requirement("planet", "NotIn", "mars")),
            id="requirements are united without repeating any",
        ),
        pytest.param(
            [
                slice_of("x", node_selector=labelled(requirement("region", "In", "region-1", "region-2"))),
                slice_of("y", pool="p2", node_selector=labelled(requirement("region", "In", "region-2", "region-1"))),
            ],
            labelled(requirement("region", "In", "region-2", "region-1")),
            id="values in another order are the same requirement",
        ),
        pytest.param(
            [slice_of("x", node_selector=in_region()), slice_of("y", pool="p2")], on_node(), id="one of each sort"
        ),
        pytest.param(
            [slice_of(device("x", binds_to_node=True), node_selector=in_region())], on_node(), id="it binds to the node"
        ),
        pytest.param(
            [slice_of(device("x", node_selector=in_region()), per_device_node_selection=True)],
            in_region(),
            id="the device itself names the region",
        ),
        pytest.param(
            [slice_of(device("x", node_name="node-1"), per_device_node_selection=True)],
            on_node(),
            id="the device itself names the node",
        ),
    ],
)
def test_the_nodes_from_which_all_devices_can_be_used(
    slices: list[r.ResourceSlice], expected: core_v1.NodeSelector | None
) -> None:
    assert only(Case([claim(request(count=len(slices)))], slices)).node_selector == expected


@pytest.mark.behaviour("SP-72")
@pytest.mark.parametrize(
    ("capacity", "asked", "taken"),
    [
        pytest.param({"cap": "4"}, {"cap": "1"}, {"cap": "1"}, id="without a policy what was asked"),
        pytest.param({"cap": "4"}, None, {"cap": "4"}, id="without a policy and a request everything"),
        pytest.param({"cap": ranged("4")}, None, {"cap": "2"}, id="the default"),
        pytest.param({"cap": ranged("4")}, {"cap": "1"}, {"cap": "2"}, id="up to the least"),
        pytest.param({"cap": ranged("4")}, {"cap": "3"}, {"cap": "4"}, id="up by whole steps"),
        pytest.param({"cap": listed("4", "2", default="1")}, {"cap": "2"}, {"cap": "2"}, id="a valid value"),
        pytest.param({"cap": listed("3", "3", default="1")}, {"cap": "2"}, {"cap": "3"}, id="up to a valid value"),
        pytest.param({"cap": listed("1", default="0")}, None, {"cap": "0"}, id="nothing"),
        pytest.param({"cap": "4", "x": ranged("4")}, {"cap": "1"}, {"cap": "1", "x": "2"}, id="every capacity"),
        pytest.param({"cap": "4Gi"}, {"driver-a/cap": "1Gi"}, {"cap": "1Gi"}, id="under the device's own name"),
        pytest.param({}, None, {}, id="no capacities"),
    ],
)
def test_what_a_share_takes(capacity: dict[str, Any], asked: dict[str, str] | None, taken: dict[str, str]) -> None:
    (found,) = only(Case([claim(request(capacity=asked))], [slice_of(shared("a", capacity))])).devices.results
    assert found.consumed_capacity == taken
    assert found.share_id is not None
    assert str(UUID(found.share_id)) == found.share_id


@pytest.mark.behaviour("SP-72")
def test_a_device_used_alone_has_no_share() -> None:
    case = Case([claim(request(capacity={"cap": "1"}))], [slice_of(device("a", capacity={"cap": "1"}))])
    assert only(case).devices.results == (result("req-0", "driver-a/pool-1/a"),)


@pytest.mark.behaviour("SP-72")
def test_every_share_has_an_identity_of_its_own() -> None:
    claims = [claim(request("a"), request("b"), name=name) for name in ("x", "y")]
    allocations = allocated(Case(claims, [slice_of(shared("a"))])) or ()
    assert len({item.share_id for allocation in allocations for item in allocation.devices.results}) == 4


@pytest.mark.behaviour("SP-66")
def test_binding_conditions_are_in_the_result() -> None:
    spec = device("a", binding_conditions=("Ready",), binding_failure_conditions=("Broken",))
    (found,) = only(Case([claim(request())], [slice_of(spec)])).devices.results
    assert (found.binding_conditions, found.binding_failure_conditions) == (("Ready",), ("Broken",))


@pytest.mark.behaviour("SP-73")
def test_one_allocator_serves_every_combination_of_features() -> None:
    """Where Kubernetes chooses among three allocators, the gates here are data of one."""
    names = ["DRAPartitionableDevices", "DRADeviceTaints", "DRAConsumableCapacity", "DRADeviceBindingConditions"]
    for number in range(2 ** len(names)):
        gates = {name: bool(number >> position & 1) for position, name in enumerate(names)}
        case = Case([claim(request(count=3))], [slice_of(*devices(3))], gates=gates)
        assert len(only(case).devices.results) == 3
