"""What PodTopologySpread knows about one attempt, and its answer for a node. Pure."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Final

from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.framework.status import SUCCESS, Status, unresolvable, unschedulable
from dray.scheduler.plugins.pod_topology_spread.constraints import Constraint, CountedNodes
from dray.scheduler.plugins.pod_topology_spread.domains import DomainsOfAttempt, PodMatcher

NAME: Final = "PodTopologySpread"
REASON_SKEW: Final = "node(s) didn't match pod topology spread constraints"
REASON_MISSING: Final = "node(s) didn't match pod topology spread constraints (missing required label)"

_TOO_SKEWED: Final = unschedulable(REASON_SKEW).with_plugin(NAME)
_NO_LABEL: Final = unresolvable(REASON_MISSING).with_plugin(NAME)


class HardConstraint:
    """One DoNotSchedule constraint with its domains."""

    __slots__ = ("_constraint", "_counts_node", "_matcher", "_matches_itself", "_rejected", "domains", "key", "limit")

    def __init__(
        self,
        constraint: Constraint,
        matcher: PodMatcher,
        counts_node: CountedNodes,
        domains: DomainsOfAttempt,
        *,
        matches_itself: bool,
    ) -> None:
        self.key = constraint.topology_key
        self._constraint = constraint
        self._matcher = matcher
        self._counts_node = counts_node
        self._matches_itself = matches_itself
        self.domains = domains
        # The most Pods that a domain may have before the Pod is placed there.
        self.limit = 0
        # Found when it is first needed.
        self._rejected: Container[str] | None = None
        self._update_limit()

    def clone(self) -> HardConstraint:
        """Return a copy that can be changed by `count`."""
        return HardConstraint(
            self._constraint,
            self._matcher,
            self._counts_node,
            self.domains.clone(),
            matches_itself=self._matches_itself,
        )

    def count(self, other: PodInfo, node: NodeInfo, sign: int) -> None:
        """Add (1) or subtract (-1) a Pod on the node."""
        if self._matcher(other) and self._counts_node(node):
            self.domains.add(node.labels[self.key], sign)
            self._update_limit()

    @property
    def rejected(self) -> Container[str]:
        """Return the domains that have more Pods than the limit."""
        if self._rejected is None:
            self._rejected = self.domains.above(self.limit)
        return self._rejected

    def _update_limit(self) -> None:
        self._rejected = None
        self.limit = self._constraint.max_skew + self.domains.minimum - self._matches_itself


class SpreadState:
    """The DoNotSchedule constraints of one Pod."""

    __slots__ = ("constraints",)

    def __init__(self, constraints: Sequence[HardConstraint]) -> None:
        self.constraints = tuple(constraints)

    def clone(self) -> SpreadState:
        """Return a copy that can be changed by `count`."""
        return SpreadState([item.clone() for item in self.constraints])

    def count(self, other: PodInfo, node: NodeInfo, sign: int) -> None:
        """Add (1) or subtract (-1) a Pod on the node."""
        for item in self.constraints:
            item.count(other, node, sign)

    def check_all(self, nodes: Sequence[NodeInfo]) -> list[Status]:
        """Return the answer for each node: from the last constraint to the first, which prevails."""
        statuses = [SUCCESS] * len(nodes)
        for item in reversed(self.constraints):
            key, rejected = item.key, item.rejected
            statuses = [
                _NO_LABEL if (value := node.labels.get(key)) is None else _TOO_SKEWED if value in rejected else status
                for node, status in zip(nodes, statuses, strict=True)
            ]
        return statuses

    def check(self, labels: Mapping[str, str]) -> Status:
        """Return the answer for a node with these labels: the first constraint that it does not satisfy.

        Dry runs of preemption count Pods between the checks of single nodes, so that `rejected`, which visits all
        domains, would be computed for each of them.
        """
        for item in self.constraints:
            value = labels.get(item.key)
            if value is None:
                return _NO_LABEL
            if item.domains.get(value) > item.limit:
                return _TOO_SKEWED
        return SUCCESS
