"""Checks that a node has the CPU, memory and huge pages that devices of a Pod's claims use there. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from dray.allocator import Allocator
from dray.api.quantity import Quantity
from dray.api.types.core_v1 import NodeAllocatableResourceClaimStatus, Pod
from dray.api.types.resource_v1 import Device, DeviceRequestAllocationResult, ResourceClaim
from dray.framework.node_allocatable import (
    AmountError,
    FindDevice,
    Statuses,
    claim_status,
    container_amounts,
    integers,
    is_mapped,
    pod_amounts,
)
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.framework.resources import CPU, MEMORY, amounts_of, container_limits, container_requests
from dray.framework.status import SUCCESS, Code, Status, error, unresolvable
from dray.scheduler.plugins.dynamic_resources.pod_state import PodState

_HUGE_PAGES: Final = "hugepages-"


class NodeAllocatable:
    """Computes and checks the amounts for a Pod on nodes where its claims are, or can be, allocated."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._inventory = allocator.inventory

    @property
    def is_used(self) -> bool:
        """Return whether any device uses resources of its node."""
        return self._inventory.node_allocatable_slices > 0

    def check(self, own: PodState, info: PodInfo, node: NodeInfo) -> Status:
        """Return whether the amounts fit on the node, and record them in the Pod's state."""
        own.results.claim_statuses.pop(node.name, None)
        find = self._finder(node)
        statuses: list[NodeAllocatableResourceClaimStatus] = []
        for claim, results in _allocations(own, node.name):
            if _is_shared(own, claim) and is_mapped(results, find):
                return unresolvable(
                    f"node allocatable resource claim {claim.metadata.name} has a mapped device "
                    "and cannot be shared across pods"
                )
            try:
                status = claim_status(own.claims.pod, claim.metadata.name or "", results, find)
            except AmountError as failure:
                return error(f"claim {claim.metadata.namespace}/{claim.metadata.name}: {failure}")
            if status is not None:
                statuses.append(status)
        if not statuses:
            return SUCCESS
        statuses.sort(key=lambda status: status.resource_claim_name)
        problem = pod_level_problem(own.claims.pod, statuses)
        if problem is not None:
            return unresolvable(problem)
        own.results.claim_statuses[node.name] = tuple(statuses)
        return _fit(info, statuses, node)

    def _finder(self, node: NodeInfo) -> FindDevice:
        gates = self._allocator.gates

        def find(result: DeviceRequestAllocationResult) -> Device | None:
            return self._inventory.find_device(node.node, gates, result)

        return find


def _allocations(
    own: PodState, node_name: str
) -> Iterator[tuple[ResourceClaim, tuple[DeviceRequestAllocationResult, ...]]]:
    """Yield the Pod's claims with the devices that they have, or would have on the node."""
    for claim in own.claims.all:
        allocation = claim.status.allocation or own.results.allocation_of(claim, node_name)
        if allocation is not None:
            yield claim, allocation.devices.results


def _is_shared(own: PodState, claim: ResourceClaim) -> bool:
    """Return whether another Pod has the claim, or is getting it in the same group cycle."""
    if claim.metadata.uid in own.group.chosen:
        return True
    return any(user.uid != own.claims.pod.metadata.uid for user in claim.status.reserved_for)


def _fit(info: PodInfo, statuses: Statuses, node: NodeInfo) -> Status:
    """Check the resources of which the claims use some; NodeResourcesFit checks the others."""
    own_resources = info.pod.spec.resources
    pod_level = {} if own_resources is None else own_resources.requests
    reasons = []
    resolvable = True
    for name, amount in sorted(integers(pod_amounts(statuses)).items()):
        # Requests of the Pod as a whole include what its claims use.
        wanted = info.requests.amount(name) + (0 if name in pod_level else amount)
        total = node.allocatable.amount(name)
        if amount and wanted > total - node.requested.amount(name):
            reasons.append(f"Insufficient {name}")
            resolvable = resolvable and wanted <= total
    if not reasons:
        return SUCCESS
    return Status(Code.UNSCHEDULABLE if resolvable else Code.UNSCHEDULABLE_AND_UNRESOLVABLE, tuple(reasons))


def pod_level_problem(pod: Pod, statuses: Statuses) -> str | None:
    """Return why the resources of the Pod as a whole do not cover its containers and claims; None if they do."""
    if pod.spec.resources is None:
        return None
    requests, limits = amounts_of(pod.spec.resources.requests), amounts_of(pod.spec.resources.limits)
    amounts = integers(pod_amounts(statuses))
    covered = container_requests(pod)
    for name, requested in sorted(requests.items()):
        if amounts.get(name) and covered.get(name, 0) + amounts[name] > requested:
            return (
                f"pod level request for {name} is insufficient to cover "
                "the aggregated container and node-allocatable DRA requests"
            )
    covered = container_limits(pod)
    for name, limit in sorted(limits.items()):
        if name.startswith(_HUGE_PAGES) and amounts.get(name) and covered.get(name, 0) + amounts[name] > limit:
            return (
                f"pod level limit for {name} is insufficient to cover "
                "the aggregated container and node-allocatable DRA limits"
            )
    return _container_problem(pod, statuses, limits)


def _container_problem(pod: Pod, statuses: Statuses, limits: Mapping[str, int]) -> str | None:
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        extra = container_amounts(statuses, container.name)
        for name in (CPU, MEMORY):
            if name in limits and name in extra and name in container.resources.limits:
                own = integers({name: Quantity.parse(container.resources.limits[name]) + extra[name]})
                if own[name] > limits[name]:
                    return (
                        f"pod level limit for {name} is insufficient to cover "
                        f"the limit and DRA overhead for container {container.name}"
                    )
    return None
