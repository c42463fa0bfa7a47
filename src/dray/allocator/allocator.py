"""The allocator: finds devices on a node for claims. The caller writes the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from dray.allocator.allocation_cache import AllocationCache, AllocationQuery, NodeEntry
from dray.allocator.allocations import AllocatedDevices, Allocations
from dray.allocator.choices import Chooser, RequestChoices
from dray.allocator.counting import first_devices, fits_by_count
from dray.allocator.device_policy import DevicePolicy
from dray.allocator.errors import INVALID_POOLS, AllocationError, NodeAllocationError
from dray.allocator.explain import Explainer, Explanation
from dray.allocator.gates import Gates
from dray.allocator.inventory import Inventory
from dray.allocator.outcome import Outcome
from dray.allocator.overlay import AllocationOverlay, still_fits
from dray.allocator.plan import Plan, Planner
from dray.allocator.result import result, results, with_share_ids
from dray.allocator.search import STEPS_MAX, Limits, Search
from dray.allocator.selection import SelectorGroups
from dray.allocator.view import NodeView
from dray.api.features import FeatureGates
from dray.api.types.core_v1 import Node
from dray.api.types.resource_v1 import AllocationResult, ResourceClaim

_NO_FIT: Final = Outcome(None)


def _never() -> bool:
    return False


class Allocator:
    """Allocates claims from an inventory; changes neither the inventory nor the allocations."""

    def __init__(self, inventory: Inventory, allocations: Allocations, features: FeatureGates | None = None) -> None:
        self.inventory = inventory
        self.allocations = allocations
        self.gates = Gates.of(features or FeatureGates())
        self._groups = SelectorGroups()
        # The last plan: an attempt allocates the same claims on one node after the other.
        self._planned: tuple[ResourceClaim, ...] = ()
        self._planned_at = -1
        self._planned_for: DevicePolicy | None = None
        self._plan = Plan((), ())
        self._cache = AllocationCache(inventory, allocations)
        # The cached results for the last plan.
        self._query = AllocationQuery(self._plan, self._cache.generations)

    def query(self, claims: Sequence[ResourceClaim], policy: DevicePolicy | None = None) -> AllocationQuery:
        """Return the cached results for the claims."""
        self.plan(claims, policy)
        return self._query

    def allocate(
        self,
        node: Node,
        claims: Sequence[ResourceClaim],
        *,
        expired: Callable[[], bool] = _never,
        steps_max: int = STEPS_MAX,
    ) -> Outcome:
        """Allocate all the claims on the node, or none.

        An `AllocationError` applies to all nodes, a `NodeAllocationError` and a `SearchStoppedError` only
        to this one.
        """
        outcome = self.find(node, claims, expired=expired, steps_max=steps_max)
        found = outcome.allocations
        return Outcome(None if found is None else with_share_ids(claims, found), outcome.steps)

    def find(
        self,
        node: Node,
        claims: Sequence[ResourceClaim],
        *,
        expired: Callable[[], bool] = _never,
        steps_max: int = STEPS_MAX,
        overlay: AllocationOverlay | None = None,
        policy: DevicePolicy | None = None,
    ) -> Outcome:
        """Allocate as `allocate` does, without share IDs: the outcome is the same for all claims with equal specs.

        With an overlay the devices count as allocated there. Of several devices the policy's is taken.
        """
        plan = self.plan(claims, policy)
        view = self.inventory.node_view(node, self.gates)
        if overlay is not None:
            return self._search(plan, view, Limits(expired, steps_max), overlay, policy)
        outcome = self._query.lookup_view(view)
        if outcome is None:
            outcome = self._search(plan, view, Limits(expired, steps_max), self.allocations, policy)
            self._query.add(view, outcome)
        return outcome

    def fits_all(
        self, nodes: Sequence[NodeEntry], claims: Sequence[ResourceClaim], policy: DevicePolicy | None = None
    ) -> list[bool | None]:
        """Return whether the claims fit on each of the nodes; None where `find` has to search.

        Cached results decide, and for a claim with a single request the number of available devices.
        """
        plan = self.plan(claims, policy)
        found = self._query.lookup_all(nodes)
        if self._query.counted is not None:
            for position, fits in enumerate(found):
                if fits is None:
                    found[position] = self._count(plan, nodes[position].node, policy)
        return found

    def _count(self, plan: Plan, node: Node, policy: DevicePolicy | None) -> bool | None:
        """Return whether the claims fit on a node by the number of available devices, and cache the result."""
        view = self.inventory.node_view(node, self.gates)
        outcome = self._outcome_by_count(plan, view, self.allocations, policy)
        if outcome is None:
            return None
        self._query.add(view, outcome)
        return outcome.fits

    def _outcome_by_count(
        self, plan: Plan, view: NodeView, allocations: AllocatedDevices, policy: DevicePolicy | None
    ) -> Outcome | None:
        """Return the outcome that the number of available devices decides; None if a search is needed."""
        request = self._query.counted
        fits = None if request is None else fits_by_count(request, view, allocations, self.inventory.taint_rules)
        if fits is None:
            return None
        return Outcome(None, find=partial(self._counted_results, plan, view, allocations, policy)) if fits else _NO_FIT

    def _search(
        self,
        plan: Plan,
        view: NodeView,
        limits: Limits,
        allocations: AllocatedDevices,
        policy: DevicePolicy | None,
    ) -> Outcome:
        counted = self._outcome_by_count(plan, view, allocations, policy)
        if counted is not None:
            return counted
        choices = Chooser(plan, view, allocations, self.inventory.taint_rules).choices()
        if choices is None:
            return self._no_fit(view, _NO_FIT)
        results_of = self._results if self._query.counted is None else self._counted_results
        find = partial(results_of, plan, view, allocations, policy)
        if _is_decided(view, choices) and not limits.expired():
            return Outcome(None, find=find)
        search = Search(plan, choices, view, allocations, limits)
        if search.run():
            return Outcome(None, search.steps, find=find)
        for request in choices:
            for choice in request.choices:
                if choice.obstacle is not None:
                    raise choice.obstacle
        return self._no_fit(view, Outcome(None, search.steps))

    def _results(
        self, plan: Plan, view: NodeView, allocations: AllocatedDevices, policy: DevicePolicy | None
    ) -> tuple[AllocationResult, ...] | None:
        """Return the allocations on a node where the claims fit."""
        choices = Chooser(plan, view, allocations, self.inventory.taint_rules).choices()
        if choices is None:
            return None
        if policy is not None:
            _set_orders(policy, view, allocations, choices)
        search = Search(plan, choices, view, allocations, Limits(_never))
        return results(search) if search.run() else None

    def _counted_results(
        self, plan: Plan, view: NodeView, allocations: AllocatedDevices, policy: DevicePolicy | None
    ) -> tuple[AllocationResult, ...] | None:
        """Return what `_results` returns for a counted request; most need no search."""
        request = plan.requests[0].alternatives[0]
        devices = None
        # A claim without requests has a result, too.
        if policy is None and len(plan.claims) == 1:
            devices = first_devices(request, view, allocations, self.inventory.taint_rules)
        if devices is None:
            return self._results(plan, view, allocations, policy)
        return (result(view, plan.claims[0], [(request, *device) for device in devices]),)

    def still_fits(self, node: Node, allocations: Sequence[AllocationResult], state: AllocatedDevices) -> bool:
        """Return whether the devices of earlier results are free in another state of allocations."""
        return still_fits(self.inventory.node_view(node, self.gates), allocations, state)

    def local_devices(self, node: Node) -> frozenset[str]:
        """Return the keys of the node's devices that no other node can use."""
        return self.inventory.node_view(node, self.gates).local_keys()

    def explain(self, node: Node, claims: Sequence[ResourceClaim]) -> Explanation:
        """Return for each request and device why the claims do not fit on the node; never raises."""
        try:
            plan = self.plan(claims)
        except AllocationError as error:
            return Explanation(node.metadata.name or "", fits=False, requests=(), summary=str(error))
        view = self.inventory.node_view(node, self.gates)
        return Explainer(plan, view, self.inventory, self.allocations).explain()

    def usage(self, node: Node, class_name: str, overlay: AllocationOverlay | None = None) -> tuple[int, int]:
        """Return how many of the node's devices of the class are in use, and how many there are."""
        device_class = self.inventory.device_class(class_name)
        if device_class is None:
            return 0, 0
        expressions = [item.cel.expression for item in device_class.spec.selectors if item.cel is not None]
        view = self.inventory.node_view(node, self.gates)
        matching, _ = view.matches(self._groups.group(expressions, ()))
        return (matching & view.blocked(overlay or self.allocations)).bit_count(), matching.bit_count()

    def plan(self, claims: Sequence[ResourceClaim], policy: DevicePolicy | None = None) -> Plan:
        """Return the plan for the claims; the last one is reused while claims, classes and policy are the same."""
        version = self.inventory.classes_version
        if version != self._planned_at or policy is not self._planned_for or not _same(self._planned, claims):
            self._query = self._cache.query(claims, self._new_plan, policy)
            self._plan = self._query.plan.for_claims(claims)
            self._planned, self._planned_at, self._planned_for = tuple(claims), version, policy
        return self._plan

    def _new_plan(self, claims: Sequence[ResourceClaim]) -> Plan:
        return Planner(self.gates, self._groups, self.inventory.classes).plan(claims)

    def _no_fit(self, view: NodeView, outcome: Outcome) -> Outcome:
        """Return a negative outcome, or raise if the node has an invalid pool."""
        if view.invalid:
            raise NodeAllocationError(INVALID_POOLS)
        return outcome


def _is_decided(view: NodeView, requests: Sequence[RequestChoices]) -> bool:
    """Return whether any available device will do, so that the number of them has decided.

    A search would take half as long again on nodes with several slices, of which `counting` knows nothing.
    """
    if len(requests) != 1 or len(requests[0].choices) != 1:
        return False
    choice = requests[0].choices[0]
    alternative = choice.alternative
    if alternative.takes_all or alternative.admin_access or alternative.constraints or choice.failing:
        return False
    # Devices that share counters exclude each other.
    return not view.consumers & choice.available


def _set_orders(
    policy: DevicePolicy, view: NodeView, allocations: AllocatedDevices, requests: Sequence[RequestChoices]
) -> None:
    for request in requests:
        for choice in request.choices:
            # All devices are taken in any order, and admin access takes none from others.
            if choice.feasible and not choice.alternative.takes_all and not choice.alternative.admin_access:
                choice.set_order(policy.order(view, allocations, choice))


def _same(planned: Sequence[ResourceClaim], claims: Sequence[ResourceClaim]) -> bool:
    if len(planned) != len(claims):
        return False
    return all(one is other for one, other in zip(planned, claims, strict=True))
