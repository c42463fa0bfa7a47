"""What the plugins of all profiles share: the inventory, the allocations and the claims, fed by informers."""

from __future__ import annotations

from typing import Any, Final

from dray.allocator import Allocations, Allocator, Inventory
from dray.api.document import Document, GroupVersion
from dray.api.types.core_v1 import Node, Pod
from dray.api.types.resource_v1 import DeviceClass, ResourceClaim, ResourceSlice
from dray.client.interface import unstructured
from dray.client.objects import key_of
from dray.framework.events import DEVICE_TAINT_RULE, Action, ClusterEvent
from dray.scheduler.handle import Handle
from dray.scheduler.kinds import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, UNFINISHED
from dray.scheduler.plugins.dynamic_resources.hints import keys_of_pod
from dray.scheduler.plugins.dynamic_resources.loop import ClaimWriter
from dray.scheduler.plugins.dynamic_resources.tracker import ClaimTracker

_BY_CLAIM: Final = "claim-names"
_SHARED: Final = "DynamicResources"
TAINT_RULES: Final = unstructured(
    GroupVersion("resource.k8s.io", "v1beta2"), "devicetaintrules", "DeviceTaintRule", namespaced=False
)


class Cluster:
    """One per scheduler; see `cluster_of`."""

    def __init__(self, handle: Handle) -> None:
        self.inventory = Inventory()
        self.allocations = Allocations()
        self.allocator = Allocator(self.inventory, self.allocations, handle.features)
        claims = handle.informers.informer(RESOURCE_CLAIMS)
        self.tracker = ClaimTracker(self.allocations, claims.lister.get_key)
        self.writer = ClaimWriter(handle.client, handle.clock, self.tracker)
        self._handle = handle
        self._pods = handle.informers.informer(PODS, UNFINISHED, indexes={_BY_CLAIM: _claim_keys})
        claims.add_handler(self.tracker.changed)
        handle.informers.informer(RESOURCE_SLICES).add_handler(self._slice_changed)
        handle.informers.informer(DEVICE_CLASSES).add_handler(self._class_changed)
        handle.informers.informer(NODES).add_handler(self._node_changed)
        if handle.features.enabled("DRADeviceTaints") and handle.features.enabled("DRADeviceTaintRules"):
            handle.informers.informer(TAINT_RULES).add_handler(self._rule_changed)

    def is_used_on_a_node(self, claim: ResourceClaim, besides: Pod) -> bool:
        """Whether another Pod that has a node uses the claim; its reservation may be on its way."""
        users = self._pods.lister.by_index(_BY_CLAIM, f"{claim.metadata.namespace}/{claim.metadata.name}")
        return any(pod.spec.node_name and pod.metadata.uid != besides.metadata.uid for pod in users)

    def _slice_changed(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        if new is not None:
            self.inventory.apply_slice(new)
        elif old is not None:
            self.inventory.remove_slice(old.metadata.name or "")

    def _class_changed(self, old: DeviceClass | None, new: DeviceClass | None) -> None:
        if new is not None:
            self.inventory.apply_class(new)
        elif old is not None:
            self.inventory.remove_class(old.metadata.name or "")

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is None and old is not None:
            self.inventory.remove_node(old.metadata.name or "")

    def _rule_changed(self, old: Document | None, new: Document | None) -> None:
        if new is not None:
            self.inventory.apply_taint_rule(new)
        elif old is not None:
            self.inventory.remove_taint_rule(key_of(old).name)
        action = Action.ADD if old is None else Action.DELETE if new is None else Action.UPDATE
        self._handle.notify(ClusterEvent(DEVICE_TAINT_RULE, action, "DeviceTaintRuleChange"), old, new)


def _claim_keys(pod: Any) -> tuple[str, ...]:
    return tuple(keys_of_pod(pod))


def cluster_of(handle: Handle) -> Cluster:
    """The cluster that all profiles of the scheduler share."""
    cluster = handle.shared.get(_SHARED)
    if cluster is None:
        cluster = handle.shared[_SHARED] = Cluster(handle)
    assert isinstance(cluster, Cluster)
    return cluster
