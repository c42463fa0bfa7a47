"""What is known of nodes before they are asked for devices, where nothing else counts for them; pure.

An outcome counts for its node as it was and for the inventory's version. Devices that Pods have from a device plugin,
which show as extended resources of the node, are no part of it, and neither are nodes that have some of the Pod's
extended resources themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from dray.allocator import Asked, Known
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

    def promising(self, snapshot: Snapshot, start: int) -> Iterator[int]:
        """The places of nodes from one on, without those known to have no room."""
        candidates = self.asked.candidates
        for place in candidates.places_from(start, snapshot, self.version):
            node = snapshot.nodes[place]
            known = self._known(node)
            if known is None or known.fits:
                yield place
            elif self._is_for_all(node):
                candidates.drop(place)

    def doubtful(self, snapshot: Snapshot, start: int, stop: int) -> list[int]:
        """The places from one up to another of nodes that are not known to have room."""
        unsure = self.asked.unsure
        found: list[int] = []
        kept: list[int] = []
        for place in unsure.places_between(start, stop, snapshot, self.version):
            node = snapshot.nodes[place]
            known = self._known(node)
            if known is None or not known.fits:
                found.append(place)
                kept.append(place)
            elif not self._is_for_all(node):
                kept.append(place)
        unsure.keep_between(start, stop, kept)
        return found

    def _known(self, node: NodeInfo) -> Known | None:
        """The outcome, if it is all that counts for the node."""
        known = self.asked.known.get(node.name)
        if (
            known is None
            or known.node is not node.node
            or known.version != self.version
            or node.requested.scalars
            or not self.names.isdisjoint(node.allocatable.scalars)
        ):
            return None
        return known

    def _is_for_all(self, node: NodeInfo) -> bool:
        """Whether no Pod that asks the same of devices could find on the node itself what it is for."""
        return not any(map(self.serves, node.allocatable.scalars))
