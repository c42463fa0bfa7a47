"""What InterPodAffinity knows about one attempt, and its answer for a node. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dray.framework.node_info import NodeInfo
from dray.framework.pod_affinity import Term
from dray.framework.pod_info import PodInfo
from dray.framework.status import SUCCESS, Status, unresolvable, unschedulable
from dray.scheduler.plugins.inter_pod_affinity.counts import DomainCounts, matches_all

NAME: Final = "InterPodAffinity"
REASON_AFFINITY: Final = "node(s) didn't match pod affinity rules"
REASON_ANTI_AFFINITY: Final = "node(s) didn't match pod anti-affinity rules"
REASON_EXISTING: Final = "node(s) didn't satisfy existing pods anti-affinity rules"

_NO_AFFINITY: Final = unresolvable(REASON_AFFINITY).with_plugin(NAME)
_NO_ANTI_AFFINITY: Final = unschedulable(REASON_ANTI_AFFINITY).with_plugin(NAME)
_NO_EXISTING: Final = unschedulable(REASON_EXISTING).with_plugin(NAME)


class AffinityState:
    """The required terms that decide about one Pod, and the Pods that count for them."""

    __slots__ = (
        "_affinity_keys",
        "affinity",
        "affinity_terms",
        "anti_affinity",
        "anti_affinity_terms",
        "existing",
        "info",
        "matches_itself",
        "namespace_labels",
    )

    def __init__(
        self,
        info: PodInfo,
        namespace_labels: Mapping[str, str],
        affinity: tuple[tuple[Term, ...], DomainCounts],
        anti_affinity: tuple[tuple[Term, ...], DomainCounts],
        existing: DomainCounts,
    ) -> None:
        self.info = info
        # Of the Pod's namespace.
        self.namespace_labels = namespace_labels
        # Terms with resolved namespaces, and the Pods that match all affinity terms, or an anti-affinity term.
        self.affinity_terms, self.affinity = affinity
        self.anti_affinity_terms, self.anti_affinity = anti_affinity
        # Pods with an anti-affinity term that the Pod matches.
        self.existing = existing
        self._affinity_keys = tuple(term.topology_key for term in self.affinity_terms)
        self.matches_itself = bool(self.affinity_terms) and matches_all(self.affinity_terms, info)

    def clone(self) -> AffinityState:
        """Return a copy that can be changed by `count`."""
        return AffinityState(
            self.info,
            self.namespace_labels,
            (self.affinity_terms, self.affinity.clone()),
            (self.anti_affinity_terms, self.anti_affinity.clone()),
            self.existing.clone(),
        )

    def count(self, other: PodInfo, node: NodeInfo, sign: int) -> None:
        """Add (1) or subtract (-1) a Pod on the node."""
        labels = node.labels
        if self.affinity_terms and matches_all(self.affinity_terms, other):
            _add(self.affinity, self.affinity_terms, labels, sign)
        matched = tuple(term for term in self.anti_affinity_terms if matches_all((term,), other))
        _add(self.anti_affinity, matched, labels, sign)
        if other.affinity is not None:
            terms = other.affinity.required_anti_affinity
            matching = tuple(term for term in terms if term.matches(self.info.pod, self.namespace_labels))
            _add(self.existing, matching, labels, sign)

    def check_all(self, nodes: Sequence[NodeInfo]) -> Sequence[Status]:
        """Return the answer for each node: from the last check to the first, which prevails."""
        statuses = self.existing.reject(nodes, [SUCCESS] * len(nodes), _NO_EXISTING)
        statuses = self.anti_affinity.reject(nodes, statuses, _NO_ANTI_AFFINITY)
        if not self.affinity_terms:
            return statuses
        allows = self._affinity_allows
        return [status if allows(node.labels) else _NO_AFFINITY for node, status in zip(nodes, statuses, strict=True)]

    def _affinity_allows(self, labels: Mapping[str, str]) -> bool:
        if self.affinity.all_on(self._affinity_keys, labels):
            return True
        # The first Pod of a group that is to be placed together.
        return self.matches_itself and not self.affinity and all(key in labels for key in self._affinity_keys)


def _add(counts: DomainCounts, terms: tuple[Term, ...], labels: Mapping[str, str], sign: int) -> None:
    for term in terms:
        value = labels.get(term.topology_key)
        if value is not None:
            counts.add(term.topology_key, value, sign)
