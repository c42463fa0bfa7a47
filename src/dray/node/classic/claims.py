"""Which claims of cdi.k8s.io a Pod uses, and whether it may. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from dray.api import classic_claims as classic
from dray.api.classic_claims import ClassicEntry
from dray.api.document import UID, NamespacedName
from dray.api.types.cdi_v1alpha1 import ResourceClaim
from dray.api.types.core_v1 import Container, Pod
from dray.client.objects import key_of
from dray.node.dra.claims import ClaimError, ClaimInfo, Device


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
    if wanted.generated and not classic.is_for_pod(claim, pod):
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
