"""A snapshot in memory in which the scheduler's code places, moves and puts back Pods; nothing is written.

Plans are searched and checked here: whatever they say was tried with the same filters, scores and allocator that the
scheduler uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from dray.api.codec import from_document, to_document
from dray.api.document import Document, NamespacedName
from dray.api.features import FeatureGates
from dray.api.field_errors import aggregate
from dray.api.pod_claims import POD_CLAIM_NAME_ANNOTATION, PodClaim, is_owned_by_pod, is_pod_done, pod_claims
from dray.api.types.apps_v1 import ReplicaSet
from dray.api.types.core_v1 import Node, Pod, PodResourceClaimStatus, PodStatus, Taint
from dray.api.types.resource_v1 import ResourceClaim, ResourceClaimStatus, ResourceClaimTemplate, ResourceSlice
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.client.interface import Resource
from dray.client.objects import key_of
from dray.client.resources import (
    CLASSIC_CLAIMS,
    CLASSIC_CLASSES,
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    REPLICA_SETS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    SERVICES,
    STATEFUL_SETS,
    STORAGE_CLASSES,
)
from dray.controllers.resource_claim.plan import make_claim
from dray.framework.pod_info import PodInfo
from dray.scheduler.config import ProfileConfig
from dray.scheduler.filter_runner import AttemptError
from dray.scheduler.plugins.dynamic_resources.extended_resources import is_extended_resource_claim
from dray.sim.explain.answers import Stage
from dray.sim.explain.before_scheduling import obstacle_before_scheduling
from dray.sim.explain.claim_quota import ClaimQuotas
from dray.sim.explain.filters import Filters
from dray.sim.explain.pending_pods import PendingPods, reasons_on
from dray.sim.placer import PlacedPod, Placer
from dray.sim.replica.plugins import replica_plugins
from dray.sim.scheduler_profiles import configured_profiles, default_profile
from dray.sim.snapshot import Snapshot, SnapshotError
from dray.sim.usable_nodes import HOLD_TAINT, with_condition_taints
from dray.sim.volume_waits import VolumeWaits

_HOLD: Final = Taint(key=HOLD_TAINT, effect="NoSchedule")
_AS_DOCUMENTS: Final[Mapping[str, Resource[Document]]] = {
    "Namespace": NAMESPACES,
    "Service": SERVICES,
    "PersistentVolume": PERSISTENT_VOLUMES,
    "PersistentVolumeClaim": PERSISTENT_VOLUME_CLAIMS,
    "StorageClass": STORAGE_CLASSES,
    "DeviceTaintRule": DEVICE_TAINT_RULES,
    "StatefulSet": STATEFUL_SETS.unstructured,
}
replace = msgspec.structs.replace
# Nothing is overdue in a plan, which is not about a moment.
_NOW: Final = datetime(2000, 1, 1, tzinfo=UTC)


class TrialPod(msgspec.Struct, frozen=True):
    """A Pod without a node, with the claims that it does not share with others, not allocated."""

    pod: Pod
    claims: tuple[ResourceClaim, ...] = ()

    @property
    def key(self) -> NamespacedName:
        """Return the namespace and name."""
        return key_of(self.pod)

    @property
    def uid(self) -> str:
        """Return the uid."""
        return self.pod.metadata.uid or ""

    @property
    def priority(self) -> int:
        """Return the priority."""
        return self.pod.spec.priority or 0

    def copy(self, suffix: str) -> TrialPod:
        """Return another Pod like this one."""
        names = {claim.metadata.name: f"{claim.metadata.name}-{suffix}" for claim in self.claims}
        claims = tuple(_with_owner(_renamed(claim, suffix), self.uid, suffix) for claim in self.claims)
        statuses = tuple(
            replace(item, resource_claim_name=names.get(item.resource_claim_name, item.resource_claim_name))
            for item in self.pod.status.resource_claim_statuses
        )
        pod = _renamed(self.pod, suffix)
        return TrialPod(replace(pod, status=replace(pod.status, resource_claim_statuses=statuses)), claims)


class Unplaced(msgspec.Struct, frozen=True):
    """A Pod that fits on no node, with the scheduler's message; `reasons` are those of the nodes."""

    pod: TrialPod
    why: str
    reasons: str
    # Whether the scheduler's attempt failed, for instance because of a selector.
    is_error: bool = False


class TrialCluster:
    """The nodes, devices and Pods of a snapshot, and its schedulers' profiles, unless one for all is given."""

    def __init__(
        self, snapshot: Snapshot, profile: ProfileConfig | None = None, gates: FeatureGates | None = None
    ) -> None:
        self.snapshot = snapshot = with_condition_taints(snapshot)
        self._gates = gates or FeatureGates()
        # Pods that are only planned may bring their volume claims.
        plugins = replica_plugins(VolumeWaits(snapshot).waits_as_known)
        others = configured_profiles(snapshot) if profile is None else ()
        self.placer = Placer(profile or default_profile(snapshot), self._gates, plugins, others)
        self._quotas = ClaimQuotas(snapshot)
        self._owners_of_extended_claims = {
            owner.uid
            for claim in snapshot.claims
            if is_extended_resource_claim(claim)
            for owner in claim.metadata.owner_references
        }
        self._nodes: dict[str, Node] = {}
        self._held: set[str] = set()
        self._templates = {key_of(item): item for item in snapshot.templates}
        # Uids of the Pods on each node.
        self._on_node: dict[str, dict[str, None]] = {}
        self.pending: list[TrialPod] = []
        # Pending Pods that wait for something else than room, and what for.
        self.blocked: list[tuple[Pod, str]] = []
        self._load()

    # --- Loading. ---

    def _load(self) -> None:
        put = self.placer.put
        for kind, resource in _AS_DOCUMENTS.items():
            for document in self.snapshot.documents.get(kind, ()):
                self.placer.informers.put_document(resource, document)
        for document in self.snapshot.documents.get("ReplicaSet", ()):
            put(REPLICA_SETS, from_document(ReplicaSet, document))
        for device_class in self.snapshot.classes:
            put(DEVICE_CLASSES, device_class)
        for node in self.snapshot.nodes:
            self.add_node(_without_hold(node), ())
        for resource_slice in self.snapshot.slices:
            put(RESOURCE_SLICES, resource_slice)
        for classic_class in self.snapshot.classic_classes.values():
            put(CLASSIC_CLASSES, classic_class)
        for classic_claim in self.snapshot.classic_claims:
            put(CLASSIC_CLAIMS, classic_claim)
        self._load_pods()

    def _load_pods(self) -> None:
        """Add the Pods with their own claims; other claims stay when a Pod goes."""
        own: dict[str, list[ResourceClaim]] = {}
        uids = {pod.metadata.uid: pod for pod in self.snapshot.pods if not is_pod_done(pod)}
        for claim in self.snapshot.claims:
            owner = next((uids[item.uid] for item in claim.metadata.owner_references if item.uid in uids), None)
            if owner is not None and is_owned_by_pod(claim, owner):
                own.setdefault(owner.metadata.uid or "", []).append(claim)
            else:
                self.placer.put(RESOURCE_CLAIMS, claim)
        for pod in uids.values():
            claims = tuple(own.get(pod.metadata.uid or "", ()))
            if pod.spec.node_name:
                self.restore(PlacedPod(pod, claims, 0))
            elif pod.metadata.deletion_timestamp is None:
                self._load_pending(pod, claims)

    def _load_pending(self, pod: Pod, claims: Iterable[ResourceClaim]) -> None:
        obstacle = obstacle_before_scheduling(self.snapshot, pod, _NOW)
        if obstacle is not None and obstacle.stage is not Stage.SCHEDULER:
            self.blocked.append((pod, obstacle.why or obstacle.text))
            if obstacle.stage not in (Stage.QUOTA, Stage.ADMISSION, Stage.CLAIM):
                # Its claims are created nevertheless.
                self._quotas.charge(pod)
            return
        if refusal := self._quotas.refusal(pod):
            # The claims of other pending Pods use up the quota.
            self.blocked.append((pod, f"has no claim: {refusal}"))
            return
        try:
            self.pending.append(self.prepare(pod, claims))
            self._quotas.charge(pod)
        except SnapshotError as error:
            self.blocked.append((pod, str(error)))

    def why(self, unplaced: Unplaced) -> str:
        """Return the verdict on a Pod that fits on no node, as things are now."""
        verdicts = PendingPods(self.snapshot, self._filters, _NOW)
        pod = unplaced.pod
        with self.placer.waiting(pod.pod, pod.claims):
            verdict = verdicts.evaluated(pod.pod)
        return unplaced.why if verdict.stage is Stage.SCHEDULER else verdict.why or verdict.text

    def why_not_on(self, unplaced: Unplaced, node_name: str) -> str:
        """Return why a Pod does not fit on a node."""
        pod = unplaced.pod
        if unplaced.is_error:
            return unplaced.why
        with self.placer.waiting(pod.pod, pod.claims):
            filters = self._filters(pod.pod)
            node = self.placer.snapshot.get(node_name)
            reasons = filters.obstacle or ("" if node is None else reasons_on(filters, node, pod.pod))
            return reasons or unplaced.reasons

    def _filters(self, pod: Pod) -> Filters:
        placer = self.placer
        placer.update_snapshot()
        return Filters(placer.profile_of(pod), placer.snapshot, placer.devices.allocator, pod)

    def prepare(self, pod: Pod, claims: Iterable[ResourceClaim] = ()) -> TrialPod:
        """Return a Pod that can be placed, with the claims of its templates."""
        created = list(claims)
        named = {item.name: item.resource_claim_name for item in pod.status.resource_claim_statuses}
        # A claim may have been created just before it is written into the Pod's status.
        for claim in created:
            named.setdefault(claim.metadata.annotations.get(POD_CLAIM_NAME_ANNOTATION, ""), claim.metadata.name)
        named.pop("", None)
        for entry in pod_claims(pod):
            if entry.generated and entry.claim_name is None and entry.entry not in named:
                claim = self._created(pod, entry)
                created.append(claim)
                named[entry.entry] = claim.metadata.name
        statuses = tuple(PodResourceClaimStatus(name=name, resource_claim_name=claim) for name, claim in named.items())
        return TrialPod(_pending(pod, statuses), tuple(_unallocated(claim) for claim in created))

    def observe(self, pod: Pod) -> TrialPod:
        """Let the scheduler know what else waits, and return a waiting Pod: to explain it, not to place others.

        Other Pods that wait keep what their claims have, and nodes that they are nominated to.
        """
        own = [claim for claim in self.snapshot.claims if is_owned_by_pod(claim, pod)]
        known, of_pod = self.placer.informers.informer(RESOURCE_CLAIMS).lister, {key_of(claim) for claim in own}
        for claim in self.snapshot.claims:
            if key_of(claim) not in of_pod and known.get_key(key_of(claim)) is None:
                self.placer.put(RESOURCE_CLAIMS, claim)
        for document in self.snapshot.documents.get("PodGroup", ()):
            group = from_document(PodGroup, document)
            self.placer.pod_groups.set(key_of(group), group)
        for other in self.snapshot.pods:
            if not is_pod_done(other):
                self.placer.pod_groups.add_pod(other)
                if not other.spec.node_name and other is not pod:
                    self._nominate(other)
        return self.prepare(pod, own)

    def _nominate(self, pod: Pod) -> None:
        """Let others leave room for a waiting Pod where it is nominated."""
        node_name = pod.status.nominated_node_name
        if not node_name:
            return
        try:
            waiting = self.prepare(pod)
        except SnapshotError:
            waiting = TrialPod(pod)
        for claim in waiting.claims:
            self.placer.put(RESOURCE_CLAIMS, claim)
        self.placer.put(PODS, waiting.pod)
        self.placer.nominations.set(PodInfo(waiting.pod), node_name)

    def _created(self, pod: Pod, entry: PodClaim) -> ResourceClaim:
        template: ResourceClaimTemplate | None = self._templates.get(
            NamespacedName(pod.metadata.namespace or "", entry.template)
        )
        claim = make_claim(pod, entry, template, self._gates)
        if not isinstance(claim, ResourceClaim):
            raise SnapshotError(f"pod {key_of(pod)}: {claim.message}")
        if template is not None and not template.metadata.uid and (errors := _errors_of(claim, self._gates)):
            raise SnapshotError(errors)
        name = f"{pod.metadata.name}-{entry.entry}-trial"
        uid = f"{pod.metadata.uid}-{entry.entry}"
        return replace(claim, metadata=replace(claim.metadata, name=name, generate_name=None, uid=uid))

    def add_template(self, template: ResourceClaimTemplate) -> None:
        """Add a template for claims of Pods that are prepared later."""
        self._templates[key_of(template)] = template

    # --- Nodes. ---

    @property
    def nodes(self) -> Mapping[str, Node]:
        """Return the nodes by name."""
        return self._nodes

    def add_node(self, node: Node, slices: Iterable[ResourceSlice]) -> None:
        """Add a node with its slices."""
        self._nodes[node.metadata.name or ""] = node
        self.placer.put(NODES, node)
        for resource_slice in slices:
            self.placer.put(RESOURCE_SLICES, resource_slice)

    def remove_node(self, name: str, slices: Iterable[ResourceSlice] = ()) -> None:
        """Remove a node without Pods, and its slices."""
        for resource_slice in slices:
            self.placer.informers.remove(RESOURCE_SLICES, resource_slice)
        self.placer.remove_node(self._nodes.pop(name))
        self._held.discard(name)

    def hold(self, name: str) -> None:
        """Keep further Pods from a node, by a taint."""
        node = self._nodes[name]
        self._held.add(name)
        taints = (*node.spec.taints, _HOLD)
        self.placer.put(NODES, replace(node, spec=replace(node.spec, taints=taints)))

    @contextmanager
    def holding(self, names: Iterable[str]) -> Iterator[None]:
        """Hold those of the nodes that are not held yet."""
        new = [name for name in dict.fromkeys(names) if name not in self._held]
        for name in new:
            self.hold(name)
        try:
            yield
        finally:
            for name in new:
                self.release(name)

    def release(self, name: str) -> None:
        """Undo `hold`."""
        if name in self._held:
            self._held.discard(name)
            self.placer.put(NODES, self._nodes[name])

    # --- Pods. ---

    def pods_on(self, node_name: str) -> list[PlacedPod]:
        """Return the Pods of a node, in the order in which they came."""
        return [self.placer.placed[uid] for uid in self._on_node.get(node_name, ())]

    def find(self, uid: str) -> PlacedPod | None:
        """Return a Pod that has a node."""
        return self.placer.placed.get(uid)

    def place(self, pod: TrialPod, *, on: str = "") -> PlacedPod | Unplaced:
        """Place a Pod where the scheduler would, or on one node if it fits there."""
        try:
            found = self.placer.place(pod.pod, pod.claims, on=on)
        except AttemptError as error:
            # The scheduler would report it, and try again later.
            return Unplaced(pod, str(error), str(error), is_error=True)
        if not isinstance(found, PlacedPod):
            return Unplaced(pod, found.message(), found.reasons or found.message())
        if refusal := self._refused_by_quota(found):
            self.placer.remove(pod.uid)
            return Unplaced(pod, refusal, refusal)
        self._on_node.setdefault(found.pod.spec.node_name or "", {})[pod.uid] = None
        return found

    def _refused_by_quota(self, found: PlacedPod) -> str:
        """Return why the claim that the scheduler creates for the Pod's extended resources would be refused."""
        if not self.snapshot.quotas or not any(self._created_claims(found)):
            return ""
        namespace = found.pod.metadata.namespace
        placed = (item for item in self.placer.placed.values() if item.pod.metadata.namespace == namespace)
        refusal = self._quotas.refusal_of([claim for item in placed for claim in self._created_claims(item)])
        return refusal and f"its claim for extended resources cannot be created: {refusal}"

    def _created_claims(self, placed: PlacedPod) -> Iterator[ResourceClaim]:
        """Yield the claim for extended resources that quotas do not count yet; a moved Pod has had one."""
        if placed.pod.metadata.uid not in self._owners_of_extended_claims:
            yield from (claim for claim in placed.claims if is_extended_resource_claim(claim))

    def fits(self, pod: TrialPod, *, on: str = "") -> bool:
        """Return whether a Pod could be placed."""
        if isinstance(self.place(pod, on=on), Unplaced):
            return False
        self.remove(pod.uid)
        return True

    def remove(self, uid: str) -> PlacedPod:
        """Remove a Pod with its own claims."""
        placed = self.placer.remove(uid)
        del self._on_node[placed.pod.spec.node_name or ""][uid]
        return placed

    def restore(self, placed: PlacedPod) -> None:
        """Put a Pod back on its node, with the devices that it had."""
        self.placer.add(placed.pod, placed.claims, placed.shared)
        self._on_node.setdefault(placed.pod.spec.node_name or "", {})[placed.pod.metadata.uid or ""] = None

    def replacement(self, placed: PlacedPod) -> TrialPod:
        """Return the Pod that a controller creates for an evicted one, under the same name."""
        return TrialPod(
            _pending(placed.pod, placed.pod.status.resource_claim_statuses),
            # The scheduler itself creates the claims for extended resources.
            tuple(_unallocated(claim) for claim in placed.claims if not is_extended_resource_claim(claim)),
        )


def devices_of(placed: PlacedPod) -> tuple[str, ...]:
    """Return the devices of a Pod's claims, as `driver/pool/device`, except of those that were allocated before."""
    return tuple(_devices((*placed.claims, *placed.shared)))


def _devices(claims: Sequence[ResourceClaim]) -> Iterator[str]:
    for claim in claims:
        if claim.status.allocation is not None:
            for result in claim.status.allocation.devices.results:
                yield f"{result.driver}/{result.pool}/{result.device}"


def _errors_of(claim: ResourceClaim, gates: FeatureGates) -> str:
    """Return why a server would refuse the claim of a template that no server has checked yet."""
    # Imported on use: what a cluster serves was checked when it was created.
    from dray.api.validation.resource_claim import validate_claim
    from dray.apiserver.registry.resource.group import compilers

    errors = validate_claim(to_document(claim), compilers(gates))
    return aggregate(errors) if errors else ""


def _pending(pod: Pod, statuses: tuple[PodResourceClaimStatus, ...]) -> Pod:
    spec = replace(pod.spec, node_name=None)
    metadata = replace(pod.metadata, deletion_timestamp=None)
    return replace(
        pod, metadata=metadata, spec=spec, status=PodStatus(phase="Pending", resource_claim_statuses=statuses)
    )


def _unallocated(claim: ResourceClaim) -> ResourceClaim:
    metadata = replace(claim.metadata, deletion_timestamp=None)
    return replace(claim, metadata=metadata, status=ResourceClaimStatus())


def _without_hold(node: Node) -> Node:
    """Return the node without the taint of a rebalancing: it ends before the plan begins."""
    taints = tuple(taint for taint in node.spec.taints if taint.key != HOLD_TAINT)
    return node if len(taints) == len(node.spec.taints) else replace(node, spec=replace(node.spec, taints=taints))


def _with_owner(claim: ResourceClaim, uid: str, suffix: str) -> ResourceClaim:
    """Return the claim of a copy, which belongs to the copy."""
    owners = tuple(
        replace(owner, name=f"{owner.name}-{suffix}", uid=f"{owner.uid}-{suffix}") if owner.uid == uid else owner
        for owner in claim.metadata.owner_references
    )
    return replace(claim, metadata=replace(claim.metadata, owner_references=owners))


def _renamed(item: Any, suffix: str) -> Any:
    metadata = replace(item.metadata, name=f"{item.metadata.name}-{suffix}", uid=f"{item.metadata.uid}-{suffix}")
    return replace(item, metadata=metadata)
