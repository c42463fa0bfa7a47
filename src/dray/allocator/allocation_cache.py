"""Cached allocation results.

Invariant: a result that the cache returns equals the outcome of a fresh search.

The outcome of a search depends on the specs of the claims and the device classes (`QueryKey`), on the node's devices
and their taints (`NodeView`, `TaintRules`), and on which devices of the node's pools are allocated (the stamps of the
pools). It does not depend on the identity of the claims, so Pods of one template share their results. A result is
returned only while all of these are unchanged. Shares have no ID yet: `with_share_ids` gives them that of the claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

import msgspec

from dray.allocator.allocations import Allocations
from dray.allocator.counting import counted_request
from dray.allocator.device_policy import FIRST, DevicePolicy
from dray.allocator.inventory import Inventory
from dray.allocator.outcome import Outcome
from dray.allocator.plan import Plan
from dray.allocator.view import NodeView
from dray.api.types.core_v1 import Node
from dray.api.types.resource_v1 import AllocationResult, ResourceClaim
from dray.lib.index_set import IndexedItems, IndexSet

# Results cached over all queries, each of which counts as one more; beyond that the least recently used query goes.
RESULTS_MAX: Final = 50_000

# The version of the device classes, the encoded specs of the claims in order, and the policy of devices.
QueryKey: TypeAlias = tuple[int, tuple[bytes, ...], str]

_encode = msgspec.json.Encoder().encode


class NodeEntry(Protocol):
    """A node in a list of nodes."""

    name: str
    node: Node


N = TypeVar("N", bound=NodeEntry)
N_co = TypeVar("N_co", bound=NodeEntry, covariant=True)
N_contra = TypeVar("N_contra", bound=NodeEntry, contravariant=True)


class NodeList(IndexedItems, Protocol[N_co]):
    """The nodes in the order in which they are tried."""

    @property
    def nodes(self) -> Sequence[N_co]:
        """Return the nodes by index."""


class ResultScope(Protocol[N_contra]):
    """Whether a cached result alone decides about a node; only then an index query may use it."""

    def covers(self, node: N_contra) -> bool:
        """Return whether it does for the Pod at hand."""

    def covers_every_pod(self, node: N_contra) -> bool:
        """Return whether it does for every Pod with the same query."""


class CachedResult:
    """An outcome, and the state for which it was found."""

    __slots__ = ("feasible", "node", "outcome", "reason", "rules", "stamps", "version", "view")

    def __init__(self, view: NodeView, inventory: Inventory, allocations: Allocations, outcome: Outcome) -> None:
        self.view = view
        self.rules = inventory.taint_rules
        self.stamps = tuple([(pool, allocations.stamp(pool)) for pool in view.pool_keys])
        self.outcome = outcome
        self.feasible = outcome.fits
        # Why the claims do not fit, once a caller has explained it.
        self.reason = ""
        # The node and the inventory's version for which the view is known to be the newest.
        self.node: Node = view.node
        self.version = inventory.version

    def is_current(self, allocations: Allocations) -> bool:
        """Return whether no device of the node's pools was allocated or freed since."""
        stamp_of = allocations.stamp
        for pool, stamp in self.stamps:  # noqa: SIM110 - a generator costs twice as much here
            if stamp_of(pool) != stamp:
                return False
        return True


class AllocationQuery:
    """The cached results of one query, by node."""

    __slots__ = (
        "_allocations",
        "_allocations_version",
        "_by_pool",
        "_inventory",
        "_maybe_feasible",
        "_needs_filter",
        "_results",
        "counted",
        "plan",
    )

    def __init__(self, plan: Plan, inventory: Inventory, allocations: Allocations) -> None:
        # The plan for the claims of the first query.
        self.plan = plan
        # Its request, if the number of available devices decides about it.
        self.counted = counted_request(plan)
        self._inventory = inventory
        self._allocations = allocations
        # All are current at this version of the allocations.
        self._results: dict[str, CachedResult] = {}
        self._allocations_version = 0
        # The nodes that have devices of a pool.
        self._by_pool: dict[str, dict[str, None]] = {}
        # Supersets of the nodes that have no cached negative result, and of those that have no cached positive one.
        self._maybe_feasible = IndexSet()
        self._needs_filter = IndexSet()

    @property
    def size(self) -> int:
        """Return the number of cached results, plus one for the query."""
        return 1 + len(self._results)

    def lookup(self, name: str, node: Node) -> Outcome | None:
        """Return the outcome on a node of which nothing has changed; None if a search is needed."""
        if self._allocations_version != self._allocations.version:
            self._drop_stale()
        result = self._results.get(name)
        if result is None or result.node is not node or result.version != self._inventory.version:
            return None
        return result.outcome

    def lookup_all(self, nodes: Sequence[NodeEntry]) -> list[bool | None]:
        """Return whether the claims fit on each of the nodes; None where a search is needed."""
        if self._allocations_version != self._allocations.version:
            self._drop_stale()
        version, result_on = self._inventory.version, self._results.get
        return [
            None
            if (result := result_on(node.name)) is None or result.node is not node.node or result.version != version
            else result.feasible
            for node in nodes
        ]

    def lookup_view(self, view: NodeView, node: Node) -> Outcome | None:
        """Return the outcome on a node that still has the same view; None if a search is needed."""
        result = self._results.get(view.name)
        if result is None or result.view is not view or result.rules is not self._inventory.taint_rules:
            return None
        result.node, result.version = node, self._inventory.version
        return result.outcome if result.is_current(self._allocations) else None

    def allocations_on(self, name: str) -> tuple[AllocationResult, ...] | None:
        """Return the allocations on a node that was found feasible in this scheduling cycle."""
        result = self._results.get(name)
        return None if result is None else result.outcome.allocations

    def result_on(self, name: str) -> CachedResult | None:
        """Return the cached result on a node that was looked up in this scheduling cycle."""
        return self._results.get(name)

    def add(self, view: NodeView, outcome: Outcome) -> None:
        """Cache the outcome of a search that just ended."""
        name = view.name
        result = self._results[name] = CachedResult(view, self._inventory, self._allocations, outcome)
        # The other set still has the node, until a reader discards it because of this result.
        (self._maybe_feasible if result.feasible else self._needs_filter).add(name)
        for pool, _ in result.stamps:
            self._by_pool.setdefault(pool, {})[name] = None

    def maybe_feasible(self, nodes: NodeList[N], first_index: int, scope: ResultScope[N]) -> Iterator[int]:
        """Yield the indices of nodes not cached as infeasible, starting at first_index and wrapping around."""
        self._drop_stale()
        version, results, indices = self._inventory.version, self._results, self._maybe_feasible
        for index in indices.starting_at(first_index, nodes, version):
            node = nodes.nodes[index]
            result = results.get(node.name)
            if (
                result is None
                or result.feasible
                or result.node is not node.node
                or result.version != version
                or not scope.covers(node)
            ):
                yield index
            elif scope.covers_every_pod(node):
                indices.discard(index)

    def needs_filter(self, nodes: NodeList[N], bounds: range, scope: ResultScope[N]) -> list[int]:
        """Return the indices within the bounds whose nodes are not cached as feasible."""
        self._drop_stale()
        version, results, indices = self._inventory.version, self._results, self._needs_filter
        found: list[int] = []
        kept: list[int] = []
        for index in indices.within(bounds, nodes, version):
            node = nodes.nodes[index]
            result = results.get(node.name)
            if (
                result is None
                or not result.feasible
                or result.node is not node.node
                or result.version != version
                or not scope.covers(node)
            ):
                found.append(index)
                kept.append(index)
            elif not scope.covers_every_pod(node):
                kept.append(index)
        indices.replace_within(bounds, kept)
        return found

    def _drop_stale(self) -> None:
        """Drop the results of nodes some of whose devices were allocated or freed."""
        changed = self._allocations.changed_since(self._allocations_version)
        self._allocations_version = self._allocations.version
        if changed is None:
            self._results.clear()
            self._by_pool.clear()
            self._maybe_feasible.add_all()
            self._needs_filter.add_all()
            return
        for pool in changed:
            for name in self._by_pool.pop(pool, ()):
                result = self._results.get(name)
                if result is not None and result.is_current(self._allocations):
                    self._by_pool.setdefault(pool, {})[name] = None
                else:
                    self._results.pop(name, None)
                    self._maybe_feasible.add(name)
                    self._needs_filter.add(name)


class AllocationCache:
    """The queries by key."""

    def __init__(self, inventory: Inventory, allocations: Allocations, results_max: int = RESULTS_MAX) -> None:
        self._inventory = inventory
        self._allocations = allocations
        self._results_max = results_max
        # The most recently used goes last.
        self._queries: dict[QueryKey, AllocationQuery] = {}

    def query(
        self, claims: Sequence[ResourceClaim], plan: Callable[[], Plan], policy: DevicePolicy | None = None
    ) -> AllocationQuery:
        """Return the query for claims with these specs; `plan` is called for a new one."""
        specs = tuple([_encode(claim.spec.devices) for claim in claims])
        key = (self._inventory.classes_version, specs, policy.name if policy is not None else FIRST)
        query = self._queries.pop(key, None)
        if query is None:
            query = AllocationQuery(plan(), self._inventory, self._allocations)
            self._evict()
        self._queries[key] = query
        return query

    def _evict(self) -> None:
        count = sum(query.size for query in self._queries.values())
        while count > self._results_max:
            count -= self._queries.pop(next(iter(self._queries))).size
