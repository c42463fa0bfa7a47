"""How many devices of each pool of a driver are in use, tainted or available. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from dray.allocator.taints import TaintRule, blocks
from dray.api.devices import newest_generation, results_of
from dray.api.document import Document
from dray.api.quantity import Quantity
from dray.api.types.resource_v1 import Device, ResourceClaim, ResourceSlice

# Of every text in an answer, in bytes.
TEXT_LENGTH_MAX: Final = 256
INCOMPLETE: Final = "PoolIncomplete"

# Device name -> what its users consume of each capacity; a device that is in use has an entry, perhaps an empty one.
Consumption = Mapping[str, Mapping[str, Quantity]]


@dataclass(frozen=True, slots=True)
class Pool:
    """The slices of a pool at its highest generation."""

    driver: str
    name: str
    slices: tuple[ResourceSlice, ...]

    @property
    def generation(self) -> int:
        """Return the generation, which the slices have in common."""
        return self.slices[0].spec.pool.generation

    @property
    def announced(self) -> int:
        """Return how many slices the pool should have."""
        return max(item.spec.pool.resource_slice_count for item in self.slices)

    @property
    def is_complete(self) -> bool:
        """Return whether no slice is missing."""
        return len(self.slices) >= self.announced

    @property
    def node_name(self) -> str:
        """Return the node of all slices; empty if they have none or several."""
        names = {item.spec.node_name or "" for item in self.slices}
        return names.pop() if len(names) == 1 else ""

    def devices(self) -> Iterator[Device]:
        """Yield every device."""
        for item in self.slices:
            yield from item.spec.devices


def pools_of(slices: Iterable[ResourceSlice], driver: str, pool_name: str | None = None) -> list[Pool]:
    """Return the pools of a driver, or one of them, in the order of their names."""
    by_name: dict[str, list[ResourceSlice]] = {}
    for item in slices:
        if item.spec.driver == driver and pool_name in (None, item.spec.pool.name):
            by_name.setdefault(item.spec.pool.name, []).append(item)
    found = []
    for name, members in sorted(by_name.items()):
        current = newest_generation(members, lambda item: item.spec.pool.generation)
        current.sort(key=lambda item: item.metadata.name or "")
        found.append(Pool(driver, name, tuple(current)))
    return found


def consumption(claims: Iterable[ResourceClaim], driver: str) -> dict[str, dict[str, dict[str, Quantity]]]:
    """Return what claims use of a driver's devices, by pool; admin access does not count."""
    pools: dict[str, dict[str, dict[str, Quantity]]] = {}
    for result in chain.from_iterable(results_of(claim.status.allocation) for claim in claims):
        if result.driver != driver or result.admin_access:
            continue
        used = pools.setdefault(result.pool, {}).setdefault(result.device, {})
        for name, amount in result.consumed_capacity.items():
            quantity, full = Quantity.parse(amount), qualified(name, driver)
            used[full] = used[full] + quantity if full in used else quantity
    return pools


def qualified(name: str, driver: str) -> str:
    """Return the full name of an attribute or capacity; the driver's own domain may be left out in a slice."""
    return name if "/" in name else f"{driver}/{name}"


def shortened(text: str) -> str:
    """Return a text that fits into an answer."""
    encoded = text.encode()
    return text if len(encoded) <= TEXT_LENGTH_MAX else encoded[:TEXT_LENGTH_MAX].decode(errors="ignore")


def identity(pool: Pool) -> Document:
    """Return the fields that every answer about a pool has."""
    answer: Document = {"driver": pool.driver, "poolName": pool.name, "generation": pool.generation}
    if pool.node_name:
        answer["nodeName"] = pool.node_name
    return answer


def incomplete(pool: Pool) -> Document:
    """Return the answer about a pool with slices missing: no counts."""
    text = (
        f"{INCOMPLETE}: pool {pool.driver}/{pool.name} is incomplete: "
        f"observed {len(pool.slices)}/{pool.announced} slices at generation {pool.generation}"
    )
    return {**identity(pool), "validationError": shortened(text)}


def counts(pool: Pool, used: Consumption, rules: Sequence[TaintRule]) -> Document:
    """Return the numbers of a complete pool's devices; a tainted device that is in use counts as both."""
    total = allocated = unavailable = 0
    for device in pool.devices():
        total += 1
        allocated += device.name in used
        unavailable += _is_tainted(pool, device, rules)
    return {
        "resourceSliceCount": len(pool.slices),
        "totalDevices": total,
        "allocatedDevices": allocated,
        "unavailableDevices": unavailable,
        "availableDevices": max(0, total - allocated - unavailable),
    }


def _is_tainted(pool: Pool, device: Device, rules: Sequence[TaintRule]) -> bool:
    if any(map(blocks, device.taints)):
        return True
    return any(blocks(rule.taint) and rule.selects(pool.driver, pool.name, device.name) for rule in rules)
