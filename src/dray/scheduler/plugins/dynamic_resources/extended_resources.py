"""Extended resources as device requests, and the extended-resource claim that contains them. Pure.

A container that runs to the Pod's end has a request of its own for each resource. An ordinary init container uses the
devices of those that start after it, and all init containers share one more request for what they lack then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from dray.allocator.explain import HELD_BACK
from dray.allocator.plan import DEVICES_MAX
from dray.api.extended_resources import is_dra_extended_resource_name
from dray.api.pod_claims import EXTENDED_RESOURCE_ANNOTATION, FINALIZER, is_owned_by_pod
from dray.api.quantity import Quantity
from dray.api.types.core_v1 import ContainerExtendedResourceRequest, Pod, PodExtendedResourceClaimStatus
from dray.api.types.meta_v1 import ObjectMeta
from dray.api.types.resource_v1 import (
    DeviceClaim,
    DeviceRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
)
from dray.client.objects import controller_reference
from dray.client.resources import PODS

# Any non-empty value will do.
ANNOTATION_VALUE: Final = "true"
EXACT_COUNT: Final = "ExactCount"
_SUFFIX: Final = "-extended-resources-"
# As for every generated name: 63 characters, of which the last five are a suffix.
_PREFIX_MAX: Final = 58
_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_LETTER_COUNT: Final = 5
_ALWAYS: Final = "Always"
_ANY_TAINT: Final = DeviceToleration(operator="Exists")
# Cached requests of Pods with different specs.
_KINDS_MAX: Final = 1024


class Need(msgspec.Struct, frozen=True, gc=False):
    """The request of one container for one resource; `position` counts init containers first."""

    resource: str
    position: int
    container: str
    # The index of the resource among all requests of the container, by name.
    index: int
    count: int
    # Whether it runs until the Pod ends: a container or a sidecar.
    lasting: bool

    @property
    def request_name(self) -> str:
        """Return the name of the container's own device request."""
        return f"container-{self.position}-request-{self.index}"


class Wanted(msgspec.Struct, frozen=True):
    """The device requests of the extended-resource claim, and their mapping to containers."""

    requests: tuple[DeviceRequest, ...] = ()
    mappings: tuple[ContainerExtendedResourceRequest, ...] = ()
    resources: frozenset[str] = frozenset()

    @property
    def device_count(self) -> int:
        """Return the number of devices."""
        return sum(request.exactly.count or 0 for request in self.requests if request.exactly is not None)

    def problem(self) -> str:
        """Return why the requests exceed the limits of a claim; empty if they do not."""
        if self.device_count <= DEVICES_MAX:
            return ""
        return f"number of requested devices {self.device_count} exceeds the claim limit of {DEVICES_MAX}"


NOTHING_WANTED: Final = Wanted()


def needs_of(pod: Pod) -> tuple[Need, ...]:
    """Return the containers' requests for resources that devices can serve, without zero amounts."""
    return tuple(_needs(pod))


def _needs(pod: Pod) -> Iterator[Need]:
    first = len(pod.spec.init_containers)
    for position, container in enumerate((*pod.spec.init_containers, *pod.spec.containers)):
        requests = container.resources.requests
        lasting = position >= first or container.restart_policy == _ALWAYS
        for index, name in enumerate(sorted(requests)):
            if is_dra_extended_resource_name(name):
                count = Quantity.parse(requests[name]).value()
                if count:
                    yield Need(name, position, container.name, index, count, lasting)


@lru_cache(_KINDS_MAX)
def plan_requests(needs: Sequence[Need], classes: tuple[tuple[str, str], ...]) -> Wanted:
    """Return the device requests for the resources in `classes`."""
    requests: list[DeviceRequest] = []
    mappings: list[ContainerExtendedResourceRequest] = []
    for resource, device_class in sorted(classes):
        own = [need for need in needs if need.resource == resource]
        lasting = [need for need in own if need.lasting]
        requests += [_request(need, device_class, need.count) for need in lasting]
        mappings += [_mapping(need, need.request_name) for need in lasting]
        extra, shared = _share(own, lasting)
        requests += [_request(need, device_class, count) for need, count in extra]
        mappings += shared
    requests.sort(key=lambda request: request.name)
    return Wanted(tuple(requests), tuple(mappings), frozenset(name for name, _ in classes))


def _share(
    own: Sequence[Need], lasting: Sequence[Need]
) -> tuple[list[tuple[Need, int]], list[ContainerExtendedResourceRequest]]:
    """Yield what init containers use: requests of later containers, then one request that all of them share."""
    reused: list[tuple[Need, list[str], int]] = []
    for need in own:
        if not need.lasting:
            names, lacking = _reuse(need, lasting)
            reused.append((need, names, lacking))
    widest = max(reused, key=lambda item: item[2], default=None)
    mappings: list[ContainerExtendedResourceRequest] = []
    for need, names, lacking in reused:
        shared = [widest[0].request_name] if lacking and widest is not None else []
        mappings += [_mapping(need, name) for name in (*names, *shared)]
    extra = [(widest[0], widest[2])] if widest is not None and widest[2] else []
    return extra, mappings


def _reuse(need: Need, lasting: Sequence[Need]) -> tuple[list[str], int]:
    """Return requests of containers that start later, and how many devices are missing then."""
    names: list[str] = []
    lacking = need.count
    for other in lasting:
        if lacking > 0 and other.position > need.position:
            names.append(other.request_name)
            lacking -= other.count
    return names, max(lacking, 0)


def _request(need: Need, device_class: str, count: int) -> DeviceRequest:
    exactly = ExactDeviceRequest(device_class_name=device_class, allocation_mode=EXACT_COUNT, count=count)
    return DeviceRequest(name=need.request_name, exactly=exactly)


def _mapping(need: Need, request_name: str) -> ContainerExtendedResourceRequest:
    return ContainerExtendedResourceRequest(
        container_name=need.container, resource_name=need.resource, request_name=request_name
    )


# --- The claim. ---


def generate_name(pod_name: str) -> str:
    """Return the prefix of the claim's name, which must end in a valid character where it is cut."""
    return pod_name[: _PREFIX_MAX - len(_SUFFIX)].rstrip("-.") + _SUFFIX


def claim_name(pod: Pod, attempt: int = 0) -> str:
    """Return the claim's name, which is deterministic but looks like a generated one.

    A claim whose creation had no response is found by it, and there can be no second one.
    """
    digest = int.from_bytes(hashlib.sha256(f"{pod.metadata.uid} {attempt}".encode()).digest()[:8], "big")
    letters = []
    for _ in range(_LETTER_COUNT):
        digest, letter = divmod(digest, len(_LETTERS))
        letters.append(_LETTERS[letter])
    return generate_name(pod.metadata.name or "") + "".join(letters)


def make_claim(pod: Pod, requests: tuple[DeviceRequest, ...], name: str = "") -> ResourceClaim:
    """Return the claim, with a temporary uid that the server never sees.

    The finalizer is set from the beginning, so that the claim cannot disappear while it is allocated.
    """
    metadata = ObjectMeta(
        name=name or claim_name(pod),
        generate_name=generate_name(pod.metadata.name or ""),
        namespace=pod.metadata.namespace,
        uid=f"{pod.metadata.uid}{_SUFFIX}",
        annotations={EXTENDED_RESOURCE_ANNOTATION: ANNOTATION_VALUE},
        owner_references=(controller_reference(PODS.group_version_kind, pod.metadata),),
        finalizers=(FINALIZER,),
    )
    return ResourceClaim(metadata=metadata, spec=ResourceClaimSpec(devices=DeviceClaim(requests=requests)))


def is_extended_resource_claim(claim: ResourceClaim) -> bool:
    """Return whether the claim was created for extended resources."""
    return bool(claim.metadata.annotations.get(EXTENDED_RESOURCE_ANNOTATION))


def is_extended_resource_claim_of(claim: ResourceClaim, pod: Pod) -> bool:
    """Return whether it was created for the Pod's extended resources."""
    return is_extended_resource_claim(claim) and is_owned_by_pod(claim, pod)


def same_requests(claim: ResourceClaim, requests: Sequence[DeviceRequest]) -> bool:
    """Return whether the claim has exactly these requests."""
    return _asked(claim.spec.devices.requests) == _asked(requests)


def _asked(requests: Sequence[DeviceRequest]) -> list[tuple[str, str, int]]:
    return sorted(
        (request.name, request.exactly.device_class_name, request.exactly.count or 1)
        if request.exactly is not None
        else (request.name, "", 0)
        for request in requests
    )


def is_unused(claim: ResourceClaim) -> bool:
    """Return whether the claim is as it was created: protected, not allocated, not reserved, not being deleted."""
    if claim.metadata.deletion_timestamp is not None or FINALIZER not in claim.metadata.finalizers:
        return False
    return claim.status.allocation is None and not claim.status.reserved_for


def is_used_by_others(claim: ResourceClaim, pod: Pod) -> bool:
    """Return whether somebody but the Pod has the claim reserved."""
    return any(user.uid != pod.metadata.uid for user in claim.status.reserved_for)


def status_of(claim_name: str, wanted: Wanted) -> PodExtendedResourceClaimStatus:
    """Return the entry in the Pod's status."""
    return PodExtendedResourceClaimStatus(resource_claim_name=claim_name, request_mappings=wanted.mappings)


# --- Devices still used through a removed device plugin. ---


def held_back(counts: Mapping[str, int]) -> tuple[ResourceClaim, ...]:
    """Return in-memory claims that keep a number of devices of a class from being allocated.

    When a driver replaces a device plugin, the same hardware appears as devices. Those that the plugin allocated
    to running Pods are not free, and it is unknown which ones they are.
    """
    claims = []
    for device_class, count in sorted(counts.items()):
        for start in range(0, count, DEVICES_MAX):
            part = min(DEVICES_MAX, count - start)
            exactly = ExactDeviceRequest(
                device_class_name=device_class, allocation_mode=EXACT_COUNT, count=part, tolerations=(_ANY_TAINT,)
            )
            spec = ResourceClaimSpec(devices=DeviceClaim(requests=(DeviceRequest(name="held", exactly=exactly),)))
            metadata = ObjectMeta(name=HELD_BACK, uid=f"held {device_class} {start}")
            claims.append(ResourceClaim(metadata=metadata, spec=spec))
    return tuple(claims)
