"""Allocations with some claims taken out and some results added, without copying them.

For dry runs of preemption: the claims of victims are taken out, and the results recorded for nominated Pods are added.
The allocations below must not change while an overlay is used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from dray.allocator.allocations import AllocatedDevices, Allocations, DeviceUse, device_uses
from dray.allocator.capacity import fits
from dray.allocator.compatibility import CommonGroups, conflicting_set, with_device
from dray.allocator.pools import CounterName, PoolDevice
from dray.allocator.view import NodeView
from dray.api.types.resource_v1 import AllocationResult

_NONE: Final[Mapping[str, int]] = {}


class AllocationOverlay:
    """Implements `AllocatedDevices`. Taking out and putting back are inverses in any order."""

    __slots__ = ("_added", "_base", "_consumed", "_dedicated", "_keys", "_out", "_shares", "_stamp", "dedicated")

    def __init__(self, base: Allocations) -> None:
        self._base = base
        self._out: dict[str, tuple[DeviceUse, ...]] = {}
        self._added: dict[str, tuple[DeviceUse, ...]] = {}
        # Of devices that differ from the base: the number of claims that use them alone, and the consumed capacity
        # and number of shares.
        self._dedicated: dict[str, int] = {}
        self._shares: dict[str, int] = {}
        self._consumed: dict[str, dict[str, int]] = {}
        # Of pools that differ: the devices in use, each with the number of uses.
        self._keys: dict[str, dict[str, int]] = {}
        self._stamp = 0
        self.dedicated = _Dedicated(self._dedicated, base)

    def clone(self) -> AllocationOverlay:
        """Return a copy that can be changed apart."""
        copy = AllocationOverlay(self._base)
        copy._out = dict(self._out)
        copy._added = dict(self._added)
        copy._dedicated.update(self._dedicated)
        copy._shares = dict(self._shares)
        copy._consumed = {key: dict(amounts) for key, amounts in self._consumed.items()}
        copy._keys = {pool: dict(keys) for pool, keys in self._keys.items()}
        return copy

    # ---- changes

    def take_out(self, *identities: str) -> None:
        """Leave out claims, by uid, that are allocated below; twice is the same as once."""
        uses: list[DeviceUse] = []
        for identity in identities:
            holding = None if identity in self._out else self._base.uses_of(identity)
            if holding is not None:
                self._out[identity] = holding[1]
                uses += holding[1]
        if uses:
            self._count(uses, -1)

    def put_back(self, *identities: str) -> None:
        """Undo `take_out`."""
        uses: list[DeviceUse] = []
        for identity in identities:
            uses += self._out.pop(identity, ())
        if uses:
            self._count(uses, 1)

    def is_out(self, identity: str) -> bool:
        """Return whether a claim is left out."""
        return identity in self._out

    @property
    def out(self) -> frozenset[str]:
        """Return the claims that are left out."""
        return frozenset(self._out)

    @property
    def added(self) -> frozenset[str]:
        """Return the names under which results are added."""
        return frozenset(self._added)

    def add(self, identity: str, allocations: Iterable[AllocationResult]) -> None:
        """Add results under a name, instead of earlier ones of that name."""
        self.discard(identity)
        uses = self._added[identity] = tuple(use for allocation in allocations for use in device_uses(allocation))
        self._count(uses, 1)

    def discard(self, identity: str) -> None:
        """Undo `add`."""
        self._count(self._added.pop(identity, ()), -1)

    # ---- questions

    def stamp(self, pool: str) -> int:
        """Return a number that changes with every change of the overlay."""
        return self._stamp if pool in self._keys else -1

    def keys_in_use(self, pool: str) -> Collection[str]:
        """Return the pool's devices that are in use, alone or shared."""
        keys = self._keys.get(pool)
        return self._base.keys_in_use(pool) if keys is None else keys

    def in_use(self, key: str, *, shareable: bool) -> bool:
        """Return whether no other claim can use the device."""
        return key in self.dedicated or (not shareable and self.is_shared(key))

    def has_shares(self) -> bool:
        """Return whether claims may have shares of devices, of any pool."""
        return bool(self._shares) or self._base.has_shares()

    def is_shared(self, key: str) -> bool:
        """Return whether claims have shares of the device."""
        count = self._shares.get(key)
        return self._base.is_shared(key) if count is None else count > 0

    def consumed(self, key: str) -> Mapping[str, int]:
        """Return the capacity that the shares of the device consume, in nano units."""
        amounts = self._consumed.get(key)
        return self._base.consumed(key) if amounts is None else amounts

    def holders(self, key: str) -> tuple[str, ...]:
        """Return the claims that use the device below."""
        return self._base.holders(key)

    # ---- keeping the tables

    def _count(self, uses: Iterable[DeviceUse], sign: int) -> None:
        self._stamp += 1
        for use in uses:
            key = use.key
            keys = self._keys.get(use.pool)
            if keys is None:
                base = self._base.keys_in_use(use.pool)
                keys = self._keys[use.pool] = dict(base) if isinstance(base, dict) else {}
            keys[key] = keys.get(key, 0) + sign
            if not keys[key]:
                del keys[key]
            if use.share is None:
                before = self._dedicated.get(key)
                if before is None:
                    before = len(self._base.dedicated.get(key, ()))
                self._dedicated[key] = before + sign
            else:
                self._count_share(use, sign)

    def _count_share(self, use: DeviceUse, sign: int) -> None:
        key = use.key
        if key not in self._shares:
            self._shares[key] = len(self._base.shares(key))
            self._consumed[key] = dict(self._base.consumed(key))
        self._shares[key] += sign
        consumed = self._consumed[key]
        for name, amount in use.consumed:
            consumed[name] = consumed.get(name, 0) + sign * amount


class _Dedicated:
    """The devices used by one claim alone."""

    __slots__ = ("_base", "_counts")

    def __init__(self, counts: Mapping[str, int], base: Allocations) -> None:
        self._counts = counts
        self._base = base.dedicated

    def __contains__(self, key: object) -> bool:
        count = self._counts.get(key)  # type: ignore[call-overload]
        return key in self._base if count is None else count > 0


class _Counters:
    """The counters and compatibility groups of pools, with the devices of results."""

    __slots__ = ("_groups", "_state", "_taken")

    def __init__(self, state: AllocatedDevices) -> None:
        self._state = state
        self._taken: dict[str, dict[CounterName, int]] = {}
        self._groups: dict[str, CommonGroups] = {}

    def take(self, device: PoolDevice) -> bool:
        """Return whether the device fits with the earlier ones, and count it."""
        pool = device.entry.pool
        taken = self._taken.setdefault(pool.key, dict(pool.used_counters(self._state)))
        common = self._groups.setdefault(pool.key, pool.common_groups(self._state))
        if pool.lacking_counter(device, taken) is not None or conflicting_set(common, device.groups) is not None:
            return False
        for counter, amount in device.consumes:
            taken[counter] = taken.get(counter, 0) + amount
        if pool.is_grouped:
            self._groups[pool.key] = with_device(common, device.groups)
        return True


def still_fits(view: NodeView, allocations: Sequence[AllocationResult], state: AllocatedDevices) -> bool:
    """Return whether all devices of results, found in one state of allocations, are free in another one."""
    devices = view.by_key()
    counters = _Counters(state)
    shares: dict[str, dict[str, int]] = {}
    for allocation in allocations:
        for use in device_uses(allocation):
            device = devices.get(use.key)
            if device is None or state.in_use(use.key, shareable=use.share is not None):
                return False
            consumes = bool(device.consumes)
            if use.share is not None:
                amounts, also = dict(use.consumed), shares.setdefault(use.key, {})
                if fits(device.content, amounts, state.consumed(use.key), also) is not None:
                    return False
                # A shared device consumes counters once, for its first share.
                consumes = consumes and not also and not state.is_shared(use.key)
                for name, amount in amounts.items():
                    also[name] = also.get(name, 0) + amount
            if consumes and not counters.take(device):
                return False
    return True
