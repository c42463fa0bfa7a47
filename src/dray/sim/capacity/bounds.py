"""What nodes for some Pods cost at least, whatever the packing. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

# Prices are compared in millionths.
_MILLION: Final = 1_000_000
_TOLERANCE: Final = 0.001


@dataclass(frozen=True, slots=True)
class Need:
    """What Pods need beyond what existing nodes could give, and what one node of each shape gives of it."""

    amount: float
    per_node: tuple[float, ...]


def price_bound(needs: Sequence[Need], prices: Sequence[float]) -> float:
    """Return the least price: for each need, that of the shape that gives most of it for the money."""
    bound = max((_bound(need, prices) for need in needs), default=0.0)
    return _rounded_up(bound, prices)


def _bound(need: Need, prices: Sequence[float]) -> float:
    if need.amount <= 0:
        return 0.0
    ratios = [price / given for price, given in zip(prices, need.per_node, strict=True) if given > 0]
    return need.amount * min(ratios) if ratios else 0.0


def _rounded_up(bound: float, prices: Sequence[float]) -> float:
    """Return the next sum of prices: all are multiples of their greatest common divisor."""
    whole = [round(price * _MILLION) for price in prices]
    divisor = reduce(math.gcd, whole, 0)
    if not divisor or any(
        abs(price * _MILLION - number) > _TOLERANCE for price, number in zip(prices, whole, strict=True)
    ):
        return bound
    return math.ceil(round(bound * _MILLION / divisor, 6)) * divisor / _MILLION


def removable_bound(capacities: Sequence[Sequence[int]], free: Sequence[int]) -> int:
    """Return how many nodes can be removed at most: their capacity must be free elsewhere, in each dimension."""
    bounds = [len(capacities)]
    for dimension, amount in enumerate(free):
        left, count = amount, 0
        for capacity in sorted(node[dimension] for node in capacities):
            if capacity > left:
                break
            left -= capacity
            count += 1
        bounds.append(count)
    return min(bounds)
