"""How Pods and their ResourceClaims refer to each other, as scheduler, controllers and node agent all read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim, ResourceClaimConsumerReference

# On a generated claim: the entry of `pod.spec.resourceClaims` it was made for.
POD_CLAIM_NAME_ANNOTATION: Final = "resource.kubernetes.io/pod-claim-name"
# On the claim the scheduler makes for extended resources; any non-empty value.
EXTENDED_RESOURCE_ANNOTATION: Final = "resource.kubernetes.io/extended-resource-claim"
# Keeps an allocated claim until nobody uses its devices.
FINALIZER: Final = "resource.kubernetes.io/delete-protection"
# The API server refuses more users of one claim.
RESERVED_FOR_MAX: Final = 256

_TERMINAL_PHASES: Final = frozenset({"Succeeded", "Failed"})


class PodClaim(msgspec.Struct, frozen=True, gc=False):
    """One entry of a Pod; `claim_name` is None while a claim from the template is not known yet."""

    entry: str
    claim_name: str | None
    # Empty for claims that the user made.
    template: str = ""
    # The Pod can do without.
    optional: bool = False

    @property
    def generated(self) -> bool:
        """Whether the claim must have been made for this very Pod."""
        return bool(self.template)


def pod_claims(pod: Pod) -> Sequence[PodClaim]:
    """The claims a Pod needs, in the order of its entries; entries known to need none are left out."""
    entries = pod.spec.resource_claims
    if not entries:
        return ()
    found: list[PodClaim] = []
    statuses = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
    for entry in entries:
        if entry.resource_claim_name is not None:
            found.append(PodClaim(entry.name, entry.resource_claim_name, "", bool(entry.optional)))
        elif entry.resource_claim_template_name is not None:
            name = statuses.get(entry.name)
            if name is not None or entry.name not in statuses:
                found.append(PodClaim(entry.name, name, entry.resource_claim_template_name, bool(entry.optional)))
    return found


def extended_resource_claim_name(pod: Pod) -> str:
    """The claim that holds the Pod's extended resources; empty when there is none."""
    status = pod.status.extended_resource_claim_status
    return status.resource_claim_name if status is not None else ""


def is_made_for(claim: ResourceClaim, pod: Pod) -> bool:
    """Whether the Pod is the claim's controller."""
    if claim.metadata.namespace != pod.metadata.namespace:
        return False
    return any(owner.controller and owner.uid == pod.metadata.uid for owner in claim.metadata.owner_references)


def is_reserved_for(claim: ResourceClaim, pod: Pod) -> bool:
    """Whether the Pod is among the claim's users."""
    return any(user.uid == pod.metadata.uid for user in claim.status.reserved_for)


def reservation_of(pod: Pod) -> ResourceClaimConsumerReference:
    """The Pod as a user of a claim."""
    return ResourceClaimConsumerReference(resource="pods", name=pod.metadata.name or "", uid=pod.metadata.uid or "")


def is_pod_reference(user: ResourceClaimConsumerReference) -> bool:
    """Whether the user is a Pod."""
    return user.resource == "pods" and not user.api_group


def is_pod_done(pod: Pod) -> bool:
    """Whether the Pod will never run (again): finished, or deleted before it had a node."""
    if pod.status.phase in _TERMINAL_PHASES:
        return True
    return pod.metadata.deletion_timestamp is not None and not pod.spec.node_name


def has_admin_access(claim: ResourceClaim) -> bool:
    """Whether any request of the claim asks for administrative access."""
    return any(request.exactly is not None and request.exactly.admin_access for request in claim.spec.devices.requests)


def has_prioritized_list(claim: ResourceClaim) -> bool:
    """Whether any request of the claim has alternatives."""
    return any(request.first_available for request in claim.spec.devices.requests)
