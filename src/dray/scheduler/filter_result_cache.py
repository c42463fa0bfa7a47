"""Cached results of the filters for equal Pods, each valid until something that it depends on changes.

Workloads create many equal Pods, and few nodes change between two of them. A search runs the filters only on nodes
without a cached result: it costs what has changed, not the size of the cluster. It finds the nodes that filtering one
by one would find. Without the cache, the rows "plain pods, 5000 nodes" and "steady, 500 nodes, full" of the benchmark
take about a quarter more processor time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, compress
from typing import Any, Final, TypeAlias

from dray.api.types.core_v1 import Node
from dray.framework.cycle_state import CycleState
from dray.framework.node_statuses import NodeStatuses, StatusCount
from dray.framework.plugins import DryRunSignature
from dray.framework.snapshot import Snapshot
from dray.framework.status import SUCCESS, Status
from dray.scheduler.equivalence_class import equivalence_class_for
from dray.scheduler.nominations import Nominations
from dray.scheduler.profile import ActiveFilters, Profile

# Kinds of Pods whose results are cached, with a byte for each node; beyond that the least recently used is evicted.
KINDS_MAX: Final = 256

# Results that are cached over all kinds and nodes; a cluster with more nodes caches fewer kinds.
RESULTS_MAX: Final = 2_000_000

_REJECTED: Final = 0
_ACCEPTED: Final = 1
_UNKNOWN: Final = 2

# For each result a table that turns results into whether each is this one.
_IS_RESULT: Final = [bytes(value == result for value in range(256)) for result in (_REJECTED, _ACCEPTED, _UNKNOWN)]

# Different numbers of nodes whose indices are kept: those of a few schedulers in one process.
SIZES_MAX: Final = 4

# If fewer than this share of the nodes have a result, they are looked for one by one.
_FEW_SHARE: Final = 16


class PartIndex:
    """The nodes that have a part of a plugin, such as a pool of devices; also those that had it earlier."""

    def __init__(self, snapshot: Snapshot, plugin: DryRunSignature) -> None:
        self._snapshot = snapshot
        self._plugin = plugin
        # Part -> indices of nodes.
        self._nodes: dict[str, dict[int, None]] = {}
        # The API objects whose parts were read, by index.
        self._read: list[Node | None] = []
        self._version = -1
        self._parts_version: Any = None

    def refresh(self) -> None:
        """Read the parts of nodes that have changed."""
        parts_version = self._plugin.parts_version()
        snapshot = self._snapshot
        changed = snapshot.indices_changed_since(self._version)
        known = self._parts_version is not None and self._plugin.parts_changed_since(self._parts_version) is not None
        if changed is None or not known:
            self._nodes.clear()
            self._read = [None] * len(snapshot)
            changed = range(len(snapshot))
        for index in changed:
            info = snapshot.nodes[index]
            # Most changes are Pods that come or go.
            if self._read[index] is not info.node:
                self._read[index] = info.node
                for part in self._plugin.parts_of(info):
                    self._nodes.setdefault(part, {})[index] = None
        self._version, self._parts_version = snapshot.version, parts_version

    def indices(self, parts: Iterable[str]) -> Iterator[int]:
        """Yield the indices of nodes that have one of the parts."""
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
            self.invalidate(changed)
        self._version, self._nominations_version = snapshot.version, nominations.version
        self._parts_versions = tuple([plugin.parts_version() for plugin, _ in parts])

    def _changed(self, snapshot: Snapshot, nominations: Nominations, parts: Parts) -> set[int] | None:
        """Return the indices of nodes whose results may have changed; None means all."""
        if self._version < 0:
            return None
        indices = snapshot.indices_changed_since(self._version)
        nominated: Iterable[str] | None = ()
        if nominations.version != self._nominations_version:
            nominated = nominations.changed_since(self._nominations_version)
        if indices is None or nominated is None:
            return None
        changed = set(indices)
        for (plugin, part_index), version in zip(parts, self._parts_versions, strict=True):
            names = plugin.parts_changed_since(version)
            if names is None:
                return None
            changed.update(part_index.indices(names))
        for name in nominated:
            index = snapshot.index_of(name)
            if index is not None:
                changed.add(index)
        return changed

    def find_accepted(
        self,
        start: int,
        wanted: int,
        decide: Callable[[Sequence[int]], Sequence[Status]],
        add: Callable[[Sequence[int]], int],
    ) -> None:
        """Add accepted nodes until none is wanted any more, beginning at an index and wrapping around.

        `decide` runs the filters on nodes without a cached result, and `add` takes accepted ones, both in order; it
        returns how many more are wanted.
        """
        by_index = self._by_index
        for first, end in ((start, len(by_index)), (0, start)):
            at = first
            while at < end and wanted:
                stop = _end_of_candidates(by_index, at, end, wanted)
                unknown = _indices_of(_UNKNOWN, by_index, at, stop)
                if unknown:
                    self._keep(unknown, decide(unknown))
                accepted = _indices_of(_ACCEPTED, by_index, at, stop)
                if accepted:
                    wanted = add(accepted)
                at = stop

    def _keep(self, indices: Sequence[int], statuses: Sequence[Status]) -> None:
        """Keep the results of nodes that have none."""
        by_index = self._by_index
        for index, status in zip(indices, statuses, strict=True):
            if status is SUCCESS:
                by_index[index] = _ACCEPTED
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
        """Return the different rejections of that many nodes, beginning at an index and wrapping around."""
        statuses = self._statuses
        return statuses.counts() if evaluated >= len(snapshot) else statuses.counts_within(start, evaluated)

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


def _end_of_candidates(by_index: bytearray, at: int, end: int, wanted: int) -> int:
    """Return where a search for accepted nodes would end if all nodes without a result were accepted, or the end."""
    while wanted and at < end:
        stop = min(end, at + wanted)
        wanted -= stop - at - by_index.count(_REJECTED, at, stop)
        at = stop
    return at


@lru_cache(maxsize=SIZES_MAX)
def _indices(count: int) -> tuple[int, ...]:
    """Return the indices of all nodes, which need not be created again for each Pod."""
    return tuple(range(count))


def _indices_of(result: int, by_index: bytearray, at: int, stop: int) -> list[int]:
    """Return the indices of the nodes of a range that have a result."""
    count = by_index.count(result, at, stop)
    if count * _FEW_SHARE > stop - at:
        return list(compress(_indices(len(by_index))[at:stop], by_index[at:stop].translate(_IS_RESULT[result])))
    found: list[int] = []
    for _ in range(count):
        at = by_index.index(result, at, stop) + 1
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

    def of(self, profile: Profile, state: CycleState, filters: ActiveFilters) -> FilterResults | None:
        """Return what is known now for Pods like this one; None if it is not known which are."""
        kind = equivalence_class_for(filters, profile, state)
        if kind is None:
            return None
        parts = [(plugin, self._nodes_of(plugin)) for plugin in filters.signed]
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
