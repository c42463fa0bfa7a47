"""The claims that hold devices, by pool. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from dray.api.quantity import Quantity
from dray.sim.devices import Holder

_NOBODY: Final[Mapping[str, Sequence[Holder]]] = {}


class HeldDevices(Mapping[str, Sequence[Holder]]):
    """The holders of each device, by the device's key; also what a survey reads of allocations.

    `Allocations` of the allocator would hold the same, with much that only a scheduler needs.
    """

    def __init__(self) -> None:
        # By the key of the pool and then of the device; nothing in it is empty.
        self._pools: dict[str, dict[str, list[Holder]]] = {}
        self._stamps: dict[str, int] = {}
        self._changes = 0

    def add(self, key: str, holder: Holder) -> str:
        """Add a claim that holds the device; return the key of the pool."""
        pool = key.rpartition("/")[0]
        self._changes += 1
        self._stamps[pool] = self._changes
        devices = self._pools.get(pool)
        if devices is None:
            devices = self._pools[pool] = {}
        holders = devices.get(key)
        if holders is None:
            devices[key] = [holder]
        else:
            holders.append(holder)
        return pool

    def remove(self, key: str, holder: Holder) -> str:
        """Remove a claim that held the device; return the key of the pool."""
        pool = key.rpartition("/")[0]
        devices = self._pools.get(pool, {})
        remaining = [item for item in devices.get(key, ()) if item != holder]
        self._changes += 1
        self._stamps[pool] = self._changes
        if remaining:
            devices[key] = remaining
        elif devices.pop(key, None) is not None and not devices:
            del self._pools[pool]
        if not devices:
            del self._stamps[pool]
        return pool

    def names_in_use(self, pool: str) -> frozenset[str]:
        """Return the names of the pool's devices that claims have, alone or shared; admin access does not count."""
        prefix = len(pool) + 1
        return frozenset([key[prefix:] for key in self.keys_in_use(pool)])

    # --- UsedDevicesWithShares. ---

    def stamp(self, pool: str) -> int:
        """Return a number that changes with every allocation in the pool; 0 if nothing is allocated."""
        return self._stamps.get(pool, 0)

    def keys_in_use(self, pool: str) -> Iterable[str]:
        """Return the pool's devices that claims have, alone or shared; admin access does not count."""
        devices = self._pools.get(pool, _NOBODY)
        return [key for key, holders in devices.items() if any(not holder.admin_access for holder in holders)]

    def consumed(self, key: str) -> Mapping[str, int]:
        """Return the capacity that the shares of the device consume, in nano units."""
        found: dict[str, int] = {}
        for holder in self.get(key, ()):
            for name, amount in (holder.consumed or {}).items() if not holder.admin_access else ():
                found[name] = found.get(name, 0) + Quantity.parse(amount).nanos
        return found

    # --- Mapping. ---

    def __getitem__(self, key: str) -> Sequence[Holder]:
        return self._pools[key.rpartition("/")[0]][key]

    def __iter__(self) -> Iterator[str]:
        return (key for devices in self._pools.values() for key in devices)

    def __len__(self) -> int:
        return sum(map(len, self._pools.values()))
