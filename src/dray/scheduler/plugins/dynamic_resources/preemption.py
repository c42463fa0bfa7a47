"""Dry runs of preemption with devices: which claims the removal of Pods releases, and what nominated Pods hold. Pure.

A claim is released when every user in `reservedFor` is removed; counting is not enough, the uids must match. A Pod on
the node that refers to a claim by its name is a user, too: while it is being bound, `reservedFor` may lack it. The
preemptor's own claims are never released, nor claims with devices that other nodes can use: evicting on this node alone
does not free them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from dray.allocator import AllocationOverlay, Allocator, AllocatorError, device_keys
from dray.api.document import NamespacedName
from dray.api.pod_claims import pod_claims
from dray.api.types.core_v1 import Node, Pod
from dray.api.types.resource_v1 import AllocationResult, ResourceClaim, ResourceClaimConsumerReference
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.scheduler.plugins.dynamic_resources.checks import FindPod, IsClassic
from dray.scheduler.plugins.dynamic_resources.nominated_devices import NominatedDevices, Nominees
from dray.scheduler.plugins.dynamic_resources.pod_state import DryRun, PodState
from dray.scheduler.plugins.dynamic_resources.tracker import ClaimTracker

SETTLING: Final = "waiting for claims of preempted pods to be deallocated"


class DevicePreemption:
    """Changes the device part of copied cycle states; one for each profile."""

    def __init__(
        self,
        allocator: Allocator,
        tracker: ClaimTracker,
        nominees: Nominees,
        find_pod: FindPod,
        is_classic: IsClassic,
        serves: Callable[[str], bool],
    ) -> None:
        self._allocator = allocator
        self._tracker = tracker
        self._nominees = nominees
        self._find_pod = find_pod
        self._is_classic = is_classic
        # Whether devices serve an extended resource.
        self._serves = serves
        # Whether Pods are hidden for the dry run of a group: what is found then is not kept.
        self.hides_pods = False

    # --- Removing and adding Pods. ---

    def remove_pods(self, dry_run: DryRun, priority: int, others: Sequence[PodInfo], node: NodeInfo) -> None:
        """Release the claims that nobody else uses, of one Pod after the other."""
        dry_run.is_active = True
        released: list[str] = []
        for other in others:
            dry_run.removed[other.uid] = other.key
            claims = dry_run.claims_of_removed.get(other.uid)
            if claims is None:
                claims = dry_run.claims_of_removed[other.uid] = self.claims_of(other.pod)
            for claim in claims:
                if self._is_newly_released(dry_run, priority, claim, node):
                    uid = claim.metadata.uid or ""
                    dry_run.released[uid] = claim
                    released.append(uid)
        if released:
            self._overlay(dry_run).take_out(*released)

    def released_with(self, dry_run: DryRun, priority: int, other: PodInfo, node: NodeInfo) -> Iterator[ResourceClaim]:
        """Yield the claims of a removed Pod that nobody else uses, and that are not released yet."""
        for claim in self.claims_of(other.pod):
            if self._is_newly_released(dry_run, priority, claim, node):
                yield claim

    def add_pods(self, dry_run: DryRun, others: Sequence[PodInfo], node: NodeInfo) -> None:
        """Put the claims of removed Pods back; hold what nominated Pods will get."""
        allocated: list[str] = []
        nominated: list[PodInfo] = []
        for other in others:
            if dry_run.removed.pop(other.uid, None) is None:
                nominated.append(other)
                continue
            for claim in dry_run.claims_of_removed[other.uid]:
                uid = claim.metadata.uid or ""
                if dry_run.released.pop(uid, None) is not None:
                    allocated.append(uid)
        if allocated:
            self._overlay(dry_run).put_back(*allocated)
        for other in nominated:
            self._hold(dry_run, other, node)

    def _hold(self, dry_run: DryRun, other: PodInfo, node: NodeInfo) -> None:
        """Hold what a nominated Pod will get."""
        record = self._nominees.get(other.uid) or self._record_anew(dry_run, other, node)
        if record is None or record.node_name != node.name:
            return
        dry_run.holding = True
        overlay = self._overlay(dry_run)
        for uid in self._nominees.tracked_on(node.name):
            # Otherwise the devices of the nominated Pod would count twice until they are deallocated.
            if not overlay.is_out(uid):
                overlay.take_out(uid)
                dry_run.tracked_out.append(uid)
        overlay.add(other.uid, (allocation for _, allocation in record.allocations))

    def _record_anew(self, dry_run: DryRun, other: PodInfo, node: NodeInfo) -> NominatedDevices | None:
        """Return what a nominated Pod without a record can get now; a restart of the scheduler has lost the record."""
        pending = [claim for claim in self.claims_of(other.pod) if claim.status.allocation is None]
        if not pending:
            return None
        try:
            found = self._allocator.find(node.node, pending, overlay=dry_run.overlay).allocations
        except AllocatorError:
            return None
        if found is None:
            # Nothing that others could take; what the Pod waits for is in use.
            return None
        record = NominatedDevices(node.name, tuple(zip(pending, found, strict=True)))
        if not dry_run.removed and not self.hides_pods:
            self._nominees.record(other.uid, record, {})
        return record

    def _overlay(self, dry_run: DryRun) -> AllocationOverlay:
        if dry_run.overlay is None:
            dry_run.overlay = AllocationOverlay(self._allocator.allocations)
        return dry_run.overlay

    def claims_of(self, pod: Pod) -> Sequence[ResourceClaim]:
        """Return the Pod's claims, each once, including the one for its extended resources."""
        namespace = pod.metadata.namespace or ""
        # Name -> whether the claim is generated.
        names: dict[str, bool] = {}
        for entry in pod_claims(pod):
            if entry.claim_name is not None:
                names[entry.claim_name] = bool(entry.template)
        status = pod.status.extended_resource_claim_status
        if status is not None:
            names.setdefault(status.resource_claim_name, True)
        found: list[ResourceClaim] = []
        for name, generated in names.items():
            key = NamespacedName(namespace, name)
            if not generated and self._is_classic(key):
                continue
            claim = self._tracker.get(key)
            if claim is not None:
                found.append(claim)
        return found

    def dependencies(self, dry_run: DryRun, removed: Sequence[PodInfo]) -> Sequence[object] | None:
        """Return the claims of removed Pods, and whom they are in flight for; None if others use them.

        The preemptor may be one of these: its claims are not released, while those of others of its class may be.
        """
        uids = {other.uid for other in removed}
        found: list[object] = []
        in_flight = self._tracker.in_flight_pods
        for other in removed:
            claims = dry_run.claims_of_removed.get(other.uid)
            for claim in self.claims_of(other.pod) if claims is None else claims:
                if claim.metadata.uid in dry_run.own_claims:
                    return None
                for user in claim.status.reserved_for:
                    if user.uid not in uids:
                        return None
                found += claim, in_flight.get(claim.metadata.uid or "")
        return found

    def may_help(self, priority: int, node: NodeInfo) -> bool:
        """Return whether devices of the node may be freed: by a Pod of lower priority, or by one that is gone."""
        for other in node.pods.values() if node.priority_floor < priority else ():
            if other.priority < priority and (_may_hold_devices(other.pod) or self._holds_back(other, node)):
                return True
        return self.is_settling(node)

    def _holds_back(self, other: PodInfo, node: NodeInfo) -> bool:
        """Return whether the Pod has devices through a device plugin that a driver has replaced."""
        available = node.allocatable.scalars
        return any(
            amount and not available.get(name) and self._serves(name) for name, amount in other.requests.scalars.items()
        )

    def _is_newly_released(self, dry_run: DryRun, priority: int, claim: ResourceClaim, node: NodeInfo) -> bool:
        """Return whether the removed Pods were the last users of a claim that is not released yet."""
        uid = claim.metadata.uid or ""
        if uid in dry_run.released or uid in dry_run.own_claims:
            return False
        in_flight = self._tracker.in_flight_pods.get(uid)
        if in_flight and in_flight not in dry_run.removed:
            return False
        users = claim.status.reserved_for
        if not users and not in_flight:
            return False
        for user in users:
            if user.uid not in dry_run.removed and not self._is_gone(priority, user, claim, node):
                return False
        allocation = claim.status.allocation or self._tracker.in_flight_allocation(claim)
        if allocation is not None and not self._is_local(dry_run, node, allocation):
            return False
        return not _is_used_by_name(dry_run, claim, node)

    def _is_local(self, dry_run: DryRun, node: NodeInfo, allocation: AllocationResult) -> bool:
        """Return whether the allocation uses devices of the node alone."""
        devices = dry_run.local_devices.get(node.name)
        if devices is None:
            devices = dry_run.local_devices[node.name] = self._allocator.local_devices(node.node)
        return devices.issuperset(device_keys(allocation))

    def _is_gone(
        self, priority: int, user: ResourceClaimConsumerReference, claim: ResourceClaim, node: NodeInfo
    ) -> bool:
        """Return whether a user that is not removed does not exist any more, or is being deleted anyway."""
        if user.api_group or user.resource != "pods":
            return False
        pod = self._find_pod(NamespacedName(claim.metadata.namespace or "", user.name))
        if pod is None or pod.metadata.uid != user.uid:
            return True
        # A potential victim counts when it is removed, not before.
        is_potential = pod.spec.node_name == node.name and (pod.spec.priority or 0) < priority
        return pod.metadata.deletion_timestamp is not None and not is_potential

    # --- Nominations. ---

    def is_settling(self, node: NodeInfo) -> bool:
        """Return whether claims of preempted Pods on the node are still allocated."""
        return bool(self._nominees.settling_on(node.name))

    def record(self, own: PodState, pod: Pod, node: Node) -> None:
        """Record what the Pod will get on the node, and the claims that have to be deallocated before."""
        node_name = node.metadata.name or ""
        state = own.on_node(node_name)
        found = state.results.found_on(node_name) or ()
        claims = state.results.variant_on(node_name).claims
        devices = NominatedDevices(node_name, tuple(zip(claims, found, strict=False)))
        users = dict(own.dry_run.removed)
        self._nominees.record(pod.metadata.uid or "", devices, dict.fromkeys(own.dry_run.released, users))


def _may_hold_devices(pod: Pod) -> bool:
    return bool(pod.spec.resource_claims) or pod.status.extended_resource_claim_status is not None


def _is_used_by_name(dry_run: DryRun, claim: ResourceClaim, node: NodeInfo) -> bool:
    """Return whether a Pod on the node that is neither removed nor in `reservedFor` refers to the claim."""
    name, namespace = claim.metadata.name, claim.metadata.namespace
    for other in node.pods.values():
        for entry in other.pod.spec.resource_claims:
            if entry.resource_claim_name == name and other.pod.metadata.namespace == namespace:
                # Users in `reservedFor` are examined before.
                is_reserved = any(user.uid == other.uid for user in claim.status.reserved_for)
                if other.uid not in dry_run.removed and not is_reserved:
                    return True
    return False
