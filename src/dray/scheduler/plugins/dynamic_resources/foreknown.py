"""What is known of nodes before they are asked for devices, where nothing else counts for them; pure.

An outcome counts for its node as it was and for the inventory's version. Devices that Pods have from a device plugin,
which show as extended resources of the node, are no part of it, and neither are nodes that have some of the Pod's
extended resources themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from dray.allocator import Asked
from dray.framework.node_info import NodeInfo
from dray.framework.snapshot import Snapshot


class Foreknown(msgspec.Struct, frozen=True):
    """What is known for one Pod."""

    asked: Asked
    # The Pod's extended resources.
    names: frozenset[str]
    # Whether devices can serve a resource.
    serves: Callable[[str], bool]
    # Of the inventory.
    version: int

    def promising(self, snapshot: Snapshot, start: int) -> Iterator[NodeInfo]:
        """The nodes from a place on, without those known to have no room."""
        known_of, candidates, nodes = self.asked.known.get, self.asked.candidates, snapshot.nodes
        names, version = self.names, self.version
        for place in candidates.places_from(start, snapshot, version):
            node = nodes[place]
            known = known_of(node.name)
            if (
                known is None
                or known.fits
                or known.node is not node.node
                or known.version != version
                or node.requested.scalars
                or not names.isdisjoint(node.allocatable.scalars)
            ):
                yield node
            elif not any(map(self.serves, node.allocatable.scalars)):
                # Another Pod may ask the same of devices and find on the node itself what it is for.
                candidates.drop(place)

    def fitting(self, nodes: Sequence[NodeInfo]) -> list[NodeInfo]:
        """Those of the nodes, in order, that are known to have room."""
        known_of, names, version = self.asked.known.get, self.names, self.version
        return [
            node
            for node in nodes
            if (known := known_of(node.name)) is not None
            and known.fits
            and known.node is node.node
            and known.version == version
            and not node.requested.scalars
            and (not names or names.isdisjoint(node.allocatable.scalars))
        ]
