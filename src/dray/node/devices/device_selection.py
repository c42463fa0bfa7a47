"""Selects the devices of a container. Pure and deterministic: devices are taken in the order of their names.

Devices of finished init containers come first, then devices with an affinity to the wanted NUMA nodes, then the rest.
Where there is a choice the plugin is asked for its preference; unavailable devices in its response are ignored.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dray.node.devices.inventory import Device, in_order


@dataclass(frozen=True, slots=True)
class PreferenceRequest:
    """A request of GetPreferredAllocation: `size` of the available devices, including `must_include`."""

    available: tuple[str, ...]
    must_include: tuple[str, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Candidates:
    """The devices to choose from, in the order of names; `reusable` ones are for this container only."""

    needed: int
    free: tuple[Device, ...]
    reusable: tuple[str, ...] = ()
    # The wanted NUMA nodes; None means any.
    affinity: int | None = None


class TooFewError(Exception):
    """Not enough devices are free."""

    def __init__(self, needed: int, available: int) -> None:
        super().__init__(f"{needed} needed, {available} available")
        self.needed = needed
        self.available = available


def choose(candidates: Candidates, preference: Sequence[str] | None) -> PreferenceRequest | tuple[str, ...]:
    """Return the devices, or the preference request that must be answered first; raises `TooFewError`."""
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
        # Aligned devices are all taken before the plugin is asked about the rest.
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
    """Return the devices with affinity to the wanted nodes, to other nodes, and to none."""
    if affinity is None or not any(device.mask for device in devices):
        return (), (), tuple([device.id for device in devices])
    aligned = tuple(device.id for device in devices if device.mask & affinity)
    unaligned = tuple(device.id for device in devices if device.mask and not device.mask & affinity)
    return aligned, unaligned, tuple(device.id for device in devices if not device.mask)
