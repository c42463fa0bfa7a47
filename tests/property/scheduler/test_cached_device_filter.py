"""The batch filter of DynamicResources agrees with a fresh search, whatever changes in the cluster."""

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
from dray.scheduler.plugins.dynamic_resources.device_filter import NAME
from dray.scheduler.plugins.dynamic_resources.device_state import device_state_of
from dray.scheduler.plugins.dynamic_resources.plugin import DynamicResources
from dray.scheduler.plugins.dynamic_resources.pod_state import ClaimsOfPod, PodState
from tests.conformance.allocator.builders import CLASS_A, claim, device_class, holding, in_region, request, slice_of
from tests.unit.scheduler.builders import node, pod
from tests.unit.scheduler.plugins.dynamic_resources.registered import handle_of_nothing

NODES = range(2)
# Changes of one node are more likely: changes of all nodes invalidate everything, and hide what was not invalidated.
NODE_CHANGES = ["allocated", "freed", "node", "label"]
CHANGES = [*NODE_CHANGES * 3, "slice", "deleted", "own", "guest", "no guest", "rule", "no rule"]
RESOURCE = "example.com/gpu"
# The class has this name, too, which no node has itself.
IMPLICIT = implicit_extended_resource_name(CLASS_A)
# What changes on which node, how many devices the Pod of a search requests (0: no search), and as which extended
# resource (empty: with a claim).
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
    """What a Pod requests."""

    count: int
    resource: str

    @property
    def claim(self) -> ResourceClaim:
        return claim(request(count=self.count), name="wanted")

    def has(self, info: NodeInfo) -> bool:
        """Return whether the node has the resource itself, so that no devices are needed."""
        return self.resource in info.allocatable.scalars


class Cluster:
    """Two nodes with two devices each, and one more for nodes with a label."""

    def __init__(self) -> None:
        handle = handle_of_nothing()
        self.plugin = DynamicResources({}, handle)
        shared = device_state_of(handle)
        self.inventory, self.allocations = shared.inventory, shared.allocations
        self.cache, self.snapshot = Cache(), handle.snapshot
        usual = device_class()
        usual = msgspec.structs.replace(
            usual, spec=msgspec.structs.replace(usual.spec, extended_resource_name=RESOURCE)
        )
        self.inventory.apply_class(usual)
        shared.resources.apply(usual)
        self.inventory.apply_slice(slice_of("z", pool="region", node_selector=in_region("region-1")))
        for number in NODES:
            self.change("node", number)
            self.change("slice", number)

    def change(self, step: str, number: int) -> None:  # noqa: C901 - one branch per change
        """Change one node, or all of them."""
        name = f"n{number}"
        held = holding(f"driver-a/{name}/x", name=name)
        guest = PodInfo(pod(f"guest-{number}", requests={RESOURCE: "1"}, node=name))
        match step:
            case "allocated":
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
            case "deleted":
                self.cache.remove_node(name)
                self.inventory.remove_node(name)
            case "guest" if self.cache.node_of(guest.uid) is None:
                self.cache.assume(guest, name)
            case "no guest":
                self.cache.remove_pod(guest.uid)
            case "rule":
                self.inventory.apply_taint_rule(RULE)
            case "no rule":
                self.inventory.remove_taint_rule("rule")

    def filter_all(self, first_index: int, wanted: Wanted) -> None:
        """Filter some nodes, then all of them: of some the results are cached by then, of others not."""
        self.cache.update_snapshot(self.snapshot)
        for nodes in self.snapshot.nodes[first_index::2], self.snapshot.nodes:
            state = self._state(wanted)
            statuses = self.plugin.filter_all(state, state.pod_info.pod, nodes)
            for info, status in zip(nodes, statuses, strict=True):
                if info.requested.scalars:
                    assert status == self.plugin.filter(state, state.pod_info.pod, info)
                else:
                    assert (status is SUCCESS) == self._fits(info, wanted)

    def _state(self, wanted: Wanted) -> CycleState:
        asking = PodInfo(pod("p", requests={wanted.resource: str(wanted.count)} if wanted.resource else {}))
        state = CycleState(asking)
        if wanted.resource:
            assert self.plugin.pre_filter(state, asking.pod) == (None, SUCCESS)
        else:
            state[NAME] = PodState(ClaimsOfPod.of(asking.pod, (wanted.claim,)))
        return state

    def _fits(self, info: NodeInfo, wanted: Wanted) -> bool:
        return wanted.has(info) or Allocator(self.inventory, self.allocations).allocate(info.node, (wanted.claim,)).fits


@settings(max_examples=250, deadline=None)
@given(STEPS)
def test_all_nodes_are_filtered_as_by_a_fresh_search(steps: list[tuple[str, int, int, str]]) -> None:
    cluster = Cluster()
    for step, which, count, resource in steps:
        cluster.change(step, which)
        if count:
            cluster.filter_all(which, Wanted(count, resource))
