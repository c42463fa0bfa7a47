"""The allocation result of a claim, as written to its status."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, TypeAlias
from uuid import UUID, uuid5

import msgspec

from dray.allocator.capacity import rendered
from dray.allocator.plan import Alternative, PlannedClaim
from dray.allocator.pools import PoolDevice, pool_key
from dray.allocator.search import Search
from dray.allocator.view import NodeView
from dray.api.node_selection import matching_term, united_selector
from dray.api.types.core_v1 import NodeSelector, NodeSelectorTerm
from dray.api.types.resource_v1 import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
)

# The alternative that a device was taken for, the number of the device, and for a share what it consumes.
TakenDevice: TypeAlias = tuple[Alternative, int, Mapping[str, int] | None]

_FROM_CLASS: Final = "FromClass"
_FROM_CLAIM: Final = "FromClaim"
_NO_CAPACITY: Final[Mapping[str, str]] = {}
# The share ID of an allocation that no claim has been chosen for.
UNASSIGNED: Final = ""
# The namespace of share IDs: the same decision has the same ID.
_SHARES: Final = UUID("5d0a0e5c-3c55-5a9e-9c55-3f7f5b1d4a6e")


def results(search: Search) -> tuple[AllocationResult, ...]:
    """Return the allocation of every claim that a search has found, in order."""
    by_claim: list[list[TakenDevice]] = [[] for _ in search.plan.claims]
    for frame in search.frames:
        by_claim[frame.claim].append((frame.choice.alternative, frame.index, frame.amounts))
    claims = search.plan.claims
    return tuple([result(search.view, claim, taken) for claim, taken in zip(claims, by_claim, strict=True)])


def result(view: NodeView, claim: PlannedClaim, taken: Iterable[TakenDevice]) -> AllocationResult:
    """Return the allocation of a claim with these devices of a node."""
    devices: list[PoolDevice] = []
    allocated: list[DeviceRequestAllocationResult] = []
    # The chosen alternative of each request that got devices.
    chosen: dict[str, Alternative] = {}
    for alternative, index, amounts in taken:
        device = view.device(index)
        devices.append(device)
        chosen[alternative.name] = alternative
        allocated.append(_device(view, alternative, index, device, amounts))
    return AllocationResult(
        devices=DeviceAllocationResult(
            config=(*_class_configs(claim.claim, chosen.values()), *_claim_configs(claim.claim, chosen)),
            results=tuple(allocated),
        ),
        node_selector=_node_selector(view, devices),
    )


def _device(
    view: NodeView, alternative: Alternative, index: int, device: PoolDevice, amounts: Mapping[str, int] | None
) -> DeviceRequestAllocationResult:
    spec = device.spec
    shared = bool(view.shared >> index & 1)
    consumed = _NO_CAPACITY
    if amounts:
        consumed = rendered(device.content, amounts, alternative.capacity)
    conditions = view.gates.binding_conditions
    return DeviceRequestAllocationResult(
        request=alternative.name,
        driver=device.entry.pool.driver,
        pool=device.entry.pool.name,
        device=device.name,
        admin_access=True if alternative.admin_access else None,
        tolerations=alternative.tolerations,
        share_id=UNASSIGNED if shared else None,
        consumed_capacity=consumed,
        binding_conditions=spec.binding_conditions if conditions else (),
        binding_failure_conditions=spec.binding_failure_conditions if conditions else (),
        skip_node_operations=device.entry.skip_node_operations,
    )


def with_share_ids(
    claims: Sequence[ResourceClaim], allocations: tuple[AllocationResult, ...]
) -> tuple[AllocationResult, ...]:
    """Return the allocations with the IDs of the claims' shares; claims with equal specs differ in nothing else."""
    for allocation in allocations:
        for item in allocation.devices.results:
            if item.share_id == UNASSIGNED:
                return tuple(_with_share_ids(*pair) for pair in zip(claims, allocations, strict=True))
    return allocations


def _with_share_ids(claim: ResourceClaim, allocation: AllocationResult) -> AllocationResult:
    results = tuple(
        msgspec.structs.replace(result, share_id=_share_id(claim, result)) if result.share_id == UNASSIGNED else result
        for result in allocation.devices.results
    )
    return msgspec.structs.replace(allocation, devices=msgspec.structs.replace(allocation.devices, results=results))


def _share_id(claim: ResourceClaim, result: DeviceRequestAllocationResult) -> str:
    owner = claim.metadata.uid or f"{claim.metadata.namespace}/{claim.metadata.name}"
    return str(uuid5(_SHARES, f"{owner} {result.request} {pool_key(result.driver, result.pool)}/{result.device}"))


def _class_configs(claim: ResourceClaim, chosen: Iterable[Alternative]) -> list[DeviceAllocationConfiguration]:
    """Return each configuration of each class once, with all requests that use the class."""
    requests: dict[str, list[str]] = {}
    classes = {}
    for alternative in chosen:
        if alternative.device_class.spec.config:
            name = alternative.device_class.metadata.name or ""
            classes[name] = alternative.device_class
            requests.setdefault(name, []).append(alternative.name)
    if not classes:
        return []
    return [
        DeviceAllocationConfiguration(
            source=_FROM_CLASS, requests=_named(claim, requests[name], requests[name]), opaque=config.opaque
        )
        for name, device_class in classes.items()
        for config in device_class.spec.config
    ]


def _claim_configs(claim: ResourceClaim, chosen: Collection[str]) -> list[DeviceAllocationConfiguration]:
    """Return the configurations for all requests, and those that name a request or its chosen alternative."""
    if not claim.spec.devices.config:
        return []
    names = set(chosen) | {name.partition("/")[0] for name in chosen}
    return [
        DeviceAllocationConfiguration(
            source=_FROM_CLAIM, requests=_named(claim, config.requests, chosen), opaque=config.opaque
        )
        for config in claim.spec.devices.config
        if not config.requests or not names.isdisjoint(config.requests)
    ]


def _named(claim: ResourceClaim, requests: Sequence[str], chosen: Collection[str]) -> tuple[str, ...]:
    """Return the requests of a configuration, or none if it applies to every request of the claim.

    A chosen alternative stands for its request.
    """
    applies = {name.partition("/")[0] for name in requests if "/" not in name or name in chosen}
    return () if all(item.name in applies for item in claim.spec.devices.requests) else tuple(requests)


def _node_selector(view: NodeView, devices: Iterable[PoolDevice]) -> NodeSelector | None:
    """Return the nodes from which all devices can be used."""
    terms: list[NodeSelectorTerm] = []
    for device in devices:
        entry = device.entry
        if entry.node_name is not None or (view.gates.binding_conditions and device.spec.binds_to_node):
            return view.local_selector()
        if entry.per_device and device.spec.node_name:
            return view.local_selector()
        selector = device.spec.node_selector if entry.per_device else entry.node_selector
        if selector is not None:
            # More than one term is invalid; the one that the node matches counts.
            term = matching_term(selector, view.name, view.node.metadata.labels)
            terms += () if term is None else (term,)
    return united_selector(terms)
