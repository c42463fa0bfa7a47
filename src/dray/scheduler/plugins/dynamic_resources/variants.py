"""Variants: the claims to allocate on a node, depending on the extended resources that the node has itself.

Pure. A resource that the node has itself is never served by devices, and devices that a removed device plugin
allocated to running Pods are held back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dray.allocator import AllocationOverlay, claim_label
from dray.api.extended_resources import ClassResources, is_dra_extended_resource_name
from dray.api.types.core_v1 import Node, Pod
from dray.framework.node_info import NodeInfo
from dray.framework.resources import Resources
from dray.framework.status import unresolvable
from dray.scheduler.plugins.dynamic_resources.extended_resources import (
    NOTHING_WANTED,
    held_back,
    make_claim,
    needs_of,
    plan_requests,
)
from dray.scheduler.plugins.dynamic_resources.pod_state import (
    NO_GROUP,
    NOTHING_EXTENDED,
    ClaimsOfPod,
    ExtendedRequests,
    GroupShare,
    PodState,
    Variant,
)

CANNOT_FIT: Final = "cannot fit resource"

_CANNOT_FIT: Final = unresolvable(CANNOT_FIT).with_plugin("DynamicResources")

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

    def requests_of(self, pod: Pod, names: tuple[str, ...]) -> ExtendedRequests:
        """Return what the Pod requests of extended resources that devices could serve."""
        if not names:
            return NOTHING_EXTENDED
        found = ((name, self._resources.class_of(name)) for name in names)
        classes = {name: device_class for name, device_class in found if device_class is not None}
        return ExtendedRequests(names, needs_of(pod), classes)

    def state_of(self, claims: ClaimsOfPod, group: GroupShare = NO_GROUP) -> PodState:
        """Return the state of an attempt for a Pod."""
        names = claims.extended.names
        if not names:
            return PodState(claims, group)
        own = PodState(claims, group, _make(claims, names, _NONE))
        own.results.variants[names, _NONE] = own.results.plain
        return own

    def variant(self, own: PodState, node: NodeInfo) -> Variant:
        """Return the variant for the node; the same object for equivalent nodes."""
        claims, results, overlay = own.claims, own.results, own.dry_run.overlay
        available = node.allocatable.scalars
        lacking = claims.extended.names
        if available and lacking:
            lacking = tuple([name for name in lacking if not available.get(name)])
        held = self._held(node, overlay) if node.requested.scalars and (claims.pending or lacking) else _NONE
        if not claims.extended.needs and not held:
            return results.plain
        key = (lacking, held)
        variant = results.variants.get(key)
        if variant is None:
            variant = results.variants[key] = _make(claims, lacking, held)
        return variant

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


def _make(claims: ClaimsOfPod, lacking: tuple[str, ...], held: Held) -> Variant:
    extended = claims.extended
    if any(name not in extended.classes for name in lacking):
        return Variant((), rejection=_CANNOT_FIT)
    wanted = NOTHING_WANTED
    if lacking:
        wanted = plan_requests(extended.needs, tuple((name, extended.classes[name]) for name in lacking))
    extended_claim = make_claim(claims.pod, wanted.requests) if wanted.requests else None
    problem = wanted.problem()
    if problem and extended_claim is not None:
        return Variant((), rejection=unresolvable(f"claim {claim_label(extended_claim)}: {problem}"))
    return Variant(claims.pending, extended_claim, held_back(dict(held)), wanted)
