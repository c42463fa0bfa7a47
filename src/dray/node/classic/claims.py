"""The classic claims of a Pod and its containers, and whether it may use them. Pure."""

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
    """Return all entries whose claims may be classic ones; for a named claim only the API server knows."""
    return tuple(classic.classic_entries(pod, lambda _name: True))


def is_left_out(pod: Pod, wanted: ClassicEntry, claim: ResourceClaim | None) -> bool:
    """Whether the Pod was scheduled without an optional claim."""
    if not wanted.optional:
        return False
    return claim is None or not classic.is_allocated(claim) or not classic.is_reserved_for(claim, pod)


def check_usable(pod: Pod, wanted: ClassicEntry, claim: ResourceClaim) -> ClaimInfo:
    """Return the claim's info; raises `ClaimError` if the Pod may not use the claim."""
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
    """Return the info of an allocated claim, with one driver."""
    driver = classic.status_of(claim).driver_name or ""
    return ClaimInfo(
        UID(claim.metadata.uid or ""), key_of(claim), {driver: ()}, class_name=claim.spec.resource_class_name
    )


def prepared_device(cdi_devices: tuple[str, ...]) -> Device:
    """Return a device that represents the response of a plugin."""
    return Device("", "", cdi_device_ids=cdi_devices)


def cdi_devices_of(info: ClaimInfo) -> tuple[str, ...]:
    """Return the CDI device names of the plugin's response."""
    return info.cdi_device_ids("")


def container_claims(pod: Pod, container: Container) -> Iterator[ClassicEntry]:
    """Return the entries that the container lists, each once and in the Pod's order."""
    listed = {asked.name for asked in container.resources.claims}
    return (entry for entry in possible_entries(pod) if entry.entry in listed)


def claim_key(pod: Pod, wanted: ClassicEntry) -> NamespacedName:
    """Return the key of an entry's claim."""
    return NamespacedName(pod.metadata.namespace or "", wanted.claim_name)
