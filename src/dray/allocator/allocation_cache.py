"""Cached allocation results.

Invariant: a result that the cache returns equals the outcome of a fresh search.

The outcome of a search depends on the specs of the claims and the device classes (`QueryKey`), on the node's devices
and their taints (`NodeView`, `TaintRules`), and on which devices of the node's pools are allocated (the change log of
the allocations). It does not depend on the identity of the claims, so Pods of one template share their results. A
result is returned only while all of these are unchanged, which is one `Generation` of the node. Shares have no ID yet:
`with_share_ids` gives them that of the claim.

Without the cache, the row "steady, 500 nodes, full" of the benchmark takes a tenth more processor time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

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

# Results cached over all queries, each of which counts as one more; beyond that the least recently used query goes.
RESULTS_MAX: Final = 50_000

# Nodes whose generation is known; beyond that all of them begin a new one.
GENERATIONS_MAX: Final = 50_000

# The version of the device classes, the encoded specs of the claims in order, and the policy of devices.
QueryKey: TypeAlias = tuple[int, tuple[bytes, ...], str]

_encode = msgspec.json.Encoder().encode


class NodeEntry(Protocol):
    """A node in a list of nodes."""

    name: str
    node: Node


class Generation:
    """A node between two changes of its devices or of their allocations. Results of one generation stay valid."""

    __slots__ = ("node", "rules", "version", "view")

    def __init__(self, view: NodeView, inventory: Inventory) -> None:
        self.view = view
        self.rules = inventory.taint_rules
        # The node and the inventory's version for which the view is known to be the newest.
        self.node: Node = view.node
        self.version = inventory.version


class Generations:
    """The current generations of the nodes, by name; shared by all queries, so that a change is read once."""

    def __init__(self, inventory: Inventory, allocations: Allocations) -> None:
        self.inventory = inventory
        self._allocations = allocations
        # All are current at this version of the allocations.
        self.current: dict[str, Generation] = {}
        self._allocations_version = 0
        # The nodes among them that have devices of a pool.
        self._by_pool: dict[str, dict[str, None]] = {}
        inventory.on_node_removed(self._node_removed)

    def of(self, view: NodeView) -> Generation:
        """Return the current generation of a node, whose view was just returned by the inventory."""
        self.refresh()
        inventory = self.inventory
        generation = self.current.get(view.name)
        if generation is None or generation.view is not view or generation.rules is not inventory.taint_rules:
            if generation is not None:
                self._end(generation)
            if len(self.current) >= GENERATIONS_MAX:
                self._end_all()
            generation = self.current[view.name] = Generation(view, inventory)
            for pool in view.pool_keys:
                self._by_pool.setdefault(pool, {})[view.name] = None
        generation.node, generation.version = view.node, inventory.version
        return generation

    def refresh(self) -> None:
        """End the generations of nodes some of whose devices were allocated or freed."""
        if self._allocations_version == self._allocations.version:
            return
        changed = self._allocations.changed_since(self._allocations_version)
        self._allocations_version = self._allocations.version
        if changed is None:
            self._end_all()
            return
        for pool in changed:
            for name in tuple(self._by_pool.get(pool, ())):
                self._end(self.current[name])

    def _node_removed(self, name: str) -> None:
        """End the generation of a node that is gone: no later view would end it."""
        generation = self.current.get(name)
        if generation is not None:
            self._end(generation)

    def _end(self, generation: Generation) -> None:
        view = generation.view
        del self.current[view.name]
        for pool in view.pool_keys:
            nodes = self._by_pool[pool]
            del nodes[view.name]
            if not nodes:
                del self._by_pool[pool]

    def _end_all(self) -> None:
        self.current.clear()
        self._by_pool.clear()


class CachedResult:
    """An outcome, and the generation of the node for which it was found."""

    __slots__ = ("feasible", "generation", "outcome", "reason")

    def __init__(self, generation: Generation, outcome: Outcome) -> None:
        self.generation = generation
        self.outcome = outcome
        self.feasible = outcome.fits
        # Why the claims do not fit, once a caller has explained it.
        self.reason = ""


class AllocationQuery:
    """The cached results of one query, by node."""

    __slots__ = ("_generations", "_results", "counted", "plan")

    def __init__(self, plan: Plan, generations: Generations) -> None:
        # The plan for the claims of the first query.
        self.plan = plan
        # Its request, if the number of available devices decides about it.
        self.counted = counted_request(plan)
        self._generations = generations
        # Also those of generations that have ended, until there is a newer one for the node, or too many of them.
        self._results: dict[str, CachedResult] = {}

    @property
    def size(self) -> int:
        """Return the number of cached results, plus one for the query."""
        return 1 + len(self._results)

    def lookup(self, name: str, node: Node) -> Outcome | None:
        """Return the outcome on a node of which nothing has changed; None if a search is needed."""
        self._generations.refresh()
        result = self._current_result(name, node)
        return None if result is None else result.outcome

    def lookup_all(self, nodes: Sequence[NodeEntry]) -> list[bool | None]:
        """Return whether the claims fit on each of the nodes; None where a search is needed."""
        self._generations.refresh()
        found = [self._current_result(node.name, node.node) for node in nodes]
        return [None if result is None else result.feasible for result in found]

    def lookup_view(self, view: NodeView) -> Outcome | None:
        """Return the outcome on a node that still has the same view; None if a search is needed."""
        generation = self._generations.of(view)
        result = self._results.get(view.name)
        return result.outcome if result is not None and result.generation is generation else None

    def allocations_on(self, name: str) -> tuple[AllocationResult, ...] | None:
        """Return the allocations on a node that was found feasible in this scheduling cycle."""
        result = self.result_on(name)
        return None if result is None else result.outcome.allocations

    def result_on(self, name: str) -> CachedResult | None:
        """Return the cached result on a node that was looked up in this scheduling cycle."""
        result = self._results.get(name)
        return result if result is not None and result.generation is self._generations.current.get(name) else None

    def add(self, view: NodeView, outcome: Outcome) -> None:
        """Cache the outcome of a search that just ended."""
        name = view.name
        self._results[name] = CachedResult(self._generations.of(view), outcome)
        if len(self._results) > 2 * len(self._generations.current):
            # At least half of them are of generations that have ended, for example of nodes that are gone.
            self._results = {each: found for each in self._results if (found := self.result_on(each)) is not None}

    def _current_result(self, name: str, node: Node) -> CachedResult | None:
        """Return the result on a node of which nothing has changed; the generations are up to date."""
        result = self.result_on(name)
        if (
            result is None
            or result.generation.node is not node
            or result.generation.version != self._generations.inventory.version
        ):
            return None
        return result


class AllocationCache:
    """The queries by key."""

    def __init__(self, inventory: Inventory, allocations: Allocations, results_max: int = RESULTS_MAX) -> None:
        self._inventory = inventory
        self.generations = Generations(inventory, allocations)
        self._results_max = results_max
        # The most recently used goes last.
        self._queries: dict[QueryKey, AllocationQuery] = {}

    def query(
        self,
        claims: Sequence[ResourceClaim],
        plan: Callable[[Sequence[ResourceClaim]], Plan],
        policy: DevicePolicy | None = None,
    ) -> AllocationQuery:
        """Return the query for claims with these specs; `plan` is called for a new one."""
        specs = tuple([_encode(claim.spec.devices) for claim in claims])
        key = (self._inventory.classes_version, specs, policy.name if policy is not None else FIRST)
        query = self._queries.pop(key, None)
        if query is None:
            query = AllocationQuery(plan(claims), self.generations)
            self._evict()
        self._queries[key] = query
        return query

    def _evict(self) -> None:
        count = sum(query.size for query in self._queries.values())
        while count > self._results_max:
            count -= self._queries.pop(next(iter(self._queries))).size
