"""Sets of devices as bit masks: bit i is the i-th device of a node, in search order."""

from __future__ import annotations

from collections.abc import Iterator


def indices(mask: int) -> Iterator[int]:
    """Yield the members, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def lowest(mask: int) -> int:
    """Return the first member of a non-empty set."""
    return (mask & -mask).bit_length() - 1


def above(mask: int, index: int) -> int:
    """Return the members after the index."""
    return mask >> (index + 1) << (index + 1)
