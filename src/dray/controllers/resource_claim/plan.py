"""Which claims to create, record and reserve for a Pod, and what to remove from a claim. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from dray.api.document import Document, NamespacedName
from dray.api.features import FeatureGates
from dray.api.pod_claims import (
    FINALIZER,
    POD_CLAIM_NAME_ANNOTATION,
    PodClaim,
    extended_resource_claim_name,
    has_prioritized_list,
    is_for_pod,
    is_pod_done,
    is_pod_reference,
    is_reserved_for,
    needs_no_claims,
    pod_claims,
    reservation_of,
)
from dray.api.types.core_v1 import Pod
from dray.api.types.meta_v1 import ObjectMeta, OwnerReference
from dray.api.types.resource_v1 import (
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimStatus,
    ResourceClaimTemplate,
)
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.client.objects import controller_reference
from dray.client.resources import POD_GROUPS, PODS
from dray.controllers.claim_problems import FindPod, Problem
from dray.controllers.resource_claim.group_plan import Membership, Wait

# A name has at most 63 characters: the base, a hyphen, and five random ones added by the API server.
BASE_LENGTH_MAX: Final = 57

ADMIN_ACCESS_DISABLED: Final = "admin access is requested, but the feature is disabled"
PRIORITIZED_LIST_DISABLED: Final = "template includes a prioritized list of subrequests, but the feature is disabled"

FindClaim = Callable[[str], ResourceClaim | None]
FindTemplate = Callable[[str], ResourceClaimTemplate | None]


# Tells whether a consumer is a PodGroup that does not exist any more.
IsGroupGone = Callable[[ResourceClaimConsumerReference], bool]


def _keep_groups(_user: ResourceClaimConsumerReference) -> bool:
    return False


class PodPlan(msgspec.Struct, frozen=True):
    """The writes for one Pod."""

    # Entry -> claim to create.
    create: tuple[tuple[str, ResourceClaim], ...] = ()
    # Entry -> existing claim that the Pod's status does not name.
    adopt: tuple[tuple[str, str], ...] = ()
    # Claims with the Pod added to their consumers.
    reserve: tuple[ResourceClaim, ...] = ()
    problems: tuple[Problem, ...] = ()


NOTHING: Final = PodPlan()
_DEFAULT_GATES: Final = FeatureGates()


def generate_name(pod_name: str, entry: str) -> str:
    """Return the name prefix of a generated claim; if too long, both parts are cut in proportion to their length."""
    length = len(pod_name) + 1 + len(entry)
    if length > BASE_LENGTH_MAX:
        # The cut parts must not end in a separator.
        pod_name = pod_name[: len(pod_name) * BASE_LENGTH_MAX // length].rstrip("-.")
        entry = entry[: len(entry) * BASE_LENGTH_MAX // length].rstrip("-")
    return f"{pod_name}-{entry}-"


def names_to_confirm(pod: Pod, find: FindClaim) -> tuple[str, ...]:
    """Return the generated claims that the Pod's status names and the caches lack: the caches may be stale."""
    if not pod.status.resource_claim_statuses or needs_no_claims(pod):
        return ()
    return tuple(
        claim.claim_name
        for claim in pod_claims(pod)
        if claim.generated and claim.claim_name is not None and find(claim.claim_name) is None
    )


def plan_pod(
    pod: Pod | None,
    find: FindClaim,
    owned: Sequence[ResourceClaim],
    find_template: FindTemplate,
    gates: FeatureGates,
    membership: Membership | None = None,
) -> PodPlan:
    """Compare a Pod's entries with the existing claims; `owned` are the claims that the Pod owns.

    `membership` tells which entries stand for claims of the Pod's group; None if it is in no group.
    """
    if pod is None or needs_no_claims(pod):
        return NOTHING
    create: list[tuple[str, ResourceClaim]] = []
    adopt: list[tuple[str, str]] = []
    reserve: list[ResourceClaim] = []
    problems: list[Problem] = []
    wanted: str | Wait | Problem | ResourceClaim
    for entry in pod_claims(pod):
        claim = find_usable(pod, entry, find)
        if claim is not None:
            if not entry.optional and needs_reservation(pod, claim):
                user = reservation_of(pod) if membership is None else membership.user_of(entry)
                reserve.append(with_user(claim, user))
        elif entry.generated:
            wanted = Wait.OWN if membership is None else membership.claim_of(entry)
            if wanted is Wait.OWN:
                existing = _find_generated(pod, entry.entry, owned)
                wanted = existing or make_claim(pod, entry, find_template(entry.template), gates)
            if isinstance(wanted, Problem):
                problems.append(wanted)
            elif isinstance(wanted, str):
                adopt.append((entry.entry, wanted))
            elif isinstance(wanted, ResourceClaim):
                create.append((entry.entry, wanted))
    return PodPlan(tuple(create), tuple(adopt), tuple(reserve), tuple(problems))


def find_usable(pod: Pod, entry: PodClaim, find: FindClaim) -> ResourceClaim | None:
    """Return the entry's claim, unless it does not exist or was generated for another Pod."""
    claim = find(entry.claim_name) if entry.claim_name is not None else None
    if claim is None or (entry.generated and not is_for_pod(claim, pod)):
        return None
    return claim


def needs_reservation(pod: Pod, claim: ResourceClaim) -> bool:
    """Return whether the Pod was bound without the scheduler, which would have reserved the claim."""
    return (
        bool(pod.spec.node_name)
        and claim.status.allocation is not None
        and claim.metadata.deletion_timestamp is None
        and not is_reserved_for(claim, pod)
    )


def with_user(claim: ResourceClaim, user: ResourceClaimConsumerReference) -> ResourceClaim:
    """Return the claim with another consumer."""
    status = msgspec.structs.replace(claim.status, reserved_for=(*claim.status.reserved_for, user))
    return msgspec.structs.replace(claim, status=status)


def _find_generated(pod: Pod, entry: str, owned: Sequence[ResourceClaim]) -> str | None:
    """Return the oldest claim generated for the entry, so that a lost status write does not create a second one."""
    found = [
        claim.metadata
        for claim in owned
        if claim.metadata.annotations.get(POD_CLAIM_NAME_ANNOTATION) == entry and is_for_pod(claim, pod)
    ]
    # A claim that is being deleted is the last choice.
    found.sort(key=lambda m: (m.deletion_timestamp is not None, str(m.creation_timestamp), m.name or ""))
    return found[0].name if found else None


def make_claim(
    owner: Pod | PodGroup, entry: PodClaim, template: ResourceClaimTemplate | None, gates: FeatureGates
) -> ResourceClaim | Problem:
    """Return the claim that the template describes for the entry of a Pod or group, or why there is none."""
    if template is None:
        missing = f'resourceclaimtemplate.resource.k8s.io "{entry.template}" not found'
        return Problem(entry.entry, f'resource claim template "{entry.template}": {missing}')
    kind = (POD_GROUPS if isinstance(owner, PodGroup) else PODS).group_version_kind
    claim = ResourceClaim(
        metadata=ObjectMeta(
            generate_name=generate_name(owner.metadata.name or "", entry.entry),
            namespace=owner.metadata.namespace,
            labels=dict(template.spec.metadata.labels),
            annotations={**template.spec.metadata.annotations, POD_CLAIM_NAME_ANNOTATION: entry.entry},
            owner_references=(controller_reference(kind, owner.metadata),),
            # The scheduler would have to add it before it writes the allocation.
            finalizers=(FINALIZER,),
        ),
        spec=template.spec.spec,
    )
    if not gates.enabled("DRAPrioritizedList") and has_prioritized_list(claim):
        return Problem(entry.entry, PRIORITIZED_LIST_DISABLED)
    requests = claim.spec.devices.requests
    if not gates.enabled("DRAAdminAccess") and any(r.exactly is not None and r.exactly.admin_access for r in requests):
        return Problem(entry.entry, ADMIN_ACCESS_DISABLED)
    return claim


def status_patch(pod: Pod, named: dict[str, str]) -> Document:
    """Return the apply patch with all claim names of the Pod, known and new.

    It carries the Pod's resource version: a forced apply must not overwrite names that it has not seen.
    """
    entries = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses} | named
    statuses = [
        {"name": entry, "resourceClaimName": name} if name is not None else {"name": entry}
        for entry, name in sorted(entries.items())
    ]
    metadata = {
        "name": pod.metadata.name,
        "namespace": pod.metadata.namespace,
        "uid": pod.metadata.uid,
        "resourceVersion": pod.metadata.resource_version,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {"resourceClaimStatuses": statuses}}


# --- Claims. ---


class ClaimPlan(msgspec.Struct, frozen=True):
    """The writes for one claim, in this order: the finalizer is removed only after the status was written."""

    status: ResourceClaimStatus | None = None
    remove_finalizer: bool = False
    delete: bool = False


KEEP_CLAIM: Final = ClaimPlan()


def pods_to_confirm(claim: ResourceClaim, find_pod: FindPod, is_deleted: Callable[[str], bool]) -> tuple[str, ...]:
    """Return the Pods that decide about the claim and that the cache lacks, or has with another uid.

    The Pod informer may be behind the claim informer: only a live read tells whether such a Pod exists.
    """
    names = {
        user.name
        for user in claim.status.reserved_for
        if is_pod_reference(user) and not is_deleted(user.uid) and not _has_uid(find_pod(user.name), user.uid)
    }
    owner = _owning_pod(claim)
    if owner is not None and not is_deleted(owner.uid):
        pod = find_pod(owner.name)
        if pod is not None and pod.metadata.uid != owner.uid:
            names.add(owner.name)
    return tuple(sorted(names))


def _has_uid(pod: Pod | None, uid: str) -> bool:
    return pod is not None and pod.metadata.uid == uid


def plan_claim(
    claim: ResourceClaim | None,
    find_pod: FindPod,
    is_deleted: Callable[[str], bool],
    is_group_gone: IsGroupGone = _keep_groups,
) -> ClaimPlan:
    """Remove finished consumers, and without any the allocation; the lookups were confirmed for all consumers."""
    if claim is None:
        return KEEP_CLAIM
    users = tuple(user for user in claim.status.reserved_for if not _is_gone(user, find_pod, is_deleted, is_group_gone))
    protected = FINALIZER in claim.metadata.finalizers
    delete = not users and _owner_is_done(claim, find_pod, is_deleted)
    if len(users) < len(claim.status.reserved_for):
        free = protected and not users
        status = ResourceClaimStatus() if free else msgspec.structs.replace(claim.status, reserved_for=users)
        return ClaimPlan(status, remove_finalizer=free, delete=delete)
    if protected and not users and claim.metadata.deletion_timestamp is not None:
        held = claim.status.allocation is not None
        return ClaimPlan(ResourceClaimStatus() if held else None, remove_finalizer=True)
    # Without devices to free, it need not wait for the event of its deletion.
    return ClaimPlan(remove_finalizer=delete and protected and claim.status.allocation is None, delete=delete)


def _is_gone(
    user: ResourceClaimConsumerReference,
    find_pod: FindPod,
    is_deleted: Callable[[str], bool],
    is_group_gone: IsGroupGone,
) -> bool:
    if is_pod_reference(user):
        return not _is_alive(user.uid, find_pod(user.name), is_deleted)
    return is_group_gone(user)


def _is_alive(uid: str, pod: Pod | None, is_deleted: Callable[[str], bool]) -> bool:
    if is_deleted(uid) or pod is None or pod.metadata.uid != uid:
        return False
    return not is_pod_done(pod)


def _owner_is_done(claim: ResourceClaim, find_pod: FindPod, is_deleted: Callable[[str], bool]) -> bool:
    """Return whether the owning Pod has finished, or was deleted or replaced; an unknown one counts as alive."""
    owner = _owning_pod(claim)
    if owner is None or claim.metadata.deletion_timestamp is not None:
        return False
    if is_deleted(owner.uid):
        return True
    pod = find_pod(owner.name)
    return pod is not None and (pod.metadata.uid != owner.uid or is_pod_done(pod))


def _owning_pod(claim: ResourceClaim) -> OwnerReference | None:
    """Return the Pod that the claim was generated for."""
    for owner in claim.metadata.owner_references:
        if owner.controller and owner.kind == "Pod" and owner.api_version == "v1":
            return owner
    return None


def without_finalizer(claim: ResourceClaim) -> ResourceClaim:
    """Return the claim without the finalizer of allocated claims."""
    rest = tuple(name for name in claim.metadata.finalizers if name != FINALIZER)
    return msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, finalizers=rest))


# --- Event filters. ---


def claim_needs_work(
    claim: ResourceClaim,
    find_pod: FindPod,
    is_deleted: Callable[[str], bool],
    is_group_gone: IsGroupGone = _keep_groups,
) -> bool:
    """Return whether there are consumers to confirm, or the plan would change the claim."""
    asked = pods_to_confirm(claim, find_pod, is_deleted)
    return bool(asked) or plan_claim(claim, find_pod, is_deleted, is_group_gone) != KEEP_CLAIM


def affects_pods(old: ResourceClaim | None, new: ResourceClaim | None) -> bool:
    """Return whether a Pod that uses the claim may need work: after creation, deletion, allocation or a new owner."""
    if old is None or new is None:
        return True
    return new.status.allocation is not None or old.metadata.owner_references != new.metadata.owner_references


def owning_pod_names(old: ResourceClaim | None, new: ResourceClaim | None) -> set[str]:
    """Return the names of the owning Pods before and after a change."""
    names: set[str] = set()
    for claim in (old, new):
        owner = _owning_pod(claim) if claim is not None else None
        if owner is not None:
            names.add(owner.name)
    return names


def is_named_in_status(pod: Pod, claim_name: str) -> bool:
    """Return whether the Pod's status names the claim."""
    return any(status.resource_claim_name == claim_name for status in pod.status.resource_claim_statuses)


def claim_names_of(pod: Pod) -> list[str]:
    """Return the claims that the Pod uses, as far as their names are known."""
    names = [claim.claim_name for claim in pod_claims(pod) if claim.claim_name is not None]
    special = extended_resource_claim_name(pod)
    if special:
        names.append(special)
    return names


def shared_claims_of(pod: Pod) -> list[NamespacedName]:
    """Return the claims that the Pod's spec names; other Pods may share them."""
    namespace = pod.metadata.namespace or ""
    return [
        NamespacedName(namespace, entry.resource_claim_name)
        for entry in pod.spec.resource_claims
        if entry.resource_claim_name is not None
    ]


def templates_of(pod: Pod) -> list[NamespacedName]:
    """Return the templates that the Pod's spec names."""
    namespace = pod.metadata.namespace or ""
    return [
        NamespacedName(namespace, entry.resource_claim_template_name)
        for entry in pod.spec.resource_claims
        if entry.resource_claim_template_name is not None
    ]


def pod_needs_work(pod: Pod, find: FindClaim) -> bool:
    """Return whether the plan would create or reserve a claim, whatever template and group say."""
    return plan_pod(pod, find, owned=(), find_template=lambda _: None, gates=_DEFAULT_GATES) != NOTHING
