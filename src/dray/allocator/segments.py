"""Segments: devices of one slice that nodes can use, with cached masks.

A segment is shared by all nodes that see it, so that devices of the whole cluster are judged once and not once per
node. Sets of its devices are integers, bit i for its i-th device.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Final

from dray.allocator.bits import indices
from dray.allocator.compatibility import conflicting_set
from dray.allocator.content import CapacityKey
from dray.allocator.gates import Gates
from dray.allocator.selection import Failure, SelectorGroup
from dray.allocator.taints import TaintRule, blocks, intolerable
from dray.api.types.resource_v1 import DeviceTaint, DeviceToleration

if TYPE_CHECKING:
    from dray.allocator.allocations import AllocatedDevices
    from dray.allocator.pools import Pool, PoolDevice

# Cached sets per segment; with more distinct claims caching does not help.
_MASKS_MAX: Final = 256


class TaintRules:
    """The current rules; replaced as a whole, so that identity shows a change."""

    __slots__ = ("rules",)

    def __init__(self, rules: Sequence[TaintRule] = ()) -> None:
        self.rules = tuple(rules)


class Segment:
    """Devices of one slice that one or more nodes can use, in slice order."""

    __slots__ = (
        "_bits",
        "_blocked",
        "_counted_at",
        "_keys",
        "_matches",
        "_partly_consumed",
        "_rules",
        "_tainted",
        "_taints",
        "_untolerated",
        "capacity_groups",
        "consumers",
        "devices",
        "has_binding_conditions",
        "pool",
        "shared",
    )

    def __init__(self, pool: Pool, devices: Sequence[PoolDevice], gates: Gates) -> None:
        self.pool = pool
        self.devices = tuple(devices)
        self.has_binding_conditions = any(device.spec.binding_conditions for device in self.devices)
        # Devices that consume shared counters, and shareable devices.
        self.consumers = _mask(bool(device.consumes) for device in self.devices)
        self.shared = (
            _mask(device.content.allow_multiple for device in self.devices) if gates.consumable_capacity else 0
        )
        # The shareable devices by what they offer.
        self.capacity_groups = _capacity_groups(self.devices, self.shared)
        self._keys = tuple(device.key for device in self.devices)
        self._bits = tuple(1 << index for index in range(len(self.devices)))
        self._matches: dict[SelectorGroup, tuple[int, int]] = {}
        self._blocked = 0
        self._partly_consumed = 0
        self._counted_at: tuple[object, int, int] | None = None
        self._rules: TaintRules | None = None
        self._taints: dict[int, tuple[DeviceTaint, ...]] = {}
        self._tainted = 0
        self._untolerated: dict[tuple[DeviceToleration, ...], int] = {}

    def matches(self, group: SelectorGroup) -> tuple[int, int]:
        """Return the devices that all selectors match, and those for which one fails."""
        known = self.known_matches(group)
        if known is None:
            if len(self._matches) >= _MASKS_MAX:
                self._matches.clear()
            known = self._matches[group] = self._evaluate(group)
        return known

    def known_matches(self, group: SelectorGroup) -> tuple[int, int] | None:
        """Return what `matches` returns; None if the selectors were not evaluated yet."""
        return self._matches.get(group)

    def _evaluate(self, group: SelectorGroup) -> tuple[int, int]:
        matching = failing = 0
        for index, device in enumerate(self.devices):
            verdict = group.verdict(device.content)
            if verdict is None:
                matching |= 1 << index
            elif isinstance(verdict, Failure):
                failing |= 1 << index
        return matching, failing

    def blocked(self, allocations: AllocatedDevices) -> int:
        """Return the devices that are in use, lack counters, or are incompatible with devices in use."""
        self._count_uses(allocations)
        return self._blocked

    def partly_consumed(self, allocations: AllocatedDevices) -> int:
        """Return the shareable devices of which claims have shares."""
        self._count_uses(allocations)
        return self._partly_consumed

    def uses(self, allocations: AllocatedDevices) -> tuple[int, int]:
        """Return what `blocked` and `partly_consumed` return."""
        self._count_uses(allocations)
        return self._blocked, self._partly_consumed

    def _count_uses(self, allocations: AllocatedDevices) -> None:
        at = (allocations, allocations.stamp(self.pool.key), self.pool.version)
        if self._counted_at == at:
            return
        self._counted_at, self._blocked, self._partly_consumed = at, 0, 0
        keys = allocations.keys_in_use(self.pool.key)
        if keys:
            in_use = self._members(keys)
            # What is not shared is used by one claim alone.
            shared = self._shared_among(in_use, allocations) if allocations.has_shares() else 0
            self._partly_consumed = shared & self.shared
            self._blocked = in_use & ~self._partly_consumed
        if self.consumers:
            self._blocked |= self._without_counters(allocations)

    def _shared_among(self, in_use: int, allocations: AllocatedDevices) -> int:
        """Return the devices in use of which claims have shares, without those that a claim uses alone."""
        shared = 0
        for index in indices(in_use & ~self._members(allocations.dedicated)):
            if allocations.is_shared(self._keys[index]):
                shared |= 1 << index
        return shared

    def _members(self, keys: Container[str]) -> int:
        """Return the devices whose keys are in a collection: the sum of their different bits."""
        return sum(compress(self._bits, map(keys.__contains__, self._keys)))

    def _without_counters(self, allocations: AllocatedDevices) -> int:
        used = self.pool.used_counters(allocations)
        common = self.pool.common_groups(allocations)
        lacking = 0
        for index, device in enumerate(self.devices):
            # A shared device consumes counters once, for its first share.
            if device.consumes and not allocations.is_shared(device.key):
                blocked = self.pool.lacking_counter(device, used) is not None
                blocked = blocked or (bool(common) and conflicting_set(common, device.groups) is not None)
                lacking |= blocked << index
        return lacking

    def untolerated(self, tolerations: tuple[DeviceToleration, ...], rules: TaintRules) -> int:
        """Return the devices with untolerated taints."""
        if self._rules is not rules:
            self._find_taints(rules)
        if not self._tainted or not tolerations:
            return self._tainted
        known = self._untolerated.get(tolerations)
        if known is None:
            if len(self._untolerated) >= _MASKS_MAX:
                self._untolerated.clear()
            known = 0
            for index, taints in self._taints.items():
                known |= (intolerable(taints, tolerations) is not None) << index
            self._untolerated[tolerations] = known
        return known

    def taints(self, index: int, rules: TaintRules) -> tuple[DeviceTaint, ...]:
        """Return the blocking taints of a device, those of its slice first."""
        if self._rules is not rules:
            self._find_taints(rules)
        return self._taints.get(index, ())

    def _find_taints(self, rules: TaintRules) -> None:
        self._rules, self._taints, self._tainted = rules, {}, 0
        self._untolerated.clear()
        for index, device in enumerate(self.devices):
            found = device.taints
            if rules.rules:
                driver, pool = self.pool.driver, self.pool.name
                found += tuple([rule.taint for rule in rules.rules if rule.selects(driver, pool, device.name)])
            taints = [taint for taint in found if blocks(taint)] if found else []
            if taints:
                self._taints[index] = tuple(taints)
                self._tainted |= 1 << index


def _capacity_groups(devices: Sequence[PoolDevice], shared: int) -> tuple[tuple[CapacityKey | None, int], ...]:
    """Return the shareable devices that offer the same capacities, with the key of these."""
    groups: dict[CapacityKey | None, int] = {}
    for index in indices(shared):
        key = devices[index].content.capacity_key
        groups[key] = groups.get(key, 0) | 1 << index
    return tuple(groups.items())


def _mask(flags: Iterable[bool]) -> int:
    mask = 0
    for index, flag in enumerate(flags):
        mask |= flag << index
    return mask
