"""The state that the plugins of all profiles share: inventory, allocations and claims, updated by informers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from dray.allocator import Allocations, Allocator, Inventory
from dray.api.document import Document, NamespacedName
from dray.api.extended_resources import ClassResources
from dray.api.types.core_v1 import Node, Pod
from dray.api.types.resource_v1 import DeviceClass, ResourceClaim, ResourceSlice
from dray.client.event_recorder import WARNING
from dray.client.objects import key_of
from dray.client.resources import DEVICE_CLASSES, DEVICE_TAINT_RULES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dray.framework.events import DEVICE_TAINT_RULE, RESOURCE_CLAIM, Action, ClusterEvent
from dray.framework.node_info import NodeInfo
from dray.scheduler.cluster_events import UNFINISHED
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.dynamic_resources.claim_writer import ClaimWriter
from dray.scheduler.plugins.dynamic_resources.class_metrics import NAME as NAME_OF_COLLECTOR
from dray.scheduler.plugins.dynamic_resources.class_metrics import ClassCollector, ClassMeasure, measure
from dray.scheduler.plugins.dynamic_resources.double_allocations import ALLOCATED_TWICE, DoubleAllocations
from dray.scheduler.plugins.dynamic_resources.double_offers import OFFERED_TWICE, DoubleOffer, DoubleOffers
from dray.scheduler.plugins.dynamic_resources.extended_claim_writer import ExtendedClaimWriter
from dray.scheduler.plugins.dynamic_resources.extended_resources import is_extended_resource_claim
from dray.scheduler.plugins.dynamic_resources.hints import claim_keys_of
from dray.scheduler.plugins.dynamic_resources.nominated_devices import Nominees
from dray.scheduler.plugins.dynamic_resources.packing import DevicePacking
from dray.scheduler.plugins.dynamic_resources.tracker import ClaimTracker
from dray.scheduler.plugins.dynamic_resources.variants import Variants

_BY_CLAIM: Final = "claim-names"
_BY_POD: Final = "extended-resource-claims"
_SHARED: Final = "DynamicResources"
NOMINATION_ENDED: Final = ClusterEvent(RESOURCE_CLAIM, Action.UPDATE, "ResourceClaimNominationEnded")


class DeviceState:
    """One per scheduler; see `device_state_of`."""

    def __init__(self, handle: Handle) -> None:
        self.inventory = Inventory()
        self.allocations = Allocations()
        self.allocator = Allocator(self.inventory, self.allocations, handle.features)
        claims = handle.informers.informer(RESOURCE_CLAIMS, indexes={_BY_POD: _extended_claim_owners})
        self.tracker = ClaimTracker(
            self.allocations, claims.lister.get_key, lambda uid: claims.lister.by_index(_BY_POD, uid)
        )
        self.writer = ClaimWriter(handle.client, handle.clock, self.tracker)
        self.extended_claims = ExtendedClaimWriter(handle, self.tracker, self.writer)
        self.resources = ClassResources()
        enabled = handle.features.enabled("DRAExtendedResource")
        self.variants = Variants(self.resources, self.allocator.usage, enabled=enabled)
        self.nominees = Nominees(self.allocations, self._is_alive)
        handle.nominations.on_end(self._nomination_ended)
        self._double_offers = DoubleOffers(self.allocator, self.resources)
        self._double_allocations = DoubleAllocations(self.allocations, claims.lister.get_key)
        self._handle = handle
        self._pods = handle.informers.informer(PODS, UNFINISHED, indexes={_BY_CLAIM: _claim_keys})
        self.packing = DevicePacking(self.allocator, self._claims_of)
        claims.add_handler(self._claim_changed)
        self._learns = False
        handle.informers.informer(RESOURCE_SLICES).add_handler(self._slice_changed)
        handle.informers.informer(DEVICE_CLASSES).add_handler(self._class_changed)
        handle.informers.informer(NODES).add_handler(self._node_changed)
        if handle.features.enabled("DRADeviceTaints") and handle.features.enabled("DRADeviceTaintRules"):
            handle.informers.informer(DEVICE_TAINT_RULES).add_handler(self._rule_changed)
        handle.metrics.collect_once(NAME_OF_COLLECTOR, lambda: ClassCollector(self._measured, handle.clock.monotonic))

    def learn_packing(self) -> DevicePacking:
        """Return the packing of devices, which counts the Pods from now on; only some profiles use it."""
        if not self._learns:
            self._learns = True
            self._pods.add_handler(self.packing.pod_changed)
        return self.packing

    def _measured(self) -> dict[str, ClassMeasure]:
        return measure(self.inventory, self.allocations, self.allocator.gates)

    def is_used_by_scheduled_pod(self, claim: ResourceClaim, besides: Pod) -> bool:
        """Return whether another Pod with a node uses the claim; its reservation may not be written yet."""
        users = self._pods.lister.by_index(_BY_CLAIM, f"{claim.metadata.namespace}/{claim.metadata.name}")
        return any(pod.spec.node_name and pod.metadata.uid != besides.metadata.uid for pod in users)

    def serves_resource(self, name: str) -> bool:
        """Return whether devices serve the resource on nodes that do not have it themselves."""
        return self.variants.serves(name)

    def device_usage(self, node: NodeInfo, name: str) -> tuple[int, int]:
        """Return how many of the node's devices that can serve the resource are in use, and how many there are."""
        device_class = self.resources.class_of(name) if self.variants.serves(name) else None
        if device_class is None:
            return 0, 0
        return self.allocator.usage(node.node, device_class)

    def find_pod(self, key: NamespacedName) -> Pod | None:
        """Return a Pod that has not finished."""
        return self._pods.lister.get_key(key)

    def _claims_of(self, pod: Pod) -> list[ResourceClaim]:
        """Return the claims of a Pod that exist."""
        keys = (NamespacedName(*key.split("/", 1)) for key in claim_keys_of(pod))
        return [claim for key in keys if (claim := self.tracker.get(key)) is not None]

    def _is_alive(self, key: NamespacedName, uid: str) -> bool:
        """Return whether the Pod exists and is not being deleted."""
        pod = self.find_pod(key)
        return pod is not None and pod.metadata.uid == uid and pod.metadata.deletion_timestamp is None

    def _nomination_ended(self, pod_uid: str, node_name: str, _placed: bool) -> None:  # noqa: FBT001 - a callback
        """Drop what was kept for the Pod; without it others may get the devices, and no other event says so.

        Also when the Pod is placed: it may have got other devices than those that were kept.
        """
        record = self.nominees.end(pod_uid, node_name)
        if record is None or self.nominees.settling_on(record.node_name):
            return
        for claim, allocation in record.allocations:
            status = msgspec.structs.replace(claim.status, allocation=allocation)
            self._handle.notify(NOMINATION_ENDED, msgspec.structs.replace(claim, status=status), claim)

    def _claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        self.tracker.changed(old, new)
        self.nominees.claim_changed(old, new)
        for found in self._double_allocations.claim_changed(old, new):
            self._handle.record_claim(found.claim, WARNING, ALLOCATED_TWICE, found.message)

    def _slice_changed(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        if new is not None:
            self.inventory.apply_slice(new)
            self._report(self._double_offers.slice_changed(new.spec.node_name or ""))
        elif old is not None:
            self.inventory.remove_slice(old.metadata.name or "")

    def _class_changed(self, old: DeviceClass | None, new: DeviceClass | None) -> None:
        if new is not None:
            self.inventory.apply_class(new)
            self.resources.apply(new)
            self._report(self._double_offers.class_changed(new.metadata.name or ""))
        elif old is not None:
            self.inventory.remove_class(old.metadata.name or "")
            self.resources.remove(old.metadata.name or "")
            self._report(self._double_offers.resource_changed(old.spec.extended_resource_name or ""))

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is not None:
            self._report(self._double_offers.node_changed(new))
        elif old is not None:
            self.inventory.remove_node(old.metadata.name or "")
            self._double_offers.node_gone(old.metadata.name or "")

    def _report(self, offers: Iterable[DoubleOffer]) -> None:
        if self.variants.enabled:
            for offer in offers:
                self._handle.record_node(offer.node, WARNING, OFFERED_TWICE, offer.message)

    def _rule_changed(self, old: Document | None, new: Document | None) -> None:
        if new is not None:
            self.inventory.apply_taint_rule(new)
        elif old is not None:
            self.inventory.remove_taint_rule(key_of(old).name)
        action = Action.ADD if old is None else Action.DELETE if new is None else Action.UPDATE
        self._handle.notify(ClusterEvent(DEVICE_TAINT_RULE, action, "DeviceTaintRuleChange"), old, new)


def _claim_keys(pod: Any) -> tuple[str, ...]:
    return tuple(claim_keys_of(pod))


def _extended_claim_owners(claim: Any) -> tuple[str, ...]:
    return tuple(owner.uid for owner in claim.metadata.owner_references) if is_extended_resource_claim(claim) else ()


def device_state_of(handle: Handle) -> DeviceState:
    """Return the state that all profiles of the scheduler share."""
    state = handle.shared.get(_SHARED)
    if state is None:
        state = handle.shared[_SHARED] = DeviceState(handle)
    assert isinstance(state, DeviceState)
    return state
