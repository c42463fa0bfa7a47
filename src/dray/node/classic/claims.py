"""Which claims of cdi.k8s.io a Pod uses, and whether it may. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from dray.api import classic_claims as classic
from dray.api.classic_claims import ClassicEntry
from dray.api.document import UID, NamespacedName
from dray.api.types.cdi_v1alpha1 import ResourceClaim
from dray.api.types.core_v1 import Container, Pod, PodResourceClaim
from dray.client.objects import key_of
from dray.node.dra.claims import ClaimError, ClaimInfo, Device

# Tells a container whether it has a claim that its Pod can do without.
VARIABLE_PREFIX: Final = "DRAY_CLAIM_"
ALLOCATED: Final = "allocated"
NONE: Final = "none"


def possible_entries(pod: Pod) -> tuple[ClassicEntry, ...]:
    """All entries whose claims may be of cdi.k8s.io; of those by name only the API server knows."""
    return tuple(classic.classic_entries(pod, lambda _name: True))


def is_left_out(pod: Pod, wanted: ClassicEntry, claim: ResourceClaim | None) -> bool:
    """Whether the Pod was placed without the claim, and can do without."""
    if not wanted.optional:
        return False
    return claim is None or not classic.is_allocated(claim) or not classic.is_reserved_for(claim, pod)


def check_usable(pod: Pod, wanted: ClassicEntry, claim: ResourceClaim) -> ClaimInfo:
    """The claim as the book has it; raises when the Pod may not use it."""
    name, uid = pod.metadata.name, pod.metadata.uid
    if wanted.generated and not classic.is_made_for(claim, pod):
        raise ClaimError(
            f"ResourceClaim {claim.metadata.namespace}/{claim.metadata.name} was not created for pod "
            f"{pod.metadata.namespace}/{name} (pod is not owner)"
        )
    if not classic.is_allocated(claim):
        raise ClaimError(f"ResourceClaim {claim.metadata.name}: not allocated")
    if not classic.is_reserved_for(claim, pod):
        raise ClaimError(
            f"pod {name} ({uid}) is not allowed to use ResourceClaim {wanted.claim_name} ({claim.metadata.uid})"
        )
    return info_of(claim)


def info_of(claim: ResourceClaim) -> ClaimInfo:
    """An allocated claim as the book has it: one driver, and one device that stands for the resource."""
    driver = classic.status_of(claim).driver_name or ""
    return ClaimInfo(
        UID(claim.metadata.uid or ""), key_of(claim), {driver: ()}, class_name=claim.spec.resource_class_name
    )


def prepared_device(cdi_devices: tuple[str, ...]) -> Device:
    """What a plugin's answer is in the book."""
    return Device("", "", cdi_device_ids=cdi_devices)


def cdi_devices_of(info: ClaimInfo) -> tuple[str, ...]:
    """What the plugin answered."""
    return info.cdi_device_ids("")


def container_claims(pod: Pod, container: Container) -> Iterator[ClassicEntry]:
    """The entries that the container lists, each once and in the Pod's order."""
    listed = {asked.name for asked in container.resources.claims}
    return (entry for entry in possible_entries(pod) if entry.entry in listed)


def claim_key(pod: Pod, wanted: ClassicEntry) -> NamespacedName:
    """The claim of an entry."""
    return NamespacedName(pod.metadata.namespace or "", wanted.claim_name)


def variables(pod: Pod, container: Container, has: Callable[[str], bool]) -> dict[str, str]:
    """What a container is told of the optional entries that it lists, of either kind; `has` is asked for claims."""
    listed = {asked.name for asked in container.resources.claims}
    return {
        variable(entry.name): ALLOCATED if has(_claim_name(pod, entry)) else NONE
        for entry in pod.spec.resource_claims
        if entry.optional and entry.name in listed
    }


def _claim_name(pod: Pod, entry: PodResourceClaim) -> str:
    """Empty when there is no claim."""
    if entry.template is not None:
        return f"{pod.metadata.name}-{entry.name}"
    made = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
    return entry.resource_claim_name or made.get(entry.name) or ""


def variable(entry: str) -> str:
    """The variable of an entry: `DRAY_CLAIM_BIG_GPU` for `big-gpu`."""
    return VARIABLE_PREFIX + re.sub(r"[^A-Z0-9]", "_", entry.upper())
