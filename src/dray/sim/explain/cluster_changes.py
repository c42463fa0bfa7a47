"""Changes of a cluster, or of the Pod, that would let it in: each is tested with the scheduler's filters.

Nodes are uncordoned and their taints removed, claims freed, requests lowered, nodes added, on copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from dray.allocator import AllocationOverlay, Allocator, AllocatorError, Reason, claim_label, device_keys
from dray.allocator.allocations import identity_of
from dray.api.quantity import Format, Quantity
from dray.api.timestamps import age
from dray.api.types.core_v1 import Node, Pod
from dray.api.types.resource_v1 import ResourceClaim
from dray.framework.node_info import NodeInfo
from dray.framework.snapshot import Snapshot
from dray.sim.devices import pods_of
from dray.sim.explain.answers import Change, NodeAnswer, Size
from dray.sim.explain.filters import DYNAMIC_RESOURCES, Filters
from dray.sim.explain.grouping import NOT_READY, UNSCHEDULABLE, untolerated_taints

# Nodes on which it is tried to free claims, those with the fewest missing devices first.
_FREED_NODES_MAX: Final = 32
_CLAIMS_MAX: Final = 64
_SHOWN_MAX: Final = 3
HOSTNAME: Final = "kubernetes.io/hostname"
_ADMISSION: Final = frozenset({"NodeUnschedulable", "TaintToleration"})
# Below every priority of a Pod.
_UNUSED: Final = -(2**31)
_NANOS_PER_MILLI: Final = 10**6
_NANOS: Final = 10**9
replace = msgspec.structs.replace


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the changes are tested with."""

    filters: Filters
    nodes: Snapshot
    allocator: Allocator
    # All allocated claims.
    claims: Sequence[ResourceClaim]
    pod: Pod
    now: datetime


def cluster_changes(cluster: Surroundings, answers: Sequence[NodeAnswer]) -> Iterator[Change]:
    """Yield changes that suffice."""
    yield from _admissions(cluster, answers)
    yield from _freed_claims(cluster, answers)
    yield from _lower_requests(cluster, answers)
    yield from _added_nodes(cluster, answers)


# --- Cordons and taints of nodes. ---


def _admissions(cluster: Surroundings, answers: Sequence[NodeAnswer]) -> Iterator[Change]:
    """Uncordon nodes, or remove taints; nodes for which the same is needed are one change."""
    found: dict[tuple[bool, tuple[str, ...]], list[str]] = {}
    for answer in answers:
        if answer.fits or not _ADMISSION & answer.rejections.keys():
            continue
        info = cluster.nodes.get(answer.node)
        if info is None:
            continue
        untolerated = untolerated_taints(info.node, cluster.pod)
        taints = tuple(item for item in untolerated if not item.startswith(UNSCHEDULABLE))
        if not cluster.filters.rejections(info.with_node(_admitting(info.node, cluster.pod))):
            found.setdefault((info.unschedulable, taints), []).append(answer.node)
    for (cordoned, unwanted), names in found.items():
        node = names[0] if len(names) == 1 else f"one of {len(names)} nodes"
        parts = [f"uncordon {node}"] if cordoned else []
        if any(taint.startswith(NOT_READY) for taint in unwanted):
            parts.append(f"bring {node} back, {'which is' if len(names) == 1 else 'which are'} not ready")
        lasting = [taint for taint in unwanted if not taint.startswith(NOT_READY)]
        parts += [f"remove the taint {taint} of {node}, or tolerate it" for taint in lasting]
        yield Change(" and ".join(parts), tuple(names), Size.ADMIT_TO_NODE)


def _admitting(node: Node, pod: Pod) -> Node:
    refused = set(untolerated_taints(node, pod))
    taints = tuple(
        item
        for item in node.spec.taints
        if f"{item.key}{f'={item.value}' if item.value else ''}:{item.effect}" not in refused
    )
    return replace(node, spec=replace(node.spec, taints=taints, unschedulable=False))


# --- Claims that hold devices. ---


def _freed_claims(cluster: Surroundings, answers: Sequence[NodeAnswer]) -> Iterator[Change]:
    """Free the claims on one node that let the Pod in: of the least important Pods, and as few as possible.

    Nothing is taken from Pods that are more important than the one that waits, nor from those of the same controller:
    it would create them again.
    """
    best: tuple[tuple[int, int], str, list[ResourceClaim]] | None = None
    priorities, siblings = _priorities(cluster), _siblings(cluster)
    for answer in sorted(answers, key=_missing)[:_FREED_NODES_MAX]:
        if answer.fits or answer.rejections.keys() != {DYNAMIC_RESOURCES}:
            continue
        info = cluster.nodes.get(answer.node)
        claims = [] if info is None else _blocking(cluster, answer)
        claims = [
            claim
            for claim in claims
            if _importance(claim, priorities) <= (cluster.pod.spec.priority or 0)
            and siblings.isdisjoint(user.uid for user in claim.status.reserved_for)
        ]
        if info is None or not claims or len(claims) > _CLAIMS_MAX:
            continue
        freed = _smallest(cluster, info, claims, priorities)
        harm = max((_importance(claim, priorities) for claim in freed), default=0), len(freed)
        if freed and (best is None or harm < best[0]):
            best = harm, answer.node, freed
    if best is not None:
        _, name, freed = best
        shown = ", ".join(holder_text(claim, cluster.now) for claim in freed[:_SHOWN_MAX])
        more = f" and {len(freed) - _SHOWN_MAX} more" if len(freed) > _SHOWN_MAX else ""
        size = Size.FREE_MANY_CLAIMS if more else Size.FREE_CLAIMS
        if not any(claim.status.reserved_for for claim in freed):
            size = Size.FREE_UNUSED_CLAIMS
        yield Change(f"free {shown}{more}", (name,), size)


def _priorities(cluster: Surroundings) -> dict[str, int]:
    """Return the priority of each Pod on a node, by uid."""
    return {info.uid: info.pod.spec.priority or 0 for node in cluster.nodes.nodes for info in node.pods.values()}


def _siblings(cluster: Surroundings) -> set[str]:
    """Return the uids of the Pods on nodes that the controller of the Pod has created, too."""
    controllers = {owner.uid for owner in cluster.pod.metadata.owner_references if owner.controller}
    pods = [info.pod for node in cluster.nodes.nodes for info in node.pods.values()] if controllers else []
    return {
        pod.metadata.uid or ""
        for pod in pods
        if any(owner.controller and owner.uid in controllers for owner in pod.metadata.owner_references)
    }


def _importance(claim: ResourceClaim, priorities: Mapping[str, int]) -> int:
    """Return the highest priority of the claim's Pods; less than any if it has none."""
    users = [priorities.get(user.uid, 0) for user in claim.status.reserved_for]
    return max(users, default=_UNUSED)


def _missing(answer: NodeAnswer) -> int:
    return min((request.needed - request.usable for request in answer.requests if not request.satisfiable), default=0)


def _blocking(cluster: Surroundings, answer: NodeAnswer) -> list[ResourceClaim]:
    """Return the claims in the pools of devices that are in use or lack counters or capacity."""
    kinds = (Reason.IN_USE, Reason.COUNTER, Reason.CAPACITY)
    pools = {
        reason.device.rpartition("/")[0]
        for request in answer.requests
        for reason in request.reasons
        if reason.reason in kinds
    }
    found = []
    for claim in cluster.claims:
        results = () if claim.status.allocation is None else claim.status.allocation.devices.results
        if any(f"{item.driver}/{item.pool}" in pools for item in results):
            found.append(claim)
    return found


def _smallest(
    cluster: Surroundings, info: NodeInfo, claims: Sequence[ResourceClaim], priorities: Mapping[str, int]
) -> list[ResourceClaim]:
    """Take out all the claims, and put them back one by one as long as the Pod still fits: the most important first.

    Of equally important ones, the oldest are put back first.
    """
    overlay = AllocationOverlay(cluster.allocator.allocations)
    wanted = cluster.filters.wanted_on(info)
    for claim in claims:
        overlay.take_out(identity_of(claim))
    if not _fits(cluster.allocator, info, wanted, overlay):
        return []
    freed = []
    for claim in sorted(claims, key=lambda claim: (-_importance(claim, priorities), _since(claim))):
        overlay.put_back(identity_of(claim))
        if not _fits(cluster.allocator, info, wanted, overlay):
            overlay.take_out(identity_of(claim))
            freed.append(claim)
    return freed


def _fits(allocator: Allocator, info: NodeInfo, wanted: Sequence[ResourceClaim], overlay: AllocationOverlay) -> bool:
    try:
        return allocator.find(info.node, wanted, overlay=overlay).allocations is not None
    except AllocatorError:
        return False


def _since(claim: ResourceClaim) -> str:
    since = claim.status.allocation and claim.status.allocation.allocation_timestamp
    return "" if not since else since.isoformat()


def holder_text(claim: ResourceClaim, now: datetime) -> str:
    """Return the claim with its Pods, and since when it is allocated."""
    pods = pods_of(claim)
    users = f"Pod {pods[0]}" if len(pods) == 1 else f"{len(pods)} Pods" if pods else "no Pod"
    allocation = claim.status.allocation
    since = "" if allocation is None else age(allocation.allocation_timestamp, now)
    return f"claim {claim_label(claim)} ({users}{f', for {since}' if since else ''})"


# --- Requests for resources of nodes. ---


def _lower_requests(cluster: Surroundings, answers: Sequence[NodeAnswer]) -> Iterator[Change]:
    """Lower one resource to what the node with most of it has left."""
    best: dict[str, tuple[int, list[str]]] = {}
    for answer in answers:
        info = cluster.nodes.get(answer.node)
        if info is None or answer.rejections.keys() != {"NodeResourcesFit"}:
            continue
        lacking = cluster.filters.shortages(info)
        if len(lacking) != 1 or lacking[0].resource == "pods" or lacking[0].free <= 0:
            continue
        resource, free = lacking[0].resource, lacking[0].free
        amount, nodes = best.setdefault(resource, (0, []))
        if free > amount:
            best[resource] = free, [answer.node]
        elif free == amount:
            nodes.append(answer.node)
    for name, (free, names) in best.items():
        text = f"lower the Pod's request of {name} to {_amount(name, free)}"
        yield Change(text, tuple(names), Size.LOWER_REQUEST)


def _amount(name: str, free: int) -> str:
    if name == "cpu":
        return str(Quantity(free * _NANOS_PER_MILLI))
    is_bytes = name in ("memory", "ephemeral-storage") or name.startswith("hugepages-")
    return str(Quantity(free * _NANOS, Format.BINARY_SI if is_bytes else Format.DECIMAL_SI))


# --- More nodes. ---


def _like(node: Node) -> Node:
    """Return a copy of a node as it would be added: with a name of its own."""
    name = f"{node.metadata.name}-new"
    labels = {**node.metadata.labels, HOSTNAME: name}
    return replace(node, metadata=replace(node.metadata, name=name, labels=labels))


def _added_nodes(cluster: Surroundings, answers: Sequence[NodeAnswer]) -> Iterator[Change]:
    """Add a node like an existing one on which the Pod would fit if it were empty."""
    for answer in sorted(answers, key=lambda item: (len(item.rejections), _missing(item))):
        info = cluster.nodes.get(answer.node)
        if answer.fits or info is None:
            continue
        empty = NodeInfo(_like(_admitting(info.node, cluster.pod)))
        if cluster.filters.rejections(empty).keys() - {DYNAMIC_RESOURCES}:
            continue
        wanted = cluster.filters.wanted_on(info)
        overlay = AllocationOverlay(cluster.allocator.allocations)
        local = cluster.allocator.local_devices(info.node)
        for claim in cluster.claims:
            # Devices that several nodes use are not multiplied with the node.
            if claim.status.allocation and local.issuperset(device_keys(claim.status.allocation)):
                overlay.take_out(identity_of(claim))
        if not wanted or _fits(cluster.allocator, info, wanted, overlay):
            yield Change(f"add a node like {answer.node}", ("the new node",), Size.ADD_NODE)
            return
