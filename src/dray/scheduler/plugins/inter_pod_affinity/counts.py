"""Counts of Pods by topology domain, kept up to date by the index of placed Pods.

Pure. Counts are grouped by term: Pods of one workload have equal terms, so that a Pod is matched with each term once,
however many Pods have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from dray.framework.node_info import NodeInfo
from dray.framework.pod_affinity import Term
from dray.framework.pod_info import PodInfo
from dray.framework.status import Status
from dray.scheduler.plugins.pod_index import NodeChange

# Value of a topology key -> number; there are no zeros.
Domains: TypeAlias = dict[str, int]
NO_LABELS: Final[Mapping[str, str]] = {}


class TermOwners:
    """Existing Pods' terms: for each term, how many Pods have it, or with which weight, in each domain."""

    def __init__(self) -> None:
        self.required_anti_affinity: dict[Term, Domains] = {}
        self.required_affinity: dict[Term, Domains] = {}
        # Sums of weights; those of anti-affinity are negative.
        self.preferred: dict[Term, Domains] = {}

    def apply(self, change: NodeChange) -> None:
        """Update the counts."""
        if change.before is not None:
            self._count(change.removed, change.before.labels, -1)
        if change.after is not None:
            self._count(change.added, change.after.labels, 1)

    def _count(self, pods: Iterable[PodInfo], labels: Mapping[str, str], sign: int) -> None:
        for info in pods:
            terms = info.affinity
            if terms is None:
                continue
            for term in terms.required_anti_affinity:
                _add(self.required_anti_affinity, term, labels, sign)
            for term in terms.required_affinity:
                _add(self.required_affinity, term, labels, sign)
            for term, weight in terms.preferred_affinity:
                _add(self.preferred, term, labels, sign * weight)
            for term, weight in terms.preferred_anti_affinity:
                _add(self.preferred, term, labels, -sign * weight)


class MatchingPods:
    """Pods that match all of some terms, whose namespaces are resolved: for each term, their number by domain."""

    def __init__(self, terms: Sequence[Term]) -> None:
        self._terms = tuple(terms)
        self.domains: tuple[Domains, ...] = tuple({} for _ in terms)

    def apply(self, change: NodeChange) -> None:
        """Update the counts."""
        if change.before is not None and (count := self._matching(change.removed)):
            self._count(change.before, -count)
        if change.after is not None and (count := self._matching(change.added)):
            self._count(change.after, count)

    def _matching(self, pods: Iterable[PodInfo]) -> int:
        return sum(matches_all(self._terms, info) for info in pods)

    def _count(self, node: NodeInfo, count: int) -> None:
        for term, domains in zip(self._terms, self.domains, strict=True):
            value = node.labels.get(term.topology_key)
            if value is not None:
                add_to(domains, value, count)


def matches_all(terms: Sequence[Term], info: PodInfo) -> bool:
    """Return whether the Pod matches all terms, whose namespaces are resolved."""
    namespace, labels = info.key.namespace, info.pod.metadata.labels
    return all(namespace in term.namespaces and term.matches_labels(labels) for term in terms)


def add_to(domains: Domains, value: str, count: int) -> None:
    """Add to the number of a domain; a domain whose number becomes zero is removed."""
    total = domains.get(value, 0) + count
    if total:
        domains[value] = total
    else:
        domains.pop(value, None)


def _add(groups: dict[Term, Domains], term: Term, labels: Mapping[str, str], count: int) -> None:
    value = labels.get(term.topology_key)
    if value is None:
        return
    domains = groups.get(term)
    if domains is None:
        domains = groups[term] = {}
    add_to(domains, value, count)
    if not domains:
        del groups[term]


class DomainCounts:
    """Numbers by (topology key, value): the sum of shared counts, and the changes of one attempt."""

    __slots__ = ("_changes", "_groups")

    def __init__(self, groups: Iterable[tuple[str, Mapping[str, int]]] = ()) -> None:
        # Shared with the index, and never changed here.
        self._groups = tuple(groups)
        self._changes: dict[tuple[str, str], int] = {}

    def clone(self) -> DomainCounts:
        """Return a copy whose changes are its own."""
        copy = DomainCounts(self._groups)
        copy._changes = dict(self._changes)
        return copy

    def add(self, key: str, value: str, count: int) -> None:
        """Add to the number of a domain, for this attempt."""
        pair = (key, value)
        self._changes[pair] = self._changes.get(pair, 0) + count

    def get(self, key: str, value: str) -> int:
        """Return the number of a domain."""
        return self._changes.get((key, value), 0) + sum(
            domains.get(value, 0) for group_key, domains in self._groups if group_key == key
        )

    def __bool__(self) -> bool:
        """Return whether any number is above zero; numbers are never negative."""
        if not self._changes:
            return any(domains for _, domains in self._groups)
        return sum(sum(domains.values()) for _, domains in self._groups) + sum(self._changes.values()) > 0

    def any_on(self, labels: Mapping[str, str]) -> bool:
        """Return whether the number of any domain of a node with these labels is above zero."""
        if self._changes:
            keys = {key for key, _ in self._groups} | {key for key, _ in self._changes}
            return any(key in labels and self.get(key, labels[key]) > 0 for key in keys)
        return any(labels.get(key) in domains for key, domains in self._groups)

    def reject(self, nodes: Sequence[NodeInfo], statuses: Sequence[Status], rejection: Status) -> Sequence[Status]:
        """Return the statuses of nodes, with the rejection of those on which `any_on` holds."""
        if self._changes:
            return [
                rejection if self.any_on(node.labels) else status for node, status in zip(nodes, statuses, strict=True)
            ]
        for key, domains in self._groups:
            statuses = [
                rejection if node.labels.get(key) in domains else status
                for node, status in zip(nodes, statuses, strict=True)
            ]
        return statuses

    def all_on(self, keys: Iterable[str], labels: Mapping[str, str]) -> bool:
        """Return whether a node with these labels has all keys, each with a number above zero."""
        if self._changes:
            return all(key in labels and self.get(key, labels[key]) > 0 for key in keys)
        return all(labels.get(key) in domains for key, domains in self._groups)
