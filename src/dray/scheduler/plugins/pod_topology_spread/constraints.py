"""Spread constraints of a Pod, parsed once per attempt, and the nodes that they count. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Final

import msgspec

from dray.api.selectors import LabelSelector, Operator, Requirement
from dray.api.tolerations import tolerates
from dray.api.types.core_v1 import Pod, TopologySpreadConstraint
from dray.framework.node_info import NodeInfo
from dray.framework.node_selectors import NodeMatcher, compile_required, required_terms
from dray.framework.pod_affinity import parse_selector

DO_NOT_SCHEDULE: Final = "DoNotSchedule"
SCHEDULE_ANYWAY: Final = "ScheduleAnyway"
HOSTNAME: Final = "kubernetes.io/hostname"
IGNORE: Final = "Ignore"
HONOR: Final = "Honor"


class Constraint:
    """A constraint with its compiled selector."""

    __slots__ = ("honors_affinity", "honors_taints", "max_skew", "min_domains", "selector", "topology_key")

    def __init__(self, given: TopologySpreadConstraint, selector: LabelSelector) -> None:
        self.topology_key = given.topology_key
        self.max_skew = given.max_skew
        self.min_domains = given.min_domains if given.min_domains is not None else 1
        self.honors_affinity = given.node_affinity_policy != IGNORE
        self.honors_taints = given.node_taints_policy == HONOR
        self.selector = selector


def parse_constraints(pod: Pod, action: str) -> tuple[Constraint, ...]:
    """Return the Pod's own constraints with the action; raises `SelectorError`."""
    return tuple(
        Constraint(item, _selector(item, pod.metadata.labels))
        for item in pod.spec.topology_spread_constraints
        if item.when_unsatisfiable == action
    )


def _selector(constraint: TopologySpreadConstraint, labels: Mapping[str, str]) -> LabelSelector:
    """Return the selector with the label keys that the API server has not merged."""
    selector = parse_selector(constraint.label_selector)
    keys = [key for key in constraint.match_label_keys if key in labels]
    if constraint.label_selector is None or not keys:
        return selector
    present = set(selector.requirements)
    added = [Requirement(key, Operator.IN, (labels[key],)) for key in keys]
    return LabelSelector((*selector.requirements, *(item for item in added if item not in present)))


class CountedNodes:
    """The nodes whose Pods count for a constraint of a Pod: an answer for each node, and a key for equal answers."""

    __slots__ = ("_keys", "_matches", "_tolerations", "key")

    def __init__(self, pod: Pod, constraint: Constraint, topology_keys: Sequence[str]) -> None:
        # Keys that a node must have.
        self._keys = tuple(sorted(set(topology_keys)))
        self._matches: NodeMatcher | None = compile_required(pod) if constraint.honors_affinity else None
        self._tolerations = pod.spec.tolerations if constraint.honors_taints else None
        affinity = None
        if self._matches is not None:
            affinity = msgspec.json.encode((dict(pod.spec.node_selector), required_terms(pod)))
        tolerations = None if self._tolerations is None else msgspec.json.encode(self._tolerations)
        self.key: Hashable = (self._keys, affinity, tolerations)

    def __call__(self, node: NodeInfo) -> bool:
        """Return whether the node counts."""
        labels = node.labels
        for key in self._keys:
            if key not in labels:
                return False
        if self._matches is not None and not self._matches(node):
            return False
        return (
            self._tolerations is None
            or not node.hard_taints
            or all(any(tolerates(item, taint) for item in self._tolerations) for taint in node.hard_taints)
        )
