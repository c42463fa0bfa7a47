"""The InterPodAffinity plugin."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from dray.api.types.core_v1 import Pod
from dray.framework.cycle_state import CycleState
from dray.framework.events import EventRegistration
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import PreFilterResult
from dray.framework.pod_affinity import PodAffinityTerms, Term
from dray.framework.pod_info import PodInfo
from dray.framework.status import SKIP, SUCCESS, Status, unresolvable
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.arguments import Arguments
from dray.scheduler.plugins.counted_pods import CountingPlugin
from dray.scheduler.plugins.inter_pod_affinity import hints, scoring
from dray.scheduler.plugins.inter_pod_affinity.counts import DomainCounts, MatchingPods, TermOwners
from dray.scheduler.plugins.inter_pod_affinity.namespaces import namespaces_of
from dray.scheduler.plugins.inter_pod_affinity.scoring import Weighted
from dray.scheduler.plugins.inter_pod_affinity.state import NAME, AffinityState
from dray.scheduler.plugins.pod_index import pod_index_of

HARD_WEIGHT_DEFAULT: Final = 1
HARD_WEIGHT_MAX: Final = 100

_SCORES: Final = "InterPodAffinity/scores"
_OWNERS: Final = (NAME, "owners")


class InterPodAffinity(CountingPlugin):
    """Filters on required terms of the Pod and on required anti-affinity of others; scores preferred terms."""

    name = NAME

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        given = Arguments(args)
        self._hard_weight = given.integer("hardPodAffinityWeight", HARD_WEIGHT_DEFAULT, 0, HARD_WEIGHT_MAX)
        self._ignores_existing = given.boolean("ignorePreferredTermsOfExistingPods")
        given.end()
        self._snapshot = handle.snapshot
        self._index = pod_index_of(handle.snapshot, handle.shared)
        self._namespaces = namespaces_of(handle)

    # --- Required terms. ---

    def pre_filter(self, state: CycleState, pod: Pod) -> tuple[PreFilterResult | None, Status]:
        """Find the Pods that count for the Pod's terms, and those whose anti-affinity the Pod matches."""
        info = state.pod_info
        terms = info.affinity
        if terms is None and not self._snapshot.with_affinity_pods:
            return None, SKIP
        if terms is not None and terms.error:
            return None, unresolvable(f"parsing pod: {terms.error}")
        namespace_labels = self._namespaces.labels(pod.metadata.namespace or "")
        existing = self._existing_anti_affinity(pod, namespace_labels)
        required = terms is not None and bool(terms.required_affinity or terms.required_anti_affinity)
        if not existing and not required:
            return None, SKIP
        state[NAME] = self._state(info, terms, namespace_labels, existing)
        return None, SUCCESS

    def _existing_anti_affinity(
        self, pod: Pod, namespace_labels: Mapping[str, str]
    ) -> list[tuple[str, dict[str, int]]]:
        if not self._snapshot.with_affinity_pods:
            return []
        groups = self._index.view(_OWNERS, TermOwners).required_anti_affinity
        return [(term.topology_key, found) for term, found in groups.items() if term.matches(pod, namespace_labels)]

    def _state(
        self,
        info: PodInfo,
        terms: PodAffinityTerms | None,
        namespace_labels: Mapping[str, str],
        existing: Iterable[tuple[str, Mapping[str, int]]],
    ) -> AffinityState:
        affinity = self._namespaces.resolve(terms.required_affinity) if terms is not None else ()
        anti_affinity = self._namespaces.resolve(terms.required_anti_affinity) if terms is not None else ()
        matching_all = self._matching(affinity).domains if affinity else ()
        near = DomainCounts((term.topology_key, found) for term, found in zip(affinity, matching_all, strict=True))
        away = DomainCounts((term.topology_key, self._matching((term,)).domains[0]) for term in anti_affinity)
        return AffinityState(info, namespace_labels, (affinity, near), (anti_affinity, away), DomainCounts(existing))

    def _matching(self, terms: tuple[Term, ...]) -> MatchingPods:
        return self._index.view((NAME, terms), lambda: MatchingPods(terms))

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        """Check affinity, the Pod's own anti-affinity, and that of existing Pods, in this order."""
        return self.filter_all(state, pod, (node,))[0]

    def filter_all(self, state: CycleState, _pod: Pod, nodes: Sequence[NodeInfo]) -> Sequence[Status]:
        """Check all nodes."""
        own: AffinityState = state[NAME]
        return own.check_all(nodes)

    # --- Preferred terms. ---

    def pre_score(self, state: CycleState, pod: Pod, _nodes: Sequence[NodeInfo]) -> Status:
        """Find the terms that match, with their weights."""
        terms = state.pod_info.affinity
        preferred = terms is not None and bool(terms.preferred_affinity or terms.preferred_anti_affinity)
        if not preferred and (self._ignores_existing or not self._snapshot.with_affinity_pods):
            return SKIP
        groups = list(self._weighted(pod, terms))
        if not groups:
            return SKIP
        state[_SCORES] = groups
        return SUCCESS

    def _weighted(self, pod: Pod, terms: PodAffinityTerms | None) -> Iterator[Weighted]:
        if terms is not None:
            for sign, weighted in ((1, terms.preferred_affinity), (-1, terms.preferred_anti_affinity)):
                for term, weight in weighted:
                    domains = self._matching(self._namespaces.resolve((term,))).domains[0]
                    if domains:
                        yield term.topology_key, domains, sign * weight
        if not self._snapshot.with_affinity_pods:
            return
        owners = self._index.view(_OWNERS, TermOwners)
        labels = self._namespaces.labels(pod.metadata.namespace or "")
        for groups, factor in ((owners.required_affinity, self._hard_weight), (owners.preferred, 1)):
            for term, domains in groups.items() if factor else ():
                if term.matches(pod, labels):
                    yield term.topology_key, domains, factor

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        """Return the sum of the weights."""
        return self.score_all(state, pod, (node,))[0]

    def score_all(self, state: CycleState, _pod: Pod, nodes: Sequence[NodeInfo]) -> list[int]:
        """Return the sum of the weights for each node."""
        return scoring.raw_scores(state[_SCORES], nodes)

    def normalize_scores(self, _state: CycleState, _pod: Pod, scores: list[int]) -> None:
        """Scale so that the highest score is best."""
        scoring.normalize(scores)

    def events_to_register(self) -> Sequence[EventRegistration]:
        """Return changes of Pods, nodes and namespaces that could satisfy the terms."""
        return hints.registrations(self._namespaces)
