"""Units: the parts of a node that devices are allocated from, with every state they can be in as a number.

A unit is a device, or all devices that share counters (a card and its partitions). What a device request takes from a
unit depends on the unit's state alone, so that the states that follow are computed once for the whole cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, TypeAlias

import msgspec

from dray.allocator.allocations import AllocatedDevices
from dray.allocator.capacity import CapacityRequestError, fits, nanos, offers, share
from dray.allocator.content import Content
from dray.allocator.plan import Alternative
from dray.allocator.pools import PoolDevice
from dray.allocator.selection import SelectorGroup
from dray.allocator.view import NodeView

# A unit that is free, in thousandths.
WHOLE: Final = 1000
# Selectors that distinguish units; requests with others count as if they accepted every device.
GROUPS_MAX: Final = 64
# States that are kept; beyond that all are computed anew.
STATES_MAX: Final = 200_000

_ALONE: Final = -1
_FREE: Final = 0
# How a device is used: free, by one claim alone, or what its shares consume of each capacity.
_Use: TypeAlias = "int | tuple[int, ...]"
_Uses: TypeAlias = tuple[_Use, ...]
# Numbers of demands, with how many units of each are wanted.
Demands: TypeAlias = tuple[tuple[int, int], ...]


class Demand(msgspec.Struct, frozen=True):
    """What a request wants of one device."""

    group: SelectorGroup
    capacity: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, alternative: Alternative) -> Demand:
        """Return the demand of an alternative."""
        return cls(alternative.group, tuple(sorted(alternative.capacity.items())))


class PodKind(msgspec.Struct, frozen=True):
    """What a Pod requests: CPU, memory, and how many devices of each demand."""

    milli_cpu: int
    memory: int
    demands: Demands = ()


class _Part(msgspec.Struct, frozen=True):
    """A device of a unit; `consumes` has amounts of the unit's counters, by position."""

    content: Content
    shared: bool
    consumes: tuple[tuple[int, int], ...]


class _Kind(msgspec.Struct, frozen=True):
    """What equal units have in common; `counters` has the whole amounts."""

    parts: tuple[_Part, ...]
    counters: tuple[int, ...]


class Layout(msgspec.Struct, frozen=True):
    """A unit on a node: its kind, and its devices by their numbers in the view."""

    kind: int
    indices: tuple[int, ...]
    devices: tuple[PoolDevice, ...]


class UnitTable:
    """The states of units of all nodes; a state is a number."""

    def __init__(self) -> None:
        self._demands: dict[Demand, int] = {}
        self.demands: list[Demand] = []
        self._groups: dict[SelectorGroup, None] = {}
        # Grows when all states become invalid.
        self.epoch = 0
        self._layouts: dict[str, tuple[NodeView, tuple[Layout, ...]]] = {}
        self._reset()

    def _reset(self) -> None:
        self.epoch += 1
        self._layouts.clear()
        self._kinds: list[_Kind] = []
        self._kind_numbers: dict[object, int] = {}
        self._appearances: dict[Content, tuple[object, ...]] = {}
        self._numbers: dict[tuple[int, _Uses], int] = {}
        self._states: list[tuple[int, _Uses]] = []
        # By state: what is free of the unit, in thousandths.
        self.free: list[int] = []
        self._options: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {}

    def demand(self, alternative: Alternative) -> int:
        """Return the number of the alternative's demand; numbers never change."""
        demand = Demand.of(alternative)
        number = self._demands.get(demand)
        if number is None:
            number = self._demands[demand] = len(self.demands)
            self.demands.append(demand)
        if demand.group not in self._groups and len(self._groups) < GROUPS_MAX:
            self._groups[demand.group] = None
            self._reset()
        return number

    def keep_groups(self, demands: Iterable[int]) -> None:
        """Tell units apart by the selectors of these demands only, if there are too many."""
        if len(self._groups) >= GROUPS_MAX:
            self._groups = {self.demands[number].group: None for number in demands}
            self._reset()

    # --- Nodes. ---

    def layouts(self, view: NodeView) -> tuple[Layout, ...]:
        """Return the units of the node's own devices."""
        known = self._layouts.get(view.name)
        if known is None or known[0] is not view:
            known = self._layouts[view.name] = view, tuple(self._find_layouts(view))
        return known[1]

    def forget(self, name: str) -> None:
        """Drop what is known of a removed node."""
        self._layouts.pop(name, None)

    def _find_layouts(self, view: NodeView) -> Iterator[Layout]:
        for indices in _connected(view):
            devices = tuple(view.device(index) for index in indices)
            names = list(dict.fromkeys(counter for device in devices for counter, _ in device.consumes))
            position = {name: number for number, name in enumerate(names)}
            parts = tuple(
                _Part(
                    device.content,
                    bool(view.shared >> index & 1),
                    tuple((position[counter], amount) for counter, amount in device.consumes),
                )
                for index, device in zip(indices, devices, strict=True)
            )
            totals = devices[0].entry.pool.counters
            kind = _Kind(parts, tuple(totals.get(name, 0) for name in names))
            yield Layout(self._kind_number(kind), indices, devices)

    def _kind_number(self, kind: _Kind) -> int:
        parts = [(self._appearance(part.content), part.shared, part.consumes) for part in kind.parts]
        key = (tuple(parts), kind.counters)
        number = self._kind_numbers.get(key)
        if number is None:
            number = self._kind_numbers[key] = len(self._kinds)
            self._kinds.append(kind)
        return number

    def _appearance(self, content: Content) -> tuple[object, ...]:
        """Return what requests see of a device: which selectors match, and its capacities."""
        found = self._appearances.get(content)
        if found is None:
            matching = tuple(group.verdict(content) is None for group in self._groups)
            found = self._appearances[content] = matching, _capacities(content), _policies(content)
        return found

    def state(self, layout: Layout, allocations: AllocatedDevices) -> int:
        """Return the state of a unit."""
        parts = self._kinds[layout.kind].parts
        uses = tuple(_use(*pair, allocations) for pair in zip(parts, layout.devices, strict=True))
        return self._number(layout.kind, uses)

    def empty_state(self, layout: Layout) -> int:
        """Return the state of a unit of which nothing is allocated."""
        return self._number(layout.kind, (_FREE,) * len(layout.devices))

    def emptied(self, state: int) -> int:
        """Return the state of the same unit of which nothing is allocated."""
        kind, uses = self._states[state]
        return self._number(kind, (_FREE,) * len(uses))

    def _number(self, kind: int, uses: _Uses) -> int:
        number = self._numbers.get((kind, uses))
        if number is None:
            number = self._numbers[kind, uses] = len(self._states)
            self._states.append((kind, uses))
            self.free.append(_free(self._kinds[kind], uses))
        return number

    def check_size(self) -> None:
        """Drop all states if there are too many."""
        if len(self._states) + len(self._options) > STATES_MAX:
            self._reset()

    # --- What requests take. ---

    def options(self, state: int, demand: int) -> tuple[tuple[int, int], ...]:
        """Return the devices of the unit, by position, that meet the demand, with the state after each."""
        found = self._options.get((state, demand))
        if found is None:
            found = self._options[state, demand] = tuple(self._find_options(state, self.demands[demand]))
        return found

    def _find_options(self, state: int, demand: Demand) -> Iterator[tuple[int, int]]:
        number, uses = self._states[state]
        kind = self._kinds[number]
        used = _used_counters(kind, uses)
        for position, part in enumerate(kind.parts):
            if demand.group in self._groups and demand.group.verdict(part.content) is not None:
                continue
            use = _taken(part, uses[position], dict(demand.capacity))
            if use is None:
                continue
            if uses[position] == _FREE and any(used[at] + amount > kind.counters[at] for at, amount in part.consumes):
                continue
            yield position, self._number(number, (*uses[:position], use, *uses[position + 1 :]))

    def allocatable_size(self, state: int) -> int:
        """Return the sizes of the unit's devices that could still be allocated, added up; 0 without counters."""
        number, uses = self._states[state]
        kind = self._kinds[number]
        if not kind.counters:
            return 0
        used = _used_counters(kind, uses)
        total = 0
        for part, use in zip(kind.parts, uses, strict=True):
            if use == _FREE and all(used[at] + amount <= kind.counters[at] for at, amount in part.consumes):
                total += sum(WHOLE * amount // kind.counters[at] for at, amount in part.consumes if kind.counters[at])
        return total


def _connected(view: NodeView) -> Iterator[tuple[int, ...]]:
    """Yield the node's own devices; those that share counter sets together."""
    groups: dict[tuple[str, str], list[int]] = {}
    for index, device in enumerate(device for segment in view.segments for device in segment.devices):
        if not view.is_local(device):
            continue
        if not device.consumes:
            yield (index,)
            continue
        keys = dict.fromkeys((device.entry.pool.key, counter_set) for (counter_set, _), _ in device.consumes)
        joined = {id(groups[key]): groups[key] for key in keys if key in groups}
        if len(joined) == 1:
            (members,) = joined.values()
            members.append(index)
        else:
            members = sorted((*chain.from_iterable(joined.values()), index))
            for key in [key for key, group in groups.items() if id(group) in joined]:
                groups[key] = members
        for key in keys:
            groups[key] = members
    for members in {id(group): group for group in groups.values()}.values():
        yield tuple(members)


def _capacities(content: Content) -> tuple[tuple[str, int], ...]:
    return tuple((name, nanos(item.value)) for name, item in content.capacity.items())


def _policies(content: Content) -> tuple[object, ...]:
    return tuple(item.request_policy for item in content.capacity.values())


def _use(part: _Part, device: PoolDevice, allocations: AllocatedDevices) -> _Use:
    if allocations.in_use(device.key, shareable=part.shared):
        return _ALONE
    if not part.shared or not allocations.is_shared(device.key):
        return _FREE
    consumed = allocations.consumed(device.key)
    return tuple(consumed.get(name, 0) for name in part.content.capacity)


def _taken(part: _Part, use: _Use, capacity: Mapping[str, str]) -> _Use | None:
    """Return how the device is used after one more request; None if it cannot be."""
    if use == _ALONE:
        return None
    try:
        if not part.shared:
            return _ALONE if use == _FREE and offers(part.content, capacity) else None
        taken = share(part.content, capacity)
    except CapacityRequestError:
        return None
    if taken is None:
        return None
    names = tuple(part.content.capacity)
    before = dict(zip(names, use, strict=True)) if isinstance(use, tuple) else {}
    if fits(part.content, taken, before, {}) is not None:
        return None
    return tuple(before.get(name, 0) + taken.get(name, 0) for name in names)


def _used_counters(kind: _Kind, uses: _Uses) -> list[int]:
    used = [0] * len(kind.counters)
    for part, use in zip(kind.parts, uses, strict=True):
        if use != _FREE:
            for at, amount in part.consumes:
                used[at] += amount
    return used


def _free(kind: _Kind, uses: _Uses) -> int:
    """Return what is free, in thousandths: the mean of all counters, or of the device's capacities."""
    if kind.counters:
        used = _used_counters(kind, uses)
        return _mean((total - amount, total) for total, amount in zip(kind.counters, used, strict=True))
    use = uses[0]
    if not isinstance(use, tuple):
        return WHOLE if use == _FREE else 0
    capacities = _capacities(kind.parts[0].content)
    return _mean((total - amount, total) for (_, total), amount in zip(capacities, use, strict=True))


def _mean(fractions: Iterable[tuple[int, int]]) -> int:
    shares: Sequence[int] = [WHOLE * max(free, 0) // total for free, total in fractions if total]
    return sum(shares) // len(shares) if shares else WHOLE
