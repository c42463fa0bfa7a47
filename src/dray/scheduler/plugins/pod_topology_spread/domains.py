"""The number of matching Pods in each topology domain, and the least of these numbers.

Pure. A `Domains` view follows the index of placed Pods; a `DomainsOfAttempt` adds the changes of a dry run.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Final

from dray.api.selectors import LabelSelector
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.scheduler.plugins.pod_index import NodeChange


class _All:
    def __contains__(self, _value: object) -> bool:
        return True


ALL: Final[Container[str]] = _All()


class PodMatcher:
    """Decides which Pods count: those of the namespace that match and are not being deleted."""

    __slots__ = ("_matches", "_namespace")

    def __init__(self, namespace: str, selector: LabelSelector) -> None:
        self._namespace = namespace
        # An empty selector counts no Pod, though it matches the incoming one.
        self._matches = None if selector.is_everything else selector.matches

    def __call__(self, info: PodInfo) -> bool:
        """Return whether the Pod counts."""
        metadata = info.pod.metadata
        return (
            self._matches is not None
            and info.key.namespace == self._namespace
            and self._matches(metadata.labels)
            and metadata.deletion_timestamp is None
        )

    def count(self, pods: Iterable[PodInfo]) -> int:
        """Return the number of Pods that count."""
        if self._matches is None:
            return 0
        return sum(map(self, pods))


class Domains:
    """The domains of counted nodes: the number of matching Pods of each, which may be zero."""

    def __init__(self, topology_key: str, matcher: PodMatcher, counts_node: Callable[[NodeInfo], bool]) -> None:
        self._key = topology_key
        self._matcher = matcher
        self._counts_node = counts_node
        self.counts: dict[str, int] = {}
        self._nodes: dict[str, int] = {}
        # Number of Pods -> number of domains with that number.
        self.histogram: dict[int, int] = {}

    def apply(self, change: NodeChange) -> None:
        """Update the numbers."""
        before, after = change.before, change.after
        if not change.relabelled:
            assert after is not None
            difference = self._matcher.count(change.added) - self._matcher.count(change.removed)
            if difference and (value := self._domain(after)) is not None:
                self._set(value, self.counts[value] + difference)
            return
        if before is not None and (value := self._domain(before)) is not None:
            self._set(value, self.counts[value] - self._matcher.count(change.removed))
            self._remove_node(value)
        if after is not None and (value := self._domain(after)) is not None:
            self._nodes[value] = self._nodes.get(value, 0) + 1
            self._set(value, self.counts.get(value, 0) + self._matcher.count(change.added))

    def _domain(self, node: NodeInfo) -> str | None:
        """Return the domain of the node; None if the node does not count."""
        return node.labels.get(self._key) if self._counts_node(node) else None

    def _set(self, value: str, count: int) -> None:
        before = self.counts.get(value)
        if before is not None:
            decrement(self.histogram, before)
        self.counts[value] = count
        self.histogram[count] = self.histogram.get(count, 0) + 1

    def _remove_node(self, value: str) -> None:
        self._nodes[value] -= 1
        if not self._nodes[value]:
            del self._nodes[value]
            decrement(self.histogram, self.counts.pop(value))


def decrement(histogram: dict[int, int], count: int) -> None:
    """Subtract one domain with the number."""
    histogram[count] -= 1
    if not histogram[count]:
        del histogram[count]


class DomainsOfAttempt:
    """The numbers as one attempt sees them; changes are its own."""

    __slots__ = ("_base", "_changes", "_histogram", "_min_domains", "minimum")

    def __init__(
        self,
        base: Domains,
        min_domains: int,
        changes: Mapping[str, int] | None = None,
        histogram: dict[int, int] | None = None,
    ) -> None:
        # Shared with the index, and never changed here.
        self._base = base
        self._min_domains = min_domains
        self._changes: dict[str, int] = dict(changes or {})
        # That of the index, until something is changed.
        self._histogram = base.histogram if histogram is None else histogram
        self.minimum = self._least()

    def clone(self) -> DomainsOfAttempt:
        """Return a copy whose changes are its own."""
        return DomainsOfAttempt(self._base, self._min_domains, self._changes, dict(self._histogram))

    def _least(self) -> int:
        """Return the least number: zero if there are fewer domains than required."""
        enough = self._histogram and len(self._base.counts) >= self._min_domains
        return min(self._histogram) if enough else 0

    def get(self, value: str) -> int:
        """Return the number of a domain; zero for an unknown one."""
        number = self._base.counts.get(value, 0)
        return number + self._changes.get(value, 0) if self._changes else number

    def above(self, limit: int) -> Container[str]:
        """Return the domains with a greater number than the limit."""
        if limit < 0:
            return ALL
        if not self._changes and max(self._histogram, default=0) <= limit:
            return ()
        found = {value for value, number in self._base.counts.items() if number > limit}
        found.difference_update([value for value in self._changes if self.get(value) <= limit])
        found.update([value for value in self._changes if self.get(value) > limit])
        return found

    def add(self, value: str, count: int) -> None:
        """Change the number of a known domain."""
        if value not in self._base.counts:
            return
        if self._histogram is self._base.histogram:
            self._histogram = dict(self._histogram)
        before = self.get(value)
        decrement(self._histogram, before)
        self._histogram[before + count] = self._histogram.get(before + count, 0) + 1
        self._changes[value] = self._changes.get(value, 0) + count
        self.minimum = self._least()


class PodsOfNodes:
    """The number of matching Pods of each node, by name; nodes without any are left out."""

    def __init__(self, matcher: PodMatcher) -> None:
        self._matcher = matcher
        self.counts: dict[str, int] = {}

    def apply(self, change: NodeChange) -> None:
        """Update the numbers."""
        node = change.after or change.before
        assert node is not None
        difference = self._matcher.count(change.added) - self._matcher.count(change.removed)
        if difference:
            number = self.counts.get(node.name, 0) + difference
            if number:
                self.counts[node.name] = number
            else:
                del self.counts[node.name]
