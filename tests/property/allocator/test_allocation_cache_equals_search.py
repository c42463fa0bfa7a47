"""The invariant of the allocation cache: whatever changes, an answer from it equals a fresh search."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest

from dray.allocator import Allocations, Allocator, AllocatorError, Inventory, Outcome, with_share_ids
from dray.api.features import FeatureGates
from dray.api.types import core_v1
from dray.api.types import resource_v1 as r
from dray.framework.node_info import NodeInfo
from dray.framework.snapshot import Snapshot
from tests.conformance.allocator.builders import (
    CLASS_A,
    claim,
    counter_set,
    device,
    device_class,
    holding,
    in_region,
    match,
    node,
    request,
    slice_of,
)

NODE_COUNT = 5
DEVICES = ("d0", "d1", "d2", "d3")
STEPS = 3000
REGIONS = ("region-1", "region-2")
GATES = FeatureGates(
    {"DRADerivedAttributes": True, "DRADeviceCompatibilityGroups": True, "DRAOptionalNodeOperations": True}
)


class Cluster:
    """An inventory, its allocations and its nodes, which change at random."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.inventory = Inventory()
        self.allocations = Allocations()
        self.allocator = Allocator(self.inventory, self.allocations, GATES)
        self.snapshot = Snapshot([self._node(number) for number in range(NODE_COUNT)])
        self.inventory.apply_class(device_class(CLASS_A))
        for number in range(NODE_COUNT):
            self._publish(number)
        self.changes: list[tuple[Callable[[], None], int]] = [
            (self._allocate, 12),
            (self._free, 12),
            (self._update_node, 4),
            (lambda: self._publish(rng.randrange(NODE_COUNT)), 3),
            (self._publish_for_region, 1),
            (self._delete_slice, 2),
            (self._taint_rule, 1),
            (self._update_class, 1),
            (self._replace_nodes, 1),
            (self._search_on_another_object, 2),
        ]

    def change(self) -> None:
        actions, weights = zip(*self.changes, strict=True)
        self.rng.choices(actions, weights)[0]()

    def query(self) -> tuple[r.ResourceClaim, ...]:
        constraints = self.rng.choice(((), (), (), (match("numa"),)))
        # Of a device that is used alone this is part of its capacity, of a shareable one a share.
        fields = self.rng.choice(
            (
                {},
                {},
                {"capacity": {"memory": "2"}},
                {"capacity": {"memory": "3"}},
                # Of devices with an odd name; the error of others is an answer as well.
                {"derived": {"driver-a/numa": 'device.attributes["driver-a"].odd'}},
                {"derived": {"driver-a/numa": 'device.attributes["driver-a"].?odd.orValue(0)'}},
            )
        )
        count = self.rng.choice((1, 2, 2))
        return (claim(request("req-0", CLASS_A, count, **fields), constraints=constraints, name=self._name()),)

    def _name(self) -> str:
        return f"claim-{self.rng.randrange(1000)}"

    def _node(self, number: int) -> NodeInfo:
        made = node(f"n{number}", region=self.rng.choice(REGIONS))
        features = self.rng.choice(((), ("DRAOptionalNodeOperations",)))
        return NodeInfo(msgspec.structs.replace(made, status=core_v1.NodeStatus(declared_features=features)))

    def _device(self, name: str) -> r.Device:
        taints = (r.DeviceTaint(key="broken", effect="NoSchedule"),) if self.rng.random() < 0.15 else ()
        consumes = {"set": {"memory": "1"}} if self.rng.random() < 0.3 else {}
        fields = {"allow_multiple_allocations": True} if self.rng.random() < 0.4 else {}
        attributes = {"numa": self.rng.randrange(2)}
        if self.rng.random() < 0.9:
            attributes["odd"] = self.rng.randrange(2)
        groups = {"set": self.rng.choice(((), (), (), ("x",), ("x", "y"), ("y",)))}
        return device(
            name, attributes, taints=taints, consumes=consumes, groups=groups, capacity={"memory": "4"}, **fields
        )

    def _publish(self, number: int) -> None:
        pool = f"n{number}"
        devices = [self._device(name) for name in DEVICES]
        counters = slice_of(
            pool=pool,
            node_name=pool,
            name=f"{pool}-counters",
            size=2,
            shared_counters=(counter_set("set", memory="2"),),
        )
        # A pool with one of its slices is incomplete until the other one is published again.
        for published in (slice_of(*devices, pool=pool, node_name=pool, name=f"{pool}-devices", size=2), counters):
            self.inventory.apply_slice(published)

    def _publish_for_region(self) -> None:
        selector = in_region(self.rng.choice(REGIONS))
        skipped = self.rng.choice(((), ("*",)))
        published = slice_of(
            "shared", pool="region", node_selector=selector, name="region", skip_node_operations=skipped
        )
        self.inventory.apply_slice(published)

    def _delete_slice(self) -> None:
        kind = self.rng.choice(("devices", "counters"))
        self.inventory.remove_slice(self.rng.choice(("region", f"n{self.rng.randrange(NODE_COUNT)}-{kind}")))

    def _holder(self) -> r.ResourceClaim:
        pool, name = f"n{self.rng.randrange(NODE_COUNT)}", self.rng.choice(DEVICES)
        key = f"driver-a/{pool}/{name}"
        if self.rng.random() < 0.5:
            number = self.rng.randrange(2)
            consumed = {"memory": str(1 + number)}
            return holding(key, name=f"{pool}-{name}-{number}", share_id=str(number), consumed_capacity=consumed)
        return holding(key, name=f"{pool}-{name}")

    def _allocate(self) -> None:
        self.allocations.apply_claim(self._holder())

    def _free(self) -> None:
        self.allocations.remove_claim(self._holder())

    def _update_node(self) -> None:
        name = self.rng.choice(self.snapshot.nodes).name
        self.snapshot.replace(self._node(int(name.removeprefix("n"))))

    def _replace_nodes(self) -> None:
        numbers = self.rng.sample(range(NODE_COUNT), self.rng.randrange(1, NODE_COUNT + 1))
        self.snapshot.replace_all([self._node(number) for number in numbers])

    def _search_on_another_object(self) -> None:
        """Search as for a node with other labels, which the snapshot does not have."""
        outcome_of(self.allocator, self._node(self.rng.randrange(NODE_COUNT)), self.query())

    def _taint_rule(self) -> None:
        if self.rng.random() < 0.5:
            self.inventory.remove_taint_rule("rule")
            return
        selector = {"driver": "driver-a", "pool": f"n{self.rng.randrange(NODE_COUNT)}"}
        spec = {"deviceSelector": selector, "taint": {"key": "broken", "effect": "NoSchedule"}}
        self.inventory.apply_taint_rule({"metadata": {"name": "rule"}, "spec": spec})

    def _update_class(self) -> None:
        expression = self.rng.choice(("true", 'device.attributes["driver-a"].numa == 0'))
        self.inventory.apply_class(device_class(CLASS_A, expression))


def outcome_of(allocator: Allocator, info: NodeInfo, claims: tuple[r.ResourceClaim, ...]) -> object:
    """Return the allocations or the error; the number of steps is no part of an answer."""
    try:
        return allocator.allocate(info.node, claims).allocations
    except AllocatorError as error:
        return type(error), str(error)


def finished(outcome: Outcome, claims: tuple[r.ResourceClaim, ...]) -> object:
    """Return the allocations for these claims."""
    return None if outcome.allocations is None else with_share_ids(claims, outcome.allocations)


def check_lookups(cluster: Cluster, claims: tuple[r.ResourceClaim, ...], fresh: list[object]) -> None:
    snapshot = cluster.snapshot
    query = cluster.allocator.query(claims)
    for info, expected in zip(snapshot.nodes, fresh, strict=True):
        cached = query.lookup(info.name, info.node)
        assert cached is None or finished(cached, claims) == expected


def check_all(cluster: Cluster, claims: tuple[r.ResourceClaim, ...], fresh: list[object]) -> None:
    found = cluster.allocator.fits_all(cluster.snapshot.nodes, claims)
    for fits, expected in zip(found, fresh, strict=True):
        assert fits in (None, isinstance(expected, tuple) and not_an_error(expected))
        assert fits is None or expected is None or not_an_error(expected)


def check(cluster: Cluster) -> None:
    claims, snapshot = cluster.query(), cluster.snapshot
    fresh = [
        outcome_of(Allocator(cluster.inventory, cluster.allocations, GATES), info, claims) for info in snapshot.nodes
    ]
    # Sometimes several nodes are decided at once.
    if cluster.rng.random() < 0.5:
        check_all(cluster, claims, fresh)
    # Sometimes the node is searched before anything is looked up.
    if cluster.rng.random() < 0.5:
        check_lookups(cluster, claims, fresh)
    # Only some nodes are searched, so that cached and missing results are mixed.
    for index in cluster.rng.sample(range(len(snapshot)), cluster.rng.randrange(len(snapshot) + 1)):
        info = snapshot.nodes[index]
        assert outcome_of(cluster.allocator, info, claims) == fresh[index]
        assert outcome_of(cluster.allocator, info, claims) == fresh[index]
    if cluster.rng.random() < 0.5:
        check_lookups(cluster, claims, fresh)


def not_an_error(outcome: object) -> bool:
    return not (isinstance(outcome, tuple) and isinstance(outcome[0], type))


@pytest.mark.behaviour("N-89", "N-101", "N-107")
@pytest.mark.parametrize("seed", range(4))
def test_a_cached_answer_equals_a_fresh_search(seed: int) -> None:
    cluster = Cluster(random.Random(seed))
    for _ in range(STEPS):
        cluster.change()
        if cluster.rng.random() < 0.7:
            check(cluster)
