"""How much of each physical device is in use: by counters, by shares, as a whole, and of device plugins."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dray.api.document import Document
from dray.cli.devices import columns
from dray.sim import usage
from dray.sim.devices import DeviceState, device_rows
from dray.sim.physical_devices import PhysicalDevice, PhysicalState, physical_devices, plugin_rows, used_resources
from dray.sim.snapshot import Snapshot
from dray.sim.usage import NamespaceRow
from tests.unit.sim.cluster import GPU, claim, classic_claim, device, device_class, node, pod, resource_slice

NOW = datetime(2026, 1, 2, tzinfo=UTC)
RESOURCE = "example.com/card"


def card(name: str, *taken: str) -> list[Document]:
    """A card of 80Gi with a whole device, two halves and eight small partitions, some of them allocated."""

    def part(part_name: str, memory: str) -> Document:
        consumed = [{"counterSet": name, "counters": {"memory": {"value": memory}, "copies": {"value": "1"}}}]
        return device(part_name, consumesCounters=consumed)

    sizes = {"whole": "80Gi", "half-0": "40Gi", "half-1": "40Gi"} | {f"small-{n}": "10Gi" for n in range(8)}
    pool = {"name": "a", "generation": 1, "resourceSliceCount": 2}
    counters = resource_slice("counters", GPU, nodeName="a")
    total = {"memory": {"value": "80Gi"}, "copies": {"value": "8"}}
    counters["spec"] |= {"pool": pool, "sharedCounters": [{"name": name, "counters": total}]}
    parts = resource_slice("parts", GPU, *(part(*item) for item in sizes.items()), nodeName="a")
    parts["spec"]["pool"] = pool
    return [counters, parts, *(claim(part_name, f"{GPU}/a/{part_name}") for part_name in taken)]


def one(*documents: Document) -> PhysicalDevice:
    (found,) = physical_devices(Snapshot.of([device_class("gpu", "true"), *documents]))
    return found


@pytest.mark.parametrize(
    ("taken", "used", "state"),
    [
        ((), 0.0, PhysicalState.FREE),
        (("whole",), 1.0, PhysicalState.IN_USE),
        (("half-0",), 0.5, PhysicalState.IN_USE),
        (("half-0", "half-1"), 1.0, PhysicalState.IN_USE),
        (("small-0",), 0.125, PhysicalState.IN_USE),
    ],
)
def test_a_card_is_used_as_far_as_its_fullest_counter(
    taken: tuple[str, ...], used: float, state: PhysicalState
) -> None:
    """Two of eleven published devices can be the whole card."""
    found = one(*card("card", *taken))
    assert (found.name, found.used, found.state, len(found.published)) == ("card", used, state, 11)
    (row,) = usage.by_class([found])
    assert (row.total, row.share) == (1, used)


def test_counters_are_listed_in_human_units() -> None:
    memory = next(item for item in one(*card("card", "half-0")).counters if item.counter == "memory")
    assert (memory.counter_set, memory.total, memory.used, memory.share) == ("card", "80Gi", "40Gi", 0.5)


def test_a_shared_device_is_used_as_far_as_its_capacity() -> None:
    shared = resource_slice("a", GPU, device("gpu-0", allowMultipleAllocations=True), nodeName="a")
    shares = [claim(f"share-{n}", f"{GPU}/a/gpu-0") for n in range(2)]
    for number, share in enumerate(shares):
        result = share["status"]["allocation"]["devices"]["results"][0]
        result |= {"shareID": f"00000000-0000-0000-0000-00000000000{number}", "consumedCapacity": {"memory": "10Gi"}}
    found = one(shared, *shares)
    assert (found.used, found.state) == (0.5, PhysicalState.IN_USE)


def test_a_device_as_a_whole() -> None:
    assert one(resource_slice("a", GPU, device("gpu-0"), nodeName="a")).used == 0.0
    assert one(resource_slice("a", GPU, device("gpu-0"), nodeName="a"), claim("c", f"{GPU}/a/gpu-0")).used == 1.0


def test_tainted_devices_are_unavailable_until_somebody_has_them() -> None:
    taint = {"key": "broken", "effect": "NoSchedule"}
    tainted = resource_slice("a", GPU, device("gpu-0", taints=[taint]), nodeName="a")
    assert one(tainted).state is PhysicalState.UNAVAILABLE
    assert one(tainted, claim("c", f"{GPU}/a/gpu-0")).state is PhysicalState.IN_USE


def test_unhealthy_devices_are_named() -> None:
    sick = pod("p", "a")
    health = {"resourceID": f"{GPU}/a/gpu-0", "health": "Unhealthy", "message": "too hot"}
    allocated = [{"name": "claim:gpu", "resources": [health]}]
    sick["status"] = {"containerStatuses": [{"name": "c", "image": "i", "allocatedResourcesStatus": allocated}]}
    held = claim("c", f"{GPU}/a/gpu-0", pods=("p",))
    (row,) = device_rows(Snapshot.of([resource_slice("a", GPU, device("gpu-0"), nodeName="a"), held, sick]))
    assert (row.state, row.note) == (DeviceState.UNHEALTHY, "unhealthy: too hot; used by Pod team/p")


def plugin_node() -> list[Document]:
    machine = node("a")
    machine["status"]["capacity"] = {RESOURCE: "5", "cpu": "4"}
    machine["status"]["allocatable"] |= {RESOURCE: "4"}
    user = pod("user", "a")
    user["spec"]["containers"][0]["resources"] = {"requests": {RESOURCE: "3"}, "limits": {RESOURCE: "3"}}
    done = pod("done", "a")
    done["spec"]["containers"][0]["resources"] = {"requests": {RESOURCE: "1"}, "limits": {RESOURCE: "1"}}
    done["status"] = {"phase": "Succeeded"}
    return [machine, user, done]


def test_devices_of_a_plugin_count_like_others() -> None:
    snapshot = Snapshot.of(plugin_node())
    (row,) = usage.by_class(physical_devices(snapshot))
    assert (row.name, row.total, row.held, row.free, row.out, row.share) == (RESOURCE, 5, 3, 1, 1, 0.6)
    (shown,) = plugin_rows(snapshot, used_resources(snapshot))
    assert (shown.driver, shown.name, shown.state, shown.note) == (
        "device plugin",
        RESOURCE,
        DeviceState.SHARED,
        "3 of 4 in use, 1 unhealthy",
    )
    assert [(holder.pods, holder.since) for holder in shown.holders] == [(("team/user",), None)]


@pytest.mark.behaviour("XR-48")
def test_who_offers_an_extended_resource_on_a_node_and_how_much_is_free() -> None:
    named = device_class("gpu", "true")
    named["spec"]["extendedResourceName"] = RESOURCE
    slices = resource_slice("a", GPU, device("gpu-0"), device("gpu-1"), nodeName="a")
    used = claim("c", f"{GPU}/a/gpu-0", pods=("p",))
    machine, user, _ = plugin_node()
    snapshot = Snapshot.of([machine, node("b"), user, named, device_class("other", "true"), slices, used])
    found = usage.by_extended_resource(physical_devices(snapshot), snapshot.classes)
    assert [(row.node, row.resource, row.device_class, row.driver, row.total, row.held) for row in found] == [
        ("a", RESOURCE, "", "device plugin", 5, 3),
        ("a", RESOURCE, "gpu", GPU, 2, 1),
    ]


def test_the_table_of_devices_tells_who_holds_those_of_a_plugin_and_since_when() -> None:
    machine, user, done = plugin_node()
    user["status"] = {"phase": "Running", "startTime": (NOW - timedelta(hours=2)).isoformat().replace("+00:00", "Z")}
    snapshot = Snapshot.of([machine, user, done])
    rows = plugin_rows(snapshot, used_resources(snapshot))
    cells = {column.title: column.text(rows[0]) for column in columns(NOW, rows)}
    told = {title: cells[title] for title in ("AMOUNT", "CLAIM", "PODS", "ALLOCATED")}
    assert told == {"AMOUNT": "3 of 4 in use, 1 unhealthy", "CLAIM": "", "PODS": "team/user", "ALLOCATED": "2h"}
    assert "AMOUNT" not in [column.title for column in columns(NOW, [])]


def test_devices_of_a_plugin_that_is_gone_count_once() -> None:
    machine, user, done = plugin_node()
    machine["status"]["allocatable"][RESOURCE] = "0"
    snapshot = Snapshot.of([machine, user, done])
    (row,) = usage.by_class(physical_devices(snapshot))
    assert (row.total, row.held, row.free, row.out) == (5, 3, 0, 2)
    (shown,) = plugin_rows(snapshot, used_resources(snapshot))
    assert (shown.state, shown.note) == (DeviceState.HELD, "3 of 3 in use, 2 unhealthy")


def test_devices_of_a_plugin_count_in_the_namespace_of_the_pod() -> None:
    machine, user, done = plugin_node()
    user["status"] = {"phase": "Running", "startTime": (NOW - timedelta(hours=2)).isoformat().replace("+00:00", "Z")}
    assert usage.by_namespace(Snapshot.of([machine, user, done]), NOW) == [NamespaceRow("team", 0, 0, 3, 6.0)]


def test_classic_claims_count_in_their_namespace() -> None:
    (row,) = usage.by_namespace(Snapshot.of([classic_claim("one")]), NOW)
    assert (row.namespace, row.claims, row.pending) == ("team", 1, 1)
