"""Least and most of a cost or a size, as estimates count them; nothing passes the largest uint64."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from dray.cel.values import UINT_MAX


class Range(NamedTuple):
    """Least and most of a cost or a size."""

    least: int
    most: int

    def plus(self, other: Range) -> Range:
        """The sum."""
        return Range(min(self.least + other.least, UINT_MAX), min(self.most + other.most, UINT_MAX))

    def times(self, other: Range) -> Range:
        """The product."""
        return Range(min(self.least * other.least, UINT_MAX), min(self.most * other.most, UINT_MAX))

    def scaled(self, factor: float) -> Range:
        """The product with a factor, rounded up."""
        return Range(scale(self.least, factor), scale(self.most, factor))

    def union(self, other: Range) -> Range:
        """The range that covers both."""
        return Range(min(self.least, other.least), max(self.most, other.most))


def scale(amount: int, factor: float) -> int:
    """The product, rounded up."""
    return min(math.ceil(amount * factor), UINT_MAX)


UNKNOWN: Final = Range(0, UINT_MAX)
ZERO: Final = Range(0, 0)
ONE: Final = Range(1, 1)


def fixed(amount: int) -> Range:
    """A range of one number."""
    return Range(amount, amount)
