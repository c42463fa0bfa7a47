"""Detects nodes where a device plugin and a driver offer the same extended resource; the plugin's is used.

Pure. It is unknown whether both offer the same hardware; on a node a resource should come from one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dray.allocator import Allocator
from dray.api.extended_resources import ClassResources, is_dra_extended_resource_name
from dray.api.quantity import Quantity
from dray.api.types.core_v1 import Node

OFFERED_TWICE: Final = "ExtendedResourceOfferedTwice"


@dataclass(frozen=True, slots=True)
class DoubleOffer:
    """One resource of one node."""

    node: Node
    message: str


class DoubleOffers:
    """Reports each case once, and again after it was resolved."""

    def __init__(self, allocator: Allocator, resources: ClassResources) -> None:
        self._allocator = allocator
        self._resources = resources
        # Nodes with extended resources of their own, and the amounts.
        self._nodes: dict[str, tuple[Node, dict[str, int]]] = {}
        self._reported: set[tuple[str, str]] = set()

    def node_changed(self, node: Node) -> Iterator[DoubleOffer]:
        """Yield new cases after a node was added or changed."""
        name, amounts = node.metadata.name or "", _extended_amounts(node)
        known = self._nodes.get(name)
        if not amounts:
            self.node_gone(name)
            return
        self._nodes[name] = (node, amounts)
        if known is None or known[1] != amounts:
            yield from self._check_node(name)

    def node_gone(self, name: str) -> None:
        """Remove a node that was deleted, or has no extended resources any more."""
        if self._nodes.pop(name, None) is not None:
            self._reported = {case for case in self._reported if case[0] != name}

    def slice_changed(self, node_name: str) -> Iterator[DoubleOffer]:
        """Yield new cases after a slice changed; a slice without a node name affects all nodes."""
        for name in (node_name,) if node_name else tuple(self._nodes):
            yield from self._check_node(name)

    def class_changed(self, device_class: str) -> Iterator[DoubleOffer]:
        """Yield new cases after a class changed."""
        for resource in self._resources.resources_of(device_class):
            yield from self.resource_changed(resource)

    def resource_changed(self, resource: str) -> Iterator[DoubleOffer]:
        """Yield new cases after the class of a resource changed."""
        for name in [name for name, (_, amounts) in self._nodes.items() if resource in amounts]:
            yield from self._check(name, resource)

    def _check_node(self, name: str) -> Iterator[DoubleOffer]:
        if name in self._nodes:
            for resource in self._nodes[name][1]:
                yield from self._check(name, resource)

    def _check(self, name: str, resource: str) -> Iterator[DoubleOffer]:
        node, amounts = self._nodes[name]
        device_class = self._resources.class_of(resource)
        count = self._allocator.usage(node, device_class)[1] if device_class is not None else 0
        if not count:
            self._reported.discard((name, resource))
        elif (name, resource) not in self._reported:
            self._reported.add((name, resource))
            yield DoubleOffer(
                node,
                f"{resource} is offered by a device plugin ({amounts[resource]}) and by devices of class "
                f"{device_class} ({count}); Pods get the device plugin's",
            )


def _extended_amounts(node: Node) -> dict[str, int]:
    found = {}
    for name, text in node.status.allocatable.items():
        if is_dra_extended_resource_name(name):
            amount = Quantity.parse(text).value()
            if amount > 0:
                found[name] = amount
    return found
