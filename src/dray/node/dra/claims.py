"""The info of claims, and which claims a Pod and its containers use.

Pure. Messages are kubelet's, since they are shown in events.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dray.api.device_metadata import main_request
from dray.api.document import UID, Document, NamespacedName
from dray.api.extended_resources import is_dra_extended_resource_name
from dray.api.pod_claims import is_for_pod, not_created_for
from dray.api.pod_groups import is_reserved_for_group_of
from dray.api.quantity import Quantity
from dray.api.types.core_v1 import Container, Pod, PodResourceClaim
from dray.api.types.resource_v1 import ResourceClaim

NOT_CREATED: Final = "ResourceClaim not created yet"
# The variable that tells a container whether it has an optional claim, and its values.
VARIABLE_PREFIX: Final = "DRAY_CLAIM_"
ALLOCATED: Final = "allocated"
NONE: Final = "none"
# The entry of the claim of a Pod's extended resources; entries of the spec are never empty.
EXTENDED_RESOURCES: Final = ""
PREPARE: Final = "NodePrepareResources"
UNPREPARE: Final = "NodeUnprepareResources"
NODE_OPERATIONS: Final = frozenset({PREPARE, UNPREPARE})
EVERY_OPERATION: Final = "*"
UNSUPPORTED: Final = "none of the supported fields are set"


class ClaimError(Exception):
    """The Pod cannot use a claim now."""


@dataclass(frozen=True, slots=True)
class Device:
    """A prepared device; without request names it serves every request."""

    pool_name: str
    device_name: str
    share_id: str | None = None
    request_names: tuple[str, ...] = ()
    cdi_device_ids: tuple[str, ...] = ()

    def serves(self, request: str) -> bool:
        """Whether the device serves the request; an empty request is served by every device."""
        return not request or not self.request_names or main_request(request) in self.request_names


class AllocatedDevice(NamedTuple):
    """A device that is allocated to one claim alone."""

    driver: str
    pool: str
    device: str


@dataclass(frozen=True, slots=True)
class ClaimInfo:
    """A claim in use on the node; `devices` of a driver are empty until it has prepared the claim."""

    uid: UID
    key: NamespacedName
    devices: Mapping[str, tuple[Device, ...]]
    pod_uids: frozenset[UID] = field(default=frozenset())
    # The device classes of its requests, separated by commas; empty after reading kubelet's checkpoint.
    class_name: str = ""
    # By driver, the operations that all of its devices skip; drivers that skip none are left out.
    skipped: Mapping[str, frozenset[str]] = field(default_factory=dict)
    # Without devices that claims may share. Empty for classic claims, and after reading kubelet's checkpoint.
    allocated: frozenset[AllocatedDevice] = frozenset()

    @property
    def drivers(self) -> tuple[str, ...]:
        """The drivers of the claim's devices, in order."""
        return tuple(sorted(self.devices))

    def skips(self, driver: str, operation: str) -> bool:
        """Whether the driver is not called for the operation."""
        return operation in self.skipped.get(driver, ())

    def cdi_device_ids(self, request: str) -> tuple[str, ...]:
        """Return the CDI device IDs of a request."""
        return tuple(
            name
            for driver in self.drivers
            for device in self.devices[driver]
            if device.serves(request)
            for name in device.cdi_device_ids
        )


@dataclass(frozen=True, slots=True)
class ContainerClaim:
    """A claim that a container uses; an empty request means all of its devices."""

    info: ClaimInfo
    requests: tuple[str, ...]

    @property
    def devices(self) -> Iterator[tuple[str, Device]]:
        """The drivers and devices of the container's requests."""
        for driver in self.info.drivers:
            for device in self.info.devices[driver]:
                if any(map(device.serves, self.requests)):
                    yield driver, device


@dataclass(frozen=True, slots=True)
class PodClaim:
    """A claim of a Pod; an owned claim was generated for this Pod."""

    entry: str
    name: str
    owned: bool
    # The Pod also runs without the claim.
    optional: bool = False


def info_of(claim: ResourceClaim) -> ClaimInfo:
    """Return the info of an allocated claim, without devices; raises `ClaimError`."""
    if claim.status.allocation is None:
        raise ClaimError(f"ResourceClaim {claim.metadata.name}: not allocated")
    results = claim.status.allocation.devices.results
    drivers = sorted({result.driver for result in results})
    alone = (result for result in results if not result.admin_access and result.share_id is None)
    allocated = frozenset(AllocatedDevice(result.driver, result.pool, result.device) for result in alone)
    key = NamespacedName(claim.metadata.namespace or "", claim.metadata.name or "")
    uid = UID(claim.metadata.uid or "")
    return ClaimInfo(uid, key, dict.fromkeys(drivers, ()), class_name=class_name_of(claim), allocated=allocated)


def skipped_operations(results: Sequence[Document]) -> dict[str, frozenset[str]]:
    """Return the operations that all results of a driver skip, by driver; unknown ones are ignored."""
    found: dict[str, frozenset[str]] = {}
    for result in results:
        listed = frozenset(result.get("skipNodeOperations") or ())
        skipped = NODE_OPERATIONS if EVERY_OPERATION in listed else NODE_OPERATIONS & listed
        driver = result.get("driver") or ""
        found[driver] = found.get(driver, NODE_OPERATIONS) & skipped
    return {driver: operations for driver, operations in found.items() if operations}


def class_name_of(claim: ResourceClaim) -> str:
    """Return the device classes of the claim's requests and subrequests, each once, separated by commas."""
    names: dict[str, None] = {}
    for request in claim.spec.devices.requests:
        if request.exactly is not None:
            names.setdefault(request.exactly.device_class_name)
        for alternative in request.first_available:
            names.setdefault(alternative.device_class_name)
    return ",".join(filter(None, names))


def pod_claims(pod: Pod) -> tuple[PodClaim, ...]:
    """Return the claims of the Pod, that of its extended resources last; entries without a claim are left out."""
    found = [claim for entry in pod.spec.resource_claims if (claim := _pod_claim(pod, entry)) is not None]
    special = pod.status.extended_resource_claim_status
    if special is not None:
        found.append(PodClaim(EXTENDED_RESOURCES, special.resource_claim_name, owned=False))
    return tuple(found)


def _pod_claim(pod: Pod, entry: PodResourceClaim) -> PodClaim | None:
    if entry.resource_claim_name is not None:
        return PodClaim(entry.name, entry.resource_claim_name, owned=False, optional=bool(entry.optional))
    if entry.template is not None:
        # A claim of cdi.k8s.io.
        return None
    place = f'pod "{pod.metadata.namespace}/{pod.metadata.name}"'
    if entry.resource_claim_template_name is None:
        raise ClaimError(f'{place}, spec.resourceClaim "{entry.name}": {UNSUPPORTED}')
    for status in pod.status.resource_claim_statuses:
        if status.name == entry.name:
            made = status.resource_claim_name
            return None if made is None else PodClaim(entry.name, made, owned=True, optional=bool(entry.optional))
    raise ClaimError(f"{place}: {NOT_CREATED}")


def optional_names(pod: Pod) -> frozenset[str]:
    """Return the names of the Pod's optional claims."""
    found = [claim for entry in pod.spec.resource_claims if entry.optional and (claim := _pod_claim(pod, entry))]
    return frozenset(claim.name for claim in found)


def is_left_out(pod: Pod, wanted: PodClaim, claim: ResourceClaim) -> bool:
    """Whether the Pod was scheduled without an optional claim."""
    return wanted.optional and (claim.status.allocation is None or not _is_reserved_for(pod, claim))


def check_usable(pod: Pod, wanted: PodClaim, claim: ResourceClaim) -> ClaimInfo:
    """Return the claim's info; raises `ClaimError` if the Pod may not use the claim."""
    name, uid = pod.metadata.name, pod.metadata.uid
    if wanted.owned and not _made_for(pod, claim):
        raise ClaimError(not_created_for(claim.metadata.name or "", pod))
    if not _is_reserved_for(pod, claim):
        raise ClaimError(f"pod {name} ({uid}) is not allowed to use ResourceClaim {wanted.name} ({claim.metadata.uid})")
    return info_of(claim)


def _is_reserved_for(pod: Pod, claim: ResourceClaim) -> bool:
    users = claim.status.reserved_for
    if any(item.resource == "pods" and not item.api_group and item.uid == pod.metadata.uid for item in users):
        return True
    return is_reserved_for_group_of(users, pod)


def _made_for(pod: Pod, claim: ResourceClaim) -> bool:
    return is_for_pod(claim, pod)


def container_requests(pod: Pod, container: Container) -> tuple[tuple[str, str], ...]:
    """Return the (claim name, request) pairs of the container; an empty request means all devices."""
    return (*_claim_requests(pod, container), *_extended_requests(pod, container))


def _claim_requests(pod: Pod, container: Container) -> Iterator[tuple[str, str]]:
    by_entry: dict[str, list[str]] = {}
    for asked in container.resources.claims:
        by_entry.setdefault(asked.name, []).append(asked.request or "")
    for entry in pod.spec.resource_claims:
        if entry.name in by_entry and (claim := _pod_claim(pod, entry)) is not None:
            yield from ((claim.name, request) for request in by_entry[entry.name])


def _extended_requests(pod: Pod, container: Container) -> Iterator[tuple[str, str]]:
    special = pod.status.extended_resource_claim_status
    if special is None:
        return
    asked = {
        name
        for name, amount in container.resources.requests.items()
        if is_dra_extended_resource_name(name) and Quantity.parse(amount).sign
    }
    for mapping in special.request_mappings:
        if mapping.container_name == container.name and mapping.resource_name in asked:
            yield special.resource_claim_name, mapping.request_name


def optional_claim_variables(pod: Pod, container: Container, has: Callable[[str], bool]) -> dict[str, str]:
    """Return the variables that tell a container which of its optional claims it has; `has` looks up a claim."""
    listed = {asked.name for asked in container.resources.claims}
    return {
        variable(entry.name): ALLOCATED if has(_claim_name(pod, entry)) else NONE
        for entry in pod.spec.resource_claims
        if entry.optional and entry.name in listed
    }


def _claim_name(pod: Pod, entry: PodResourceClaim) -> str:
    """Return the name of an entry's claim; empty if there is no claim."""
    if entry.template is not None:
        return f"{pod.metadata.name}-{entry.name}"
    made = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
    return entry.resource_claim_name or made.get(entry.name) or ""


def variable(entry: str) -> str:
    """Return the variable of an entry: `DRAY_CLAIM_BIG_GPU` for `big-gpu`."""
    return VARIABLE_PREFIX + re.sub(r"[^A-Z0-9]", "_", entry.upper())
