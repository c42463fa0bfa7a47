"""The scheduler's cache of nodes and their Pods, including Pods whose binding is not observed yet.

Pure. A Pod on a node is *assumed* (placed by this scheduler, binding under way) or *confirmed* (the API says so).
Confirming ends the assumption, whatever node the API names. `update_snapshot` costs what changed, not what there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, zip_longest
from typing import Final

import msgspec

from dray.api.types.core_v1 import Node, Pod
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo, device_resources
from dray.framework.snapshot import Snapshot
from dray.scheduler.pod_groups import PodGroups

_REGION: Final = "topology.kubernetes.io/region"
_ZONE: Final = "topology.kubernetes.io/zone"


class _Placed(msgspec.Struct, frozen=True):
    info: PodInfo
    node_name: str
    assumed: bool


class Cache:
    """Nodes by name and scheduled Pods by uid."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeInfo] = {}
        # Pods of nodes that do not exist (yet, or any more): node name -> uid -> Pod.
        self._orphans: dict[str, dict[str, PodInfo]] = {}
        self._placed: dict[str, _Placed] = {}
        # Names of nodes that differ from the snapshot; after a change of the set of nodes all of them do.
        self._changed: dict[str, None] = {}
        self._set_changed = True
        # Nodes as they were before Pods were left out of them for a dry run.
        self._before_hiding: dict[str, NodeInfo] = {}
        # Notified of the Pods of groups; None while there are no groups.
        self.pod_groups: PodGroups | None = None

    # --- Assuming. ---

    def assume(self, info: PodInfo, node_name: str) -> None:
        """Add the Pod to the node; it must not have a node yet."""
        assert info.uid not in self._placed, f"{info.key} is placed already"
        node = self._nodes.get(node_name)
        self._place(_Placed(info if node is None else _with_topology(info, node), node_name, assumed=True))

    def forget(self, uid: str) -> bool:
        """Undo `assume`, unless the Pod was confirmed; return whether it was undone."""
        placed = self._placed.get(uid)
        if placed is None or not placed.assumed:
            return False
        self._take_away(uid)
        return True

    def is_assumed(self, uid: str) -> bool:
        """Return whether the Pod is assumed and not confirmed."""
        placed = self._placed.get(uid)
        return placed is not None and placed.assumed

    def node_of(self, uid: str) -> str | None:
        """Return the name of the Pod's node."""
        placed = self._placed.get(uid)
        return placed.node_name if placed else None

    # --- Dry runs. ---

    def hide(self, pods: Iterable[PodInfo]) -> None:
        """Leave scheduled Pods out of their nodes for the time of a dry run, in which nothing else changes."""
        for name, infos in self._by_node(pods).items():
            node = self._nodes[name]
            self._before_hiding.setdefault(name, node)
            self._nodes[name] = node.without_pods([info.uid for info in infos])
            self._changed[name] = None

    def show(self, pods: Iterable[PodInfo]) -> None:
        """Undo `hide` for some of the Pods."""
        for name, infos in self._by_node(pods).items():
            self._nodes[name] = self._nodes[name].with_pods(infos)
            self._changed[name] = None

    def end_dry_run(self) -> None:
        """Undo `hide` for all Pods; those that were assumed in the dry run are forgotten already."""
        for name, node in self._before_hiding.items():
            self._nodes[name] = node
            self._changed[name] = None
        self._before_hiding.clear()

    def _by_node(self, pods: Iterable[PodInfo]) -> dict[str, list[PodInfo]]:
        found: dict[str, list[PodInfo]] = {}
        for info in pods:
            placed = self._placed.get(info.uid)
            if placed is not None and placed.node_name in self._nodes:
                found.setdefault(placed.node_name, []).append(placed.info)
        return found

    # --- Updates from informers. ---

    def set_pod(self, pod: Pod) -> None:
        """Add or update a Pod that has a node."""
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
        """Remove a deleted or finished Pod."""
        if uid in self._placed:
            self._take_away(uid)

    def set_node(self, node: Node) -> None:
        """Add or update a node."""
        name = node.metadata.name or ""
        known = self._nodes.get(name)
        if known is None:
            self._nodes[name] = NodeInfo(node, self._orphans.pop(name, None))
            self._set_changed = True
            return
        self._nodes[name] = known.with_node(node)
        self._changed[name] = None
        if _zone_of(known.node) != _zone_of(node):
            self._set_changed = True

    def remove_node(self, name: str) -> None:
        """Remove a node; its Pods stay until they are deleted."""
        info = self._nodes.pop(name, None)
        if info is None:
            return
        self._changed.pop(name, None)
        self._set_changed = True
        if info.pods:
            self._orphans[name] = dict(info.pods)

    # --- Reading. ---

    def update_snapshot(self, snapshot: Snapshot) -> None:
        """Update the cache's only snapshot."""
        if self._set_changed:
            snapshot.replace_all(tuple(self._interleaved()))
            self._set_changed = False
        else:
            for name in self._changed:
                snapshot.replace(self._nodes[name])
        self._changed.clear()

    def node(self, name: str) -> NodeInfo | None:
        """Return a node."""
        return self._nodes.get(name)

    @property
    def node_count(self) -> int:
        """Return the number of nodes."""
        return len(self._nodes)

    def assumed_count(self) -> int:
        """Return the number of assumed Pods."""
        return sum(placed.assumed for placed in self._placed.values())

    def pod_count(self) -> int:
        """Return the number of Pods with a node."""
        return len(self._placed)

    # --- Keeping. ---

    def _place(self, placed: _Placed) -> None:
        name = placed.node_name
        self._placed[placed.info.uid] = placed
        if self.pod_groups is not None:
            self.pod_groups.pod_placed(placed.info)
        node = self._nodes.get(name)
        if node is None:
            self._orphans.setdefault(name, {})[placed.info.uid] = placed.info
            return
        self._nodes[name] = node.with_pod(placed.info)
        self._changed[name] = None

    def _take_away(self, uid: str) -> None:
        placed = self._placed.pop(uid)
        if self.pod_groups is not None:
            self.pod_groups.pod_unplaced(placed.info)
        name = placed.node_name
        node = self._nodes.get(name)
        if node is not None:
            self._nodes[name] = node.without_pod(uid)
            self._changed[name] = None
            return
        pods = self._orphans[name]
        del pods[uid]
        if not pods:
            del self._orphans[name]

    def _interleaved(self) -> Iterator[NodeInfo]:
        """Return the nodes interleaved by zone, so that a search that ends early covers all zones."""
        zones: dict[tuple[str, str], list[NodeInfo]] = {}
        for info in self._nodes.values():
            zones.setdefault(_zone_of(info.node), []).append(info)
        if len(zones) == 1:
            return chain.from_iterable(zones.values())
        return (info for row in zip_longest(*zones.values()) for info in row if info is not None)


def _zone_of(node: Node) -> tuple[str, str]:
    labels = node.metadata.labels
    return labels.get(_REGION, ""), labels.get(_ZONE, "")


def _with_topology(info: PodInfo, node: NodeInfo) -> PodInfo:
    """Return the Pod with the labels that the API server gives it when it is bound, those of its node's topology.

    Its node would otherwise change a second time when the Pod is confirmed.
    """
    topology = {name: node.labels[name] for name in (_REGION, _ZONE) if name in node.labels}
    if not topology:
        return info
    metadata = msgspec.structs.replace(info.pod.metadata, labels={**info.pod.metadata.labels, **topology})
    return info.with_pod(msgspec.structs.replace(info.pod, metadata=metadata))


def _same_to_plugins(info: PodInfo, new: Pod) -> bool:
    """Return whether the change is irrelevant to plugins, such as a heartbeat in the Pod's status."""
    old = info.pod
    return (
        old.metadata.labels == new.metadata.labels
        and old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
        # The importance of Pods, for preemption.
        and old.status.start_time == new.status.start_time
        and old.status.container_statuses == new.status.container_statuses
        and old.status.init_container_statuses == new.status.init_container_statuses
        and old.spec == new.spec
        and info.device_resources == device_resources(new)
        and old.status.node_allocatable_resource_claim_statuses == new.status.node_allocatable_resource_claim_statuses
        # Preemption looks up the claims of victims by it.
        and old.status.extended_resource_claim_status == new.status.extended_resource_claim_status
    )
