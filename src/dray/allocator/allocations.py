"""Which devices are in use by which claims: updated by what changes, never rebuilt.

A claim counts once. What is in flight for it comes before what was assumed, and that before what was observed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final, TypeVar

import msgspec

from dray.allocator.pools import pool_key
from dray.api.quantity import Quantity
from dray.api.types.resource_v1 import AllocationResult, DeviceRequestAllocationResult, ResourceClaim

_T = TypeVar("_T")

# Changes remembered; who asks less often has to look at everything again.
CHANGES_MAX: Final = 10_000

_NONE: Final[Mapping[str, int]] = {}


def claim_label(claim: ResourceClaim) -> str:
    """The claim's name as Kubernetes writes it in messages."""
    name = claim.metadata.name or ""
    return f"{claim.metadata.namespace}/{name}" if claim.metadata.namespace else name


class _Use(msgspec.Struct, frozen=True, gc=False):
    """One device held by a claim; `consumed` only for a share of it."""

    pool: str
    key: str
    share: str | None
    consumed: tuple[tuple[str, int], ...] = ()


class _Holding(msgspec.Struct, frozen=True):
    """What a claim holds."""

    label: str
    uses: tuple[_Use, ...]


class _Layers(msgspec.Struct):
    """What is known about one claim; the first that is there counts."""

    in_flight: _Holding | None = None
    assumed: _Holding | None = None
    observed: _Holding | None = None

    def effective(self) -> _Holding | None:
        return self.in_flight or self.assumed or self.observed


class _PoolUse(msgspec.Struct):
    """The devices of one pool that are in use."""

    # Grows with each change.
    stamp: int = 0
    # Keys of devices to the number of claims that hold them, by whatever means.
    keys: dict[str, int] = msgspec.field(default_factory=dict)


class Allocations:
    """The allocated state of the cluster; its identity and stamps tell readers when to look again."""

    def __init__(self) -> None:
        self._claims: dict[str, _Layers] = {}
        self._pools: dict[str, _PoolUse] = {}
        # Devices used by a claim alone, which others only read, and shares of those that are used by several; with the
        # claims' names.
        self.dedicated: dict[str, list[str]] = {}
        self._shares: dict[str, list[tuple[str, _Use]]] = {}
        self._consumed: dict[str, dict[str, int]] = {}
        # Grows with each change of a pool; the pools of the last changes, newest last.
        self.version = 0
        self._changes: deque[str] = deque(maxlen=CHANGES_MAX)

    # ---- changes

    def apply_claim(self, claim: ResourceClaim) -> None:
        """A claim was observed, allocated or not; an assumption that came true is dropped."""
        observed = _holding(claim, claim.status.allocation)
        identity = _identity(claim)
        if observed is None and identity not in self._claims:
            return
        layers = self._layers(identity)
        before = layers.effective()
        layers.observed = observed
        if layers.assumed is not None and layers.assumed == observed:
            layers.assumed = None
        self._changed(identity, layers, before)

    def remove_claim(self, claim: ResourceClaim) -> None:
        """A claim is gone, and whatever was thought about it."""
        layers = self._claims.pop(_identity(claim), None)
        if layers is not None:
            self._replace(layers.effective(), None)

    def assume(self, claim: ResourceClaim) -> None:
        """The claim was written with this allocation, which is still to be observed."""
        identity = _identity(claim)
        layers = self._layers(identity)
        before = layers.effective()
        layers.assumed = _holding(claim, claim.status.allocation)
        self._changed(identity, layers, before)

    def forget(self, claim: ResourceClaim) -> None:
        """What was assumed is not so; what was observed counts again."""
        identity = _identity(claim)
        layers = self._claims.get(identity)
        if layers is not None and layers.assumed is not None:
            before = layers.effective()
            layers.assumed = None
            self._changed(identity, layers, before)

    def start_in_flight(self, claim: ResourceClaim, allocation: AllocationResult) -> None:
        """The allocation was decided and is being written."""
        identity = _identity(claim)
        layers = self._layers(identity)
        before = layers.effective()
        layers.in_flight = _holding(claim, allocation)
        self._changed(identity, layers, before)

    def end_in_flight(self, claim: ResourceClaim) -> None:
        """The write has ended, well or not."""
        identity = _identity(claim)
        layers = self._claims.get(identity)
        if layers is not None and layers.in_flight is not None:
            before = layers.effective()
            layers.in_flight = None
            self._changed(identity, layers, before)

    # ---- questions

    def stamp(self, pool: str) -> int:
        """Changes whenever the use of the pool's devices does."""
        use = self._pools.get(pool)
        return 0 if use is None else use.stamp

    def changed_since(self, version: int) -> frozenset[str] | None:
        """The pools whose use changed after the version; None when that is too long ago to tell."""
        count = self.version - version
        if count > len(self._changes):
            return None
        return frozenset(islice(reversed(self._changes), count))

    def has_any(self, pool: str) -> bool:
        """Whether any device of the pool is in use."""
        use = self._pools.get(pool)
        return use is not None and bool(use.keys)

    def keys_in_use(self, pool: str) -> Iterable[str]:
        """The pool's devices that are in use, alone or shared."""
        use = self._pools.get(pool)
        return () if use is None else use.keys

    def in_use(self, key: str, *, shareable: bool) -> bool:
        """Whether no other claim can have the device; shares of one that no longer is shareable count."""
        return key in self.dedicated or (not shareable and key in self._shares)

    def is_shared(self, key: str) -> bool:
        """Whether claims have shares of the device."""
        return key in self._shares

    def consumed(self, key: str) -> Mapping[str, int]:
        """How much of the device's capacities its shares take, in nano units."""
        return self._consumed.get(key, _NONE)

    def holders(self, key: str) -> tuple[str, ...]:
        """The claims that use the device."""
        shares = (label for label, _ in self._shares.get(key, ()))
        return (*self.dedicated.get(key, ()), *shares)

    # ---- keeping the tables

    def _layers(self, identity: str) -> _Layers:
        layers = self._claims.get(identity)
        if layers is None:
            layers = self._claims[identity] = _Layers()
        return layers

    def _changed(self, identity: str, layers: _Layers, before: _Holding | None) -> None:
        after = layers.effective()
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

    def _add(self, label: str, use: _Use) -> None:
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

    def _drop(self, label: str, use: _Use) -> None:
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


def _identity(claim: ResourceClaim) -> str:
    # A claim that was made anew is another claim.
    return claim.metadata.uid or claim_label(claim)


def _holding(claim: ResourceClaim, allocation: AllocationResult | None) -> _Holding | None:
    if allocation is None:
        return None
    uses = []
    for result in allocation.devices.results:
        # Administrative access leaves no mark.
        if result.admin_access:
            continue
        pool = pool_key(result.driver, result.pool)
        uses.append(_Use(pool, f"{pool}/{result.device}", result.share_id, _consumed(result)))
    return _Holding(claim_label(claim), tuple(uses))


def _consumed(result: DeviceRequestAllocationResult) -> tuple[tuple[str, int], ...]:
    if not result.consumed_capacity:
        return ()
    return tuple((name, Quantity.parse(value).nanos) for name, value in result.consumed_capacity.items())
