"""What a Pod's templates and a claim's users need. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dray.api.classic_claims import (
    State,
    classic_entries,
    driver_part,
    has_room,
    is_allocated,
    is_made_for,
    is_pod_reference,
    is_reserved_for,
    state_of,
    status_of,
    with_user,
)
from dray.api.pod_claims import is_pod_done
from dray.api.types.cdi_v1alpha1 import ResourceClaim
from dray.api.types.core_v1 import Node, Pod, PodResourceClaim
from dray.api.types.meta_v1 import ObjectMeta, OwnerReference
from dray.controllers.claim_control import Problem
from dray.framework.node_info import NodeInfo
from dray.framework.node_selectors import compile_selector

FindClaim = Callable[[str], ResourceClaim | None]
FindPod = Callable[[str], Pod | None]


@dataclass(frozen=True, slots=True)
class PodPlan:
    """The claims to create for a Pod, by entry, those to reserve, and what stands in the way of others."""

    create: tuple[tuple[str, ResourceClaim], ...] = ()
    # Claims with the Pod added to their users.
    reserve: tuple[ResourceClaim, ...] = ()
    problems: tuple[Problem, ...] = ()


NOTHING: Final = PodPlan()


def is_unserved(pod: Pod) -> bool:
    """Whether nothing is made for the Pod any more."""
    return pod.metadata.deletion_timestamp is not None or is_pod_done(pod)


def plan_pod(pod: Pod | None, find: FindClaim, node: Node | None) -> PodPlan:
    """Compare the Pod's entries with the claims of their names; `node` is the Pod's, if it has one."""
    if pod is None or is_unserved(pod):
        return NOTHING
    create: list[tuple[str, ResourceClaim]] = []
    reserve: list[ResourceClaim] = []
    problems: list[Problem] = []
    templates = {entry.name: entry for entry in pod.spec.resource_claims}
    for wanted in classic_entries(pod, lambda name: find(name) is not None):
        claim = find(wanted.claim_name)
        if claim is None:
            create.append((wanted.entry, make_claim(pod, wanted.claim_name, templates[wanted.entry])))
        elif wanted.generated and not is_made_for(claim, pod):
            problems.append(foreign(pod, wanted.entry, wanted.claim_name))
        elif not wanted.optional and needs_reservation(pod, claim, node):
            reserve.append(with_user(claim, pod))
    return PodPlan(tuple(create), tuple(reserve), tuple(problems))


def needs_reservation(pod: Pod, claim: ResourceClaim, node: Node | None) -> bool:
    """Whether the Pod came to its node after the scheduler had given up on it, and the claim is there all the same."""
    if not pod.spec.node_name or node is None or is_reserved_for(claim, pod):
        return False
    if state_of(claim) not in (State.ALLOCATED, State.IN_USE) or not has_room(claim):
        return False
    selector = driver_part(claim).available_on_nodes
    return selector is None or compile_selector(selector)(NodeInfo(node, {}))


def foreign(pod: Pod, entry: str, name: str) -> Problem:
    """The claim belongs to somebody else and is not touched; it has to go, or be given to the Pod."""
    namespace = pod.metadata.namespace
    text = (
        f"ResourceClaim {namespace}/{name} was not created for pod {namespace}/{pod.metadata.name} (pod is not owner)"
    )
    return Problem(entry, text)


def make_claim(pod: Pod, name: str, entry: PodResourceClaim) -> ResourceClaim:
    """The claim that an entry's template describes; it goes with the Pod."""
    template = entry.template
    assert template is not None
    owner = OwnerReference(
        api_version="v1",
        kind="Pod",
        name=pod.metadata.name or "",
        uid=pod.metadata.uid or "",
        controller=True,
        block_owner_deletion=True,
    )
    metadata = ObjectMeta(
        name=name,
        namespace=pod.metadata.namespace,
        labels=dict(template.metadata.labels),
        annotations=dict(template.metadata.annotations),
        owner_references=(owner,),
    )
    return ResourceClaim(metadata=metadata, spec=template.spec)


def pod_needs_work(pod: Pod, find: FindClaim) -> bool:
    """Whether reconciling the Pod could do something; asked at every change of a Pod."""
    if not pod.spec.resource_claims or is_unserved(pod):
        return False
    for wanted in classic_entries(pod, lambda name: find(name) is not None):
        claim = find(wanted.claim_name)
        if claim is None or (wanted.generated and not is_made_for(claim, pod)):
            return True
        if pod.spec.node_name and is_allocated(claim) and not wanted.optional and not is_reserved_for(claim, pod):
            return True
    return False


# --- Claims. ---


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """The users that stay, if any go, and whether the claim itself goes."""

    users: tuple[OwnerReference, ...] | None = None
    delete: bool = False


KEEP_CLAIM: Final = ClaimPlan()


def pods_to_confirm(claim: ResourceClaim, find_pod: FindPod, is_deleted: Callable[[str], bool]) -> tuple[str, ...]:
    """Pods on whose end something depends and of which the cache may only be behind."""
    owner = owning_pod(claim)
    users = [user for user in status_of(claim).reserved_for if is_pod_reference(user)]
    names = {user.name for user in users if not is_deleted(user.uid) and not _is_known(user, find_pod)}
    if owner is not None and not is_deleted(owner.uid) and not _is_known(owner, find_pod):
        names.add(owner.name)
    return tuple(sorted(names))


def _is_known(reference: OwnerReference, find_pod: FindPod) -> bool:
    pod = find_pod(reference.name)
    return pod is not None and pod.metadata.uid == reference.uid


def plan_claim(claim: ResourceClaim | None, find_pod: FindPod, is_deleted: Callable[[str], bool]) -> ClaimPlan:
    """Forget users that are done; a claim made for a Pod goes with it. `find_pod` has been confirmed.

    A claim that its user made stays allocated between users: freeing it is for its user, or for a scheduler in need.
    """
    if claim is None:
        return KEEP_CLAIM
    before = status_of(claim).reserved_for
    users = tuple(user for user in before if not is_pod_reference(user) or _is_alive(user, find_pod, is_deleted))
    owner = owning_pod(claim)
    going = claim.metadata.deletion_timestamp is not None
    delete = owner is not None and not going and not users and not _is_alive(owner, find_pod, is_deleted)
    return ClaimPlan(users if len(users) < len(before) else None, delete=delete)


def _is_alive(reference: OwnerReference, find_pod: FindPod, is_deleted: Callable[[str], bool]) -> bool:
    """The Pod is there and not done, also when its node has not been heard of for long."""
    pod = find_pod(reference.name)
    if is_deleted(reference.uid) or pod is None or pod.metadata.uid != reference.uid:
        return False
    return not is_pod_done(pod)


def owning_pod(claim: ResourceClaim) -> OwnerReference | None:
    """The Pod that the claim was made for."""
    owners = (owner for owner in claim.metadata.owner_references if owner.controller)
    return next((owner for owner in owners if is_pod_reference(owner)), None)
