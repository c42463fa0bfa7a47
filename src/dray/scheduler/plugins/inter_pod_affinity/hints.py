"""The events that can make a Pod schedulable that InterPodAffinity rejected, and for which Pods they do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dray.api.document import Document
from dray.api.types.core_v1 import Node, Pod
from dray.framework.events import (
    ASSIGNED_POD,
    NAMESPACE,
    NODE,
    UNSCHEDULED_POD,
    Action,
    ClusterEvent,
    EventRegistration,
    Hint,
)
from dray.framework.pod_affinity import PodAffinityTerms, Term, pod_affinity_terms
from dray.scheduler.plugins.inter_pod_affinity.namespaces import Namespaces
from dray.scheduler.plugins.parsed_pods import ParsedPods


def registrations(namespaces: Namespaces) -> Sequence[EventRegistration]:
    """Return the registrations."""
    found = Hints(namespaces)
    pods = Action.ADD | Action.DELETE | Action.UPDATE_POD_LABEL
    return (
        EventRegistration(ClusterEvent(ASSIGNED_POD, pods), found.after_pod),
        EventRegistration(ClusterEvent(UNSCHEDULED_POD, Action.UPDATE_POD_LABEL)),
        EventRegistration(ClusterEvent(NODE, Action.ADD | Action.UPDATE_NODE_LABEL), found.after_node),
        EventRegistration(ClusterEvent(NAMESPACE, Action.ADD | Action.UPDATE), found.after_namespace),
    )


class Hints:
    """The queueing hints."""

    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces
        self._terms: ParsedPods[PodAffinityTerms] = ParsedPods(PodAffinityTerms)

    def after_pod(self, pod: Pod, old: Pod | None, new: Pod | None) -> Hint:
        """Queue if a Pod begins to match all affinity terms, or a Pod stops to stand against anti-affinity."""
        terms = self._terms.get(pod)
        affinity, anti_affinity = terms.required_affinity, terms.required_anti_affinity
        if new is None:
            assert old is not None
            return _queue_if(self._any(anti_affinity, old) or self._is_avoided_by(pod, old))
        if affinity and self._all(affinity, new) and not (old is not None and self._all(affinity, old)):
            return Hint.QUEUE
        if old is None:
            return Hint.SKIP
        return _queue_if(any(self._match(term, old) and not self._match(term, new) for term in anti_affinity))

    def after_node(self, pod: Pod, old: Node | None, new: Node | None) -> Hint:
        """Queue if a node gets, changes or, for anti-affinity, loses a topology key of a term."""
        assert new is not None
        terms = self._terms.get(pod)
        labels = new.metadata.labels
        before = old.metadata.labels if old is not None else None
        if any(_has_new_value(term.topology_key, before, labels) for term in terms.required_affinity):
            return Hint.QUEUE
        # Existing Pods' anti-affinity rejects Pods without terms of their own, too.
        if before is None:
            return _queue_if(terms.required_anti_affinity or not terms.required_affinity)
        keys = {term.topology_key for term in terms.required_anti_affinity}
        if not keys and not terms.required_affinity:
            return _queue_if(before != labels)
        return _queue_if(any(key in before and before[key] != labels.get(key) for key in keys))

    def after_namespace(self, pod: Pod, old: Document | None, new: Document | None) -> Hint:
        """Queue if the labels of a namespace changed, and the Pod's terms or others' terms may depend on them."""
        before, after = _labels(old), _labels(new)
        if before == after:
            return Hint.SKIP
        if new is not None and new["metadata"]["name"] == pod.metadata.namespace:
            return Hint.QUEUE
        terms = self._terms.get(pod)
        selecting = [
            term for term in (*terms.required_affinity, *terms.required_anti_affinity) if term.selects_namespaces
        ]
        return _queue_if(
            any(term.namespace_selector.matches(before) != term.namespace_selector.matches(after) for term in selecting)
        )

    def _match(self, term: Term, pod: Pod) -> bool:
        return term.matches(pod, self._namespaces.labels(pod.metadata.namespace or ""))

    def _any(self, terms: Sequence[Term], pod: Pod) -> bool:
        return any(self._match(term, pod) for term in terms)

    def _all(self, terms: Sequence[Term], pod: Pod) -> bool:
        return all(self._match(term, pod) for term in terms)

    def _is_avoided_by(self, pod: Pod, other: Pod) -> bool:
        terms = pod_affinity_terms(other)
        return terms is not None and self._any(terms.required_anti_affinity, pod)


def _has_new_value(key: str, before: Mapping[str, str] | None, after: Mapping[str, str]) -> bool:
    return key in after and (before is None or before.get(key) != after[key])


def _labels(namespace: Document | None) -> Mapping[str, str]:
    return (namespace["metadata"].get("labels") or {}) if namespace is not None else {}


def _queue_if(condition: object) -> Hint:
    return Hint.QUEUE if condition else Hint.SKIP
