"""Sets of CPUs as the kernel writes them: `0-3,8`. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

# The kernel's own bound for x86 is 8192; a longer list is a mistake in a file.
CPUS_MAX: Final = 65536


def parse_cpus(text: str) -> frozenset[int]:
    """Read a list of numbers and ranges; raises ValueError."""
    found: set[int] = set()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        first, separator, last = part.partition("-")
        start, end = int(first), int(last if separator else first)
        if not 0 <= start <= end < CPUS_MAX:
            raise ValueError(f'invalid range of CPUs "{part}"')
        found.update(range(start, end + 1))
    return frozenset(found)


def format_cpus(cpus: Iterable[int]) -> str:
    """Write a list with ranges."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
