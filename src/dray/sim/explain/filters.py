"""Asks every filter of the scheduler about every node. Pure, given a scheduler that is in step with its API server."""

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
    """One Pod's filters, ready to be asked about nodes."""

    def __init__(
        self, profile: Profile, snapshot: Snapshot, allocator: Allocator, pod: Pod, *, detailed: str = ""
    ) -> None:
        self._profile = profile
        self._snapshot = snapshot
        self._allocator = allocator
        self._pod = pod
        # The node that says of every device why or why not, also when it fits.
        self._detailed = detailed
        self._state = CycleState(PodInfo(pod))
        # Nodes that PreFilter plugins named; None when they named none.
        self._names: frozenset[str] | None = None
        self.obstacle = self._prepare()

    def _prepare(self) -> str:
        """Why no node needs to be asked at all; empty when they must."""
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
        """The claims of the Pod's entries that are still to be allocated."""
        own: PodState | None = self._state.get(DYNAMIC_RESOURCES)
        return () if own is None else own.pending

    def _wanted_on(self, node: NodeInfo) -> tuple[ResourceClaim, ...]:
        """What is to be allocated on the node, extended resources that it lacks included."""
        own: PodState | None = self._state.get(DYNAMIC_RESOURCES)
        return () if own is None else own.variant_on(node.name).claims

    def answers(self) -> tuple[NodeAnswer, ...]:
        """Every node's answer, those that fit first."""
        found = [self.answer(node) for node in self._snapshot.nodes]
        return tuple(sorted(found, key=lambda answer: (not answer.fits, answer.node)))

    def answer(self, node: NodeInfo) -> NodeAnswer:
        """One node's answer."""
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

    def others_accept(self) -> tuple[NodeInfo, ...]:
        """The nodes that only the devices may refuse."""
        return tuple(node for node in self._snapshot.nodes if not self._rejections(node).keys() - {DYNAMIC_RESOURCES})


def nodes_with_room(allocator: Allocator, nodes: Sequence[NodeInfo], claims: Sequence[ResourceClaim]) -> list[str]:
    """The nodes that have devices for all the claims."""
    found = []
    for node in nodes:
        try:
            if allocator.allocate(node.node, claims).allocations is not None:
                found.append(node.name)
        except AllocatorError:
            continue
    return found
