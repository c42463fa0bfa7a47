"""Which requests pending Pods have, and which of them devices may serve that were freed. Pure.

A cluster has few different requests, whatever the number of its Pods: each has a number, and Pods are found by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from dray.allocator import Allocator, AllocatorError
from dray.allocator.content import Content
from dray.allocator.pools import pool_key
from dray.allocator.selection import Mismatch, SelectorGroup
from dray.api.extended_resources import is_dra_extended_resource_name
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import AllocationResult, DeviceRequestAllocationResult, ResourceClaim
from dray.scheduler.plugins.dynamic_resources.checks import FindClaim, IsClassic, NotReadyError, claims_of

# Different requests that have a number; a Pod with another one is concerned by every device.
REQUESTS_MAX: Final = 1024
# The number of everything that is not known to be served by some devices only.
ANY: Final = -1


class WantedDevices:
    """The numbers of requests, for the Pods that wait for devices and for devices that were freed."""

    def __init__(self, allocator: Allocator, find: FindClaim, is_classic: IsClassic) -> None:
        self._allocator = allocator
        self._find = find
        self._is_classic = is_classic
        # Equal selectors have one number, which stays.
        self._groups: list[SelectorGroup] = []
        self._numbers: dict[object, int] = {}

    def of_pod(self, pod: Pod) -> set[int]:
        """Return the numbers of the requests that a Pod still has to get devices for."""
        try:
            claims = claims_of(pod, self._find, self._is_classic)
            pending = [claim for claim in claims if claim.status.allocation is None]
            groups = list(self._groups_of(pending))
        except NotReadyError:
            # It waits for its claims.
            return set()
        except AllocatorError:
            return {ANY}
        if not groups or _wants_extended_resources(pod):
            return {ANY}
        return set(map(self._number, groups))

    def of_freed(self, allocation: AllocationResult) -> set[int] | None:
        """Return the numbers of requests that devices may serve now; None if that is not known.

        Devices that are in use again serve none.
        """
        if self._allocator.inventory.node_allocatable_slices:
            # The devices have also freed resources of the node, which others may need for any device.
            return None
        contents: dict[Content, None] = {}
        for result in allocation.devices.results:
            if f"{pool_key(result.driver, result.pool)}/{result.device}" in self._allocator.allocations.dedicated:
                continue
            found = self._contents(result)
            if found is None:
                return None
            contents |= dict.fromkeys(found)
        return {ANY, *(number for number, group in enumerate(self._groups) if _may_serve(group, contents))}

    def _groups_of(self, claims: Sequence[ResourceClaim]) -> Iterator[SelectorGroup]:
        for request in self._allocator.plan(claims).requests if claims else ():
            for alternative in request.alternatives:
                yield alternative.group

    def _number(self, group: SelectorGroup) -> int:
        key = group.class_expressions, group.request_expressions, group.derived
        number = self._numbers.get(key)
        if number is None:
            if len(self._groups) >= REQUESTS_MAX:
                return ANY
            number = self._numbers[key] = len(self._groups)
            self._groups.append(group)
        return number

    def _contents(self, result: DeviceRequestAllocationResult) -> Iterable[Content] | None:
        """Return what may be available now: the device, or all devices of its pool if they share counters."""
        pool = self._allocator.inventory.pool(pool_key(result.driver, result.pool))
        devices = [] if pool is None else [device for entry in pool.entries() for device in entry.devices]
        own = next((device for device in devices if device.name == result.device), None)
        if own is None:
            return None
        return [device.content for device in devices] if own.consumes else [own.content]


def _may_serve(group: SelectorGroup, contents: Iterable[Content]) -> bool:
    """Return whether a device matches, or cannot be evaluated."""
    return any(not isinstance(group.verdict(content), Mismatch) for content in contents)


def _wants_extended_resources(pod: Pod) -> bool:
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return any(is_dra_extended_resource_name(name) for item in containers for name in item.resources.requests)
