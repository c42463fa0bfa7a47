"""Cached results of the filters for equal Pods, each valid until something that it depends on changes. Pure.

Workloads create many equal Pods, and few nodes change between two of them. A search runs the filters only on nodes
without a cached result: it costs what has changed, not the size of the cluster. It finds the nodes that filtering one
by one would find.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress
from typing import Any, Final, TypeAlias

from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.node_statuses import NodeStatuses, StatusCount
from dray.framework.plugins import DryRunSignature
from dray.framework.snapshot import Snapshot
from dray.framework.status import SUCCESS, Status
from dray.scheduler.equivalence_class import equivalence_class_of, signed_filters
from dray.scheduler.nominations import Nominations
from dray.scheduler.profile import Profile

# Kinds of Pods whose results are cached, with a byte for each node; beyond that the least recently used is evicted.
KINDS_MAX: Final = 256

# Results that are cached over all kinds and nodes; a cluster with more nodes caches fewer kinds.
RESULTS_MAX: Final = 2_000_000

_REJECTED: Final = 0
_ACCEPTED: Final = 1
_UNKNOWN: Final = 2

# Turns results into whether each is a rejection.
_IS_REJECTED: Final = bytes(result == _REJECTED for result in range(256))

# If fewer than this share of the nodes are accepted, they are looked for one by one.
_FEW_ACCEPTED_SHARE: Final = 16


class PartIndex:
    """The nodes that have a part of a plugin, such as a pool of devices; also those that had it earlier."""

    def __init__(self, snapshot: Snapshot, plugin: DryRunSignature) -> None:
        self._snapshot = snapshot
        self._plugin = plugin
        self._nodes: dict[str, dict[str, None]] = {}
        self._version = -1
        self._parts_version: Any = None

    def refresh(self) -> None:
        """Read the parts of nodes that have changed."""
        parts_version = self._plugin.parts_version()
        changed = self._snapshot.changed_since(self._version)
        known = self._parts_version is not None and self._plugin.parts_changed_since(self._parts_version) is not None
        if changed is None or not known:
            self._nodes.clear()
            changed = [node.name for node in self._snapshot]
        for name in changed:
            node = self._snapshot.get(name)
            assert node is not None, "changed and not there"
            self._read(node)
        self._version, self._parts_version = self._snapshot.version, parts_version

    def _read(self, node: NodeInfo) -> None:
        for part in self._plugin.parts_of(node):
            self._nodes.setdefault(part, {})[node.name] = None

    def nodes(self, parts: Iterable[str]) -> Iterator[str]:
        """Yield the names of nodes that have one of the parts."""
        of = self._nodes.get
        return chain.from_iterable([of(part, ()) for part in parts])


# A plugin whose decisions depend on more than the node, with the nodes of each part.
Parts: TypeAlias = Sequence[tuple[DryRunSignature, PartIndex]]


class FilterResults:
    """The results of the filters for one kind of Pods, by index of the node."""

    __slots__ = ("_by_index", "_new", "_nominations_version", "_parts_versions", "_statuses", "_version")

    def __init__(self) -> None:
        self._by_index = bytearray()
        # The rejections, and the indices of those found since they were explained.
        self._statuses = NodeStatuses(Snapshot())
        self._new: dict[int, None] = {}
        # No snapshot and no nominations have version -1.
        self._version = -1
        self._nominations_version = -1
        self._parts_versions: tuple[Any, ...] = ()

    def refresh(self, snapshot: Snapshot, nominations: Nominations, parts: Parts) -> None:
        """Invalidate the results of nodes that may have changed."""
        changed = self._changed(snapshot, nominations, parts)
        if changed is None:
            self._by_index = bytearray([_UNKNOWN]) * len(snapshot)
            self._statuses = NodeStatuses(snapshot)
            self._new.clear()
        else:
            indices = map(snapshot.index_of, changed)
            self.invalidate([index for index in indices if index is not None])
        self._version, self._nominations_version = snapshot.version, nominations.version
        self._parts_versions = tuple([plugin.parts_version() for plugin, _ in parts])

    def _changed(self, snapshot: Snapshot, nominations: Nominations, parts: Parts) -> Iterable[str] | None:
        """Return the nodes whose results may have changed; None means all."""
        if self._version < 0:
            return None
        changed = [snapshot.changed_since(self._version), nominations.changed_since(self._nominations_version)]
        for (plugin, index), version in zip(parts, self._parts_versions, strict=True):
            names = plugin.parts_changed_since(version)
            changed.append(None if names is None else index.nodes(names))
        known = [names for names in changed if names is not None]
        return chain(*known) if len(known) == len(changed) else None

    def accepted(self, start: int, wanted: int, decide: Callable[[int], Status]) -> list[int]:
        """Return the first accepted nodes, beginning at an index and wrapping around.

        `decide` runs the filters on a node without a cached result.
        """
        by_index = self._by_index
        found: list[int] = []
        for first, end in ((start, len(by_index)), (0, start)):
            at = first
            while at < end and len(found) < wanted:
                unknown = by_index.find(_UNKNOWN, at, end)
                stop = unknown if unknown >= 0 else end
                if stop > at:
                    found += _accepted(by_index, at, stop)
                if unknown >= 0 and len(found) < wanted:
                    self._keep(unknown, decide(unknown))
                    found += (unknown,) if by_index[unknown] else ()
                at = stop + 1
        del found[wanted:]
        return found

    def _keep(self, index: int, status: Status) -> None:
        if status is SUCCESS:
            self._by_index[index] = _ACCEPTED
        else:
            self._reject(index, status)
            self._new[index] = None

    def _reject(self, index: int, status: Status) -> None:
        """Keep a rejection of a node that has no result."""
        self._by_index[index] = _REJECTED
        self._statuses.put(index, status)

    def rejections(self, start: int) -> NodeStatuses:
        """Return the rejections of all nodes, in the order of a search that began at an index."""
        return self._statuses.copy_from(start)

    def counted_rejections(self, snapshot: Snapshot, start: int, evaluated: int) -> list[StatusCount]:
        """Return the different rejections of that many nodes, beginning at an index and wrapping around.

        For all nodes it costs what is different, for some of them no step of Python for each node.
        """
        if evaluated >= len(snapshot):
            return self._statuses.counts()
        by_index, end = self._by_index, start + evaluated
        wrapped = max(0, end - len(snapshot))
        if not by_index.count(_REJECTED, start, end) and not by_index.count(_REJECTED, 0, wrapped):
            return []
        indices = [*range(start, min(end, len(snapshot))), *range(wrapped)]
        results = by_index[start:] + by_index[:start]
        rejected = list(compress(indices, results.translate(_IS_REJECTED)))
        statuses = list(map(self._statuses.by_index.__getitem__, rejected))
        keys = list(map(id, statuses))
        examples = dict(zip(keys, zip(statuses, rejected, strict=True), strict=True))
        counts, nodes = Counter(keys), snapshot.nodes
        return [
            (status, counts[key], nodes[index].name) for key, (status, index) in examples.items() if status is not None
        ]

    def explain(self, snapshot: Snapshot, statuses: Mapping[str, Status]) -> None:
        """Keep the rejections with their explanations."""
        for index in self._new:
            if self._by_index[index] == _REJECTED:
                status = statuses.get(snapshot.nodes[index].name)
                if status is not None:
                    self.invalidate((index,))
                    self._reject(index, status)
        self._new.clear()

    def invalidate(self, indices: Iterable[int]) -> None:
        """Forget the results of nodes: they have changed, or do not apply to other Pods."""
        by_index = self._by_index
        for index in indices:
            if by_index[index] == _REJECTED:
                self._statuses.drop(index)
            by_index[index] = _UNKNOWN


def _accepted(by_index: bytearray, at: int, stop: int) -> Iterable[int]:
    """Return the indices of the accepted nodes of a range in which every result is known."""
    count = by_index.count(_ACCEPTED, at, stop)
    if count * _FEW_ACCEPTED_SHARE > stop - at:
        return compress(range(at, stop), by_index[at:stop])
    found: list[int] = []
    for _ in range(count):
        at = by_index.index(_ACCEPTED, at, stop) + 1
        found.append(at - 1)
    return found


class FilterResultCache:
    """The results of the filters for several kinds of Pods."""

    def __init__(self, snapshot: Snapshot, nominations: Nominations) -> None:
        self._snapshot = snapshot
        self._nominations = nominations
        # The most recently used goes last.
        self._kinds: dict[Hashable, FilterResults] = {}
        self._parts: dict[DryRunSignature, PartIndex] = {}

    def of(self, profile: Profile, state: CycleState) -> FilterResults | None:
        """Return what is known now for Pods like this one; None if it is not known which are."""
        kind = equivalence_class_of(profile, state)
        if kind is None:
            return None
        parts = [(plugin, self._nodes_of(plugin)) for plugin in signed_filters(profile, state)]
        results = self._kinds.pop(kind, None) or FilterResults()
        results.refresh(self._snapshot, self._nominations, parts)
        self._kinds[kind] = results
        if len(self._kinds) > min(KINDS_MAX, RESULTS_MAX // max(len(self._snapshot), 1)):
            del self._kinds[next(iter(self._kinds))]
        return results

    def _nodes_of(self, plugin: DryRunSignature) -> PartIndex:
        index = self._parts.get(plugin)
        if index is None:
            index = self._parts[plugin] = PartIndex(self._snapshot, plugin)
        index.refresh()
        return index
