"""Which devices a container gets. Pure, and the same for the same state: devices go in the order of their names.

First what init containers of the Pod left, then devices close to the wanted NUMA nodes, then the others. Where there
is a choice the plugin may be asked which it prefers; its answer is a hint, what it names wrongly is passed over.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dray.node.devices.inventory import Device

_NUMBERS: Final = re.compile(r"([0-9]+)")
# The same devices are sorted again and again; a node has hundreds of them, seldom thousands.
NAMES_KEPT: Final = 16384


@dataclass(frozen=True, slots=True)
class Question:
    """What a plugin is asked: choose `size` of the available ones, among them those that must be included."""

    available: tuple[str, ...]
    must_include: tuple[str, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Candidates:
    """What there is to choose from: `free` can be given to anybody, `reusable` only to this container."""

    needed: int
    free: tuple[Device, ...]
    reusable: tuple[str, ...] = ()
    # The wanted NUMA nodes; None when any will do.
    affinity: int | None = None


class TooFewError(Exception):
    """Not enough devices are free."""

    def __init__(self, needed: int, available: int) -> None:
        super().__init__(f"{needed} needed, {available} available")
        self.needed = needed
        self.available = available


@functools.lru_cache(maxsize=NAMES_KEPT)
def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A key for sorting that counts numbers inside of names: gpu2 before gpu10."""
    parts = _NUMBERS.split(name)
    return tuple((0, int(part), part) if index % 2 else (1, 0, part) for index, part in enumerate(parts))


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """The names sorted naturally."""
    return tuple(sorted(names, key=natural))


def choose(candidates: Candidates, preference: Sequence[str] | None) -> Question | tuple[str, ...]:
    """The devices; or the question to ask first, unless a preference (which may be empty) is given."""
    taken = candidates.reusable[: candidates.needed]
    missing = candidates.needed - len(taken)
    if not missing:
        return taken
    if len(candidates.free) < missing:
        raise TooFewError(missing, len(candidates.free))
    free = in_order(device.id for device in candidates.free)
    aligned, unaligned, elsewhere = split_by_affinity(candidates.free, candidates.affinity)
    if missing < len(aligned):
        pool, rest = aligned, aligned
    else:
        # The promised alignment is kept: all that is close goes first, and only then the plugin is asked.
        taken += aligned
        missing -= len(aligned)
        pool, rest = free, unaligned + elsewhere
    if missing and preference is None:
        return Question(in_order({*pool, *taken}), in_order(taken), candidates.needed)
    return _fill(taken, candidates.needed, (name for name in preference or () if name in set(pool)), rest)


def _fill(taken: Sequence[str], needed: int, *sources: Iterable[str]) -> tuple[str, ...]:
    chosen = dict.fromkeys(taken)
    for source in sources:
        for name in source:
            if len(chosen) < needed:
                chosen.setdefault(name)
    assert len(chosen) == needed, "the sources hold all free devices"
    return tuple(chosen)


def split_by_affinity(
    devices: Collection[Device], affinity: int | None
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The devices close to the wanted nodes, those close to others, and those close to none."""
    if affinity is None or not any(device.mask for device in devices):
        return (), (), in_order(device.id for device in devices)
    aligned = in_order(device.id for device in devices if device.mask & affinity)
    unaligned = in_order(device.id for device in devices if device.mask and not device.mask & affinity)
    return aligned, unaligned, in_order(device.id for device in devices if not device.mask)
