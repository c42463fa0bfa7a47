"""Runs every filter of the scheduler on every node. Pure, given a synced scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dray.allocator import Allocator, AllocatorError
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import AllocationResult, ResourceClaim
from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import FILTER
from dray.framework.pod_info import PodInfo
from dray.framework.snapshot import Snapshot
from dray.scheduler.cycle import run_pre_filter
from dray.scheduler.plugins.dynamic_resources.pod_state import PodState
from dray.scheduler.profile import Profile
from dray.sim.explain.answers import NodeAnswer

DYNAMIC_RESOURCES = "DynamicResources"


class Filters:
    """The filters for one Pod."""

    def __init__(
        self, profile: Profile, snapshot: Snapshot, allocator: Allocator, pod: Pod, *, detailed: str = ""
    ) -> None:
        self._profile = profile
        self._snapshot = snapshot
        self._allocator = allocator
        self._pod = pod
        # The node whose devices are all explained, also if it fits.
        self._detailed = detailed
        self._state = CycleState(PodInfo(pod))
        # Nodes selected by PreFilter plugins; None if there is no selection.
        self._names: frozenset[str] | None = None
        self.obstacle = self._prepare()

    def _prepare(self) -> str:
        """Run PreEnqueue and PreFilter; return why no node is evaluated, empty if nodes are."""
        status = self._profile.pre_enqueue(self._pod)
        if not status.is_success:
            return status.message
        names, rejection = run_pre_filter(self._profile, self._state, len(self._snapshot))
        if rejection is not None:
            return rejection.pre_filter_message
        self._names = None if names is None else names[0]
        return ""

    @property
    def pending(self) -> tuple[ResourceClaim, ...]:
        """The Pod's unallocated claims."""
        own: PodState | None = self._state.get(DYNAMIC_RESOURCES)
        return () if own is None else own.pending

    def _wanted_on(self, node: NodeInfo) -> tuple[ResourceClaim, ...]:
        """Return the claims to allocate on the node, including those for extended resources."""
        own: PodState | None = self._state.get(DYNAMIC_RESOURCES)
        return () if own is None else own.variant_on(node.name).claims

    def answers(self) -> tuple[NodeAnswer, ...]:
        """Return the results of all nodes, fitting ones first."""
        found = [self.answer(node) for node in self._snapshot.nodes]
        return tuple(sorted(found, key=lambda answer: (not answer.fits, answer.node)))

    def answer(self, node: NodeInfo) -> NodeAnswer:
        """Return the result of one node."""
        rejections = self._rejections(node)
        if not rejections:
            wanted = self._wanted_on(node) if node.name == self._detailed else ()
            requests = self._allocator.explain(node.node, wanted).requests if wanted else ()
            would_get = self._would_get(node)
            return NodeAnswer(node.name, fits=True, rejections={}, requests=requests, would_get=would_get)
        wanted = self._wanted_on(node)
        if (DYNAMIC_RESOURCES not in rejections and node.name != self._detailed) or not wanted:
            return NodeAnswer(node.name, fits=False, rejections=rejections)
        explanation = self._allocator.explain(node.node, wanted)
        return NodeAnswer(
            node.name,
            fits=False,
            rejections=rejections,
            devices="" if explanation.fits else explanation.summary,
            requests=explanation.requests,
        )

    def _rejections(self, node: NodeInfo) -> dict[str, tuple[str, ...]]:
        if self._names is not None and node.name not in self._names:
            return {"NodeAffinity": ("node(s) didn't match Pod's node affinity/selector",)}
        found: dict[str, tuple[str, ...]] = {}
        for plugin in self._profile.at(FILTER):
            if plugin.name in self._state.skip_filter:
                continue
            status = plugin.filter(self._state, self._pod, node)
            if not status.is_success:
                found[plugin.name] = tuple(status.reasons)
        return found

    def _would_get(self, node: NodeInfo) -> tuple[str, ...]:
        own = self._state.get(DYNAMIC_RESOURCES)
        allocations: Mapping[str, Sequence[AllocationResult]] = {} if own is None else own.node_allocations
        return tuple(
            f"{result.request}: {result.device}"
            for allocation in allocations.get(node.name, ())
            for result in allocation.devices.results
        )

    def accepted_by_other_plugins(self) -> tuple[NodeInfo, ...]:
        """Return the nodes that no other plugin than DynamicResources rejects."""
        return tuple(node for node in self._snapshot.nodes if not self._rejections(node).keys() - {DYNAMIC_RESOURCES})


def nodes_with_devices(allocator: Allocator, nodes: Sequence[NodeInfo], claims: Sequence[ResourceClaim]) -> list[str]:
    """Return the nodes with devices for all claims."""
    found = []
    for node in nodes:
        try:
            if allocator.allocate(node.node, claims).allocations is not None:
                found.append(node.name)
        except AllocatorError:
            continue
    return found
