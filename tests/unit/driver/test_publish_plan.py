"""Which writes make a pool's slices what the driver wants."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from dray.api.types.meta_v1 import ObjectMeta, OwnerReference
from dray.api.types.resource_v1 import (
    DeviceTaint,
    NodeAllocatableMapping,
    NodeAllocatableOverhead,
    NodeAllocatableResource,
    ResourceSlice,
)
from dray.driver.devices import Pool, counter_set, device
from dray.driver.publish.contents import contents_of, dropped_gates
from dray.driver.publish.plan import Plan, Publisher, plan_pool

OWNER = OwnerReference(api_version="v1", kind="Node", name="node-1", uid="node-uid", controller=True)
NUMBERS = itertools.count()
PUBLISHER = Publisher("d.example.com", "node-1", OWNER)


def pool(count: int, **more: Any) -> Pool:
    return Pool(tuple(device(f"dev-{number}", attributes={"n": number}) for number in range(count)), **more)


def store(plan: Plan, existing: tuple[ResourceSlice, ...] = ()) -> tuple[ResourceSlice, ...]:
    """What the server has after the plan's writes."""
    items = {item.metadata.name: item for item in existing}
    for gone in plan.delete:
        del items[gone.metadata.name]
    for item, _ in plan.update:
        items[item.metadata.name] = item
    for item, _ in plan.create:
        name = f"{item.metadata.generate_name}{next(NUMBERS)}"
        metadata = ObjectMeta(name=name, uid=name, owner_references=item.metadata.owner_references)
        items[name] = msgspec.structs.replace(item, metadata=metadata)
    return tuple(items.values())


def plan(wanted: Pool | None, existing: tuple[ResourceSlice, ...] = ()) -> Plan:
    return plan_pool(PUBLISHER, "p", wanted, existing, ())


def published(wanted: Pool) -> tuple[ResourceSlice, ...]:
    return store(plan(wanted))


def generations(existing: tuple[ResourceSlice, ...]) -> list[int]:
    return [item.spec.pool.generation for item in existing]


@pytest.mark.behaviour("SP-139")
def test_new_slices_belong_to_the_node() -> None:
    ((item, _),) = plan(pool(2)).create
    assert item.metadata.generate_name == "node-1-d.example.com-"
    assert item.metadata.owner_references == (OWNER,)
    assert (item.spec.node_name, item.spec.driver) == ("node-1", "d.example.com")
    assert (item.spec.pool.name, item.spec.pool.generation, item.spec.pool.resource_slice_count) == ("p", 1, 1)
    assert [one.name for one in item.spec.devices] == ["dev-0", "dev-1"]


def test_a_pool_that_is_not_of_the_node_says_where_it_is() -> None:
    ((item, _),) = plan_pool(Publisher("d", "", None), "p", pool(1, all_nodes=True), (), ()).create
    assert (item.spec.node_name, item.spec.all_nodes, item.metadata.owner_references) == (None, True, ())


@pytest.mark.behaviour("SP-137")
def test_nothing_is_written_when_all_is_well() -> None:
    for wanted in (pool(0), pool(3), pool(300), pool(3, counters=(counter_set("c", {"m": "1Gi"}),))):
        assert plan(wanted, published(wanted)).empty


@pytest.mark.behaviour("SP-137")
def test_a_pool_that_is_not_wanted_any_more_goes() -> None:
    existing = published(pool(300))
    assert plan(None, existing) == Plan(delete=existing)


@pytest.mark.behaviour("SP-138")
def test_one_changed_slice_keeps_the_generation() -> None:
    existing = published(pool(300))
    assert generations(existing) == [1, 1, 1]
    wanted = pool(300)
    changed = replace(wanted, devices=(device("dev-0", attributes={"n": 99}), *wanted.devices[1:]))
    ((item, _),) = plan(changed, existing).update
    assert item.spec.pool.generation == 1
    assert plan(changed, store(plan(changed, existing), existing)).empty


@pytest.mark.behaviour("SP-138")
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda: pool(400), id="a new slice"),
        pytest.param(
            lambda: replace(pool(300), devices=tuple(reversed(pool(300).devices))), id="several slices change"
        ),
        pytest.param(lambda: pool(10), id="the count changes everywhere"),
    ],
)
def test_otherwise_it_grows_by_one_and_is_written_to_all(change: Any) -> None:
    existing = published(pool(300))
    after = store(plan(change(), existing), existing)
    assert set(generations(after)) <= {1, 2}
    assert len(set(generations(after))) == 1
    assert {item.spec.pool.resource_slice_count for item in after} == {len(after)}
    assert plan(change(), after).empty


@pytest.mark.behaviour("SP-137", "SP-138")
def test_a_deleted_slice_is_made_again_with_a_new_generation() -> None:
    existing = published(pool(300))
    made = plan(pool(300), existing[1:])
    assert len(made.create) == 1
    assert generations(store(made, existing[1:])) == [2, 2, 2]


@pytest.mark.behaviour("SP-138")
def test_a_higher_generation_of_the_driver_wins_and_a_lower_one_counts_for_nothing() -> None:
    existing = published(pool(3, generation=7))
    assert generations(existing) == [7]
    assert plan(pool(3, generation=5), existing).empty
    ((item, _),) = plan(pool(3, generation=9), existing).update
    assert item.spec.pool.generation == 9


@pytest.mark.behaviour("SP-138")
def test_slices_of_an_older_generation_are_deleted() -> None:
    old = published(pool(3))
    new = store(plan(pool(3, generation=4)), ())
    renamed = tuple(
        msgspec.structs.replace(item, metadata=ObjectMeta(name="new", owner_references=(OWNER,))) for item in new
    )
    assert plan(pool(3), (*old, *renamed)) == Plan(delete=old)


def test_devices_that_were_renamed_make_a_new_slice_and_the_old_one_goes() -> None:
    existing = published(pool(2))
    made = plan(Pool((device("other"),)), existing)
    assert made.delete == existing
    assert len(made.create) == 1


@pytest.mark.parametrize(
    ("wanted", "sizes"),
    [
        (pool(0), [(0, 0)]),
        (pool(128), [(128, 0)]),
        (pool(129), [(128, 0), (1, 0)]),
        (Pool(tuple(device(f"d{n}", consumes={"c": {"m": 1}}) for n in range(65))), [(64, 0), (1, 0)]),
        (Pool((), tuple(counter_set(f"c{n}", {"m": 1}) for n in range(9))), [(0, 8), (0, 1)]),
        (Pool((device("d"),), (counter_set("c", {"m": 1}),)), [(0, 1), (1, 0)]),
    ],
)
def test_the_limits_of_a_slice(wanted: Pool, sizes: list[tuple[int, int]]) -> None:
    assert [(len(part.devices), len(part.counters)) for part in contents_of(wanted)] == sizes


def test_quantities_that_mean_the_same_are_the_same() -> None:
    existing = published(Pool((device("d", capacity={"m": "1024Mi"}),)))
    assert plan(Pool((device("d", capacity={"m": "1Gi"}),)), existing).empty


def test_times_the_server_gave_to_taints_are_kept_and_are_no_change() -> None:
    taint = DeviceTaint(key="broken", effect="NoSchedule")
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    (stored,) = published(Pool((device("d", taints=[taint]),)))
    timed = msgspec.structs.replace(stored.spec.devices[0], taints=(msgspec.structs.replace(taint, time_added=moment),))
    existing = (msgspec.structs.replace(stored, spec=msgspec.structs.replace(stored.spec, devices=(timed,))),)
    assert plan(Pool((device("d", taints=[taint]),)), existing).empty
    other = DeviceTaint(key="hot", effect="NoSchedule")
    ((item, _),) = plan(Pool((device("d", taints=[taint, other]),)), existing).update
    assert [one.time_added for one in item.spec.devices[0].taints] == [moment, None]


@pytest.mark.behaviour("SP-140")
def test_what_the_server_dropped_is_not_asked_for_again() -> None:
    wanted = pool(3, counters=(counter_set("c", {"m": 1}),))
    full = contents_of(wanted)
    dropped = replace(full[0], counters=())
    stored = tuple(
        msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, shared_counters=()))
        for item in published(wanted)
    )
    assert not plan(wanted, stored).empty
    assert plan_pool(PUBLISHER, "p", wanted, stored, [(full[0], dropped)]).empty


@pytest.mark.behaviour("SP-137", "SP-138")
@pytest.mark.parametrize("seed", range(40))
def test_one_plan_is_enough_whatever_is_there(seed: int) -> None:
    """From any mixture of old, foreign, doubled and half-deleted slices the next plan leads to the pool wanted."""
    rng = random.Random(seed)

    def wanted() -> Pool:
        chosen = rng.sample(range(400), rng.randint(0, 300))
        counters = tuple(counter_set(f"c-{number}", {"m": rng.randint(1, 9)}) for number in range(rng.randint(0, 20)))
        return Pool(tuple(device(f"dev-{number}", attributes={"n": rng.randint(0, 1)}) for number in chosen), counters)

    existing: tuple[ResourceSlice, ...] = ()
    for _ in range(8):
        target = wanted()
        existing = store(plan(target, existing), existing)
        found = [one for item in existing for one in item.spec.devices]
        assert sorted(one.name for one in found) == sorted(one.name for one in target.devices)
        assert len({item.spec.pool.generation for item in existing}) == 1
        assert {item.spec.pool.resource_slice_count for item in existing} == {len(existing)}
        assert plan(target, existing).empty
        # Someone deletes some of them, and an instance of yesterday adds its own.
        survivors = [item for item in existing if rng.random() < 0.7]
        if rng.random() < 0.5:
            survivors += _renamed(published(wanted()), f"other-{rng.random()}")
        existing = tuple(survivors)


def _renamed(items: tuple[ResourceSlice, ...], prefix: str) -> list[ResourceSlice]:
    return [
        msgspec.structs.replace(item, metadata=ObjectMeta(name=f"{prefix}-{number}"))
        for number, item in enumerate(items)
    ]


NEW_OWNER = OwnerReference(api_version="v1", kind="Node", name="node-1", uid="new-uid", controller=True)


def test_slices_of_a_node_that_was_deleted_and_registered_again_are_given_to_the_new_one() -> None:
    """Otherwise the garbage collector deletes them; the devices are the same, so the generation is too."""
    existing = published(pool(300))
    made = plan_pool(replace(PUBLISHER, owner=NEW_OWNER), "p", pool(300), existing, ())
    assert (made.delete, made.create) == ((), ())
    assert [item.metadata.owner_references for item, _ in made.update] == [(NEW_OWNER,)] * 3
    assert [item.spec for item, _ in made.update] == [item.spec for item in existing]
    assert plan_pool(replace(PUBLISHER, owner=NEW_OWNER), "p", pool(300), store(made, existing), ()).empty


def test_other_owners_of_a_slice_stay() -> None:
    (item,) = published(pool(1))
    other = OwnerReference(api_version="apps/v1", kind="DaemonSet", name="d", uid="d")
    existing = msgspec.structs.replace(
        item, metadata=msgspec.structs.replace(item.metadata, owner_references=(OWNER, other))
    )
    ((updated, _),) = plan_pool(replace(PUBLISHER, owner=NEW_OWNER), "p", pool(1), (existing,), ()).update
    assert updated.metadata.owner_references == (other, NEW_OWNER)


@pytest.mark.behaviour("N-113")
def test_slices_are_written_again_when_other_operations_are_skipped() -> None:
    before = published(pool(2, skip_node_operations=("*",)))
    assert before[0].spec.skip_node_operations == ("*",)
    assert plan(pool(2, skip_node_operations=("*",)), before).empty
    ((changed, _),) = plan(pool(2, skip_node_operations=("NodeUnprepareResources",)), before).update
    assert changed.spec.skip_node_operations == ("NodeUnprepareResources",)
    ((changed, _),) = plan(pool(2), before).update
    assert changed.spec.skip_node_operations == ()


@pytest.mark.behaviour("N-83")
def test_only_slices_with_partitions_name_the_attribute_of_their_type() -> None:
    part = device("a", attributes={"kind": "half"}, consumes={"c": {"m": 1}})
    wanted = Pool((part,), (counter_set("c", {"m": 1}),), partition_type_attribute="d.example.com/kind")
    found = {len(item.spec.devices): item.spec.partition_type_attribute for item in published(wanted)}
    assert found == {1: "d.example.com/kind", 0: None}


NODE_RESOURCES = {
    "cpu": NodeAllocatableResource(mapping=NodeAllocatableMapping(device_multiplier="1000m")),
    "memory": NodeAllocatableResource(overhead=NodeAllocatableOverhead(per_pod="1024Ki")),
}


@pytest.mark.behaviour("N-104")
@pytest.mark.parametrize(
    ("wanted", "stored", "gates"),
    [
        pytest.param(
            Pool((device("a", consumes={"c": {"m": 1}}, compatibility_groups={"c": ["x"]}),)),
            Pool((device("a", consumes={"c": {"m": 1}}),)),
            ("DRADeviceCompatibilityGroups",),
            id="groups",
        ),
        pytest.param(
            Pool((device("a"),), skip_node_operations=("*",)),
            Pool((device("a"),)),
            ("DRAOptionalNodeOperations",),
            id="operations",
        ),
        pytest.param(
            Pool((device("a", consumes={"c": {"m": 1}}),), partition_type_attribute="d/x"),
            Pool((device("a", consumes={"c": {"m": 1}}),)),
            ("DRAPartitionableDevicesType",),
            id="types",
        ),
        pytest.param(
            Pool((device("a", node_allocatable_resources=NODE_RESOURCES),)),
            Pool((device("a"),)),
            ("DRANodeAllocatableResources",),
            id="node resources",
        ),
        pytest.param(Pool((device("a"),)), Pool((device("a"),)), (), id="nothing"),
    ],
)
def test_the_gates_of_dropped_fields_are_named(wanted: Pool, stored: Pool, gates: tuple[str, ...]) -> None:
    (asked,), (kept,) = contents_of(wanted), contents_of(stored)
    assert dropped_gates(asked, kept) == gates


def test_quantities_are_compared_in_their_normal_form() -> None:
    (content,) = contents_of(Pool((device("a", node_allocatable_resources=NODE_RESOURCES),)))
    found = content.devices[0].node_allocatable_resources
    assert found["cpu"].mapping == NodeAllocatableMapping(device_multiplier="1")
    assert found["memory"].overhead == NodeAllocatableOverhead(per_pod="1Mi")
