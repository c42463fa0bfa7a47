"""The cluster as one scheduling cycle sees it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from dray.framework.node_info import NodeInfo

# Changes remembered; who asks less often has to look at all nodes again.
CHANGES_MAX: Final = 10_000


class Snapshot:
    """The nodes in the order they are tried; changed between cycles only, by the cache."""

    def __init__(self, nodes: Sequence[NodeInfo] = ()) -> None:
        self.nodes: list[NodeInfo] = []
        self._positions: dict[str, int] = {}
        # Grows with each change; the names of the nodes that changed last, newest last, while all keep their places.
        self.version = 0
        self._changes: deque[str] = deque(maxlen=CHANGES_MAX)
        # Names of the nodes with properties that many clusters have none of: plugins then have nothing to do.
        self._with_anti_affinity: dict[str, None] = {}
        self.unschedulable: dict[str, None] = {}
        self.hard_tainted: dict[str, None] = {}
        self.soft_tainted: dict[str, None] = {}
        # How many nodes have each image.
        self.image_counts: Counter[str] = Counter()
        self.replace_all(nodes)

    def get(self, name: str) -> NodeInfo | None:
        """One node."""
        position = self._positions.get(name)
        return None if position is None else self.nodes[position]

    def index_of(self, name: str) -> int | None:
        """Where the node is in the order; None when there is no such node."""
        return self._positions.get(name)

    def changed_since(self, version: int) -> Iterable[str] | None:
        """The nodes that changed after the version; None when places did, or it is too long ago to tell."""
        count = self.version - version
        return None if count > len(self._changes) else islice(reversed(self._changes), count)

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[NodeInfo]:
        return iter(self.nodes)

    def nodes_with_anti_affinity(self) -> tuple[NodeInfo, ...]:
        """The nodes that have Pods with required anti-affinity."""
        return tuple(self.nodes[self._positions[name]] for name in self._with_anti_affinity)

    def replace_all(self, nodes: Sequence[NodeInfo]) -> None:
        """Take another set of nodes."""
        self.nodes = list(nodes)
        self._positions = {node.name: position for position, node in enumerate(self.nodes)}
        self.version += 1
        self._changes.clear()
        for names in (
            self._with_anti_affinity,
            self.unschedulable,
            self.hard_tainted,
            self.soft_tainted,
        ):
            names.clear()
        self.image_counts.clear()
        for node in self.nodes:
            self._note_properties(node)
            self.image_counts.update(node.image_sizes.keys())

    def replace(self, node: NodeInfo) -> None:
        """Take another state of a node that is already there."""
        index = self._positions[node.name]
        before, self.nodes[index] = self.nodes[index], node
        self.version += 1
        self._changes.append(node.name)
        self._note_properties(node)
        # Pods come and go without making a new one.
        if node.image_sizes is not before.image_sizes:
            self._note_images(before, node)

    def _note_properties(self, node: NodeInfo) -> None:
        _set(self._with_anti_affinity, node.name, present=bool(node.anti_affinity_pods))
        _set(self.unschedulable, node.name, present=node.unschedulable)
        _set(self.hard_tainted, node.name, present=bool(node.hard_taints))
        _set(self.soft_tainted, node.name, present=bool(node.soft_taints))

    def _note_images(self, before: NodeInfo, after: NodeInfo) -> None:
        self.image_counts.update(after.image_sizes.keys())
        self.image_counts.subtract(before.image_sizes.keys())
        for name in before.image_sizes:
            if not self.image_counts[name]:
                del self.image_counts[name]


def _set(names: dict[str, None], name: str, *, present: bool) -> None:
    if present:
        names[name] = None
    elif names:
        names.pop(name, None)
