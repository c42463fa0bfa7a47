"""The devices that each alternative of each request can use on one node, before the search."""

from __future__ import annotations

from collections.abc import Sequence

from dray.allocator.allocations import AllocatedDevices
from dray.allocator.bits import above, indices, lowest
from dray.allocator.capacity import CapacityRequestError, most_consumed, offers
from dray.allocator.content import CapacityKey
from dray.allocator.errors import AllocationError, NodeAllocationError, UndefinedAllError
from dray.allocator.plan import DEVICES_MAX, Alternative, Plan, PlannedRequest, check_size, device_error
from dray.allocator.segments import TaintRules
from dray.allocator.view import NodeView


class Choice:
    """An alternative on a node; sets of devices use the numbers of the view."""

    __slots__ = (
        "_later",
        "_order",
        "alternative",
        "available",
        "everything",
        "failing",
        "feasible",
        "needed",
        "obstacle",
    )

    def __init__(self, alternative: Alternative) -> None:
        self.alternative = alternative
        # Devices that can be used, and those that cannot be evaluated, which end the attempt when they are tried.
        self.available = 0
        self.failing = 0
        # For mode All, the devices that must all be allocated.
        self.everything = 0
        self.needed = alternative.count
        # Whether there are enough devices for this request alone.
        self.feasible = False
        # Why this alternative cannot be evaluated on the node.
        self.obstacle: UndefinedAllError | None = None
        # The order in which devices are tried, and for each device those that come later; None means by number.
        self._order: Sequence[int] | None = None
        self._later: dict[int, int] = {}

    def set_order(self, order: Sequence[int]) -> None:
        """Try the devices, which are all that can be used, in this order."""
        self._order, self._later = order, {}
        later = 0
        for index in reversed(order):
            self._later[index] = later
            later |= 1 << index

    def first(self, candidates: int) -> int:
        """Return which of the candidates is tried first."""
        if self._order is None:
            return lowest(candidates)
        return next(index for index in self._order if candidates >> index & 1)

    def after(self, candidates: int, index: int) -> int:
        """Return those of the candidates that are tried after a device; all if it is negative."""
        if self._order is None or index < 0:
            return above(candidates, index)
        return candidates & self._later[index]


class RequestChoices:
    """A request and its alternatives on a node."""

    __slots__ = ("choices", "claim", "feasible", "request")

    def __init__(self, request: PlannedRequest, choices: Sequence[Choice]) -> None:
        self.request = request
        self.claim = request.claim
        self.choices = choices
        # Whether an alternative can be satisfied for this request alone.
        self.feasible = False
        for choice in choices:
            self.feasible = self.feasible or choice.feasible

    @property
    def least(self) -> int:
        """Return the fewest devices that satisfy the request here."""
        return min(choice.needed for choice in self.choices)


class Chooser:
    """Computes the choices of a plan on one node."""

    __slots__ = ("_allocations", "_blocked", "_plan", "_rules", "_view")

    def __init__(self, plan: Plan, view: NodeView, allocations: AllocatedDevices, rules: TaintRules) -> None:
        self._plan = plan
        self._view = view
        self._allocations = allocations
        self._rules = rules
        self._blocked = view.blocked(allocations)

    def choices(self) -> list[RequestChoices] | None:
        """Return the choices of every request; None if one of them cannot be satisfied."""
        found = []
        for request in self._plan.requests:
            choices = self.choose(request)
            if not choices.feasible:
                self._explain_failure(choices)
                return None
            found.append(choices)
        self._check_sizes(found)
        return found

    def choose(self, request: PlannedRequest) -> RequestChoices:
        """Return the choices of one request."""
        return RequestChoices(request, [self._choice(request, alternative) for alternative in request.alternatives])

    def _choice(self, request: PlannedRequest, alternative: Alternative) -> Choice:
        choice = Choice(alternative)
        matching, choice.failing = self._view.matches(alternative.group)
        if alternative.takes_all:
            self._choose_all(request, choice, matching)
            return choice
        available = matching
        if not alternative.admin_access:
            available &= ~self._blocked
            choice.failing &= ~self._blocked
        if self._view.gates.taints:
            available &= ~self._view.untolerated(alternative.tolerations, self._rules)
        choice.available = self._with_capacity(choice, available)
        enough = (choice.available | choice.failing).bit_count() >= choice.needed
        choice.feasible = enough and choice.needed <= DEVICES_MAX
        return choice

    def _choose_all(self, request: PlannedRequest, choice: Choice, matching: int) -> None:
        alternative = choice.alternative
        if choice.failing:
            # The set of all devices must be known before any is allocated.
            raise self.failure(request, choice)
        # What others consume does not make a device less a part of "all": it makes the request wait.
        choice.everything = self._with_capacity(choice, matching, whole=True)
        if choice.failing:
            raise self.failure(request, choice)
        choice.needed = choice.everything.bit_count()
        choice.available = self._with_capacity(choice, choice.everything)
        if not alternative.admin_access:
            choice.available &= ~self._blocked
        if self._view.gates.taints:
            choice.available &= ~self._view.untolerated(alternative.tolerations, self._rules)
        choice.obstacle = self._obstacle(request, alternative)
        complete = choice.available == choice.everything and choice.obstacle is None
        choice.feasible = complete and 0 < choice.needed <= DEVICES_MAX

    def _obstacle(self, request: PlannedRequest, alternative: Alternative) -> UndefinedAllError | None:
        """Return why "all" is undefined: a pool of the node is incomplete or invalid."""
        for pools, state in ((self._view.incomplete, "being updated"), (self._view.invalid, "invalid")):
            if pools:
                label = self._plan.claims[request.claim].label
                problem = f"asks for all devices, but resource pool {pools[0].key} is currently {state}"
                return UndefinedAllError(label, alternative.name, problem)
        return None

    def _with_capacity(self, choice: Choice, devices: int, *, whole: bool = False) -> int:
        """Return the devices with the requested capacity, as if unused if `whole`.

        A share needs some capacity left, even without a request. Devices that the request cannot be applied to are
        added to the failing ones.
        """
        alternative, view = choice.alternative, self._view
        if alternative.admin_access or not (alternative.capacity or view.shared):
            return devices
        if alternative.capacity:
            for index in indices(devices & ~view.shared):
                try:
                    if not offers(view.devices[index].content, alternative.capacity):
                        devices ^= 1 << index
                except CapacityRequestError:
                    choice.failing |= 1 << index
                    devices ^= 1 << index
        for key, group in view.capacity_groups:
            members = devices & group
            if members:
                devices ^= members ^ self._with_share(choice, key, members, whole=whole)
        return devices

    def _with_share(self, choice: Choice, key: CapacityKey | None, members: int, *, whole: bool) -> int:
        """Return those of the shareable devices with the same capacities that have enough of them left."""
        alternative, devices = choice.alternative, self._view.devices
        most = alternative.shares.get(key)
        if most is None:
            try:
                most = alternative.shares[key] = most_consumed(devices[lowest(members)].content, alternative.capacity)
            except CapacityRequestError:
                choice.failing |= members
                return 0
        for _, amount in most:
            if amount < 0:
                return 0
        # Of the others nothing is consumed.
        for index in () if whole else indices(members & self._view.partly_consumed(self._allocations)):
            consumed = self._allocations.consumed(devices[index].key)
            for name, amount in most:
                if consumed.get(name, 0) > amount:
                    members ^= 1 << index
                    break
        return members

    def failure(self, request: PlannedRequest, choice: Choice) -> AllocationError:
        """Return the error of the first device that cannot be evaluated."""
        device = self._view.device(lowest(choice.failing))
        return device_error(self._plan.claims[request.claim], choice.alternative, device)

    def _explain_failure(self, choices: RequestChoices) -> None:
        """Raise the error of an unsatisfiable request that could not be evaluated."""
        for choice in choices.choices:
            if choice.failing:
                raise self.failure(choices.request, choice)
        for choice in choices.choices:
            if choice.obstacle is not None:
                raise choice.obstacle

    def _check_sizes(self, found: list[RequestChoices]) -> None:
        if len(found) == 1:
            # A single feasible request is within the limit.
            return
        for position, claim in enumerate(self._plan.claims):
            least = sum(choices.least for choices in found if choices.claim == position)
            check_size(claim.label, least, NodeAllocationError)
