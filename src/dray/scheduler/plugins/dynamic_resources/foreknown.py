"""What is known of nodes before they are asked for devices, where nothing else counts for them; pure.

An outcome counts for its node as it was and for the inventory's version. Devices that Pods have from a device plugin,
which show as extended resources of the node, are no part of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dray.allocator import Asked
from dray.framework.node_info import NodeInfo
from dray.framework.snapshot import Snapshot


def promising(asked: Asked, snapshot: Snapshot, start: int, version: int) -> Iterator[NodeInfo]:
    """The nodes from a place on, without those known to have no room."""
    known_of, candidates, nodes = asked.known.get, asked.candidates, snapshot.nodes
    for place in candidates.places_from(start, snapshot, version):
        node = nodes[place]
        known = known_of(node.name)
        if (
            known is None
            or known.fits
            or known.node is not node.node
            or known.version != version
            or node.requested.scalars
        ):
            yield node
        else:
            candidates.drop(place)


def fitting(asked: Asked, nodes: Sequence[NodeInfo], version: int) -> list[NodeInfo]:
    """Those of the nodes, in order, that are known to have room."""
    known_of = asked.known.get
    return [
        node
        for node in nodes
        if (known := known_of(node.name)) is not None
        and known.fits
        and known.node is node.node
        and known.version == version
        and not node.requested.scalars
    ]
