"""PodGroups: the names of their conditions, and which Pods and claims belong to them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dray.api.document import NamespacedName
from dray.api.types.core_v1 import Pod, PodResourceClaim
from dray.api.types.resource_v1 import ResourceClaim, ResourceClaimConsumerReference
from dray.api.types.scheduling_v1beta1 import PodGroup, PodGroupResourceClaim

GROUP: Final = "scheduling.k8s.io"
RESOURCE: Final = "podgroups"
KIND: Final = "PodGroup"
PROTECTION_FINALIZER: Final = "scheduling.k8s.io/podgroup-protection"
# Conditions, and the reasons of the first one.
INITIALLY_SCHEDULED: Final = "PodGroupInitiallyScheduled"
DISRUPTION_TARGET: Final = "DisruptionTarget"
SCHEDULED: Final = "Scheduled"
UNSCHEDULABLE: Final = "Unschedulable"
SCHEDULER_ERROR: Final = "SchedulerError"


def group_name_of(pod: Pod) -> str:
    """Return the name of the Pod's group; empty if it has none."""
    group = pod.spec.scheduling_group
    return "" if group is None else group.pod_group_name or ""


def group_key_of(pod: Pod) -> NamespacedName | None:
    """Return the key of the Pod's group; None if it has none."""
    group = pod.spec.scheduling_group
    if group is None or not group.pod_group_name:
        return None
    return NamespacedName(pod.metadata.namespace or "", group.pod_group_name)


def min_count(group: PodGroup) -> int:
    """Return how many Pods must be placed at once; 1 for the basic policy."""
    gang = group.spec.scheduling_policy.gang
    return 1 if gang is None else gang.min_count


def priority_of(group: PodGroup) -> int:
    """Return the priority of the group."""
    return group.spec.priority or 0


def is_disrupted_as_a_whole(group: PodGroup) -> bool:
    """Return whether the Pods of the group are evicted together, or not at all."""
    mode = group.spec.disruption_mode
    return mode is not None and mode.all is not None


# --- Claims of groups. ---


def group_claim_of(entry: PodResourceClaim, group: PodGroup | None) -> PodGroupResourceClaim | None:
    """Return the group's claim that a Pod's entry stands for: the same name and the same source."""
    if group is None:
        return None
    for own in group.spec.resource_claims:
        if (own.name, own.resource_claim_name, own.resource_claim_template_name) == (
            entry.name,
            entry.resource_claim_name,
            entry.resource_claim_template_name,
        ):
            return own
    return None


def claim_name_of(group: PodGroup, entry: str) -> str | None:
    """Return the name of the claim for an entry of the group; None while it is not recorded."""
    for own in group.spec.resource_claims:
        if own.name == entry and own.resource_claim_name is not None:
            return own.resource_claim_name
    for status in group.status.resource_claim_statuses:
        if status.name == entry:
            return status.resource_claim_name
    return None


def group_reservation(group: PodGroup) -> ResourceClaimConsumerReference:
    """Return the group as a consumer of a claim."""
    return ResourceClaimConsumerReference(
        api_group=GROUP, resource=RESOURCE, name=group.metadata.name or "", uid=group.metadata.uid or ""
    )


def is_group_reference(user: ResourceClaimConsumerReference) -> bool:
    """Report whether the consumer is a PodGroup."""
    return user.resource == RESOURCE and user.api_group == GROUP


def is_reserved_for_group_of(users: Sequence[ResourceClaimConsumerReference], pod: Pod) -> bool:
    """Report whether one of the consumers is the Pod's group."""
    name = group_name_of(pod)
    return bool(name) and any(is_group_reference(user) and user.name == name for user in users)


def is_owned_by_group_of(claim: ResourceClaim, pod: Pod) -> bool:
    """Report whether the Pod's group is the claim's controller; any version of the API group counts."""
    name = group_name_of(pod)
    if not name or claim.metadata.namespace != pod.metadata.namespace:
        return False
    return any(
        owner.controller and owner.kind == KIND and owner.name == name and owner.api_version.partition("/")[0] == GROUP
        for owner in claim.metadata.owner_references
    )
