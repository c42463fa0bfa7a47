"""Whatever changes, no node that has the devices is passed over, and nodes known not to have them are."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.allocator import Allocator
from dray.api.extended_resources import implicit_extended_resource_name
from dray.api.types.resource_v1 import ResourceClaim
from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.framework.status import SUCCESS
from dray.scheduler.cache import Cache
from dray.scheduler.plugins.dynamic_resources.cluster import cluster_of
from dray.scheduler.plugins.dynamic_resources.plugin import NAME, DynamicResources
from dray.scheduler.plugins.dynamic_resources.pod_state import PodState
from tests.conformance.allocator.builders import CLASS_A, claim, device_class, holding, in_region, request, slice_of
from tests.unit.scheduler.builders import node, pod
from tests.unit.scheduler.plugins.dynamic_resources.registered import handle_of_nothing

NODES = range(2)
# Those that concern one node are more likely: those that concern all hide what is forgotten about one.
OF_ONE = ["taken", "freed", "node", "label"]
CHANGES = [*OF_ONE, *OF_ONE, *OF_ONE, "slice", "gone", "own", "scalars", "no scalars", "rule", "no rule"]
RESOURCE = "example.com/gpu"
# The class has this name, too, which no node has itself.
IMPLICIT = implicit_extended_resource_name(CLASS_A)
# What changes on which node, how many devices a Pod that looks then asks for (none when nobody looks), and as which
# extended resource; with a claim when it is none.
COUNTS = (0, 1, 2, 2)
RESOURCES = ("", RESOURCE, IMPLICIT)
STEPS = st.lists(
    st.tuples(*map(st.sampled_from, (CHANGES, NODES, COUNTS, RESOURCES))),
    min_size=8,
    max_size=40,
)
RULE = {
    "metadata": {"name": "rule"},
    "spec": {"deviceSelector": {"driver": "driver-a"}, "taint": {"key": "broken", "effect": "NoSchedule"}},
}


@dataclass(frozen=True)
class Wanted:
    """What a Pod asks for."""

    count: int
    resource: str

    @property
    def claim(self) -> ResourceClaim:
        return claim(request(count=self.count), name="wanted")

    def has(self, info: NodeInfo) -> bool:
        """Whether devices are not asked for on the node, since it has the resource itself."""
        return self.resource in info.allocatable.scalars


class World:
    """Two nodes with two devices each and one that a label brings, and Pods that look for one or two."""

    def __init__(self) -> None:
        handle = handle_of_nothing()
        self.plugin = DynamicResources({}, handle)
        cluster = cluster_of(handle)
        self.inventory, self.allocations = cluster.inventory, cluster.allocations
        self.cache, self.snapshot = Cache(), handle.snapshot
        usual = device_class()
        usual = msgspec.structs.replace(
            usual, spec=msgspec.structs.replace(usual.spec, extended_resource_name=RESOURCE)
        )
        self.inventory.apply_class(usual)
        cluster.resources.apply(usual)
        self.inventory.apply_slice(slice_of("z", pool="region", node_selector=in_region("region-1")))
        for number in NODES:
            self.change("node", number)
            self.change("slice", number)

    def change(self, step: str, number: int) -> None:  # noqa: C901 - one branch for each change
        """Let something happen to a node, or to all."""
        name = f"n{number}"
        held = holding(f"driver-a/{name}/x", name=name)
        guest = PodInfo(pod(f"guest-{number}", requests={RESOURCE: "1"}, node=name))
        match step:
            case "taken":
                self.allocations.apply_claim(held)
            case "freed":
                self.allocations.remove_claim(held)
            case "slice":
                self.inventory.apply_slice(slice_of("x", "y", pool=name, node_name=name))
            case "node":
                self.cache.set_node(node(name))
            case "label":
                self.cache.set_node(node(name, labels={"region": "region-1"}))
            case "own":
                self.cache.set_node(node(name, allocatable={"pods": "10", RESOURCE: "2"}))
            case "gone":
                self.cache.remove_node(name)
                self.inventory.remove_node(name)
            case "scalars" if self.cache.node_of(guest.uid) is None:
                self.cache.assume(guest, name)
            case "no scalars":
                self.cache.remove_pod(guest.uid)
            case "rule":
                self.inventory.apply_taint_rule(RULE)
            case "no rule":
                self.inventory.remove_taint_rule("rule")

    def look(self, start: int, wanted: Wanted) -> None:
        """A Pod looks at all promising nodes; then these are known, and those that fit beyond doubt are."""
        self.cache.update_snapshot(self.snapshot)
        start %= max(len(self.snapshot), 1)
        ordered = [*self.snapshot.nodes[start:], *self.snapshot.nodes[:start]]
        fitting = [info for info in ordered if self._fits(info, wanted)]
        looked_at = self._promising(start, wanted)
        assert [info for info in ordered if info in looked_at] == looked_at
        assert [info for info in looked_at if info in fitting] == fitting
        left = [info for info in self._promising(start, wanted) if not info.requested.scalars]
        assert left == [info for info in fitting if not info.requested.scalars]
        doubtful = self.plugin.doubtful(self._state(wanted), self.snapshot, start, len(self.snapshot))
        sure = [info for info in ordered if info in left and not wanted.has(info)]
        assert [self.snapshot.nodes[place] for place in doubtful] == [
            info for info in self.snapshot.nodes[start:] if info not in sure
        ]

    def _promising(self, start: int, wanted: Wanted) -> list[NodeInfo]:
        state = self._state(wanted)
        found = self.plugin.promising(state, self.snapshot, start)
        assert found is not None
        looked_at = [self.snapshot.nodes[place] for place in found]
        for info in looked_at:
            self.plugin.filter(state, state.pod_info.pod, info)
        return looked_at

    def _state(self, wanted: Wanted) -> CycleState:
        asking = PodInfo(pod("p", requests={wanted.resource: str(wanted.count)} if wanted.resource else {}))
        state = CycleState(asking)
        if wanted.resource:
            assert self.plugin.pre_filter(state, asking.pod) == (None, SUCCESS)
        else:
            state[NAME] = PodState(asking.pod, (wanted.claim,))
        return state

    def _fits(self, info: NodeInfo, wanted: Wanted) -> bool:
        return wanted.has(info) or Allocator(self.inventory, self.allocations).allocate(info.node, (wanted.claim,)).fits


@settings(max_examples=250, deadline=None)
@given(STEPS)
def test_what_changes_is_looked_at_again(steps: list[tuple[str, int, int, str]]) -> None:
    world = World()
    for step, which, count, resource in steps:
        world.change(step, which)
        if count:
            world.look(which, Wanted(count, resource))
