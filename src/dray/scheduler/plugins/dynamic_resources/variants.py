"""Variants: the claims to allocate on a node, depending on the extended resources that the node has itself.

Pure. A resource that the node has itself is never served by devices, and devices that a removed device plugin
allocated to running Pods are held back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dray.allocator import AllocationOverlay, claim_label
from dray.api.extended_resources import ClassResources, is_dra_extended_resource_name
from dray.api.types.core_v1 import Node
from dray.api.types.resource_v1 import ResourceClaim
from dray.framework.node_info import NodeInfo
from dray.framework.resources import Resources
from dray.framework.status import Status, unresolvable
from dray.scheduler.plugins.dynamic_resources.extended_resources import (
    NOTHING_WANTED,
    Wanted,
    held_back,
    is_reusable,
    make_claim,
    needs_of,
    plan_requests,
    same_requests,
)
from dray.scheduler.plugins.dynamic_resources.pod_state import PodState, Variant

CANNOT_FIT: Final = "cannot fit resource"
CANNOT_SCHEDULE: Final = "cannot schedule extended resource claim"

_CANNOT_FIT: Final = unresolvable(CANNOT_FIT).with_plugin("DynamicResources")
# A claim of an earlier attempt has other requests than the Pod has on this node.
CLAIM_MISMATCH: Final = unresolvable(CANNOT_SCHEDULE).with_plugin("DynamicResources")

Held = tuple[tuple[str, int], ...]
_NONE: Final[Held] = ()


def extended_names(requests: Resources) -> tuple[str, ...]:
    """Return the Pod's resources that devices could serve."""
    return tuple(
        sorted(name for name, amount in requests.scalars.items() if amount and is_dra_extended_resource_name(name))
    )


class Variants:
    """Finds the variant for each node; `resources` is updated by others.

    `usage` returns how many devices of a class are in use on a node, and how many there are.
    """

    def __init__(
        self,
        resources: ClassResources,
        usage: Callable[[Node, str, AllocationOverlay | None], tuple[int, int]],
        *,
        enabled: bool,
    ) -> None:
        self._resources = resources
        self._usage = usage
        self.enabled = enabled

    def serves(self, name: str) -> bool:
        """Return whether devices can serve the resource on nodes that do not have it."""
        return self.enabled and self._resources.class_of(name) is not None

    def prepare(self, own: PodState, names: tuple[str, ...], extended_claim: ResourceClaim | None) -> Status | None:
        """Add the Pod's extended resources and its claim of an earlier attempt; return a status if that fails."""
        own.names, own.needs = names, needs_of(own.pod)
        found = ((name, self._resources.class_of(name)) for name in names)
        own.classes = {name: device_class for name, device_class in found if device_class is not None}
        if extended_claim is not None:
            own.use_extended_claim(extended_claim)
            if not is_reusable(extended_claim, own.pod):
                own.stale = True
                return CLAIM_MISMATCH
        own.plain = own.chosen = own.variants[names, _NONE] = self._make(own, names, _NONE)
        return None

    def variant(self, own: PodState, node: NodeInfo) -> Variant:
        """Return the variant for the node; the same object for equivalent nodes."""
        available = node.allocatable.scalars
        lacking = own.names
        if available and lacking:
            lacking = tuple([name for name in lacking if not available.get(name)])
        held = self._held(node, own.overlay) if node.requested.scalars and (own.pending or lacking) else _NONE
        if not own.needs and not held:
            return own.plain
        key = (lacking, held)
        variant = own.variants.get(key)
        if variant is None:
            variant = own.variants[key] = self._make(own, lacking, held)
        return variant

    def _make(self, own: PodState, lacking: tuple[str, ...], held: Held) -> Variant:
        if any(name not in own.classes for name in lacking):
            return Variant((), rejection=_CANNOT_FIT if own.extended_claim is None else CLAIM_MISMATCH)
        wanted = NOTHING_WANTED
        if lacking:
            wanted = plan_requests(own.needs, tuple((name, own.classes[name]) for name in lacking))
        if own.extended_claim is not None and not same_requests(own.extended_claim, wanted.requests):
            return Variant((), rejection=CLAIM_MISMATCH)
        extended_claim = _extended_claim(own, wanted)
        problem = wanted.problem()
        if problem and extended_claim is not None:
            return Variant((), rejection=unresolvable(f"claim {claim_label(extended_claim)}: {problem}"))
        return Variant(own.pending, extended_claim, held_back(dict(held)), wanted)

    def _held(self, node: NodeInfo, overlay: AllocationOverlay | None) -> Held:
        """Return classes, and how many of their free devices Pods use through a removed device plugin.

        Never more than are free, so that holding back does not make the node infeasible.
        """
        counts: dict[str, int] = {}
        for name, amount in node.requested.scalars.items():
            if amount > 0 and not node.allocatable.scalars.get(name) and self.enabled:
                device_class = self._resources.class_of(name)
                if device_class is not None:
                    counts[device_class] = counts.get(device_class, 0) + amount
        free = (
            (name, total - used, count)
            for name, count in counts.items()
            for used, total in (self._usage(node.node, name, overlay),)
        )
        return tuple(sorted((name, min(count, left)) for name, left, count in free if left > 0))


def _extended_claim(own: PodState, wanted: Wanted) -> ResourceClaim | None:
    """Return the extended-resource claim to allocate: the existing one, or one in memory."""
    if own.extended_claim is not None:
        return own.extended_claim if own.extended_claim.status.allocation is None else None
    return make_claim(own.pod, wanted.requests) if wanted.requests else None
