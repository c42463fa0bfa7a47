"""Which of several devices that meet a request is taken. Pure.

`first` is Kubernetes': the first in the order of slices and devices. The others only change the order in which devices
are tried, never whether claims fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from dray.allocator.allocations import AllocatedDevices
from dray.allocator.bits import indices
from dray.allocator.choices import Choice
from dray.allocator.fragmentation import FragmentationModel
from dray.allocator.units import UnitTable
from dray.allocator.view import NodeView

FIRST: Final = "first"
BEST_FIT: Final = "best-fit"
FRAGMENTATION: Final = "fragmentation"
DEVICE_POLICIES: Final = (FIRST, BEST_FIT, FRAGMENTATION)


class DevicePolicy(Protocol):
    """Orders the devices that an alternative can use on a node."""

    name: str

    def order(self, view: NodeView, allocations: AllocatedDevices, choice: Choice) -> Sequence[int]:
        """Return the available devices, the preferred first."""


class _Ranked:
    """Orders devices by a rank of the unit's states before and after."""

    name = ""

    def __init__(self, model: FragmentationModel) -> None:
        self._model = model
        self._table: UnitTable = model.table

    def order(self, view: NodeView, allocations: AllocatedDevices, choice: Choice) -> Sequence[int]:
        """Return the available devices, the preferred first; devices of other nodes last."""
        usable = choice.available | choice.failing
        demand = self._table.demand(choice.alternative)
        ranks: dict[int, tuple[int, ...]] = {}
        for layout in self._table.layouts(view):
            if not any(usable >> index & 1 for index in layout.indices):
                continue
            unit = self._table.state(layout, allocations)
            for position, after in self._table.options(unit, demand):
                ranks[layout.indices[position]] = self._rank(unit, after)
        return _by_rank(usable, ranks)

    def _rank(self, unit: int, after: int) -> tuple[int, ...]:
        raise NotImplementedError


def _by_rank(usable: int, ranks: Mapping[int, tuple[int, ...]]) -> list[int]:
    ranked = [index for index in indices(usable) if index in ranks]
    # Sorting is stable: of equal ranks the first device.
    ranked.sort(key=ranks.__getitem__)
    return ranked + [index for index in indices(usable) if index not in ranks]


class BestFit(_Ranked):
    """Prefers the fullest device or card; on a card, the placement that keeps the largest partitions possible."""

    name = BEST_FIT

    def _rank(self, unit: int, after: int) -> tuple[int, ...]:
        return self._table.free[unit], -self._table.allocatable_size(after)


class Fragmentation(_Ranked):
    """Prefers the placement that leaves most for typical requests."""

    name = FRAGMENTATION

    def _rank(self, unit: int, after: int) -> tuple[int, ...]:
        return self._model.rank(unit, after)


def make_policy(name: str, model: FragmentationModel) -> DevicePolicy | None:
    """Return the policy; None for `first`."""
    if name == BEST_FIT:
        return BestFit(model)
    return Fragmentation(model) if name == FRAGMENTATION else None
