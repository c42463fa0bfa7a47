"""Bounds that prove requests unsatisfiable by counting, without a search.

Each is a relaxation: it may miss that there is no solution, but is never wrong about one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dray.allocator.allocations import AllocatedDevices
from dray.allocator.bits import indices
from dray.allocator.choices import Choice, RequestChoices
from dray.allocator.pools import CounterName, Pool, PoolDevice
from dray.allocator.view import NodeView

# Returns what the search has consumed of a pool's counters.
Taken = Callable[[Pool], Mapping[CounterName, int]]


class _Group:
    """Devices of a choice that consume the same counters, and the least that each of them consumes."""

    __slots__ = ("least", "members", "pool")

    def __init__(self, pool: Pool, devices: Mapping[int, PoolDevice]) -> None:
        self.pool = pool
        self.members = sum(1 << index for index in devices)
        amounts = [dict(device.consumes) for device in devices.values()]
        shared = set.intersection(*(set(item) for item in amounts))
        self.least = {counter: min(item[counter] for item in amounts) for counter in shared}


class Bounds:
    """The bounds for the requests of a search on a node."""

    __slots__ = ("_allocations", "_demands", "_groups", "_needs", "_pools")

    def __init__(self, requests: Sequence[RequestChoices], view: NodeView, allocations: AllocatedDevices) -> None:
        self._allocations = allocations
        self._demands = _demands(requests, view)
        self._groups: dict[int, list[_Group]] = {}
        consumers = {index: view.device(index) for index in indices(view.consumers)}
        self._pools = {device.entry.pool.key: device.entry.pool for device in consumers.values()}
        if consumers:
            for request in requests:
                for choice in request.choices:
                    self._groups[id(choice)] = _groups(choice, consumers)
        self._needs = _needs(requests, consumers)

    def refute(self, request: int, taken: int, counters: Taken) -> bool:
        """Return whether this request and the later ones cannot all be satisfied with what is left."""
        for mask, demand in self._demands.items():
            if demand[request] > (mask & ~taken).bit_count():
                return True
        needs = self._needs[request]
        if not needs:
            return False
        left = self._left_by_name(counters)
        return any(need > left.get(name, 0) for name, need in needs.items())

    def most(self, choice: Choice, candidates: int, counters: Taken) -> int:
        """Return an upper bound for the number of candidates that the counters allow."""
        total = candidates.bit_count()
        for group in self._groups.get(id(choice), ()):
            members = (candidates & group.members).bit_count()
            if not members:
                continue
            used, also = group.pool.used_counters(self._allocations), counters(group.pool)
            bearable = members
            for counter, amount in group.least.items():
                left = group.pool.counters[counter] - used.get(counter, 0) - also.get(counter, 0)
                if amount > 0:
                    bearable = min(bearable, max(left, 0) // amount)
            total -= members - bearable
        return total

    def _left_by_name(self, counters: Taken) -> dict[str, int]:
        left: dict[str, int] = {}
        for pool in self._pools.values():
            used, also = pool.used_counters(self._allocations), counters(pool)
            for counter, amount in pool.counters.items():
                rest = amount - used.get(counter, 0) - also.get(counter, 0)
                left[counter[1]] = left.get(counter[1], 0) + max(rest, 0)
        return left


def _demands(requests: Sequence[RequestChoices], view: NodeView) -> dict[int, list[int]]:
    """Return for each set of devices how many of them the requests from a number on need that can use no others."""
    asking: list[tuple[int, int]] = []
    for request in requests:
        usable = 0
        for choice in request.choices:
            usable |= choice.available | choice.failing if choice.feasible else 0
        # Admin access consumes nothing, and a shared device can serve any number of requests.
        exempt = request.choices[0].alternative.admin_access or bool(usable & view.shared)
        least = min((choice.needed for choice in request.choices if choice.feasible), default=0)
        asking.append((usable, 0 if exempt else least))
    demands: dict[int, list[int]] = {}
    for mask, demand in asking:
        if not demand or mask in demands:
            continue
        sums = [0] * (len(requests) + 1)
        for number in reversed(range(len(requests))):
            usable, least = asking[number]
            sums[number] = sums[number + 1] + (least if not usable & ~mask else 0)
        demands[mask] = sums
    return demands


def _groups(choice: Choice, consumers: Mapping[int, PoolDevice]) -> list[_Group]:
    if choice.alternative.admin_access:
        return []
    by_sets: dict[tuple[str, tuple[str, ...]], dict[int, PoolDevice]] = {}
    for index in indices(choice.available):
        device = consumers.get(index)
        # A shared device consumes counters only once.
        if device is None or device.content.allow_multiple:
            continue
        sets = tuple(sorted({name for (name, _), _ in device.consumes}))
        by_sets.setdefault((device.entry.pool.key, sets), {})[index] = device
    return [_Group(next(iter(devices.values())).entry.pool, devices) for devices in by_sets.values()]


def _needs(requests: Sequence[RequestChoices], consumers: Mapping[int, PoolDevice]) -> list[dict[str, int]]:
    """Return for each request what it and the later ones need at least of the counters of one name, in any set."""
    needs: list[dict[str, int]] = [{} for _ in range(len(requests) + 1)]
    if not consumers:
        return needs
    for number in reversed(range(len(requests))):
        own = [_least(choice, consumers) for choice in requests[number].choices if choice.feasible]
        names = set.intersection(*(set(item) for item in own)) if own else set()
        needs[number] = dict(needs[number + 1])
        for name in names:
            least = min(item[name] for item in own)
            needs[number][name] = needs[number].get(name, 0) + least
    return needs


def _least(choice: Choice, consumers: Mapping[int, PoolDevice]) -> dict[str, int]:
    """Return what the choice needs at least of each counter name that all of its devices consume."""
    least: dict[str, int] | None = None
    for index in indices(choice.available | choice.failing):
        device = consumers.get(index)
        if device is None or device.content.allow_multiple or choice.alternative.admin_access:
            return {}
        own: dict[str, int] = {}
        for (_, name), amount in device.consumes:
            own[name] = own.get(name, 0) + amount
        least = own if least is None else {name: min(least[name], own[name]) for name in least.keys() & own.keys()}
    return {name: amount * choice.needed for name, amount in (least or {}).items()}
