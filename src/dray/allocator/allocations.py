"""The devices that are allocated to claims, updated incrementally.

A claim counts once: an in-flight allocation precedes an assumed one, which precedes the observed one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, Protocol, TypeVar

import msgspec

from dray.allocator.pools import pool_key
from dray.api.quantity import Quantity
from dray.api.types.resource_v1 import AllocationResult, DeviceRequestAllocationResult, ResourceClaim

_T = TypeVar("_T")

# Length of the change log; a reader that falls further behind has to read everything.
CHANGES_MAX: Final = 10_000

_NONE: Final[Mapping[str, int]] = {}


def claim_label(claim: ResourceClaim) -> str:
    """Return the claim's name as in Kubernetes' messages."""
    name = claim.metadata.name or ""
    return f"{claim.metadata.namespace}/{name}" if claim.metadata.namespace else name


class DeviceUse(msgspec.Struct, frozen=True, gc=False):
    """One device allocated to a claim; `consumed` is set for a share."""

    pool: str
    key: str
    share: str | None
    consumed: tuple[tuple[str, int], ...] = ()


class _Holding(msgspec.Struct, frozen=True):
    """The devices of a claim."""

    label: str
    uses: tuple[DeviceUse, ...]


class _Layers(msgspec.Struct):
    """The allocations of one claim from different sources; the first that is set counts."""

    in_flight: _Holding | None = None
    assumed: _Holding | None = None
    observed: _Holding | None = None
    # The one that counts; set by `Allocations._changed`.
    effective: _Holding | None = None


class _PoolUse(msgspec.Struct):
    """The allocated devices of one pool."""

    # Grows with each change.
    stamp: int = 0
    # Device key -> number of claims that use it.
    keys: dict[str, int] = msgspec.field(default_factory=dict)


class UsedDevices(Protocol):
    """The allocated devices, as a pool sums up its counters."""

    def stamp(self, pool: str) -> int:
        """Return a number that changes with every allocation in the pool."""

    def keys_in_use(self, pool: str) -> Iterable[str]:
        """Return the pool's devices that are in use, alone or shared."""


class UsedDevicesWithShares(UsedDevices, Protocol):
    """The allocated devices, as reports on their states read them."""

    def consumed(self, key: str) -> Mapping[str, int]:
        """Return the capacity that the shares of the device consume, in nano units."""


class AllocatedDevices(UsedDevicesWithShares, Protocol):
    """The allocated devices, as a search reads them."""

    @property
    def dedicated(self) -> Container[str]:
        """Return the devices that are used by one claim alone."""

    def keys_in_use(self, pool: str) -> Collection[str]:
        """Return the pool's devices that are in use, alone or shared."""

    def in_use(self, key: str, *, shareable: bool) -> bool:
        """Return whether no other claim can use the device."""

    def has_shares(self) -> bool:
        """Return whether claims may have shares of devices, of any pool."""

    def is_shared(self, key: str) -> bool:
        """Return whether claims have shares of the device."""

    def holders(self, key: str) -> tuple[str, ...]:
        """Return the claims that use the device."""


class Allocations:
    """The allocated devices of the cluster; stamps and versions tell readers what has changed."""

    def __init__(self) -> None:
        self._claims: dict[str, _Layers] = {}
        # Claims that are left out for the time of a dry run.
        self._hidden: dict[str, _Layers] = {}
        self._pools: dict[str, _PoolUse] = {}
        # Devices used by one claim alone (read by other modules), and shares of the others; with labels of claims.
        self.dedicated: dict[str, list[str]] = {}
        self._shares: dict[str, list[tuple[str, DeviceUse]]] = {}
        self._consumed: dict[str, dict[str, int]] = {}
        # Grows with each change; the log has the pools that changed, newest last.
        self.version = 0
        self._changes: deque[str] = deque(maxlen=CHANGES_MAX)

    # ---- changes

    def apply_claim(self, claim: ResourceClaim) -> None:
        """Apply an observed claim; an assumption that it confirms is dropped."""
        identity = identity_of(claim)
        if claim.status.allocation is None and identity not in self._claims:
            return
        observed = _holding(claim, claim.status.allocation)
        layers = self._layers(identity)
        layers.observed = observed
        if layers.assumed is not None and layers.assumed == observed:
            layers.assumed = None
        self._changed(identity, layers)

    def remove_claim(self, claim: ResourceClaim) -> None:
        """Remove a deleted claim and its assumption."""
        layers = self._claims.pop(identity_of(claim), None)
        if layers is not None:
            self._replace(layers.effective, None)

    def assume(self, claim: ResourceClaim) -> None:
        """Assume a written allocation until it is observed."""
        identity = identity_of(claim)
        layers = self._layers(identity)
        layers.assumed = _holding(claim, claim.status.allocation)
        self._changed(identity, layers)

    def forget(self, claim: ResourceClaim) -> None:
        """Drop the assumption; the observed allocation counts again."""
        identity = identity_of(claim)
        layers = self._claims.get(identity)
        if layers is not None and layers.assumed is not None:
            layers.assumed = None
            self._changed(identity, layers)

    def start_in_flight(self, claim: ResourceClaim, allocation: AllocationResult) -> None:
        """Count an allocation that is being written."""
        identity = identity_of(claim)
        layers = self._layers(identity)
        layers.in_flight = _holding(claim, allocation)
        self._changed(identity, layers)

    def end_in_flight(self, claim: ResourceClaim) -> None:
        """Stop counting it; the write has ended."""
        identity = identity_of(claim)
        layers = self._claims.get(identity)
        if layers is not None and layers.in_flight is not None:
            layers.in_flight = None
            self._changed(identity, layers)

    def hide(self, identity: str) -> None:
        """Leave a claim, by uid, out for the time of a dry run, in which claims do not change; `show` undoes it."""
        layers = self._claims.pop(identity, None)
        if layers is not None:
            self._hidden[identity] = layers
            self._replace(layers.effective, None)

    def show(self, identity: str) -> None:
        """Undo `hide`."""
        layers = self._hidden.pop(identity, None)
        if layers is not None:
            self._claims[identity] = layers
            self._replace(None, layers.effective)

    # ---- questions

    def stamp(self, pool: str) -> int:
        """Return a number that changes with every allocation in the pool."""
        use = self._pools.get(pool)
        return 0 if use is None else use.stamp

    def changed_since(self, version: int) -> frozenset[str] | None:
        """Return the pools that changed after the version; None if the log is too short."""
        count = self.version - version
        if count > len(self._changes):
            return None
        return frozenset(islice(reversed(self._changes), count))

    def keys_in_use(self, pool: str) -> Collection[str]:
        """Return the pool's devices that are in use, alone or shared."""
        use = self._pools.get(pool)
        return () if use is None else use.keys

    def in_use(self, key: str, *, shareable: bool) -> bool:
        """Return whether no other claim can use the device; shares of a no longer shareable device count."""
        return key in self.dedicated or (not shareable and key in self._shares)

    def has_shares(self) -> bool:
        """Return whether claims have shares of devices, of any pool."""
        return bool(self._shares)

    def is_shared(self, key: str) -> bool:
        """Return whether claims have shares of the device."""
        return key in self._shares

    def consumed(self, key: str) -> Mapping[str, int]:
        """Return the capacity that the shares of the device consume, in nano units."""
        return self._consumed.get(key, _NONE)

    def holders(self, key: str) -> tuple[str, ...]:
        """Return the claims that use the device."""
        alone, shares = self.dedicated.get(key, ()), self._shares.get(key)
        return (*alone, *(label for label, _ in shares)) if shares else tuple(alone)

    def uses_of(self, identity: str) -> tuple[str, tuple[DeviceUse, ...]] | None:
        """Return the label of a claim, by uid, and the devices that it uses; None if it is not allocated."""
        layers = self._claims.get(identity)
        holding = None if layers is None else layers.effective
        return None if holding is None else (holding.label, holding.uses)

    def is_hidden(self, identity: str) -> bool:
        """Return whether a claim, by uid, is left out for the time of a dry run."""
        return identity in self._hidden

    def shares(self, key: str) -> Sequence[tuple[str, DeviceUse]]:
        """Return the shares of a device, each with the label of its claim."""
        return self._shares.get(key, ())

    # ---- keeping the tables

    def _layers(self, identity: str) -> _Layers:
        layers = self._claims.get(identity)
        if layers is None:
            layers = self._claims[identity] = _Layers()
        return layers

    def _changed(self, identity: str, layers: _Layers) -> None:
        before, after = layers.effective, layers.in_flight or layers.assumed or layers.observed
        layers.effective = after
        self._replace(before, after)
        if after is None:
            del self._claims[identity]

    def _replace(self, before: _Holding | None, after: _Holding | None) -> None:
        if before is after or before == after:
            return
        if before is not None:
            for use in before.uses:
                self._drop(before.label, use)
        if after is not None:
            for use in after.uses:
                self._add(after.label, use)

    def _add(self, label: str, use: DeviceUse) -> None:
        pool = self._pools.setdefault(use.pool, _PoolUse())
        self._note(pool, use.pool)
        pool.keys[use.key] = pool.keys.get(use.key, 0) + 1
        if use.share is None:
            self.dedicated.setdefault(use.key, []).append(label)
            return
        self._shares.setdefault(use.key, []).append((label, use))
        consumed = self._consumed.setdefault(use.key, {})
        for name, amount in use.consumed:
            consumed[name] = consumed.get(name, 0) + amount

    def _note(self, pool: _PoolUse, name: str) -> None:
        pool.stamp += 1
        self.version += 1
        self._changes.append(name)

    def _drop(self, label: str, use: DeviceUse) -> None:
        pool = self._pools[use.pool]
        self._note(pool, use.pool)
        pool.keys[use.key] -= 1
        if not pool.keys[use.key]:
            del pool.keys[use.key]
        if use.share is None:
            _remove(self.dedicated, use.key, label)
            return
        _remove(self._shares, use.key, (label, use))
        consumed = self._consumed[use.key]
        for name, amount in use.consumed:
            consumed[name] -= amount
        if use.key not in self._shares:
            del self._consumed[use.key]


def _remove(table: dict[str, list[_T]], key: str, item: _T) -> None:
    table[key].remove(item)
    if not table[key]:
        del table[key]


def identity_of(claim: ResourceClaim) -> str:
    """Return by what the claim is known: a recreated claim is another claim."""
    return claim.metadata.uid or claim_label(claim)


def _holding(claim: ResourceClaim, allocation: AllocationResult | None) -> _Holding | None:
    return None if allocation is None else _Holding(claim_label(claim), device_uses(allocation))


def device_uses(allocation: AllocationResult) -> tuple[DeviceUse, ...]:
    """Return the devices that an allocation uses; admin access uses none."""
    uses = []
    for result in allocation.devices.results:
        if result.admin_access:
            continue
        pool = pool_key(result.driver, result.pool)
        consumed = _consumed(result) if result.consumed_capacity else ()
        uses.append(DeviceUse(pool, f"{pool}/{result.device}", result.share_id, consumed))
    return tuple(uses)


def device_keys(allocation: AllocationResult) -> list[str]:
    """Return the keys of the devices that an allocation uses."""
    return [
        f"{pool_key(result.driver, result.pool)}/{result.device}"
        for result in allocation.devices.results
        if not result.admin_access
    ]


def _consumed(result: DeviceRequestAllocationResult) -> tuple[tuple[str, int], ...]:
    return tuple((name, Quantity.parse(value).nanos) for name, value in result.consumed_capacity.items())
