"""Metrics of device classes: how many devices are free, and how fragmented they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from dray.allocator import Allocations, Inventory
from dray.allocator.compatibility import conflicting_set
from dray.allocator.gates import Gates
from dray.allocator.pools import Pool, PoolDevice
from dray.allocator.selection import SelectorGroup, SelectorGroups
from dray.allocator.taints import blocks
from dray.api.prioritized_lists import choices
from dray.api.types.resource_v1 import AllocationResult, ResourceClaim
from dray.runtime.metrics import Family

NAME: Final = "dray_class"
# The maximum share of time spent on measuring; a large cluster is measured less often.
SHARE_MAX: Final = 0.01


class ClassCollector:
    """Collects the metrics; between two measurements it returns the last result."""

    def __init__(self, measure: Callable[[], Mapping[str, ClassMeasure]], monotonic: Callable[[], float]) -> None:
        self._measure = measure
        self._monotonic = monotonic
        self._known: Mapping[str, ClassMeasure] = {}
        self._next = float("-inf")

    def collect(self) -> Iterator[Family]:
        """Return the metrics of every class."""
        started = self._monotonic()
        if started >= self._next:
            self._known = self._measure()
            ended = self._monotonic()
            self._next = ended + (ended - started) / SHARE_MAX
        return self._metrics()

    def _metrics(self) -> Iterator[Family]:
        devices = Family(
            "dray_class_devices",
            "Devices of a class in usable pools, by state.",
            "gauge",
            ("class", "state"),
        )
        largest = Family(
            "dray_class_largest_free_block",
            "Largest number of free devices of a class on one node.",
            "gauge",
            ("class",),
        )
        fragmentation = Family(
            "dray_class_fragmentation_ratio",
            "Fraction of a class's free devices that are not on the node with the most free ones.",
            "gauge",
            ("class",),
        )
        for name, measured in self._known.items():
            devices.add((name, "free"), measured.free)
            devices.add((name, "not_free"), measured.total - measured.free)
            largest.add((name,), measured.largest)
            fragmentation.add((name,), measured.fragmentation)
        yield devices
        yield largest
        yield fragmentation


# Devices without a node name count as one location.
_ANYWHERE: Final = ""


@dataclass(slots=True)
class ClassMeasure:
    """The devices of one class."""

    total: int = 0
    free: int = 0
    # The most free devices on one node.
    largest: int = 0

    @property
    def fragmentation(self) -> float:
        """Return the share of the free devices that are not on the node with the most of them."""
        return 1 - self.largest / self.free if self.free else 0.0


def classes_given(claim: ResourceClaim, allocation: AllocationResult) -> set[str]:
    """Return the classes of the requests or subrequests that got devices."""
    given = {result.request for result in allocation.devices.results}
    names = {choice.alternative.device_class_name for choice in choices(claim, allocation)}
    for request in claim.spec.devices.requests:
        if request.exactly is not None and request.name in given:
            names.add(request.exactly.device_class_name)
    return names


def measure(inventory: Inventory, allocations: Allocations, gates: Gates) -> dict[str, ClassMeasure]:
    """Return the measures of every class by name."""
    groups = SelectorGroups()
    classes = [
        (name, groups.group([item.cel.expression for item in known.spec.selectors if item.cel], ()))
        for name, known in sorted(inventory.classes.items())
    ]
    found = {name: ClassMeasure() for name, _ in classes}
    free_by_location: dict[tuple[str, str], int] = {}
    for location, device, is_free in _devices(inventory, allocations, gates):
        for name in _matching(classes, device):
            found[name].total += 1
            if is_free:
                found[name].free += 1
                free_by_location[name, location] = free_by_location.get((name, location), 0) + 1
    for (name, _), count in free_by_location.items():
        found[name].largest = max(found[name].largest, count)
    return found


def _matching(classes: list[tuple[str, SelectorGroup]], device: PoolDevice) -> Iterator[str]:
    for name, group in classes:
        if group.verdict(device.content) is None:
            yield name


def _devices(inventory: Inventory, allocations: Allocations, gates: Gates) -> Iterator[tuple[str, PoolDevice, bool]]:
    """Yield every device of a usable pool with its location, and whether it is free."""
    for pool in inventory.pools():
        pool.refresh(gates)
        used, common = pool.used_counters(allocations), pool.common_groups(allocations)
        for entry in pool.entries():
            if not pool.is_complete(entry) or pool.problem_of(entry) is not None:
                continue
            for device in entry.devices:
                taken = allocations.in_use(device.key, shareable=device.content.allow_multiple)
                fits = pool.lacking_counter(device, used) is None and conflicting_set(common, device.groups) is None
                free = not taken and fits and not _tainted(inventory, pool, device)
                yield entry.node_name or device.spec.node_name or _ANYWHERE, device, free


def _tainted(inventory: Inventory, pool: Pool, device: PoolDevice) -> bool:
    if any(blocks(taint) for taint in device.taints):
        return True
    rules = inventory.taint_rules.rules
    return any(blocks(rule.taint) and rule.selects(pool.driver, pool.name, device.name) for rule in rules)
