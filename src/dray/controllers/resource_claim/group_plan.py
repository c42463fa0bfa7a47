"""Claims of PodGroups: which of a Pod's entries stand for them, which to create, and who uses them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dray.api.document import Document, NamespacedName
from dray.api.features import FeatureGates
from dray.api.pod_claims import POD_CLAIM_NAME_ANNOTATION, PodClaim, reservation_of
from dray.api.pod_groups import claim_name_of, group_claim_of, group_name_of, group_reservation, is_group_reference
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim, ResourceClaimConsumerReference
from dray.api.types.scheduling_v1beta1 import PodGroup, PodGroupResourceClaim
from dray.client.resources import POD_GROUPS
from dray.controllers.claim_problems import Problem

GROUPS: Final = "GenericWorkload"
GROUP_CLAIMS: Final = "DRAWorkloadResourceClaims"


class Wait(Enum):
    """Why an entry of a Pod has no claim of its group."""

    # It is the Pod's own.
    OWN = "own"
    # Its group does not exist, or has no claim for it yet.
    NOT_YET = "not yet"


@dataclass(frozen=True, slots=True)
class Membership:
    """A Pod of a group; `group` is None if there is no such PodGroup."""

    pod: Pod
    group: PodGroup | None
    gates: FeatureGates

    def claim_of(self, entry: PodClaim) -> str | Wait | Problem:
        """Return the name of the group's claim that the entry of a template stands for, or why there is none."""
        if not self.gates.enabled(GROUPS):
            text = f"Pod is a member of PodGroup {group_name_of(self.pod)} but {GROUPS} feature is disabled"
            return Problem(entry.entry, text, is_final=True)
        if self.group is None:
            return Wait.NOT_YET
        if self._group_entry(entry) is None:
            return Wait.OWN
        if not self.gates.enabled(GROUP_CLAIMS):
            text = f"claim {entry.entry} is a PodGroup claim but the {GROUP_CLAIMS} feature is disabled"
            return Problem(entry.entry, text, is_final=True)
        return claim_name_of(self.group, entry.entry) or Wait.NOT_YET

    def user_of(self, entry: PodClaim) -> ResourceClaimConsumerReference:
        """Return the consumer for which the claim of an entry is reserved."""
        if self.group is not None and self.gates.enabled(GROUP_CLAIMS) and self._group_entry(entry) is not None:
            return group_reservation(self.group)
        return reservation_of(self.pod)

    def _group_entry(self, entry: PodClaim) -> PodGroupResourceClaim | None:
        given = next((item for item in self.pod.spec.resource_claims if item.name == entry.entry), None)
        return None if given is None else group_claim_of(given, self.group)


def template_entries(group: PodGroup) -> list[PodClaim]:
    """Return the entries of a group that get a claim from a template."""
    return [
        PodClaim(entry.name, claim_name_of(group, entry.name), entry.resource_claim_template_name, generated=True)
        for entry in group.spec.resource_claims
        if entry.resource_claim_template_name is not None
    ]


def template_names_of(group: PodGroup) -> list[str]:
    """Return the templates that a group names."""
    return [entry.template for entry in template_entries(group)]


def is_for_group(claim: ResourceClaim, group: PodGroup) -> bool:
    """Return whether the group is the claim's controller."""
    return any(owner.controller and owner.uid == group.metadata.uid for owner in claim.metadata.owner_references)


def entries_without_claim(group: PodGroup, find: Callable[[str], ResourceClaim | None]) -> list[PodClaim]:
    """Return the entries of templates that have no claim, or one of somebody else."""
    if group.metadata.deletion_timestamp is not None:
        return []
    return [entry for entry in template_entries(group) if not _is_served(entry, group, find)]


def _is_served(entry: PodClaim, group: PodGroup, find: Callable[[str], ResourceClaim | None]) -> bool:
    claim = find(entry.claim_name) if entry.claim_name is not None else None
    return claim is not None and is_for_group(claim, group)


def find_generated(group: PodGroup, entry: str, owned: Sequence[ResourceClaim]) -> str | None:
    """Return the oldest claim generated for the entry, so that a lost status write does not create a second one."""
    found = [
        claim.metadata
        for claim in owned
        if claim.metadata.annotations.get(POD_CLAIM_NAME_ANNOTATION) == entry and is_for_group(claim, group)
    ]
    found.sort(key=lambda m: (m.deletion_timestamp is not None, str(m.creation_timestamp), m.name or ""))
    return found[0].name if found else None


def status_patch(group: PodGroup, named: dict[str, str]) -> Document:
    """Return the apply patch with all claim names of the group, known and new."""
    entries = {status.name: status.resource_claim_name for status in group.status.resource_claim_statuses} | named
    statuses = [{"name": entry, "resourceClaimName": name} for entry, name in sorted(entries.items())]
    metadata = {
        "name": group.metadata.name,
        "namespace": group.metadata.namespace,
        "uid": group.metadata.uid,
        "resourceVersion": group.metadata.resource_version,
    }
    kind = POD_GROUPS.group_version_kind
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": metadata,
        "status": {"resourceClaimStatuses": statuses},
    }


def reserved_groups(claim: ResourceClaim) -> list[NamespacedName]:
    """Return the groups that the claim is reserved for."""
    namespace = claim.metadata.namespace or ""
    return [NamespacedName(namespace, user.name) for user in claim.status.reserved_for if is_group_reference(user)]
