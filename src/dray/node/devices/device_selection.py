"""Which devices a container gets. Pure, and the same for the same state: devices go in the order of their names.

First what init containers of the Pod left, then devices close to the wanted NUMA nodes, then the others. Where there
is a choice the plugin may be asked which it prefers; its answer is a hint, what it names wrongly is passed over.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dray.node.devices.inventory import Device, in_order


@dataclass(frozen=True, slots=True)
class PreferenceRequest:
    """What a plugin is asked: choose `size` of the available ones, among them those that must be included."""

    available: tuple[str, ...]
    must_include: tuple[str, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Candidates:
    """What there is to choose from, in the order of names: `free` for anybody, `reusable` only for this container."""

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


def choose(candidates: Candidates, preference: Sequence[str] | None) -> PreferenceRequest | tuple[str, ...]:
    """The devices; or the question to ask first, unless a preference (which may be empty) is given."""
    taken = candidates.reusable[: candidates.needed]
    missing = candidates.needed - len(taken)
    if not missing:
        return taken
    if len(candidates.free) < missing:
        raise TooFewError(missing, len(candidates.free))
    aligned, unaligned, elsewhere = split_by_affinity(candidates.free, candidates.affinity)
    if missing < len(aligned):
        pool, rest = aligned, aligned
    else:
        # The promised alignment is kept: all that is close goes first, and only then the plugin is asked.
        taken += aligned
        missing -= len(aligned)
        pool, rest = tuple([device.id for device in candidates.free]), unaligned + elsewhere
    if missing and preference is None:
        return PreferenceRequest(in_order({*pool, *taken}), in_order(taken), candidates.needed)
    preferred = set(pool).intersection(preference or ())
    return _fill(taken, candidates.needed, [name for name in preference or () if name in preferred], rest)


def _fill(taken: Sequence[str], needed: int, *sources: Iterable[str]) -> tuple[str, ...]:
    chosen = dict.fromkeys(taken)
    for name in itertools.chain(*sources):
        if len(chosen) == needed:
            break
        chosen.setdefault(name)
    assert len(chosen) == needed, "the sources hold all free devices"
    return tuple(chosen)


def split_by_affinity(
    devices: Sequence[Device], affinity: int | None
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The devices close to the wanted nodes, those close to others, and those close to none."""
    if affinity is None or not any(device.mask for device in devices):
        return (), (), tuple([device.id for device in devices])
    aligned = tuple(device.id for device in devices if device.mask & affinity)
    unaligned = tuple(device.id for device in devices if device.mask and not device.mask & affinity)
    return aligned, unaligned, tuple(device.id for device in devices if not device.mask)
