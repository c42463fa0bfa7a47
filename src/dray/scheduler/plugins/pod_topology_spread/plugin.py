"""The PodTopologySpread plugin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dray.api.selectors import SelectorError
from dray.api.types.core_v1 import Pod
from dray.framework.cycle_state import CycleState
from dray.framework.events import EventRegistration
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import PreFilterResult
from dray.framework.pod_affinity import selector_key
from dray.framework.status import SKIP, SUCCESS, Status, unresolvable
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.counted_pods import CountingPlugin
from dray.scheduler.plugins.pod_index import pod_index_of
from dray.scheduler.plugins.pod_topology_spread import scoring
from dray.scheduler.plugins.pod_topology_spread.constraints import (
    DO_NOT_SCHEDULE,
    HOSTNAME,
    SCHEDULE_ANYWAY,
    Constraint,
    CountedNodes,
    parse_constraints,
)
from dray.scheduler.plugins.pod_topology_spread.default_constraints import DefaultConstraints
from dray.scheduler.plugins.pod_topology_spread.domains import Domains, DomainsOfAttempt, PodMatcher, PodsOfNodes
from dray.scheduler.plugins.pod_topology_spread.hints import Hints
from dray.scheduler.plugins.pod_topology_spread.scoring import SoftConstraint
from dray.scheduler.plugins.pod_topology_spread.state import NAME, HardConstraint, SpreadState

_SCORES: Final = "PodTopologySpread/scores"


class PodTopologySpread(CountingPlugin):
    """Filters on DoNotSchedule constraints, and scores on ScheduleAnyway constraints."""

    name = NAME

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._defaults = DefaultConstraints(args, handle)
        self._index = pod_index_of(handle.snapshot, handle.shared)

    def constraints(self, pod: Pod, action: str) -> tuple[Constraint, ...]:
        """Return the constraints of the Pod, or those of the profile; raises `SelectorError`."""
        if pod.spec.topology_spread_constraints:
            return parse_constraints(pod, action)
        return self._defaults.of(pod, action)

    # --- Hard constraints. ---

    def pre_filter(self, state: CycleState, pod: Pod) -> tuple[PreFilterResult | None, Status]:
        """Count the matching Pods in each domain."""
        try:
            constraints = self.constraints(pod, DO_NOT_SCHEDULE)
        except SelectorError as error:
            return None, unresolvable(f"obtaining pod's hard topology spread constraints: {error}")
        if not constraints:
            return None, SKIP
        keys = [item.topology_key for item in constraints]
        state[NAME] = SpreadState([self._hard(pod, item, keys) for item in constraints])
        return None, SUCCESS

    def _hard(self, pod: Pod, constraint: Constraint, keys: Sequence[str]) -> HardConstraint:
        matcher = _matcher(pod, constraint)
        counts_node = CountedNodes(pod, constraint, keys)
        domains = self._domains(pod, constraint, matcher, counts_node)
        return HardConstraint(
            constraint,
            matcher,
            counts_node,
            DomainsOfAttempt(domains, constraint.min_domains),
            matches_itself=constraint.selector.matches(pod.metadata.labels),
        )

    def _domains(self, pod: Pod, constraint: Constraint, matcher: PodMatcher, counts_node: CountedNodes) -> Domains:
        key = constraint.topology_key
        return self._index.view(
            (NAME, key, _pods_key(pod, constraint), counts_node.key), lambda: Domains(key, matcher, counts_node)
        )

    def filter(self, state: CycleState, _pod: Pod, node: NodeInfo) -> Status:
        """Check that the node has the keys, and that the skew stays within the limits."""
        own: SpreadState = state[NAME]
        return own.check(node.labels)

    def filter_all(self, state: CycleState, _pod: Pod, nodes: Sequence[NodeInfo]) -> Sequence[Status]:
        """Check all nodes."""
        own: SpreadState = state[NAME]
        return own.check_all(nodes)

    # --- Soft constraints. ---

    def pre_score(self, state: CycleState, pod: Pod, nodes: Sequence[NodeInfo]) -> Status:
        """Count the matching Pods, and weigh the constraints by the number of their domains."""
        constraints = self.constraints(pod, SCHEDULE_ANYWAY)
        if not constraints:
            return SKIP
        keys = [item.topology_key for item in constraints]
        # With the built-in defaults, nodes without a zone are still spread by host.
        required = keys if pod.spec.topology_spread_constraints or not self._defaults.are_system else []
        counted = [node for node in nodes if scoring.has_keys(node, required)] if required else nodes
        sizes = scoring.sizes(keys, counted)
        soft = [self._soft(pod, item, required, size) for item, size in zip(constraints, sizes, strict=True)]
        state[_SCORES] = soft, required
        return SUCCESS

    def _soft(self, pod: Pod, constraint: Constraint, required: Sequence[str], size: int) -> SoftConstraint:
        key, matcher = constraint.topology_key, _matcher(pod, constraint)
        if key == HOSTNAME:
            of_nodes = self._index.view(
                (NAME, "nodes", _pods_key(pod, constraint)), lambda: PodsOfNodes(_matcher(pod, constraint))
            )
            counts = of_nodes.counts
        else:
            counts = self._domains(pod, constraint, matcher, CountedNodes(pod, constraint, required)).counts
        return SoftConstraint(key, constraint.max_skew, counts, scoring.domain_weight(size))

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        """Return the weighted number of Pods in the node's domains."""
        return self.score_all(state, pod, (node,))[0]

    def score_all(self, state: CycleState, _pod: Pod, nodes: Sequence[NodeInfo]) -> list[int]:
        """Return the weighted number of Pods in each node's domains."""
        soft, required = state[_SCORES]
        return scoring.raw_scores(soft, nodes, required)

    def normalize_scores(self, _state: CycleState, _pod: Pod, scores: list[int]) -> None:
        """Scale so that the fewest Pods are best."""
        scoring.normalize(scores)

    def events_to_register(self) -> Sequence[EventRegistration]:
        """Return changes of Pods and nodes that could reduce the skew."""
        return Hints(lambda pod: self._defaults.of(pod, DO_NOT_SCHEDULE)).registrations()


def _matcher(pod: Pod, constraint: Constraint) -> PodMatcher:
    return PodMatcher(pod.metadata.namespace or "", constraint.selector)


def _pods_key(pod: Pod, constraint: Constraint) -> tuple[str, str | None]:
    return pod.metadata.namespace or "", selector_key(constraint.selector)
