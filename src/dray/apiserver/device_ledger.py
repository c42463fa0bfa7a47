"""Which claim holds which devices, shares and counters, and whether an allocation takes what another claim holds. Pure.

Fed with the claims and slices of the store. A claim that is being written holds its devices from the check of the write
until its outcome is known; a write whose outcome stays unknown holds them until an event shows it, or until it cannot
be committed any more. Results with admin access hold nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from dray.api.devices import results_in
from dray.api.document import Document
from dray.api.quantity import Quantity

# No store commits a write this long after its call has failed; etcd's requests have a deadline of 10 s.
IN_DOUBT_SECONDS: Final = 30.0


class Use(msgspec.Struct, frozen=True):
    """A device, or a share of one, in an allocation."""

    pool: str
    device: str
    share: str | None
    # Of a share: capacity and amount in nano units.
    consumed: tuple[tuple[str, int], ...]

    @property
    def name(self) -> str:
        """The device as messages name it: driver, pool and device."""
        return f"{self.pool}/{self.device}"


class Conflict(msgspec.Struct, frozen=True):
    """Why an allocation is refused."""

    use: Use
    # The claims that hold the device, or what it lacks.
    holders: tuple[str, ...]
    message: str


class Reservation(msgspec.Struct, eq=False):
    """The devices of a claim's write that is not confirmed yet; `base` is the revision that the write replaces."""

    claim: str
    uses: tuple[Use, ...]
    base: int
    # When the outcome became unknown; None while the write runs.
    doubted_at: float | None = None


class _Observed(msgspec.Struct):
    revision: int
    uses: tuple[Use, ...]


class _Device(msgspec.Struct, frozen=True):
    """A published device that is not simply exclusive."""

    shareable: bool
    capacity: Mapping[str, int]
    # Counter set, counter and amount.
    consumes: tuple[tuple[str, str, int], ...]


class _Slice(msgspec.Struct, frozen=True):
    pool: str
    # Empty if the slice does not name a node.
    node: str
    generation: int
    names: frozenset[str]
    # Those that are not simply exclusive.
    devices: Mapping[str, _Device]
    counters: Mapping[tuple[str, str], int]


class _Pool:
    """The slices of one pool, and what those of the newest generation publish together.

    Drivers may use one pool name for a pool on each of several nodes, so the newest generation of each node counts.
    """

    def __init__(self) -> None:
        self.slices: dict[str, _Slice] = {}
        self._published: tuple[dict[str, _Device], dict[tuple[str, str], int]] | None = None

    def set(self, name: str, value: _Slice | None) -> None:
        self._published = None
        if value is None:
            del self.slices[name]
        else:
            self.slices[name] = value

    def published(self) -> tuple[dict[str, _Device], dict[tuple[str, str], int]]:
        """Return the devices that are not simply exclusive, and the counters."""
        if self._published is None:
            newest: dict[str, int] = {}
            for item in self.slices.values():
                newest[item.node] = max(newest.get(item.node, item.generation), item.generation)
            current = [item for item in self.slices.values() if item.generation == newest[item.node]]
            current.sort(key=lambda item: item.generation, reverse=True)
            devices: dict[str, _Device] = {}
            seen: set[str] = set()
            for item in current:
                # Of two slices with the same device, that of the newer generation is right.
                devices.update((name, device) for name, device in item.devices.items() if name not in seen)
                seen |= item.names
            counters = {name: amount for item in reversed(current) for name, amount in item.counters.items()}
            self._published = devices, counters
        return self._published


def label_of(claim: Document) -> str:
    """Return the claim's name in the ledger and in messages."""
    metadata = claim["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}"


def uses_of(claim: Document) -> tuple[Use, ...]:
    """Return what a claim's allocation holds."""
    return tuple([_use(result) for result in results_in(claim) if not result.get("adminAccess")])


def _use(result: Document) -> Use:
    consumed = result.get("consumedCapacity")
    amounts = tuple((name, Quantity.parse(amount).nanos) for name, amount in consumed.items()) if consumed else ()
    return Use(f"{result['driver']}/{result['pool']}", result["device"], result.get("shareID"), amounts)


class DeviceLedger:
    """The devices of all allocated claims; claims are named `namespace/name`."""

    def __init__(self) -> None:
        self._claims: dict[str, _Observed] = {}
        # Pool -> device -> the claims and uses; a claim that is observed and reserved occurs twice.
        self._held: dict[str, dict[str, list[tuple[str, Use]]]] = {}
        self._in_doubt: dict[Reservation, None] = {}
        # The pool of each slice.
        self._slices: dict[str, str] = {}
        self._pools: dict[str, _Pool] = {}
        # All claims up to this revision are known.
        self.revision = 0
        # Called when the revision grows.
        self.on_progress: Callable[[], None] = lambda: None

    # --- Claims. ---

    def observe(self, claim: str, uses: tuple[Use, ...], revision: int, *, deleted: bool = False) -> None:
        """Record what a claim holds at a revision; an older one than is known changes nothing."""
        if self._in_doubt:
            self._settle(claim, revision)
        known = self._claims.get(claim)
        if known is None:
            if deleted or not uses:
                return
        elif revision < known.revision:
            return
        if known is not None and known.uses != uses:
            self._drop(claim, known.uses)
        if uses and (known is None or known.uses != uses):
            self._add(claim, uses)
        if deleted:
            del self._claims[claim]
        else:
            # Kept without devices: an event that is still on its way may be older.
            self._claims[claim] = _Observed(revision, uses)

    def is_observed(self, claim: str, revision: int) -> bool:
        """Return whether it was recorded what the claim holds at the revision."""
        known = self._claims.get(claim)
        return known is not None and known.revision == revision

    def observed_after(self, revision: int) -> list[str]:
        """Return the claims that were observed at a later revision."""
        return [claim for claim, known in self._claims.items() if known.revision > revision]

    def restore(self, claim: str, uses: tuple[Use, ...], revision: int) -> None:
        """Record what a claim holds after all, at an older revision than was observed; 0 if it does not exist."""
        self._drop(claim, self._claims.pop(claim).uses)
        if revision:
            self.observe(claim, uses, revision)

    def progressed(self, revision: int) -> None:
        """Record that every claim up to the revision was observed."""
        if revision > self.revision:
            self.revision = revision
            self.on_progress()

    def reserve(self, claim: str, uses: tuple[Use, ...], base: int) -> Reservation:
        """Hold devices for a write that was checked."""
        self._add(claim, uses)
        return Reservation(claim, uses, base)

    def confirm(self, reservation: Reservation, revision: int) -> None:
        """Record that the write was committed at the revision."""
        self.observe(reservation.claim, reservation.uses, revision)
        self._drop(reservation.claim, reservation.uses)

    def release(self, reservation: Reservation) -> None:
        """Record that the write was not committed."""
        self._drop(reservation.claim, reservation.uses)

    def doubt(self, reservation: Reservation, now: float) -> None:
        """Record that the write may have been committed."""
        known = self._claims.get(reservation.claim)
        if known is not None and known.revision > reservation.base:
            # The event came first.
            self.release(reservation)
            return
        reservation.doubted_at = now
        self._in_doubt[reservation] = None
        self.expire(now)

    def expire(self, now: float) -> None:
        """Release the reservations that have been in doubt for so long that an event would have shown them."""
        for item in list(self._in_doubt):
            if item.doubted_at is not None and now - item.doubted_at >= IN_DOUBT_SECONDS:
                del self._in_doubt[item]
                self.release(item)

    def _settle(self, claim: str, revision: int) -> None:
        # A newer revision is the write itself, or one that made it fail.
        for item in [item for item in self._in_doubt if item.claim == claim and item.base < revision]:
            del self._in_doubt[item]
            self.release(item)

    def _add(self, claim: str, uses: Iterable[Use]) -> None:
        for use in uses:
            self._held.setdefault(use.pool, {}).setdefault(use.device, []).append((claim, use))

    def _drop(self, claim: str, uses: Iterable[Use]) -> None:
        for use in uses:
            pool = self._held[use.pool]
            holders = pool[use.device]
            holders.remove((claim, use))
            if not holders:
                del pool[use.device]
                if not pool:
                    del self._held[use.pool]

    # --- Slices. ---

    def apply_slice(self, document: Document) -> None:
        """Apply a slice's newest state."""
        name = document["metadata"]["name"]
        self.remove_slice(name)
        spec: Document = document["spec"]
        devices = spec.get("devices") or ()
        special = [item for item in devices if item.get("allowMultipleAllocations") or item.get("consumesCounters")]
        pool = f"{spec['driver']}/{spec['pool']['name']}"
        generation = spec["pool"].get("generation") or 0
        counters = _counters(spec.get("sharedCounters") or ())
        self._slices[name] = pool
        published = {item["name"]: _device(item) for item in special}
        names = frozenset(item["name"] for item in devices)
        value = _Slice(pool, spec.get("nodeName") or "", generation, names, published, counters)
        self._pools.setdefault(pool, _Pool()).set(name, value)

    def remove_slice(self, name: str) -> None:
        """Remove a deleted slice."""
        pool = self._slices.pop(name, None)
        if pool is not None:
            self._pools[pool].set(name, None)
            if not self._pools[pool].slices:
                del self._pools[pool]

    def replace_slices(self, documents: Iterable[Document]) -> None:
        """Apply the only slices that there are."""
        self._slices.clear()
        self._pools.clear()
        for document in documents:
            self.apply_slice(document)

    def _published(self, use: Use) -> _Device | None:
        pool = self._pools.get(use.pool)
        return None if pool is None else pool.published()[0].get(use.device)

    # --- Checks. ---

    def guards(self, uses: Iterable[Use]) -> tuple[str, ...]:
        """Return the names under which writes of these uses exclude each other: devices, and pools with counters."""
        found: dict[str, None] = {}
        for use in uses:
            found[use.name] = None
            published = self._published(use)
            if published is not None and published.consumes:
                found[use.pool] = None
        return tuple(found)

    def check(self, claim: str, old: tuple[Use, ...], new: tuple[Use, ...]) -> Conflict | None:
        """Return the first conflict of an allocation with what other claims hold; what the claim had stays allowed."""
        for use in new:
            if use in old:
                continue
            published = self._published(use)
            conflict = self._check_device(claim, use, new, published)
            if conflict is None and published is not None and published.consumes:
                conflict = self._check_counters(claim, use, new)
            if conflict is not None:
                return conflict
        return None

    def _check_device(self, claim: str, use: Use, new: tuple[Use, ...], published: _Device | None) -> Conflict | None:
        held = self._held.get(use.pool, {}).get(use.device, ())
        if not held and use.share is None:
            return None
        others = {item: None for item in held if item[0] != claim}
        if not others and use.share is None:
            return None
        if use.share is None or published is None or not published.shareable:
            return _in_use(use, (holder for holder, _ in others)) if others else None
        if exclusive := [holder for holder, other in others if other.share is None]:
            return _in_use(use, exclusive)
        shares = [*(other for _, other in others), *(own for own in new if _same_device(own, use))]
        for name, _ in use.consumed:
            capacity = published.capacity.get(name)
            total = sum(amount for item in shares for other, amount in item.consumed if other == name)
            if capacity is not None and total > capacity:
                return _lacks(use, f"capacity {name}", (holder for holder, _ in others))
        return None

    def _check_counters(self, claim: str, use: Use, new: tuple[Use, ...]) -> Conflict | None:
        devices, counters = self._pools[use.pool].published()
        # A device counts once, however many shares of it are held.
        holders: dict[str, set[str]] = {}
        for device, held in self._held.get(use.pool, {}).items():
            others = {holder for holder, _ in held if holder != claim}
            if others:
                holders[device] = others
        in_use = holders.keys() | {own.device for own in new if own.pool == use.pool}
        for counter_set, counter, _ in devices[use.device].consumes:
            limit = counters.get((counter_set, counter))
            consumers = {
                name: amount
                for name in in_use
                if name in devices
                for other_set, other, amount in devices[name].consumes
                if (other_set, other) == (counter_set, counter)
            }
            if limit is not None and sum(consumers.values()) > limit:
                blamed = {holder for name in consumers for holder in holders.get(name, ())}
                return _lacks(use, f"counter {counter} of {counter_set}", blamed)
        return None


def _same_device(one: Use, other: Use) -> bool:
    return one.device == other.device and one.pool == other.pool


def _in_use(use: Use, holders: Iterable[str]) -> Conflict:
    names = tuple(sorted(set(holders)))
    return Conflict(use, names, f"device {use.name} is allocated to claim {', '.join(names)}")


def _lacks(use: Use, what: str, holders: Iterable[str]) -> Conflict:
    names = tuple(sorted(set(holders)))
    rest = f", of which claim {', '.join(names)} holds a part" if names else ""
    return Conflict(use, names, f"device {use.name} has not enough {what}{rest}")


def _device(item: Document) -> _Device:
    return _Device(
        bool(item.get("allowMultipleAllocations")),
        {name: _nanos(value) for name, value in (item.get("capacity") or {}).items()},
        tuple(
            (consumed["counterSet"], counter, _nanos(amount))
            for consumed in item.get("consumesCounters") or ()
            for counter, amount in consumed["counters"].items()
        ),
    )


def _counters(sets: Iterable[Document]) -> dict[tuple[str, str], int]:
    return {(item["name"], name): _nanos(amount) for item in sets for name, amount in item["counters"].items()}


def _nanos(amount: Any) -> int:
    return Quantity.parse(amount["value"]).nanos
