"""Which claims to create and reserve for a Pod, and which consumers to remove from a claim. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dray.api.classic_claims import (
    State,
    classic_entries,
    driver_status,
    is_for_pod,
    is_pod_reference,
    is_reservable,
    is_reserved_for,
    state_of,
    status_of,
    with_user,
)
from dray.api.pod_claims import is_pod_done, needs_no_claims
from dray.api.types.cdi_v1alpha1 import ResourceClaim
from dray.api.types.core_v1 import Node, Pod, PodResourceClaim
from dray.api.types.meta_v1 import ObjectMeta, OwnerReference
from dray.client.objects import controller_reference
from dray.client.resources import PODS
from dray.controllers.claim_problems import FindPod, Problem
from dray.framework.node_info import NodeInfo
from dray.framework.node_selectors import compile_selector

FindClaim = Callable[[str], ResourceClaim | None]


@dataclass(frozen=True, slots=True)
class PodPlan:
    """Claims to create for a Pod, by entry, claims to reserve, and problems to report."""

    create: tuple[tuple[str, ResourceClaim], ...] = ()
    # Claims with the Pod added to their consumers.
    reserve: tuple[ResourceClaim, ...] = ()
    problems: tuple[Problem, ...] = ()


NOTHING: Final = PodPlan()


def plan_pod(pod: Pod | None, find: FindClaim, node: Node | None) -> PodPlan:
    """Compare the Pod's entries with the existing claims; `node` is the Pod's node, if it has one."""
    if pod is None or needs_no_claims(pod):
        return NOTHING
    create: list[tuple[str, ResourceClaim]] = []
    reserve: list[ResourceClaim] = []
    problems: list[Problem] = []
    templates = {entry.name: entry for entry in pod.spec.resource_claims}
    for wanted in classic_entries(pod, lambda name: find(name) is not None):
        claim = find(wanted.claim_name)
        if claim is None:
            create.append((wanted.entry, make_claim(pod, wanted.claim_name, templates[wanted.entry])))
        elif wanted.generated and not is_for_pod(claim, pod):
            problems.append(not_owned(pod, wanted.entry, wanted.claim_name))
        elif not wanted.optional and needs_reservation(pod, claim, node):
            reserve.append(with_user(claim, pod))
    return PodPlan(tuple(create), tuple(reserve), tuple(problems))


def needs_reservation(pod: Pod, claim: ResourceClaim, node: Node | None) -> bool:
    """Return whether the Pod was bound without a reservation of a claim that is available on its node."""
    if not pod.spec.node_name or node is None or is_reserved_for(claim, pod):
        return False
    if state_of(claim) not in (State.ALLOCATED, State.IN_USE) or not is_reservable(claim):
        return False
    selector = driver_status(claim).available_on_nodes
    return selector is None or compile_selector(selector)(NodeInfo(node, {}))


def not_owned(pod: Pod, entry: str, name: str) -> Problem:
    """Return the problem that the claim belongs to another owner; it has to be deleted or handed over by the user."""
    namespace = pod.metadata.namespace
    text = (
        f"ResourceClaim {namespace}/{name} was not created for pod {namespace}/{pod.metadata.name} (pod is not owner)"
    )
    return Problem(entry, text)


def make_claim(pod: Pod, name: str, entry: PodResourceClaim) -> ResourceClaim:
    """Return the claim that an entry's template describes; the Pod owns it."""
    template = entry.template
    assert template is not None
    metadata = ObjectMeta(
        name=name,
        namespace=pod.metadata.namespace,
        labels=dict(template.metadata.labels),
        annotations=dict(template.metadata.annotations),
        owner_references=(controller_reference(PODS.group_version_kind, pod.metadata),),
    )
    return ResourceClaim(metadata=metadata, spec=template.spec)


# --- Claims. ---


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """The remaining consumers, if any is removed, and whether to delete the claim."""

    consumers: tuple[OwnerReference, ...] | None = None
    delete: bool = False


KEEP_CLAIM: Final = ClaimPlan()


def pods_to_confirm(claim: ResourceClaim, find_pod: FindPod, is_deleted: Callable[[str], bool]) -> tuple[str, ...]:
    """Return the Pods that the cache lacks and that decide about the claim: the cache may be stale."""
    owner = owning_pod(claim)
    users = [user for user in status_of(claim).reserved_for if is_pod_reference(user)]
    names = {user.name for user in users if not is_deleted(user.uid) and not _is_cached(user, find_pod)}
    if owner is not None and not is_deleted(owner.uid) and not _is_cached(owner, find_pod):
        names.add(owner.name)
    return tuple(sorted(names))


def _is_cached(reference: OwnerReference, find_pod: FindPod) -> bool:
    pod = find_pod(reference.name)
    return pod is not None and pod.metadata.uid == reference.uid


def plan_claim(claim: ResourceClaim | None, find_pod: FindPod, is_deleted: Callable[[str], bool]) -> ClaimPlan:
    """Remove finished consumers and delete a claim whose owning Pod has finished; `find_pod` was confirmed.

    A claim that a user created stays allocated without consumers. The user or the scheduler deallocates it.
    """
    if claim is None:
        return KEEP_CLAIM
    before = status_of(claim).reserved_for
    users = tuple(user for user in before if not is_pod_reference(user) or _is_alive(user, find_pod, is_deleted))
    owner = owning_pod(claim)
    deleting = claim.metadata.deletion_timestamp is not None
    delete = owner is not None and not deleting and not users and not _is_alive(owner, find_pod, is_deleted)
    return ClaimPlan(users if len(users) < len(before) else None, delete=delete)


def _is_alive(reference: OwnerReference, find_pod: FindPod, is_deleted: Callable[[str], bool]) -> bool:
    """Return whether the Pod exists and has not finished; an unreachable node does not matter."""
    pod = find_pod(reference.name)
    if is_deleted(reference.uid) or pod is None or pod.metadata.uid != reference.uid:
        return False
    return not is_pod_done(pod)


def owning_pod(claim: ResourceClaim) -> OwnerReference | None:
    """Return the Pod that the claim was created for."""
    owners = (owner for owner in claim.metadata.owner_references if owner.controller)
    return next((owner for owner in owners if is_pod_reference(owner)), None)
