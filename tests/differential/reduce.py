"""Finds a small part of a case in which something still holds, for instance that two schedulers differ.

Parts are left out as long as they can be, in halves, quarters and so on down to single ones (delta debugging). The
result is minimal: without any one of its parts, it no longer holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.differential.cases import Case, Step

# An object of the cluster (0, number, 0), or of a step (1, step, number); without its last object, a step does nothing.
_Part = tuple[int, int, int]


def smallest_case(case: Case, holds: Callable[[Case], bool]) -> Case:
    """Return a minimal case in which it holds; it must hold in the given one."""
    parts: list[_Part] = [(0, number, 0) for number in range(len(case.objects))]
    parts += [(1, at, number) for at, step in enumerate(case.steps) for number in range(len(step.objects))]
    size = len(parts)
    while size:
        start, before = 0, len(parts)
        while start < len(parts):
            fewer = parts[:start] + parts[start + size :]
            if holds(_with(case, fewer)):
                parts = fewer
            else:
                start += size
        # What could not be left out may be of no use now.
        size = size // 2 if size > 1 or len(parts) == before else 1
    return _with(case, parts)


def _with(case: Case, parts: list[_Part]) -> Case:
    """Return the case with these parts alone."""
    kept = set(parts)
    steps: list[Step] = []
    for at, step in enumerate(case.steps):
        last = len(step.objects) - 1
        if (1, at, last) in kept:
            objects = tuple(item for number, item in enumerate(step.objects) if (1, at, number) in kept)
            steps.append(replace(step, objects=objects))
    objects = tuple(item for number, item in enumerate(case.objects) if (0, number, 0) in kept)
    return replace(case, objects=objects, steps=tuple(steps))
