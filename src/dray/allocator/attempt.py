"""The state of a search: the devices, shares and counters it has taken, and the states of constraints.

Taking a device records in its frame how to undo it. Frames are undone in reverse order, which restores the previous
state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from dray.allocator.allocations import AllocatedDevices
from dray.allocator.capacity import fits, share
from dray.allocator.choices import Choice, RequestChoices
from dray.allocator.compatibility import CommonGroups, conflicting_set, with_device
from dray.allocator.constraints import ConstraintState
from dray.allocator.plan import Alternative, Plan
from dray.allocator.pools import CounterName, Pool, PoolDevice
from dray.allocator.view import NodeView

_K = TypeVar("_K")


class Frame:
    """The decision on one device of one request."""

    __slots__ = (
        "amounts",
        "candidates",
        "choice",
        "choice_number",
        "claim",
        "constraints_before",
        "groups_before",
        "index",
        "ordinal",
        "request",
        "share_before",
        "start",
        "took_counters",
        "used_before",
    )

    def __init__(self, request: int, choice_number: int, ordinal: int, requests: RequestChoices, start: int) -> None:
        self.request = request
        self.claim = requests.claim
        self.choice_number = choice_number
        self.choice: Choice = requests.choices[choice_number]
        self.ordinal = ordinal
        # The initial candidates, and those not tried yet.
        self.start = start
        self.candidates = start
        # The taken device, and the state to restore.
        self.index = -1
        self.used_before = 0
        self.constraints_before: tuple[ConstraintState, ...] = ()
        self.share_before: Mapping[str, int] | None = None
        self.amounts: Mapping[str, int] | None = None
        self.took_counters = False
        self.groups_before: CommonGroups | None = None


class Attempt:
    """The state of a search, except its position."""

    __slots__ = (
        "_counters",
        "_groups",
        "admin_used",
        "allocations",
        "claim_used",
        "constraint_states",
        "counts",
        "plan",
        "shares",
        "taken",
        "view",
    )

    def __init__(self, plan: Plan, view: NodeView, allocations: AllocatedDevices) -> None:
        self.plan = plan
        self.view = view
        self.allocations = allocations
        # Devices taken exclusively by this search.
        self.taken = 0
        # Capacity consumed by the shares of this search, by device.
        self.shares: dict[int, Mapping[str, int]] = {}
        self._counters: dict[str, dict[CounterName, int]] = {}
        # Compatibility groups with the devices of this search, of pools from which it has taken any.
        self._groups: dict[str, CommonGroups] = {}
        # By claim: its devices, those with admin access, and their number.
        count = len(plan.claims)
        self.claim_used = [0] * count
        self.admin_used = [0] * count
        self.counts = [0] * count
        self.constraint_states: list[tuple[ConstraintState, ...]] = [
            (None,) * len(claim.constraints) for claim in plan.claims
        ]

    def candidates(self, claim: int, choice: Choice, after: int) -> int:
        """Return the devices after the index that are not taken.

        A claim gets a device once, with or without admin access, unless the device can be shared.
        """
        usable = choice.available | choice.failing
        shared = self.view.shared
        if choice.alternative.admin_access:
            usable &= ~self.claim_used[claim] | shared
        else:
            usable &= ~self.taken & (~self.admin_used[claim] | shared)
        return choice.after(usable, after)

    def take(self, frame: Frame, index: int) -> bool:
        """Take the device if constraints, counters and capacity allow it."""
        alternative = frame.choice.alternative
        bit = 1 << index
        claim = frame.claim
        before = self.constraint_states[claim]
        if alternative.constraints:
            after = self._constrained(claim, alternative, self.view.device(index))
            if after is None:
                return False
            self.constraint_states[claim] = after
        frame.constraints_before = before
        if alternative.admin_access:
            self.admin_used[claim] |= bit
        elif not bit & (self.view.shared | self.view.consumers):
            self.taken |= bit
        elif not self._take_part(frame, index):
            self.constraint_states[claim] = before
            return False
        frame.index = index
        frame.used_before = self.claim_used[claim]
        self.claim_used[claim] |= bit
        self.counts[claim] += 1
        return True

    def undo(self, frame: Frame) -> None:
        """Undo what the frame took."""
        index, bit = frame.index, 1 << frame.index
        claim = frame.claim
        frame.index = -1
        self.constraint_states[claim] = frame.constraints_before
        self.claim_used[claim] = frame.used_before
        self.counts[claim] -= 1
        if frame.choice.alternative.admin_access:
            self.admin_used[claim] &= ~bit
            return
        if frame.took_counters:
            device = self.view.device(index)
            self._count(device, -1)
            frame.took_counters = False
            if frame.groups_before is not None:
                self._groups[device.entry.pool.key] = frame.groups_before
                frame.groups_before = None
        if frame.amounts is None:
            self.taken &= ~bit
            return
        if frame.share_before is None:
            del self.shares[index]
        else:
            self.shares[index] = frame.share_before
        frame.share_before = frame.amounts = None

    def _take_part(self, frame: Frame, index: int) -> bool:
        """Take a share of the device, or the counters it consumes, or both."""
        device = self.view.device(index)
        shared = bool(self.view.shared >> index & 1)
        amounts: Mapping[str, int] | None = None
        before = self.shares.get(index)
        if shared:
            amounts = share(device.content, frame.choice.alternative.capacity)
            if amounts is None or self.lacking_capacity(index, device, amounts) is not None:
                return False
        # A shared device consumes counters once, for its first share.
        in_use = shared and (before is not None or self.allocations.is_shared(device.key))
        consumes = bool(device.consumes) and not in_use
        if consumes and (self.lacking_counter(device) is not None or self.conflicting_set(device) is not None):
            return False
        frame.took_counters = consumes
        frame.share_before, frame.amounts = before, amounts
        if consumes:
            self._count(device, 1)
            if device.entry.pool.is_grouped:
                frame.groups_before = self._common_groups(device.entry.pool)
                self._groups[device.entry.pool.key] = with_device(frame.groups_before, device.groups)
        if amounts is None:
            self.taken |= 1 << index
        else:
            self.shares[index] = _sum(before or {}, amounts)
        return True

    def lacking_capacity(self, index: int, device: PoolDevice, amounts: Mapping[str, int]) -> str | None:
        """Return the capacity that is insufficient for one more share."""
        return fits(device.content, amounts, self.allocations.consumed(device.key), self.shares.get(index, {}))

    def lacking_counter(self, device: PoolDevice) -> CounterName | None:
        """Return the counter that is insufficient for the device."""
        pool = device.entry.pool
        used = pool.used_counters(self.allocations)
        also = self._counters.get(pool.key)
        return pool.lacking_counter(device, _sum(used, also) if also else used)

    def conflicting_set(self, device: PoolDevice) -> str | None:
        """Return the counter set whose devices in use are not compatible with the device."""
        pool = device.entry.pool
        return conflicting_set(self._common_groups(pool), device.groups) if pool.is_grouped else None

    def _common_groups(self, pool: Pool) -> CommonGroups:
        found = self._groups.get(pool.key)
        return pool.common_groups(self.allocations) if found is None else found

    def counters_of(self, pool: Pool) -> Mapping[CounterName, int]:
        """Return what this search consumes of the pool's counters."""
        return self._counters.get(pool.key, {})

    def parts(self) -> tuple[object, object, object]:
        """Return the shares and counters taken, and compatibility groups, for comparing states."""
        shares = tuple(sorted((index, tuple(sorted(used.items()))) for index, used in self.shares.items()))
        used = ((pool, *item) for pool, used in self._counters.items() for item in used.items() if item[1])
        groups = tuple((pool, tuple(sorted(common.items()))) for pool, common in sorted(self._groups.items()))
        return shares, tuple(sorted(used)), groups

    def _count(self, device: PoolDevice, sign: int) -> None:
        used = self._counters.setdefault(device.entry.pool.key, {})
        for counter, amount in device.consumes:
            used[counter] = used.get(counter, 0) + sign * amount

    def _constrained(
        self, claim: int, alternative: Alternative, device: PoolDevice
    ) -> tuple[ConstraintState, ...] | None:
        """Return the constraints' states with the device; None if it violates one."""
        states: list[ConstraintState] = list(self.constraint_states[claim])
        constraints = self.plan.claims[claim].constraints
        for position in alternative.constraints:
            after = constraints[position].add(states[position], device.content, alternative.group.derived)
            if after is None:
                return None
            states[position] = after
        return tuple(states)


def _sum(one: Mapping[_K, int], other: Mapping[_K, int]) -> dict[_K, int]:
    total = dict(one)
    for key, amount in other.items():
        total[key] = total.get(key, 0) + amount
    return total
