"""Fragmentation: how much of a node's free devices the Pods that are typical of the cluster cannot use. Pure.

A node's value has two parts, both in thousandths of devices. The first is the expected amount of free devices that a
typical Pod cannot use, as published for Fragmentation Gradient Descent; a kind of Pod counts the more the less of the
cluster is left for it, so that what few can use is kept for those who need it. The second is what stays free when the
node is filled with typical Pods one after the other, which shows what a lack of CPU or memory, or a remainder that is
too small, costs in the end. All numbers are integers, so that equal states have equal values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import mul
from typing import Final

from dray.allocator.fills import FILLS, Filled, NodeFiller
from dray.allocator.units import PodKind, UnitTable

# Weights are parts of a million.
MILLION: Final = 1_000_000
# What stays free when a node is filled counts this much: it is lost for all Pods that may come, not for the next one.
UNFILLED_PERCENT: Final = 150
# What is left for a kind of Pod counts as at least this part of the cluster.
LEFT_MIN_PERCENT: Final = 1
# States of nodes that are kept; beyond that all are computed anew.
STATES_MAX: Final = 100_000

_ALL_PERCENT: Final = 100
_NO_UNIT: Final = -1


class _UnitSet:
    """The units of a node, in these states: what can be said without its CPU and memory."""

    __slots__ = ("fills", "free", "units", "usable")

    def __init__(self, units: tuple[int, ...], free: int) -> None:
        self.units = units
        # Of all devices, in thousandths.
        self.free = free
        # For each typical kind, what it can use; and what each fill uses of devices, CPU and memory. When needed.
        self.usable: Sequence[int] | None = None
        self.fills: Sequence[Filled] = ()


class NodeState:
    """The free resources of a node; nodes with the same share one object."""

    __slots__ = (
        "_value",
        "_value_at",
        "after",
        "free",
        "memory",
        "milli_cpu",
        "unfilled",
        "unit_set",
        "units",
        "usable",
    )

    def __init__(self, unit_set: _UnitSet, milli_cpu: int, memory: int) -> None:
        self.unit_set = unit_set
        self.units = unit_set.units
        self.milli_cpu = milli_cpu
        self.memory = memory
        self.free = unit_set.free
        # For each typical kind, what it can use; and what stays free when the node is filled. Computed when needed.
        self.usable: Sequence[int] | None = None
        self.unfilled = 0
        self._value = 0
        self._value_at = -1
        # Kind of Pod -> the state with such a Pod; itself if it does not fit.
        self.after: dict[PodKind, NodeState] = {}

    def value(self, model: FragmentationModel) -> int:
        """Return what cannot be used, in millionths of a thousandth."""
        if self._value_at != model.version:
            self._value_at, self._value = model.version, model.compute_value(self)
        return self._value


class FragmentationModel:
    """Values of node states, for typical Pods and their weights."""

    def __init__(self, table: UnitTable) -> None:
        self.table = table
        # Grows whenever values change; and whenever states of nodes must be looked up again.
        self.version = 0
        self.generation = 0
        self._typical: tuple[tuple[PodKind, int], ...] = ()
        self._weights: Sequence[int] = ()
        self._filler = NodeFiller(table, self.best_after)
        # By demand, for choosing among the units of a node.
        self._demand_weights: Mapping[int, int] = {}
        self._epoch = table.epoch
        self._states: dict[tuple[tuple[int, ...], int, int], NodeState] = {}
        self._unit_sets: dict[tuple[int, ...], _UnitSet] = {}
        self._worths: dict[int, int] = {}
        # Demand -> unit -> the unit after the best placement.
        self._best: defaultdict[int, dict[int, int]] = defaultdict(dict)

    # --- What is typical. ---

    @property
    def typical(self) -> Sequence[tuple[PodKind, int]]:
        """Return the typical kinds of Pods with their shares in millionths."""
        return self._typical

    def set_typical(self, typical: Sequence[tuple[PodKind, int]]) -> None:
        """Replace the typical kinds of Pods; until `weigh` they count by their shares."""
        self._typical = tuple(typical)
        self._filler.set_typical(self._typical)
        self.table.keep_groups(demand for kind, _ in typical for demand, _ in kind.demands)
        self._drop_states()
        self._weigh([share if kind.demands else 0 for kind, share in self._typical])

    def weigh(self, states: Iterable[NodeState]) -> None:
        """Weigh each typical kind by its share and by how little of the cluster it can use."""
        left = [0] * len(self._typical)
        free = capacity = 0
        for state in states:
            free += state.free
            capacity += len(state.units)
            left = [one + other for one, other in zip(left, self._usable(state), strict=True)]
        least = capacity * 1000 * LEFT_MIN_PERCENT // _ALL_PERCENT + 1
        self._weigh(
            [
                share * (free + least) // (usable + least) if kind.demands else 0
                for (kind, share), usable in zip(self._typical, left, strict=True)
            ]
        )

    def _weigh(self, weights: Sequence[int]) -> None:
        total = sum(weights) or 1
        self._weights = [MILLION * weight // total for weight in weights]
        demands: dict[int, int] = {}
        for (kind, _), weight in zip(self._typical, self._weights, strict=True):
            for demand, _ in kind.demands:
                demands[demand] = demands.get(demand, 0) + weight
        self._demand_weights = demands
        self._worths.clear()
        self._best.clear()
        self._filler.clear()
        for state in self._states.values():
            # Which units a Pod gets depends on the weights.
            state.after.clear()
        self.version += 1

    # --- Units. ---

    def worth(self, unit: int) -> int:
        """Return what typical requests can use of a unit, weighted."""
        worth = self._worths.get(unit)
        if worth is None:
            free, options = self.table.free[unit], self.table.options
            usable = (weight for demand, weight in self._demand_weights.items() if options(unit, demand))
            worth = self._worths[unit] = free * sum(usable)
        return worth

    def rank(self, unit: int, after: int) -> tuple[int, int, int]:
        """Return the key by which a placement on a unit is preferred, lowest first.

        The least is lost for typical requests; then the fullest unit, and the one that keeps most partitions possible.
        """
        return self.worth(unit) - self.worth(after), self.table.free[unit], -self.table.allocatable_size(after)

    def best_after(self, unit: int, demand: int) -> int:
        """Return the state of a unit after the best placement of the demand on it; -1 if there is none."""
        found = self._best[demand].get(unit)
        if found is None:
            options = self.table.options(unit, demand)
            found = min((after for _, after in options), key=lambda after: self.rank(unit, after), default=_NO_UNIT)
            self._best[demand][unit] = found
        return found

    # --- Nodes. ---

    def refresh(self) -> None:
        """Drop what is known about units that are numbered anew."""
        if self._epoch != self.table.epoch:
            self._epoch = self.table.epoch
            self._drop_states()
            self._worths.clear()
            self._best.clear()
            self._filler.clear()
            self.version += 1

    def _drop_states(self) -> None:
        self._states.clear()
        self._unit_sets.clear()
        self.generation += 1

    def state(self, units: Iterable[int], milli_cpu: int, memory: int) -> NodeState:
        """Return the state of a node with these units, in any order."""
        self.refresh()
        key = (tuple(sorted(units)), milli_cpu, memory)
        state = self._states.get(key)
        if state is None:
            if len(self._states) >= STATES_MAX:
                self._states.clear()
                self._unit_sets.clear()
            state = self._states[key] = NodeState(self._unit_set(key[0]), milli_cpu, memory)
        return state

    def _unit_set(self, units: tuple[int, ...]) -> _UnitSet:
        found = self._unit_sets.get(units)
        if found is None:
            free = self.table.free
            found = self._unit_sets[units] = _UnitSet(units, sum([free[unit] for unit in units]))
        return found

    def loss(self, state: NodeState, kind: PodKind) -> int:
        """Return by how many thousandths of devices a Pod makes the node's value worse."""
        return (self.after(state, kind).value(self) - state.value(self)) // MILLION

    def after(self, state: NodeState, kind: PodKind) -> NodeState:
        """Return the state of a node with one more Pod of the kind; the same state if no devices are left for it."""
        after = state.after.get(kind)
        if after is None:
            after = state.after[kind] = self._after(state, kind)
        return after

    def _after(self, state: NodeState, kind: PodKind) -> NodeState:
        units = list(state.units)
        for demand, count in kind.demands:
            if not self._take(units, demand, count):
                # The model is simpler than the allocator, which has found devices.
                return state
        return self.state(units, state.milli_cpu - kind.milli_cpu, state.memory - kind.memory)

    def _take(self, units: list[int], demand: int, count: int) -> bool:
        """Take the best units for the demand; nothing changes if there are too few."""
        options = [
            (self.rank(unit, after), position, after)
            for position, unit in enumerate(units)
            if (after := self.best_after(unit, demand)) >= 0
        ]
        if len(options) < count:
            return False
        for _, position, after in sorted(options)[:count]:
            units[position] = after
        return True

    # --- Values. ---

    def compute_value(self, state: NodeState) -> int:
        """Return the value of a state for the current weights; use `NodeState.value`."""
        usable = self._usable(state)
        used: int = sum(map(mul, self._weights, usable))
        return MILLION * state.free + MILLION * UNFILLED_PERCENT // _ALL_PERCENT * state.unfilled - used

    def _usable(self, state: NodeState) -> Sequence[int]:
        if state.usable is None:
            unit_set = state.unit_set
            if unit_set.usable is None:
                self._compute(unit_set)
            assert unit_set.usable is not None, "computed above"
            milli_cpu, memory = state.milli_cpu, state.memory
            state.usable = [
                usable if kind.milli_cpu <= milli_cpu and kind.memory <= memory else 0
                for (kind, _), usable in zip(self._typical, unit_set.usable, strict=True)
            ]
            filled = self._filler.devices(state.units, milli_cpu, memory, unit_set.fills)
            state.unfilled = state.free - sum(filled) // FILLS
        return state.usable

    def _compute(self, unit_set: _UnitSet) -> None:
        by_demand = {demand: self._usable_by(unit_set, demand) for demand in self._demand_weights}
        unit_set.usable = [_least_usable(kind, by_demand) for kind, _ in self._typical]
        unit_set.fills = self._filler.unlimited(unit_set.units)

    def _usable_by(self, unit_set: _UnitSet, demand: int) -> tuple[int, int]:
        """Return how many units meet the demand, and what is free of these."""
        options, free = self.table.options, self.table.free
        amounts = [free[unit] for unit in unit_set.units if free[unit] and options(unit, demand)]
        return len(amounts), sum(amounts)


def _least_usable(kind: PodKind, by_demand: Mapping[int, tuple[int, int]]) -> int:
    """Return how much of the free devices a Pod of the kind could use; of several demands the least."""
    least = -1
    for demand, count in kind.demands:
        found, amount = by_demand[demand]
        if found < count:
            return 0
        least = amount if least < 0 else min(least, amount)
    return max(least, 0)
