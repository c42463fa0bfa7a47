"""Sets of devices as integers: bit i stands for the i-th device of a node, in the order of the search."""

from __future__ import annotations

from collections.abc import Iterator


def indices(mask: int) -> Iterator[int]:
    """The members, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def lowest(mask: int) -> int:
    """The first member of a set that is not empty."""
    return (mask & -mask).bit_length() - 1


def above(mask: int, index: int) -> int:
    """The members after the index."""
    return mask >> (index + 1) << (index + 1)
