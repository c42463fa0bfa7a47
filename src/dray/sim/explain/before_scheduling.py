"""What can stop a Pod before the scheduler looks for a node: gates, schedulers, templates, claims and classes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from dray.api import classic_claims as classic
from dray.api.document import NamespacedName
from dray.api.persistent_volumes import claim_names, class_of, is_delayed, provisioner_of
from dray.api.pod_claims import (
    FINALIZER,
    is_for_pod,
    is_pod_done,
    is_pod_reference,
    is_reserved_for,
    pod_claims,
)
from dray.api.timestamps import age
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim, ResourceClaimConsumerReference, ResourceClaimSpec
from dray.scheduler.plugins.dynamic_resources.extended_resources import (
    is_extended_resource_claim_of,
    is_used_by_others,
)
from dray.sim.claims import selected_node
from dray.sim.explain.answers import Stage, Verdict
from dray.sim.explain.claim_quota import ClaimQuotas
from dray.sim.explain.events import events_of, newest
from dray.sim.explain.pod_group import group_obstacle
from dray.sim.explain.refusals import refusal, similar_object
from dray.sim.explain.similar_names import did_you_mean, listed
from dray.sim.holdings import kubectl_line, plural
from dray.sim.notes import DEFAULT_SCHEDULER_NAME
from dray.sim.scheduler_messages import (
    reports_missing_claim,
    reports_skipped_classes,
    reports_unbound_claims,
    scheduler_message,
    without_preemption,
)
from dray.sim.snapshot import Snapshot

CLAIM_FAILED: Final = "FailedResourceClaimCreation"
# Components answer within seconds; a Pod that was not handled for longer has none that would.
UNHANDLED_AFTER: Final = timedelta(seconds=30)
# A node ends a Pod within seconds after its grace period.
OVERDUE_AFTER: Final = timedelta(seconds=30)

# Without these, nothing can be said about the devices of nodes.
_CLAIM_NEEDS: Final = ("ResourceSlice", "DeviceClass", "ResourceClaim")

_Check = Callable[[Snapshot, Pod, datetime], Verdict | None]


def obstacle_before_scheduling(snapshot: Snapshot, pod: Pod, now: datetime) -> Verdict | None:
    """Return the first thing that keeps the Pod from being scheduled at all; None if there is none."""
    return next((found for check in _CHECKS if (found := check(snapshot, pod, now)) is not None), None)


def _deleted(_snapshot: Snapshot, pod: Pod, now: datetime) -> Verdict | None:
    since = pod.metadata.deletion_timestamp
    if since is None:
        return None
    held = f": finalizers {', '.join(pod.metadata.finalizers)} keep it" if pod.metadata.finalizers else ""
    return Verdict(Stage.DONE, f"is being deleted since {age(since, now)} and was never scheduled{held}")


def _gated(_snapshot: Snapshot, pod: Pod, _now: datetime) -> Verdict | None:
    names = [gate.name for gate in pod.spec.scheduling_gates]
    if not names:
        return None
    gates = f"scheduling gate {names[0]}" if len(names) == 1 else f"scheduling gates {', '.join(names)}"
    remove = "it" if len(names) == 1 else "them"
    return Verdict(
        Stage.GATE,
        f"is not scheduled yet: {gates} in its spec",
        f"the component that set {remove} has to remove {remove}",
    )


def _waits_for_group(snapshot: Snapshot, pod: Pod, _now: datetime) -> Verdict | None:
    return group_obstacle(snapshot, pod)


def _unclaimed(snapshot: Snapshot, pod: Pod, now: datetime) -> Verdict | None:
    namespace = pod.metadata.namespace or ""
    for entry in pod_claims(pod):
        if entry.optional:
            continue
        key = NamespacedName(namespace, entry.claim_name or "")
        if entry.claim_name and key in snapshot.claims_by_key:
            found = _unusable(snapshot, snapshot.claims_by_key[key], pod, now, generated=entry.generated)
        elif entry.claim_name and snapshot.find_classic(namespace, entry.claim_name) is not None:
            found = None
        elif not snapshot.covers("ResourceClaim", "Pod"):
            # It may exist.
            found = None
        elif entry.generated:
            found = _not_generated(snapshot, pod, entry.template, now)
        else:
            similar = similar_object(snapshot, "ResourceClaim", namespace, key.name)
            text = f'waits for ResourceClaim "{key.name}", which does not exist in namespace {namespace}{similar}'
            found = Verdict(Stage.CLAIM, text, "create it, or correct resourceClaimName in the Pod")
        if found is not None:
            return found
    return None


def _not_generated(snapshot: Snapshot, pod: Pod, template: str, now: datetime) -> Verdict | None:
    namespace = pod.metadata.namespace or ""
    if not any(_key(item.metadata) == (namespace, template) for item in snapshot.templates):
        if not snapshot.covers("ResourceClaimTemplate", "Pod"):
            return None
        similar = similar_object(snapshot, "ResourceClaimTemplate", namespace, template)
        text = f'waits for ResourceClaimTemplate "{template}", which does not exist in namespace {namespace}{similar}'
        return Verdict(Stage.CLAIM, text, "create it, or correct resourceClaimTemplateName in the Pod")
    if (refused := refused_claim(snapshot, pod)) is not None:
        return refused
    if message := ClaimQuotas(snapshot).refusal(pod):
        found = refusal(snapshot, namespace, message)
        return Verdict(found.stage, f"has no claim: {found.text}", found.action)
    created = pod.metadata.creation_timestamp
    if created is None or now - created < UNHANDLED_AFTER or not snapshot.documents.get("Event"):
        return None
    text = f'has no claim from template "{template}" after {age(created, now)}: no claim controller has acted'
    return Verdict(Stage.CLAIM, text, "check that the controller manager is running")


def refused_claim(snapshot: Snapshot, pod: Pod, missing: int = 1) -> Verdict | None:
    """Return why a claim of the Pod was refused, with what would let `missing` of them in; None if none was."""
    namespace, name = pod.metadata.namespace or "", pod.metadata.name or ""
    failed = newest(events_of(snapshot, "Pod", namespace, name, pod.metadata.uid or ""), CLAIM_FAILED)
    if failed is None:
        return None
    found = refusal(snapshot, namespace, failed.message, missing, ClaimQuotas(snapshot).claims(pod))
    return Verdict(found.stage, f"has no claim: {found.text}", found.action)


def _unusable(snapshot: Snapshot, claim: ResourceClaim, pod: Pod, now: datetime, *, generated: bool) -> Verdict | None:
    name = f"claim {claim.metadata.namespace}/{claim.metadata.name}"
    deleted = claim.metadata.deletion_timestamp
    if deleted is not None:
        why, action = deleted_claim(snapshot, claim)
        return Verdict(
            Stage.CLAIM, f"waits for {name}, which is being deleted since {age(deleted, now)}: {why}", action
        )
    if generated and not is_for_pod(claim, pod):
        return _not_its_own(name)
    return _binding(claim, pod)


def _posing(snapshot: Snapshot, pod: Pod, _now: datetime) -> Verdict | None:
    """Return a claim that is annotated as that of the Pod's extended resources, and that others use."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    asks = any("/" in name for container in containers for name in container.resources.requests)
    for claim in snapshot.claims if asks else ():
        if is_extended_resource_claim_of(claim, pod) and is_used_by_others(claim, pod):
            name, users = f"claim {claim.metadata.namespace}/{claim.metadata.name}", claim.status.reserved_for
            text = (
                f"waits until {name} is no longer annotated as its own: used by {listed([user.name for user in users])}"
            )
            return Verdict(Stage.CLAIM, text, "remove its annotation and the owner reference to this Pod")
    return None


def _not_its_own(name: str) -> Verdict:
    text = f"cannot use {name}, which was not created for it"
    return Verdict(Stage.CLAIM, text, "delete that claim, so that one is created for this Pod")


def _classic_of_another(snapshot: Snapshot, pod: Pod, _now: datetime) -> Verdict | None:
    for entry in snapshot.classic_entries(pod):
        claim = snapshot.find_classic(pod.metadata.namespace or "", entry.claim_name)
        if claim is not None and entry.generated and not entry.optional and not classic.is_for_pod(claim, pod):
            return _not_its_own(f"classic claim {classic.label(claim)}")
    return None


def dead_users(snapshot: Snapshot, claim: ResourceClaim) -> Iterator[ResourceClaimConsumerReference]:
    """Yield the Pods that a claim is reserved for, and that do not exist or have finished."""
    if not snapshot.covers("Pod", "ResourceClaim"):
        return
    for user in claim.status.reserved_for:
        pod = snapshot.pods_by_uid.get(user.uid)
        if is_pod_reference(user) and (pod is None or is_pod_done(pod)):
            yield user


def claim_obstacle(snapshot: Snapshot, claim: ResourceClaim, now: datetime) -> Verdict | None:
    """Return what is the matter with a claim whatever the nodes are like; None if it depends on them."""
    since = claim.metadata.deletion_timestamp
    if since is not None:
        text, action = deleted_claim(snapshot, claim)
        return Verdict(Stage.CLAIM, f"is being deleted since {age(since, now)}: {text}", action)
    kinds = () if claim.status.allocation is not None else ("Node", "ResourceSlice", "DeviceClass")
    if reasons := [reason for kind in kinds if (reason := snapshot.unread(kind))]:
        return Verdict(Stage.CLAIM, f"is pending; where it fits is not evaluated: {' and '.join(reasons)}")
    return None


def deleted_claim(snapshot: Snapshot, claim: ResourceClaim) -> tuple[str, str]:
    """Return what keeps a claim that is being deleted, and what to do about it."""
    dead = {user.uid for user in dead_users(snapshot, claim)}
    users = [user.name for user in claim.status.reserved_for if user.uid not in dead]
    if users:
        pods = "Pod" if len(users) == 1 else "Pods"
        return f"it is in use by {listed(users)}", f"delete {pods} {listed(users)}"
    if dead:
        names = listed([user.name for user in claim.status.reserved_for])
        text = f"it is reserved for {names}, which {'is' if len(dead) == 1 else 'are'} gone"
        return text, "check that the claim controller is running, which removes the reservation"
    others = [name for name in claim.metadata.finalizers if name != FINALIZER]
    if others:
        finalizers = f"finalizer {others[0]} keeps" if len(others) == 1 else f"finalizers {listed(others)} keep"
        return f"{finalizers} it", "check the owner of the finalizer, which must remove it: is its driver installed?"
    return f"finalizer {FINALIZER} keeps it", "check that the claim controller is running, which removes it"


def _binding(claim: ResourceClaim, pod: Pod) -> Verdict | None:
    """Return the binding condition of a device that the Pod, which has its devices already, waits for."""
    allocation = claim.status.allocation
    if allocation is None or not is_reserved_for(claim, pod):
        return None
    devices = {(item.driver, item.pool, item.device): item.conditions for item in claim.status.devices}
    for result in allocation.devices.results:
        conditions = devices.get((result.driver, result.pool, result.device), ())
        met = {item.type for item in conditions if item.status == "True"}
        missing = [name for name in result.binding_conditions if name not in met]
        if missing:
            device = f"{result.driver}/{result.pool}/{result.device}"
            text = f"has device {device} and is bound when its condition {missing[0]} is true"
            return Verdict(Stage.BINDING, text, f"wait for driver {result.driver} to set it")
    return None


def class_obstacle(snapshot: Snapshot, pod: Pod, _now: datetime) -> Verdict | None:
    """Return a device class that the Pod's claims request and that does not exist."""
    if not snapshot.covers("DeviceClass", "Pod"):
        return None
    found = missing_class(snapshot, pod)
    if found is None:
        return None
    owner, name = found
    similar = did_you_mean(name, [item.metadata.name or "" for item in snapshot.classes])
    text = f'waits for DeviceClass "{name}" of {owner}, which does not exist{similar}'
    return Verdict(Stage.CLAIM, text, "correct deviceClassName, or create the class")


def missing_class(snapshot: Snapshot, pod: Pod) -> tuple[str, str] | None:
    """Return the first claim or template of the Pod that requests a class which does not exist, and the class."""
    if reports_skipped_classes(scheduler_message(pod)):
        # The scheduler goes on without it.
        return None
    known = {item.metadata.name for item in snapshot.classes}
    requested = ((owner, name) for owner, spec in claim_specs(snapshot, pod) for name in class_names(spec))
    return next(((owner, name) for owner, name in requested if name not in known), None)


def claim_specs(snapshot: Snapshot, pod: Pod) -> Iterator[tuple[str, ResourceClaimSpec]]:
    """Yield the specs of the Pod's claims, or of their templates as long as they are not created."""
    namespace = pod.metadata.namespace or ""
    templates = {_key(item.metadata): item.spec.spec for item in snapshot.templates}
    for entry in pod_claims(pod):
        claim = snapshot.claims_by_key.get(NamespacedName(namespace, entry.claim_name or ""))
        if claim is not None and not entry.generated:
            yield f"claim {namespace}/{entry.claim_name}", claim.spec
        elif (namespace, entry.template) in templates:
            yield f"template {namespace}/{entry.template}", templates[namespace, entry.template]
        elif claim is not None:
            yield f"claim {namespace}/{entry.claim_name}", claim.spec


def class_names(spec: ResourceClaimSpec) -> Iterator[str]:
    """Yield the classes of all requests and alternatives."""
    for request in spec.devices.requests:
        if request.exactly is not None:
            yield request.exactly.device_class_name
        yield from (alternative.device_class_name for alternative in request.first_available)


def _missing_volume_claim(snapshot: Snapshot, pod: Pod, _now: datetime) -> Verdict | None:
    """Return a volume claim that the scheduler did not find; a snapshot from files may lack claims that exist."""
    namespace, message = pod.metadata.namespace or "", scheduler_message(pod)
    for name, _ in claim_names(pod):
        exists = NamespacedName(namespace, name) in snapshot.volume_claims
        if not exists and reports_missing_claim(message, name):
            similar = similar_object(snapshot, "PersistentVolumeClaim", namespace, name)
            text = f'waits for PersistentVolumeClaim "{name}", which does not exist in namespace {namespace}{similar}'
            return Verdict(Stage.VOLUME, text, "create it, or correct claimName in the Pod")
    return None


def _unbound_volume_claim(snapshot: Snapshot, pod: Pod, _now: datetime) -> Verdict | None:
    """Return a volume claim that the scheduler waits for because it is bound before Pods are scheduled."""
    if not reports_unbound_claims(scheduler_message(pod)):
        return None
    for name, _ in claim_names(pod):
        claim = snapshot.volume_claims.get(NamespacedName(pod.metadata.namespace or "", name))
        if claim is None or claim["spec"].get("volumeName"):
            continue
        class_name, known = class_of(claim), snapshot.storage_classes
        waits = f'waits for PersistentVolumeClaim "{name}"'
        if class_name and known and class_name not in known:
            text = f'{waits}, whose StorageClass "{class_name}" does not exist{did_you_mean(class_name, known)}'
            return Verdict(Stage.VOLUME, text, "correct storageClassName in a new claim, or create the class")
        if is_delayed(known.get(class_name)):
            continue
        size = ((claim["spec"].get("resources") or {}).get("requests") or {}).get("storage") or "its size"
        if provisioner := provisioner_of(known.get(class_name)):
            text = f"{waits}, for which provisioner {provisioner} has created no volume"
            return Verdict(Stage.VOLUME, text, f"check provisioner {provisioner}: kubectl describe pvc {name}")
        kind = f"of StorageClass {class_name}" if class_name else "without a StorageClass"
        text = f"{waits}, which no PersistentVolume {kind} suits"
        return Verdict(Stage.VOLUME, text, f"create a PersistentVolume of {size} or more")
    return None


def _foreign_scheduler(snapshot: Snapshot, pod: Pod, now: datetime) -> Verdict | None:
    name = pod.spec.scheduler_name or DEFAULT_SCHEDULER_NAME
    if _is_handled(pod) or name == DEFAULT_SCHEDULER_NAME:
        return None
    peers = [item for item in snapshot.pods if (item.spec.scheduler_name or DEFAULT_SCHEDULER_NAME) == name]
    if any(item.spec.node_name or _is_handled(item) for item in peers):
        return None
    created = pod.metadata.creation_timestamp
    if created is not None and now - created < UNHANDLED_AFTER:
        return None
    others = {item.spec.scheduler_name or DEFAULT_SCHEDULER_NAME for item in snapshot.pods if item.spec.node_name}
    known = others | {DEFAULT_SCHEDULER_NAME}
    text = f'waits for scheduler "{name}", which has handled no Pod of this cluster{did_you_mean(name, known)}'
    return Verdict(Stage.SCHEDULER, text, f"start it, or use schedulerName {DEFAULT_SCHEDULER_NAME}")


def _is_handled(pod: Pod) -> bool:
    return any(item.type == "PodScheduled" for item in pod.status.conditions)


def unhandled(pod: Pod, now: datetime) -> Verdict | None:
    """Return that no scheduler has looked at a Pod that fits."""
    created = pod.metadata.creation_timestamp
    if _is_handled(pod) or created is None or now - created < UNHANDLED_AFTER:
        return None
    name = pod.spec.scheduler_name or DEFAULT_SCHEDULER_NAME
    text = f'fits, but scheduler "{name}" has not handled it for {age(created, now)}'
    return Verdict(Stage.SCHEDULER, text, "check that the scheduler is running")


def unread_needs(snapshot: Snapshot, pod: Pod) -> tuple[str, ...]:
    """Return the kinds that the scheduler's filters need for the Pod, and that were not read, or only in part."""
    claims = list(pod_claims(pod))
    found = [kind for kind in ("Node", *(_CLAIM_NEEDS if claims else ())) if kind in snapshot.partial]
    created = any(entry.claim_name for entry in claims)
    if pod.spec.scheduling_group is not None and not snapshot.covers("PodGroup", "Pod"):
        found.append("PodGroup")
    if claims and not created and not snapshot.covers("ResourceClaimTemplate", "Pod"):
        found.append("ResourceClaimTemplate")
    return tuple(found)


def unevaluated(snapshot: Snapshot, pod: Pod, kinds: Sequence[str]) -> Verdict:
    """Return what the scheduler has reported about a Pod if kinds that it depends on were not read."""
    why = without_preemption(scheduler_message(pod)) or "no scheduler has reported why"
    if not snapshot.absent.isdisjoint(kinds):
        missing = " and ".join(plural(kind) for kind in kinds if kind in snapshot.absent)
        text = f"is pending: {why}; why, is not evaluated, because the dump has no {missing}"
        return Verdict(Stage.FILTER, text, f"dump all of it: {kubectl_line()}")
    return Verdict(
        Stage.FILTER, f"is pending: {why}", "for the cause on each node, ask an administrator to run dray explain"
    )


def waits_for_victims(snapshot: Snapshot, pod: Pod, now: datetime) -> Verdict | None:
    """Return what a preemptor waits for: victims that are still there, and claims that are still allocated."""
    node = pod.status.nominated_node_name
    if not node or pod.spec.node_name:
        return None
    priority = pod.spec.priority or 0
    going = [
        item
        for item in snapshot.pods
        if item.spec.node_name == node and (item.spec.priority or 0) < priority and _is_going(item)
    ]
    texts = [f"Pod {_name(item)}{_grace(item, now)}" for item in going]
    left = [claim for claim in snapshot.claims if _is_left_over(claim, node, going, snapshot)]
    texts += [f"claim {claim.metadata.namespace}/{claim.metadata.name}" for claim in left]
    if not texts:
        return None
    stuck = [item for item in going if item.metadata.finalizers]
    action = f"check finalizer {stuck[0].metadata.finalizers[0]} of Pod {_name(stuck[0])}" if stuck else "wait"
    overdue = [item for item in going if _is_overdue(item, now)]
    if overdue and not stuck:
        action = f"check that the node agent of {node} is running, which ends Pods"
    if not going:
        action = "check that the controller manager is running, which deallocates claims"
    return Verdict(Stage.PREEMPTION, f"preempts Pods on {node} and waits for {listed(texts, 5)} to go", action)


def _is_left_over(claim: ResourceClaim, node: str, going: list[Pod], snapshot: Snapshot) -> bool:
    """Return whether a claim is still allocated on the node for Pods that go, or are gone."""
    allocation, users = claim.status.allocation, {user.uid for user in claim.status.reserved_for}
    if allocation is None or not users:
        return False
    if any(item.metadata.uid in users for item in going):
        return True
    selector = allocation.node_selector
    if selector is None or selected_node(selector) != node:
        return False
    return not any(uid in snapshot.pods_by_uid for uid in users)


def _is_going(pod: Pod) -> bool:
    is_victim = any(
        item.type == "DisruptionTarget" and item.status == "True" and item.reason == "PreemptionByScheduler"
        for item in pod.status.conditions
    )
    return is_victim or pod.metadata.deletion_timestamp is not None


def _is_overdue(pod: Pod, now: datetime) -> bool:
    ends = pod.metadata.deletion_timestamp
    return ends is not None and now - ends > OVERDUE_AFTER


def _grace(pod: Pod, now: datetime) -> str:
    ends = pod.metadata.deletion_timestamp
    if ends is None:
        return ""
    return f" (ends in {age(now, ends)})" if ends > now else f" (should have ended {age(ends, now)} ago)"


def _name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def _key(metadata: object) -> tuple[str, str]:
    return getattr(metadata, "namespace", None) or "", getattr(metadata, "name", None) or ""


_CHECKS: Final[tuple[_Check, ...]] = (
    _deleted,
    _gated,
    _waits_for_group,
    waits_for_victims,
    _unclaimed,
    _classic_of_another,
    _posing,
    class_obstacle,
    _missing_volume_claim,
    _unbound_volume_claim,
    _foreign_scheduler,
)
