"""The nodes as one scheduling cycle sees them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, overload

from dray.framework.node_info import NodeInfo

# Length of the change log; a reader that falls further behind has to read all nodes.
CHANGES_MAX: Final = 10_000


class Snapshot:
    """The nodes in the order in which they are tried; changed only between cycles, by the cache."""

    def __init__(self, nodes: Sequence[NodeInfo] = ()) -> None:
        self.nodes: list[NodeInfo] = []
        self._indices: dict[str, int] = {}
        # Grows with each change; the log has the indices of the changed nodes since indices changed, newest last.
        self.version = 0
        self._changes: deque[int] = deque(maxlen=CHANGES_MAX)
        # Names of the nodes with rare properties: plugins skip their work if there are none.
        self.with_affinity_pods: dict[str, None] = {}
        self.with_extended_requests: dict[str, None] = {}
        self.unschedulable: dict[str, None] = {}
        self.hard_tainted: dict[str, None] = {}
        self.soft_tainted: dict[str, None] = {}
        # The number of nodes that have each image.
        self.image_counts: Counter[str] = Counter()
        self.replace_all(nodes)

    def get(self, name: str) -> NodeInfo | None:
        """Return the node with the name."""
        index = self._indices.get(name)
        return None if index is None else self.nodes[index]

    def index_of(self, name: str) -> int | None:
        """Return the index of a node; None if there is no such node."""
        return self._indices.get(name)

    def changed_since(self, version: int) -> Iterable[str] | None:
        """Return the nodes changed after the version, each once; None if indices changed, or the log is too short."""
        indices, nodes = self.indices_changed_since(version), self.nodes
        return None if indices is None else [nodes[index].name for index in dict.fromkeys(indices)]

    def indices_changed_since(self, version: int) -> Iterable[int] | None:
        """Return the indices of nodes changed after the version; None if indices changed, or the log is too short."""
        count = self.version - version
        return None if count > len(self._changes) else islice(reversed(self._changes), count)

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[NodeInfo]:
        return iter(self.nodes)

    def replace_all(self, nodes: Sequence[NodeInfo]) -> None:
        """Replace all nodes."""
        self.nodes = list(nodes)
        self._indices = {node.name: index for index, node in enumerate(self.nodes)}
        self.version += 1
        self._changes.clear()
        for names in (
            self.with_affinity_pods,
            self.with_extended_requests,
            self.unschedulable,
            self.hard_tainted,
            self.soft_tainted,
        ):
            names.clear()
        self.image_counts.clear()
        for node in self.nodes:
            self._update_properties(node)
            self.image_counts.update(node.image_sizes.keys())

    def replace(self, node: NodeInfo) -> None:
        """Replace one node."""
        index = self._indices[node.name]
        before, self.nodes[index] = self.nodes[index], node
        self.version += 1
        self._changes.append(index)
        if node.affinity_pods or before.affinity_pods:
            _set(self.with_affinity_pods, node.name, present=bool(node.affinity_pods))
        if node.requested.scalars or before.requested.scalars:
            _set(self.with_extended_requests, node.name, present=bool(node.requested.scalars))
        # A change of Pods keeps the same object.
        if node.node is not before.node:
            self._update_properties(node)
            self._update_images(before, node)

    def _update_properties(self, node: NodeInfo) -> None:
        _set(self.with_affinity_pods, node.name, present=bool(node.affinity_pods))
        _set(self.with_extended_requests, node.name, present=bool(node.requested.scalars))
        _set(self.unschedulable, node.name, present=node.unschedulable)
        _set(self.hard_tainted, node.name, present=bool(node.hard_taints))
        _set(self.soft_tainted, node.name, present=bool(node.soft_taints))

    def _update_images(self, before: NodeInfo, after: NodeInfo) -> None:
        self.image_counts.update(after.image_sizes.keys())
        self.image_counts.subtract(before.image_sizes.keys())
        for name in before.image_sizes:
            if not self.image_counts[name]:
                del self.image_counts[name]


class NodesAt(Sequence[NodeInfo]):
    """The nodes at some indices of a snapshot, which must not change meanwhile; no node is touched until it is read."""

    __slots__ = ("_indices", "_nodes")

    def __init__(self, snapshot: Snapshot, indices: Sequence[int]) -> None:
        self._nodes = snapshot.nodes
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[NodeInfo]:
        return map(self._nodes.__getitem__, self._indices)

    @overload
    def __getitem__(self, position: int) -> NodeInfo: ...

    @overload
    def __getitem__(self, position: slice) -> list[NodeInfo]: ...

    def __getitem__(self, position: int | slice) -> NodeInfo | list[NodeInfo]:
        if isinstance(position, slice):
            return [self._nodes[index] for index in self._indices[position]]
        return self._nodes[self._indices[position]]


def _set(names: dict[str, None], name: str, *, present: bool) -> None:
    if present:
        names[name] = None
    elif names:
        names.pop(name, None)
