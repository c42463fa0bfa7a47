"""Filling a node with typical Pods one after the other, to see what stays free of its devices. Pure.

What a Pod takes depends only on its demands and on the units in their order. So each order is kept with what follows
it: fills of many nodes go through the same few orders, and a step is a look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from dray.allocator.units import Demands, PodKind, UnitTable

# A node is filled this often, each time with this many Pods.
FILLS: Final = 16
FILL_LENGTH: Final = 30
# Orders that are kept; beyond that all are computed anew.
ORDERS_MAX: Final = 200_000

_UNLIMITED: Final = 1 << 62
_NO_DEMANDS: Final = -1
# A linear congruential generator, so that the fills are the same in every process.
_FACTOR: Final = 6364136223846793005
_INCREMENT: Final = 1442695040888963407
_MODULUS: Final = 1 << 64


class Filled(NamedTuple):
    """What a fill uses: thousandths of devices, CPU and memory."""

    devices: int
    milli_cpu: int
    memory: int


class _Order:
    """The units of a node that are not full, the fullest first."""

    __slots__ = ("after", "free", "units")

    def __init__(self, units: tuple[int, ...], free: int, kinds: int) -> None:
        self.units = units
        # In thousandths of devices.
        self.free = free
        # By number of the demands: the order with such a Pod, and whether it got all that it demands; when needed.
        self.after: list[tuple[_Order, bool] | None] = [None] * kinds


class NodeFiller:
    """Fills nodes with the typical kinds of Pods, in several orders of arrival."""

    def __init__(self, table: UnitTable, best_after: Callable[[int, int], int]) -> None:
        self._table = table
        # The state of a unit after the best placement of a demand on it; negative if there is none.
        self._best_after = best_after
        self._demands: list[Demands] = []
        # Each Pod of each fill: the number of its demands, CPU and memory.
        self._fills: list[list[tuple[int, int, int]]] = []
        self._orders: dict[tuple[int, ...], _Order] = {}

    def set_typical(self, typical: Sequence[tuple[PodKind, int]]) -> None:
        """Replace the typical kinds of Pods and their shares."""
        numbers: dict[Demands, int] = {(): _NO_DEMANDS}
        for kind, _ in typical:
            numbers.setdefault(kind.demands, len(numbers) - 1)
        self._demands = [demands for demands in numbers if demands]
        self._fills = [
            [(numbers[kind.demands], kind.milli_cpu, kind.memory) for kind in fill] for fill in typical_fills(typical)
        ]
        self.clear()

    def clear(self) -> None:
        """Drop all orders: the best placements have changed."""
        self._orders.clear()

    def unlimited(self, units: Iterable[int]) -> list[Filled]:
        """Return what each fill uses of a node with enough CPU and memory."""
        start = self._start(units)
        return [self._fill(start, _UNLIMITED, _UNLIMITED, fill) for fill in self._fills]

    def devices(self, units: Iterable[int], milli_cpu: int, memory: int, unlimited: Iterable[Filled]) -> list[int]:
        """Return how many thousandths of devices each fill uses, where `unlimited` is known for the units."""
        start: _Order | None = None
        found: list[int] = []
        for known, fill in zip(unlimited, self._fills, strict=True):
            # With enough CPU and memory the same Pods fit as without limits.
            if known.milli_cpu <= milli_cpu and known.memory <= memory:
                found.append(known.devices)
                continue
            if start is None:
                start = self._start(units)
            found.append(self._fill(start, milli_cpu, memory, fill).devices)
        return found

    def _fill(self, order: _Order, milli_cpu: int, memory: int, fill: Iterable[tuple[int, int, int]]) -> Filled:
        free, left_cpu, left_memory = order.free, milli_cpu, memory
        for number, pod_cpu, pod_memory in fill:
            if pod_cpu > left_cpu or pod_memory > left_memory:
                continue
            if number >= 0:
                # What a Pod with several demands has taken before one that is not met stays taken: such Pods are rare.
                order, fits = order.after[number] or self._after(order, number)
                if not fits:
                    continue
            left_cpu -= pod_cpu
            left_memory -= pod_memory
        return Filled(free - order.free, milli_cpu - left_cpu, memory - left_memory)

    def _start(self, units: Iterable[int]) -> _Order:
        free = self._table.free
        return self._order(sorted([unit for unit in units if free[unit]], key=free.__getitem__))

    def _order(self, units: Iterable[int]) -> _Order:
        key = tuple(units)
        found = self._orders.get(key)
        if found is None:
            if len(self._orders) >= ORDERS_MAX:
                self._orders.clear()
            free = self._table.free
            found = self._orders[key] = _Order(key, sum([free[unit] for unit in key]), len(self._demands))
        return found

    def _after(self, order: _Order, number: int) -> tuple[_Order, bool]:
        """Return the order with one more Pod, and whether all of its demands are met."""
        units = list(order.units)
        fits = all(self._take_fullest(units, demand, count) for demand, count in self._demands[number])
        found = order.after[number] = self._order(units), fits
        return found

    def _take_fullest(self, units: list[int], demand: int, count: int) -> bool:
        """Take the fullest units that meet the demand, and order the units again; False if there are too few."""
        found: list[tuple[int, int]] = []
        for position, unit in enumerate(units):
            after = self._best_after(unit, demand)
            if after >= 0:
                found.append((position, after))
                if len(found) == count:
                    for at, taken in found:
                        units[at] = taken
                    units.sort(key=self._table.free.__getitem__)
                    return True
        return False


def typical_fills(typical: Sequence[tuple[PodKind, int]]) -> Iterator[tuple[PodKind, ...]]:
    """Yield sequences of typical Pods, each kind about as often as its share."""
    ends = list(accumulate(share for _, share in typical))
    number = 1
    for _ in range(FILLS if typical else 0):
        fill = []
        for _ in range(FILL_LENGTH):
            number = (number * _FACTOR + _INCREMENT) % _MODULUS
            point = number * ends[-1] // _MODULUS
            fill.append(next(kind for (kind, _), end in zip(typical, ends, strict=True) if point < end))
        yield tuple(fill)
