"""References between Pods and their ResourceClaims, for scheduler, controllers and node agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from dray.api.pod_groups import group_name_of, is_owned_by_group_of, is_reserved_for_group_of
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim, ResourceClaimConsumerReference

# On a generated claim: the entry of `pod.spec.resourceClaims` it was created for.
POD_CLAIM_NAME_ANNOTATION: Final = "resource.kubernetes.io/pod-claim-name"
# On the claim that the scheduler creates for extended resources; any non-empty value.
EXTENDED_RESOURCE_ANNOTATION: Final = "resource.kubernetes.io/extended-resource-claim"
# Protects an allocated claim from deletion while its devices are in use.
FINALIZER: Final = "resource.kubernetes.io/delete-protection"
# The API server rejects more consumers of one claim.
RESERVED_FOR_MAX: Final = 256

TERMINAL_PHASES: Final = frozenset({"Succeeded", "Failed"})


def needs_no_claims(pod: Pod) -> bool:
    """Return whether no claims are created for the Pod any more."""
    return pod.metadata.deletion_timestamp is not None or pod.status.phase in TERMINAL_PHASES


class PodClaim(msgspec.Struct, frozen=True, gc=False):
    """One entry of a Pod; `claim_name` is None until the claim of a template has been created."""

    entry: str
    claim_name: str | None
    # Empty for claims that users create.
    template: str = ""
    # The Pod can run without the claim.
    optional: bool = False
    # Whether the claim is generated for this Pod, from the template.
    generated: bool = False


def pod_claims(pod: Pod) -> Sequence[PodClaim]:
    """Return the claims that a Pod needs, in the order of its entries; entries that need none are omitted."""
    entries = pod.spec.resource_claims
    if not entries:
        return ()
    found: list[PodClaim] = []
    statuses: dict[str, str | None] = {}
    for status in pod.status.resource_claim_statuses:
        statuses[status.name] = status.resource_claim_name
    for entry in entries:
        if entry.resource_claim_name is not None:
            found.append(PodClaim(entry.name, entry.resource_claim_name, "", bool(entry.optional)))
        elif entry.resource_claim_template_name is not None:
            name = statuses.get(entry.name)
            if name is not None or entry.name not in statuses:
                template = entry.resource_claim_template_name
                found.append(PodClaim(entry.name, name, template, bool(entry.optional), generated=True))
    return found


def extended_resource_claim_name(pod: Pod) -> str:
    """Return the name of the claim with the Pod's extended resources; empty when there is none."""
    status = pod.status.extended_resource_claim_status
    return status.resource_claim_name if status is not None else ""


def is_for_pod(claim: ResourceClaim, pod: Pod) -> bool:
    """Report whether the Pod, or its group, is the claim's controller."""
    return is_owned_by_pod(claim, pod) or (pod.spec.scheduling_group is not None and is_owned_by_group_of(claim, pod))


def is_owned_by_pod(claim: ResourceClaim, pod: Pod) -> bool:
    """Report whether the Pod itself is the claim's controller."""
    if claim.metadata.namespace != pod.metadata.namespace:
        return False
    uid = pod.metadata.uid
    return any(owner.controller and owner.uid == uid for owner in claim.metadata.owner_references)


def not_created_for(claim_name: str, pod: Pod) -> str:
    """Return the error for a claim of a template that was created for somebody else."""
    namespace, group = pod.metadata.namespace, group_name_of(pod)
    user, why = f"pod {namespace}/{pod.metadata.name}", "pod is not owner"
    if group:
        user, why = f"Pod {namespace}/{pod.metadata.name}", f"neither Pod nor PodGroup {group} is the owner"
    return f"ResourceClaim {namespace}/{claim_name} was not created for {user} ({why})"


def is_reserved_for(claim: ResourceClaim, pod: Pod) -> bool:
    """Report whether the claim is reserved for the Pod, or for its group."""
    users, uid = claim.status.reserved_for, pod.metadata.uid
    for user in users:
        if user.uid == uid:
            return True
    return pod.spec.scheduling_group is not None and is_reserved_for_group_of(users, pod)


def reservation_of(pod: Pod) -> ResourceClaimConsumerReference:
    """Return the Pod as a consumer of a claim."""
    return ResourceClaimConsumerReference(resource="pods", name=pod.metadata.name or "", uid=pod.metadata.uid or "")


def is_pod_reference(user: ResourceClaimConsumerReference) -> bool:
    """Report whether the consumer is a Pod."""
    return user.resource == "pods" and not user.api_group


def is_pod_done(pod: Pod) -> bool:
    """Report whether the Pod has finished, or was deleted before it was scheduled."""
    if pod.status.phase in TERMINAL_PHASES:
        return True
    return pod.metadata.deletion_timestamp is not None and not pod.spec.node_name


def has_admin_access(claim: ResourceClaim) -> bool:
    """Report whether any request of the claim has admin access."""
    return any(request.exactly is not None and request.exactly.admin_access for request in claim.spec.devices.requests)


def has_prioritized_list(claim: ResourceClaim) -> bool:
    """Report whether any request of the claim has alternatives."""
    return any(request.first_available for request in claim.spec.devices.requests)
