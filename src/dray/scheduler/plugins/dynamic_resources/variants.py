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
from dray.scheduler.plugins.dynamic_resources.pod_state import PodState, Variant

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

    def prepare(self, own: PodState, names: tuple[str, ...]) -> None:
        """Add the Pod's extended resources."""
        own.names, own.needs = names, needs_of(own.pod)
        found = ((name, self._resources.class_of(name)) for name in names)
        own.classes = {name: device_class for name, device_class in found if device_class is not None}
        own.plain = own.chosen = own.variants[names, _NONE] = self._make(own, names, _NONE)

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
            return Variant((), rejection=_CANNOT_FIT)
        wanted = NOTHING_WANTED
        if lacking:
            wanted = plan_requests(own.needs, tuple((name, own.classes[name]) for name in lacking))
        extended_claim = make_claim(own.pod, wanted.requests) if wanted.requests else None
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
