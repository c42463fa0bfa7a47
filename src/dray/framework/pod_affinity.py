"""The pod affinity terms of a Pod, parsed once: namespaces, label selector and topology key.

Equal terms of different Pods are the same object, so that an index can group Pods by term.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from dray.api.selectors import (
    EXPRESSION_OPERATORS,
    NOTHING,
    LabelSelector,
    Operator,
    Requirement,
    SelectorError,
    requirement,
)
from dray.api.types import meta_v1
from dray.api.types.core_v1 import Pod, PodAffinityTerm, WeightedPodAffinityTerm

# Distinct terms that are shared; a term that was evicted is parsed again, and still equal.
TERMS_MAX: Final = 8192


class Term:
    """One term: matches Pods of some namespaces by their labels, in a domain of the topology key."""

    __slots__ = (
        "_hash",
        "_key",
        "label_selector",
        "matches_labels",
        "namespace_selector",
        "namespaces",
        "topology_key",
    )

    def __init__(
        self,
        topology_key: str,
        namespaces: frozenset[str],
        namespace_selector: LabelSelector,
        label_selector: LabelSelector,
    ) -> None:
        self.topology_key = topology_key
        self.namespaces = namespaces
        self.namespace_selector = namespace_selector
        self.label_selector = label_selector
        self.matches_labels = label_selector.matches
        self._key = (topology_key, namespaces, selector_key(namespace_selector), selector_key(label_selector))
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Term) and self._key == other._key)

    @property
    def selects_namespaces(self) -> bool:
        """Return whether the namespaces depend on labels of namespaces."""
        return self.namespace_selector is not NOTHING

    def matches(self, pod: Pod, namespace_labels: Mapping[str, str]) -> bool:
        """Return whether a Pod, in a namespace with these labels, matches."""
        namespace = pod.metadata.namespace
        if namespace not in self.namespaces and not self.namespace_selector.matches(namespace_labels):
            return False
        return self.matches_labels(pod.metadata.labels)

    def with_namespaces(self, namespaces: Iterable[str]) -> Term:
        """Return the term with the names of the namespaces instead of a selector of namespaces."""
        return Term(self.topology_key, self.namespaces | frozenset(namespaces), NOTHING, self.label_selector)


class PodAffinityTerms:
    """All pod affinity terms of a Pod; preferred ones with their weight."""

    __slots__ = (
        "error",
        "preferred_affinity",
        "preferred_anti_affinity",
        "required_affinity",
        "required_anti_affinity",
    )

    def __init__(self, pod: Pod) -> None:
        self.required_affinity: tuple[Term, ...] = ()
        self.required_anti_affinity: tuple[Term, ...] = ()
        self.preferred_affinity: tuple[tuple[Term, int], ...] = ()
        self.preferred_anti_affinity: tuple[tuple[Term, int], ...] = ()
        # Why the terms cannot be parsed; they are empty then.
        self.error = ""
        namespace, affinity = pod.metadata.namespace or "", pod.spec.affinity
        if affinity is None:
            return
        try:
            if (wanted := affinity.pod_affinity) is not None:
                preferred = wanted.preferred_during_scheduling_ignored_during_execution
                required = wanted.required_during_scheduling_ignored_during_execution
                self.required_affinity = tuple(parse_term(term, namespace) for term in required)
                self.preferred_affinity = _weighted(preferred, namespace)
            if (avoided := affinity.pod_anti_affinity) is not None:
                preferred = avoided.preferred_during_scheduling_ignored_during_execution
                required = avoided.required_during_scheduling_ignored_during_execution
                self.required_anti_affinity = tuple(parse_term(term, namespace) for term in required)
                self.preferred_anti_affinity = _weighted(preferred, namespace)
        except SelectorError as error:
            self.required_affinity = self.required_anti_affinity = ()
            self.preferred_affinity = self.preferred_anti_affinity = ()
            self.error = str(error)


def pod_affinity_terms(pod: Pod) -> PodAffinityTerms | None:
    """Return the terms of a Pod; None if it has none."""
    affinity = pod.spec.affinity
    if affinity is None:
        return None
    for kind in (affinity.pod_affinity, affinity.pod_anti_affinity):
        if kind is not None and (
            kind.required_during_scheduling_ignored_during_execution
            or kind.preferred_during_scheduling_ignored_during_execution
        ):
            return PodAffinityTerms(pod)
    return None


def parse_term(term: PodAffinityTerm, namespace: str) -> Term:
    """Return the term of a Pod in the namespace; raises `SelectorError`."""
    names = frozenset(term.namespaces)
    if not names and term.namespace_selector is None:
        names = frozenset((namespace,))
    namespace_selector, labels = parse_selector(term.namespace_selector), parse_selector(term.label_selector)
    return _shared(Term(term.topology_key, names, namespace_selector, labels))


def parse_selector(selector: meta_v1.LabelSelector | None) -> LabelSelector:
    """Return the compiled selector: None matches nothing, an empty one everything; raises `SelectorError`."""
    if selector is None:
        return NOTHING
    return LabelSelector(_requirements(selector))


def selector_key(selector: LabelSelector) -> str | None:
    """Return a text that is equal for equal selectors; None for the one that matches nothing."""
    return None if selector is NOTHING else str(selector)


def _requirements(selector: meta_v1.LabelSelector) -> Iterable[Requirement]:
    for key, value in selector.match_labels.items():
        yield requirement(key, Operator.EQUALS, (value,))
    for expression in selector.match_expressions:
        operator = EXPRESSION_OPERATORS.get(expression.operator)
        if operator is None:
            raise SelectorError(f'"{expression.operator}" is not a valid label selector operator')
        yield requirement(expression.key, operator, expression.values)


def _weighted(terms: Iterable[WeightedPodAffinityTerm], namespace: str) -> tuple[tuple[Term, int], ...]:
    return tuple((parse_term(item.pod_affinity_term, namespace), item.weight) for item in terms)


@lru_cache(TERMS_MAX)
def _shared(term: Term) -> Term:
    """Return the first term that was equal to this one."""
    return term
