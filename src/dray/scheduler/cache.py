"""The scheduler's view of nodes and the Pods on them, including Pods it has placed but not yet seen bound.

Pure. A Pod on a node is *assumed* (placed by this scheduler, binding under way) or *confirmed* (the API says so).
Confirming ends the assumption, whatever node the API names. `update_snapshot` costs what changed, not what there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, zip_longest
from typing import Final

import msgspec

from dray.api.types.core_v1 import Node, Pod
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo, device_resources
from dray.framework.snapshot import Snapshot

_REGION: Final = "topology.kubernetes.io/region"
_ZONE: Final = "topology.kubernetes.io/zone"


class _Placed(msgspec.Struct, frozen=True):
    info: PodInfo
    node_name: str
    assumed: bool


class Cache:
    """Nodes by name and placed Pods by uid."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeInfo] = {}
        # Pods of nodes that are not known (yet, or any more): node name -> uid -> Pod.
        self._homeless: dict[str, dict[str, PodInfo]] = {}
        self._placed: dict[str, _Placed] = {}
        # Names of nodes that differ from the snapshot; all do after the set of nodes has changed.
        self._changed: dict[str, None] = {}
        self._set_changed = True

    # --- Placing. ---

    def assume(self, info: PodInfo, node_name: str) -> None:
        """Count the Pod on the node from now on; it must not be placed already."""
        assert info.uid not in self._placed, f"{info.key} is placed already"
        self._place(_Placed(info, node_name, assumed=True))

    def forget(self, uid: str) -> bool:
        """Undo `assume`; a Pod confirmed meanwhile stays. Says whether there was something to undo."""
        placed = self._placed.get(uid)
        if placed is None or not placed.assumed:
            return False
        self._take_away(uid)
        return True

    def is_assumed(self, uid: str) -> bool:
        """Whether the Pod was placed here and the API has not said so yet."""
        placed = self._placed.get(uid)
        return placed is not None and placed.assumed

    def node_of(self, uid: str) -> str | None:
        """The node the Pod counts on."""
        placed = self._placed.get(uid)
        return placed.node_name if placed else None

    # --- What the API says. ---

    def set_pod(self, pod: Pod) -> None:
        """A Pod with a node was added or changed."""
        uid, node_name = pod.metadata.uid or "", pod.spec.node_name or ""
        assert node_name, "a placed Pod has a node"
        placed = self._placed.get(uid)
        if placed is None:
            self._place(_Placed(PodInfo(pod), node_name, assumed=False))
            return
        if placed.node_name == node_name and _same_to_plugins(placed.info, pod):
            if placed.assumed:
                self._placed[uid] = _Placed(placed.info, node_name, assumed=False)
            return
        self._take_away(uid)
        self._place(_Placed(PodInfo(pod), node_name, assumed=False))

    def remove_pod(self, uid: str) -> None:
        """A Pod is gone or has finished."""
        if uid in self._placed:
            self._take_away(uid)

    def set_node(self, node: Node) -> None:
        """A node was added or changed."""
        name = node.metadata.name or ""
        known = self._nodes.get(name)
        if known is None:
            self._nodes[name] = NodeInfo(node, self._homeless.pop(name, None))
            self._set_changed = True
            return
        self._nodes[name] = known.with_node(node)
        self._changed[name] = None
        if _zone_of(known.node) != _zone_of(node):
            self._set_changed = True

    def remove_node(self, name: str) -> None:
        """A node is gone; its Pods stay known until the API removes them."""
        info = self._nodes.pop(name, None)
        if info is None:
            return
        self._changed.pop(name, None)
        self._set_changed = True
        if info.pods:
            self._homeless[name] = dict(info.pods)

    # --- Reading. ---

    def update_snapshot(self, snapshot: Snapshot) -> None:
        """Bring the snapshot up to date; a cache has one snapshot."""
        if self._set_changed:
            snapshot.replace_all(tuple(self._interleaved()))
            self._set_changed = False
        else:
            for name in self._changed:
                snapshot.replace(self._nodes[name])
        self._changed.clear()

    def node(self, name: str) -> NodeInfo | None:
        """One node as it is now."""
        return self._nodes.get(name)

    @property
    def node_count(self) -> int:
        """How many nodes there are."""
        return len(self._nodes)

    def assumed_count(self) -> int:
        """How many Pods wait to be confirmed."""
        return sum(placed.assumed for placed in self._placed.values())

    def pod_count(self) -> int:
        """How many Pods are placed, in whatever way."""
        return len(self._placed)

    # --- Keeping. ---

    def _place(self, placed: _Placed) -> None:
        name = placed.node_name
        self._placed[placed.info.uid] = placed
        node = self._nodes.get(name)
        if node is None:
            self._homeless.setdefault(name, {})[placed.info.uid] = placed.info
            return
        self._nodes[name] = node.with_pod(placed.info)
        self._changed[name] = None

    def _take_away(self, uid: str) -> None:
        placed = self._placed.pop(uid)
        name = placed.node_name
        node = self._nodes.get(name)
        if node is not None:
            self._nodes[name] = node.without_pod(uid)
            self._changed[name] = None
            return
        pods = self._homeless[name]
        del pods[uid]
        if not pods:
            del self._homeless[name]

    def _interleaved(self) -> Iterator[NodeInfo]:
        """The nodes taking turns between zones, so that a search that ends early has seen all of them."""
        zones: dict[tuple[str, str], list[NodeInfo]] = {}
        for info in self._nodes.values():
            zones.setdefault(_zone_of(info.node), []).append(info)
        if len(zones) == 1:
            return chain.from_iterable(zones.values())
        return (info for turn in zip_longest(*zones.values()) for info in turn if info is not None)


def _zone_of(node: Node) -> tuple[str, str]:
    labels = node.metadata.labels
    return labels.get(_REGION, ""), labels.get(_ZONE, "")


def _same_to_plugins(info: PodInfo, new: Pod) -> bool:
    """Whether no plugin could tell the two apart: heartbeats of a Pod's status need no new node."""
    old = info.pod
    return (
        old.metadata.labels == new.metadata.labels
        and old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
        and old.status.container_statuses == new.status.container_statuses
        and old.status.init_container_statuses == new.status.init_container_statuses
        and old.spec == new.spec
        and info.device_resources == device_resources(new)
    )
