"""Runs every filter of the scheduler on every node. Needs a synced scheduler."""

from __future__ import annotations

from collections.abc import Sequence

from dray.allocator import Allocator, AllocatorError
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import AllocationResult, ResourceClaim
from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import FILTER, PRE_FILTER
from dray.framework.pod_info import PodInfo
from dray.framework.snapshot import Snapshot
from dray.framework.status import Code, Status, unresolvable, unschedulable
from dray.scheduler.filter_runner import runner_of
from dray.scheduler.nominations import Nominations
from dray.scheduler.plugins.dynamic_resources.pod_state import PodState
from dray.scheduler.plugins.node_resources_fit import NodeResourcesFit, Shortage
from dray.scheduler.profile import Profile
from dray.sim.explain.answers import NodeAnswer

DYNAMIC_RESOURCES = "DynamicResources"
NODE_AFFINITY = "NodeAffinity"
# In place of a plugin: what the node has is kept for other Pods.
NOMINATED_PODS = "NominatedPods"
_UNSCHEDULABLE = unschedulable()
_NOT_SELECTED = unresolvable("node(s) didn't match Pod's node affinity/selector")
# Without an answer of these, nothing can be said about the devices of nodes.
_DEVICE_PLUGINS = frozenset((DYNAMIC_RESOURCES, "ClassicResources"))


class Filters:
    """The filters for one Pod."""

    def __init__(
        self,
        profile: Profile,
        snapshot: Snapshot,
        allocator: Allocator,
        pod: Pod,
        *,
        detailed: str = "",
        nominations: Nominations | None = None,
    ) -> None:
        self._profile = profile
        self._snapshot = snapshot
        self._allocator = allocator
        self._pod = pod
        # The node whose devices are all explained, also if it fits.
        self._detailed = detailed
        # Pods for which the Pod leaves room; None if it does not.
        self._nominations = nominations
        self._state = CycleState(PodInfo(pod))
        # Nodes selected by PreFilter plugins; None if there is no selection.
        self._names: frozenset[str] | None = None
        # Rejections of PreFilter: they concern all nodes.
        self._rejected: dict[str, tuple[str, ...]] = {}
        # Whether there is more to say about each node than what rejects all of them.
        self.evaluates_nodes = True
        # Why no node can be used; empty if it depends on the node.
        self.obstacle = self._prepare()

    def _prepare(self) -> str:
        """Run PreEnqueue, and PreFilter of all plugins, also if one of them rejects the Pod."""
        status = self._profile.pre_enqueue(self._pod)
        if not status.is_success:
            self.evaluates_nodes = False
            return status.message
        for plugin in self._profile.at(PRE_FILTER):
            result, status = plugin.pre_filter(self._state, self._pod)
            if not status.is_success:
                self._state.skip_filter.add(plugin.name)
            if status.is_rejected or status.code is Code.ERROR:
                self._rejected[plugin.name] = status.texts
            elif result is not None:
                self._names = result.node_names if self._names is None else self._names & result.node_names
        self.evaluates_nodes = self._rejected.keys().isdisjoint(_DEVICE_PLUGINS)
        return "; ".join(dict.fromkeys(", ".join(reasons) for reasons in self._rejected.values()))

    @property
    def pending(self) -> tuple[ResourceClaim, ...]:
        """The Pod's unallocated claims."""
        own: PodState | None = self._state.get(DYNAMIC_RESOURCES)
        return () if own is None else own.claims.pending

    @property
    def state(self) -> CycleState:
        """What the PreFilter plugins have computed; not to be changed."""
        return self._state

    def wanted_on(self, node: NodeInfo) -> tuple[ResourceClaim, ...]:
        """Return the claims to allocate on the node, including those for extended resources."""
        own: PodState | None = self._state.get(DYNAMIC_RESOURCES)
        return () if own is None else own.results.variant_on(node.name).claims

    def created_on(self, node_name: str) -> ResourceClaim | None:
        """Return the claim for extended resources that the scheduler would create to bind the Pod to the node."""
        own: PodState | None = self._state.get(DYNAMIC_RESOURCES)
        claim = None if own is None else own.results.variant_on(node_name).extended_claim
        return None if claim is None or claim.metadata.resource_version else claim

    def answers(self) -> tuple[NodeAnswer, ...]:
        """Return the results of all nodes, fitting ones first."""
        found = [self.answer(node) for node in self._snapshot.nodes]
        return tuple(sorted(found, key=lambda answer: (not answer.fits, answer.node)))

    def answer(self, node: NodeInfo) -> NodeAnswer:
        """Return the result of one node."""
        rejections = self.rejections(node)
        if not rejections:
            wanted = self.wanted_on(node) if node.name == self._detailed else ()
            requests = self._allocator.explain(node.node, wanted).requests if wanted else ()
            would_get = self._would_get(node)
            return NodeAnswer(node.name, fits=True, rejections={}, requests=requests, would_get=would_get)
        wanted = self.wanted_on(node)
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

    def preemptible_nodes(self) -> list[NodeInfo]:
        """Return the nodes on which the eviction of other Pods could help."""
        found: list[NodeInfo] = []
        # Whether devices can be freed is decided when the rejections are explained.
        by_devices: dict[str, Status] = {}
        for node in self._snapshot.nodes:
            statuses = self._statuses(node)
            device_status = statuses.pop(DYNAMIC_RESOURCES, None)
            if all(status.code is Code.UNSCHEDULABLE for status in statuses.values()):
                if device_status is not None:
                    by_devices[node.name] = device_status
                if statuses or device_status is not None:
                    found.append(node)
        for explain in self._profile.explainers:
            explain.explain_rejections(self._state, self._pod, by_devices)
        return [node for node in found if by_devices.get(node.name, _UNSCHEDULABLE).code is Code.UNSCHEDULABLE]

    def rejections(self, node: NodeInfo) -> dict[str, tuple[str, ...]]:
        """Return the reasons by plugin; empty if the node fits."""
        return self._rejected | {name: status.texts for name, status in self._statuses(node).items()}

    def shortages(self, node: NodeInfo) -> Sequence[Shortage]:
        """Return the resources of which the node has too little."""
        fits = (plugin for plugin in self._profile.at(FILTER) if isinstance(plugin, NodeResourcesFit))
        return [shortage for plugin in fits for shortage in plugin.shortages(self._state, node)]

    def _statuses(self, node: NodeInfo) -> dict[str, Status]:
        """Return the rejections of Filter, of all plugins."""
        if self._names is not None and node.name not in self._names:
            return {NODE_AFFINITY: _NOT_SELECTED}
        found = {}
        for plugin in self._profile.at(FILTER):
            if plugin.name in self._state.skip_filter:
                continue
            status = plugin.filter(self._state, self._pod, node)
            if not status.is_success:
                found[plugin.name] = status
        if not found and (kept := self._kept_for(node)):
            found[NOMINATED_PODS] = unschedulable(f"kept for nominated {kept}")
        return found

    def _kept_for(self, node: NodeInfo) -> str:
        """Return the nominated Pods without which the Pod would fit on the node; empty if it fits with them."""
        if self._nominations is None:
            return ""
        nominated = self._nominations.respected_by(self._state.pod_info, node)
        if not nominated or runner_of(self._profile, self._state, self._nominations).run(self._state, node).is_success:
            return ""
        names = ", ".join(str(other.key) for other in nominated)
        return f"Pod {names}" if len(nominated) == 1 else f"Pods {names}"

    def _would_get(self, node: NodeInfo) -> tuple[str, ...]:
        own = self._state.get(DYNAMIC_RESOURCES)
        allocations: Sequence[AllocationResult] = () if own is None else own.results.found_on(node.name) or ()
        return tuple(
            f"{result.request}: {result.device}" for allocation in allocations for result in allocation.devices.results
        )

    def accepted_by_other_plugins(self) -> tuple[NodeInfo, ...]:
        """Return the nodes that no other plugin than DynamicResources rejects."""
        return tuple(node for node in self._snapshot.nodes if not self.rejections(node).keys() - {DYNAMIC_RESOURCES})


def nodes_that_fit(filters: Filters, nodes: Snapshot) -> tuple[str, ...]:
    """Return the nodes that no plugin rejects."""
    return tuple(node.name for node in nodes.nodes if not filters.rejections(node))


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
