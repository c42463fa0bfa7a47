"""Nodes where a device plugin and a driver offer the same extended resource: the plugin's is used, and it is told of.

Pure. Nobody can know whether the two offer the same hardware; a resource is meant to come from one of them on a node.
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
    """Each is told of once, and again after it was gone."""

    def __init__(self, allocator: Allocator, resources: ClassResources) -> None:
        self._allocator = allocator
        self._resources = resources
        # Nodes that have extended resources themselves, with their amounts.
        self._nodes: dict[str, tuple[Node, dict[str, int]]] = {}
        self._told: set[tuple[str, str]] = set()

    def node_changed(self, node: Node) -> Iterator[DoubleOffer]:
        """A node was added or changed."""
        name, amounts = node.metadata.name or "", _extended_amounts(node)
        known = self._nodes.get(name)
        if not amounts:
            self.node_gone(name)
            return
        self._nodes[name] = (node, amounts)
        if known is None or known[1] != amounts:
            yield from self._look_at(name)

    def node_gone(self, name: str) -> None:
        """A node is gone, or has no extended resources any more."""
        if self._nodes.pop(name, None) is not None:
            self._told = {told for told in self._told if told[0] != name}

    def slice_changed(self, node_name: str) -> Iterator[DoubleOffer]:
        """Devices came or changed; those of no single node may concern any."""
        for name in (node_name,) if node_name else tuple(self._nodes):
            yield from self._look_at(name)

    def class_changed(self, device_class: str) -> Iterator[DoubleOffer]:
        """A class has other devices or another name."""
        for resource in self._resources.resources_of(device_class):
            yield from self.resource_changed(resource)

    def resource_changed(self, resource: str) -> Iterator[DoubleOffer]:
        """A resource may have another class."""
        for name in [name for name, (_, amounts) in self._nodes.items() if resource in amounts]:
            yield from self._judge(name, resource)

    def _look_at(self, name: str) -> Iterator[DoubleOffer]:
        if name in self._nodes:
            for resource in self._nodes[name][1]:
                yield from self._judge(name, resource)

    def _judge(self, name: str, resource: str) -> Iterator[DoubleOffer]:
        node, amounts = self._nodes[name]
        device_class = self._resources.class_of(resource)
        count = self._allocator.usage(node, device_class)[1] if device_class is not None else 0
        if not count:
            self._told.discard((name, resource))
        elif (name, resource) not in self._told:
            self._told.add((name, resource))
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
