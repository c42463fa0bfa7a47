"""Which Pods would have to go for a group: in the whole cluster, as units, within budgets, with their devices."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from dray.api.codec import from_document
from dray.api.document import Document, NamespacedName
from dray.api.pod_groups import group_reservation
from dray.api.selectors import LabelSelector
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.client.resources import RESOURCE_CLAIMS
from dray.framework.pod_info import PodInfo
from dray.framework.snapshot import Snapshot
from dray.framework.status import Code, Status
from dray.scheduler.cache import Cache
from dray.scheduler.cycle import Cycle, run_pre_filter
from dray.scheduler.filter_runner import runner_of
from dray.scheduler.group_cycle import GroupCycle
from dray.scheduler.group_dry_run import GroupDryRun
from dray.scheduler.nominations import Nominations
from dray.scheduler.plugins.gang_scheduling import GangScheduling
from dray.scheduler.plugins.node_resources_fit import NodeResourcesFit
from dray.scheduler.pod_groups import PodGroups
from dray.scheduler.preemption.budgets import Budget
from dray.scheduler.preemption.dry_run import Candidate, DryRun
from dray.scheduler.preemption.group_victims import (
    NO_VICTIMS,
    GroupCandidate,
    find_group_victims,
    search_widths,
    units_within,
)
from dray.scheduler.preemption.units import group_units, units_of
from dray.scheduler.profile import explain
from tests.unit.scheduler.builders import handle, node, state
from tests.unit.scheduler.preemption.device_cluster import DeviceCluster
from tests.unit.scheduler.preemption.test_dry_run import running
from tests.unit.scheduler.test_cycle import profile

WEB = {"app": "web"}


def group(name: str, *, priority: int = 0, min_count: int = 0, whole: bool = False) -> PodGroup:
    policy: Document = {"gang": {"minCount": min_count}} if min_count else {"basic": {}}
    spec: Document = {"schedulingPolicy": policy, "disruptionMode": {"all": {}} if whole else {"single": {}}}
    document = {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": spec | {"priority": priority}}
    return from_document(PodGroup, document)


def member_pod(group_name: str, name: str, cpu: str = "1", **words: Any) -> PodInfo:
    return running(name, cpu, schedulingGroup={"podGroupName": group_name}, **words)


class World:
    """Nodes of two CPUs, Pods on them, and a gang that does not fit."""

    def __init__(self, *nodes: str) -> None:
        self.cache, self.snapshot = Cache(), Snapshot()
        self.groups = self.cache.pod_groups = PodGroups()
        for name in nodes:
            self.cache.set_node(node(name, allocatable={"cpu": "2", "memory": "8Gi", "pods": "110"}))
        parts = handle()
        object.__setattr__(parts, "pod_groups", self.groups)
        self.profile = profile(NodeResourcesFit({}, parts), GangScheduling(parts))
        cycle = Cycle(self.snapshot, Nominations())
        self.cycle = GroupCycle(cycle, self.cache, self.snapshot, self.groups, explain)

    def add_group(self, item: PodGroup) -> None:
        self.groups.set(NamespacedName("default", item.metadata.name or ""), item)

    def place(self, *pods: PodInfo) -> None:
        for pod in pods:
            self.cache.set_pod(pod.pod)

    def content(self) -> dict[str, list[str]]:
        self.cache.update_snapshot(self.snapshot)
        return {item.name: [pod.key.name for pod in item.pods.values()] for item in self.snapshot}

    def find(
        self, gang: PodGroup, members: Sequence[PodInfo], budgets: Sequence[Budget] = (), width: int = 1000
    ) -> GroupCandidate | Status:
        before = self.content()
        self.add_group(gang)
        priority = gang.spec.priority or 0
        with GroupDryRun(self.cycle, self.cache, self.snapshot, self.profile, gang, members) as dry_run:
            pods = [pod for item in self.snapshot for pod in item.pods.values()]
            units = [unit for unit in units_of(pods, self.groups) if unit.priority < priority]
            found = find_group_victims(dry_run, units_within(units, width), budgets)
        assert self.content() == before, "a dry run changes nothing"
        return found


def low(name: str, node_name: str, **words: Any) -> PodInfo:
    return running(name, "1", node=node_name, **words)


def victims(found: GroupCandidate | Status) -> list[str]:
    assert isinstance(found, GroupCandidate), found
    return sorted(pod.key.name for pod in found.victims)


@pytest.mark.behaviour("GW-52")
def test_the_least_important_pods_go_and_every_member_has_a_node() -> None:
    world = World("a", "b")
    world.place(*(low(f"{name}{number}", name, priority=number) for name in "ab" for number in range(2)))
    gang = group("g", priority=10, min_count=2)
    members = [member_pod("g", f"m{number}", priority=10) for number in range(2)]
    found = world.find(gang, members)
    assert isinstance(found, GroupCandidate)
    assert len(found.victims) == 2
    assert set(found.nodes) == {pod.uid for pod in members}
    # On one node, both Pods there go; on two nodes, the least important one of each.
    assert victims(found) in (["a0", "b0"], ["a0", "a1"], ["b0", "b1"])


@pytest.mark.behaviour("GW-52")
@pytest.mark.parametrize("seed", range(20))
def test_looking_at_the_nodes_of_a_unit_finds_what_looking_at_all_finds(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Units may be groups on several nodes, and some violate a budget."""
    rng = random.Random(seed)
    world = World(*"abcdef")
    for name in ("whole-1", "whole-2"):
        world.add_group(group(name, priority=1, whole=True))
    for place in "abcdef":
        for number in range(2):
            name, labels = f"{place}{number}", rng.choice((WEB, {}))
            if rng.random() < 0.3:
                kind = f"whole-{rng.randrange(1, 3)}"
                world.place(member_pod(kind, name, node=place, priority=1, labels=labels))
            else:
                world.place(low(name, place, priority=rng.randrange(3), labels=labels))
    budget = Budget("default", LabelSelector.from_labels(WEB), rng.randrange(3))
    count = rng.randrange(2, 9)
    gang = group("g", priority=10, min_count=count)
    members = [member_pod("g", f"m{number}", priority=10) for number in range(count)]
    found = world.find(gang, members, [budget])
    monkeypatch.setattr(GroupDryRun, "is_monotonic", lambda _self, _outcome: False)
    assert found == world.find(gang, members, [budget])
    assert isinstance(found, GroupCandidate)


@pytest.mark.behaviour("GW-52")
@pytest.mark.parametrize("seed", range(20))
def test_a_search_on_some_nodes_finds_victims_only_if_one_on_all_nodes_does(seed: int) -> None:
    rng = random.Random(seed)
    world = World(*"abcdef")
    world.add_group(group("whole", priority=1, whole=True))
    for place in "abcdef":
        for number in range(2):
            name = f"{place}{number}"
            kind = rng.random()
            if kind < 0.3:
                world.place(member_pod("whole", name, node=place, priority=1))
            elif kind < 0.9:
                world.place(low(name, place, priority=rng.choice((0, 1, 2, 20))))
    count = rng.randrange(1, 9)
    gang = group("g", priority=10, min_count=count)
    members = [member_pod("g", f"m{number}", priority=10) for number in range(count)]
    everywhere = world.find(gang, members)
    for width in range(1, 7):
        found = world.find(gang, members, width=width)
        if isinstance(found, GroupCandidate):
            assert isinstance(everywhere, GroupCandidate)
            assert set(found.nodes) == {member.uid for member in members}
            # A search on more nodes never fails after one on fewer has succeeded.
            assert isinstance(world.find(gang, members, width=width + 1), GroupCandidate)
    assert world.find(gang, members, width=6) == everywhere


@pytest.mark.behaviour("GW-52")
def test_the_nodes_with_the_least_important_pods_are_tried_first() -> None:
    world = World("a", "b", "c")
    world.place(low("a0", "a", priority=5), low("a1", "a"), low("b0", "b", priority=1), low("b1", "b", priority=1))
    world.place(low("c0", "c", priority=3), low("c1", "c", priority=3))
    gang = group("g", priority=10, min_count=2)
    members = [member_pod("g", f"m{number}", priority=10) for number in range(2)]
    assert victims(world.find(gang, members, width=1)) == ["b0", "b1"]
    units = units_of([pod for item in world.snapshot for pod in item.pods.values()], world.groups)
    assert {pod.key.name for unit in units_within(units, 2) for pod in unit.pods} == {"b0", "b1", "c0", "c1"}


@pytest.mark.behaviour("GW-52")
def test_how_many_nodes_are_searched() -> None:
    assert list(search_widths(50, 100)) == [50]
    assert list(search_widths(5000, 100)) == [100, 800, 5000]
    assert list(search_widths(3, 0)) == [1, 3]


@pytest.mark.behaviour("GW-52")
def test_nobody_goes_for_a_gang_that_does_not_fit_anyway() -> None:
    world = World("a")
    world.place(low("a0", "a"))
    gang = group("g", priority=10, min_count=3)
    members = [member_pod("g", f"m{number}", priority=10) for number in range(3)]
    found = world.find(gang, members)
    assert isinstance(found, Status)
    assert (found.code, found.message) == (
        Code.UNSCHEDULABLE,
        "minCount (3) cannot be satisfied: 2 scheduled, 0 remaining",
    )


@pytest.mark.behaviour("GW-52")
def test_equal_and_higher_priorities_are_no_victims() -> None:
    world = World("a")
    world.place(low("same", "a", priority=10), low("more", "a", priority=11))
    found = world.find(group("g", priority=10, min_count=1), [member_pod("g", "m", priority=10)])
    assert isinstance(found, Status)
    assert found.message == NO_VICTIMS


@pytest.mark.behaviour("GW-52", "PE-19")
def test_pods_with_budgets_are_put_back_first() -> None:
    world = World("a")
    world.place(low("guarded", "a", labels=WEB), low("important", "a", priority=5))
    budget = Budget("default", LabelSelector.from_labels(WEB), 0)
    gang, members = group("g", priority=10, min_count=1), [member_pod("g", "m", priority=10)]
    found = world.find(gang, members, [budget])
    assert isinstance(found, GroupCandidate)
    assert (victims(found), found.violations) == (["important"], 0)
    both = world.find(group("g", priority=10, min_count=2), [*members, member_pod("g", "n", priority=10)], [budget])
    assert isinstance(both, GroupCandidate)
    assert (victims(both), both.violations) == (["guarded", "important"], 1)


@pytest.mark.behaviour("GW-50", "PE-20")
def test_a_group_that_is_disrupted_as_a_whole_is_one_unit() -> None:
    world = World("a", "b")
    world.add_group(group("old", whole=True))
    world.place(
        member_pod("old", "o1", node="a"), member_pod("old", "o2", node="b"), low("x", "a"), low("y", "b", priority=1)
    )
    # A group is more important than a Pod of the same priority.
    found = world.find(group("g", priority=10, min_count=1), [member_pod("g", "m", priority=10)])
    assert victims(found) in (["x"], ["y"])
    every = [member_pod("g", f"m{number}", priority=10) for number in range(3)]
    assert {"o1", "o2"} <= set(victims(world.find(group("g", priority=10, min_count=3), every)))
    four = [*every, member_pod("g", "m3", priority=10)]
    assert victims(world.find(group("g", priority=10, min_count=4), four)) == ["o1", "o2", "x", "y"]
    pods = [pod for item in world.snapshot for pod in item.pods.values()]
    assert group_units(pods, world.groups) == 1


@pytest.mark.behaviour("GW-50")
def test_the_preemption_of_a_pod_takes_the_whole_group_along() -> None:
    world = World("a", "b")
    world.add_group(group("old", whole=True))
    world.place(member_pod("old", "o1", "2", node="a"), member_pod("old", "o2", "2", node="b"))
    world.content()
    attempt = state(running("urgent", "2", priority=10))
    run_pre_filter(world.profile, attempt, 2)
    runner = runner_of(world.profile, attempt, Nominations())
    where = world.snapshot.get("a")
    assert where is not None
    found = DryRun(runner, attempt, (), groups=world.groups, snapshot=world.snapshot).on(where)
    assert isinstance(found, Candidate)
    assert sorted(pod.key.name for pod in found.victims) == ["o1", "o2"]


@pytest.mark.behaviour("GW-55", "GW-56")
def test_claims_of_hidden_pods_are_free_unless_a_group_or_another_pod_uses_them() -> None:
    cluster = DeviceCluster()
    cluster.add_node("n", "d0", "d1", "d2")
    own = cluster.run("own", "n", "d0")
    shared = [cluster.run("one", "n", "d1"), cluster.run("two", "n", claims=["one"])]
    cluster.allocate("one", "n", "d1", users=["one", "two"])
    of_group = cluster.run("member", "n", "d2")
    claims = cluster.informers.informer(RESOURCE_CLAIMS)
    held = claims.get("member", "default")
    status = msgspec.structs.replace(held.status, reserved_for=(group_reservation(group("g")),))
    claims.apply(msgspec.structs.replace(held, status=status))
    uids = {name: claims.get(name, "default").metadata.uid for name in ("own", "one", "member")}
    where = cluster.handle.snapshot.get("n")
    assert where is not None
    allocations = cluster.devices._devices.allocations

    def used() -> set[str]:
        return {name for name, uid in uids.items() if allocations.uses_of(uid) is not None}

    cluster.devices.begin_group_dry_run([PodInfo(cluster.pending("m", priority=10))])
    cluster.devices.hide_pods([own, of_group], where)
    assert used() == {"one", "member"}
    cluster.devices.hide_pods([shared[0]], where)
    assert used() == {"one", "member"}
    cluster.devices.hide_pods([shared[1]], where)
    assert used() == {"member"}
    cluster.devices.show_pods([shared[0]])
    assert used() == {"one", "member"}
    cluster.devices.end_group_dry_run()
    assert used() == {"own", "one", "member"}
