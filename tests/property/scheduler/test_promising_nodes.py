"""Whatever changes, no node that has the devices is passed over, and nodes known not to have them are."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dray.allocator import Allocator
from dray.api.types.resource_v1 import ResourceClaim
from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.scheduler.cache import Cache
from dray.scheduler.plugins.dynamic_resources.cluster import cluster_of
from dray.scheduler.plugins.dynamic_resources.plugin import NAME, DynamicResources
from dray.scheduler.plugins.dynamic_resources.pod_state import PodState
from tests.conformance.allocator.builders import claim, device_class, holding, in_region, request, slice_of
from tests.unit.scheduler.builders import node, pod
from tests.unit.scheduler.plugins.dynamic_resources.registered import handle_of_nothing

NODES = range(2)
# Those that concern one node are more likely: those that concern all hide what is forgotten about one.
OF_ONE = ["taken", "freed", "node", "label"]
CHANGES = [*OF_ONE, *OF_ONE, *OF_ONE, "slice", "gone", "scalars", "no scalars", "rule", "no rule"]
# What changes on which node, and how many devices a Pod that looks then asks for; none when nobody looks.
STEPS = st.lists(
    st.tuples(st.sampled_from(CHANGES), st.sampled_from(NODES), st.sampled_from((0, 1, 2, 2))), min_size=8, max_size=40
)
RULE = {
    "metadata": {"name": "rule"},
    "spec": {"deviceSelector": {"driver": "driver-a"}, "taint": {"key": "broken", "effect": "NoSchedule"}},
}


class World:
    """Two nodes with two devices each and one that a label brings, and Pods that look for one or two."""

    def __init__(self) -> None:
        handle = handle_of_nothing()
        self.plugin = DynamicResources({}, handle)
        cluster = cluster_of(handle)
        self.inventory, self.allocations = cluster.inventory, cluster.allocations
        self.cache, self.snapshot = Cache(), handle.snapshot
        self.inventory.apply_class(device_class())
        self.inventory.apply_slice(slice_of("z", pool="region", node_selector=in_region("region-1")))
        for number in NODES:
            self.change("node", number)
            self.change("slice", number)

    def change(self, step: str, number: int) -> None:  # noqa: C901 - one branch for each change
        """Let something happen to a node, or to all."""
        name = f"n{number}"
        held = holding(f"driver-a/{name}/x", name=name)
        guest = PodInfo(pod(f"guest-{number}", requests={"example.com/gpu": "1"}, node=name))
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

    def look(self, start: int, count: int) -> None:
        """A Pod that asks for so many devices looks at all promising nodes; then these are known."""
        self.cache.update_snapshot(self.snapshot)
        start %= max(len(self.snapshot), 1)
        wanted = claim(request(count=count), name="wanted")
        ordered = [*self.snapshot.nodes[start:], *self.snapshot.nodes[:start]]
        fitting = [info for info in ordered if self._fits(info, wanted)]
        looked_at = self._promising(start, wanted)
        assert [info for info in ordered if info in looked_at] == looked_at
        assert [info for info in looked_at if info in fitting] == fitting
        left = [info for info in self._promising(start, wanted) if not info.requested.scalars]
        assert left == [info for info in fitting if not info.requested.scalars]

    def _promising(self, start: int, wanted: ResourceClaim) -> list[NodeInfo]:
        state = CycleState(PodInfo(pod("p")))
        state[NAME] = PodState(pod("p"), (wanted,))
        found = self.plugin.promising(state, self.snapshot, start)
        assert found is not None
        looked_at = list(found)
        for info in looked_at:
            self.plugin.filter(state, state.pod_info.pod, info)
        return looked_at

    def _fits(self, info: NodeInfo, wanted: ResourceClaim) -> bool:
        return Allocator(self.inventory, self.allocations).allocate(info.node, (wanted,)).fits


@settings(max_examples=250, deadline=None)
@given(STEPS)
def test_what_changes_is_looked_at_again(steps: list[tuple[str, int, int]]) -> None:
    world = World()
    for step, which, count in steps:
        world.change(step, which)
        if count:
            world.look(which, count)
