"""Checks whether a Pod's claims can be allocated, with Kubernetes' messages. Pure."""

from __future__ import annotations

from collections.abc import Callable

from dray.allocator.gates import SKIP_UNKNOWN_CLASSES
from dray.api.document import NamespacedName
from dray.api.features import FeatureGates
from dray.api.pod_claims import is_for_pod, not_created_for, pod_claims
from dray.api.prioritized_lists import alternatives_to_try
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import DeviceClass, DeviceRequest, ResourceClaim

FindClaim = Callable[[NamespacedName], ResourceClaim | None]
FindClass = Callable[[str], DeviceClass | None]
FindPod = Callable[[NamespacedName], Pod | None]
# Returns whether the claim is one of cdi.k8s.io, which ClassicResources handles.
IsClassic = Callable[[NamespacedName], bool]


class NotReadyError(Exception):
    """The Pod cannot be scheduled until its claims change; the text is for the user."""


def no_classic(_key: NamespacedName) -> bool:
    """Return False: there are no classic claims."""
    return False


def claims_of(pod: Pod, find: FindClaim, is_classic: IsClassic = no_classic) -> list[ResourceClaim]:
    """Return the Pod's claims of resource.k8s.io; raises `NotReadyError`."""
    namespace = pod.metadata.namespace or ""
    found: list[ResourceClaim] = []
    for entry in pod_claims(pod):
        if entry.claim_name is None:
            raise NotReadyError(f'pod "{namespace}/{pod.metadata.name}": ResourceClaim not created yet')
        key = NamespacedName(namespace, entry.claim_name)
        claim = find(key)
        if not entry.generated and is_classic(key):
            if claim is not None:
                raise NotReadyError(ambiguous(entry.claim_name))
            continue
        if entry.optional and (claim is None or claim.metadata.deletion_timestamp is not None):
            continue
        if claim is None:
            raise NotReadyError(f'could not find claim "{namespace}/{entry.claim_name}"')
        if claim.metadata.deletion_timestamp is not None:
            raise NotReadyError(f'resourceclaim "{entry.claim_name}" is being deleted')
        if entry.generated and not is_for_pod(claim, pod):
            raise NotReadyError(not_created_for(entry.claim_name, pod))
        found.append(claim)
    return found


def ambiguous(name: str) -> str:
    """Return the error for a name that both API groups have."""
    return f'resourceclaim "{name}" exists in resource.k8s.io and in cdi.k8s.io, one of them must go'


def check_requests(claim: ResourceClaim, find_class: FindClass, gates: FeatureGates) -> None:
    """Check that every class exists, including those of all alternatives; raises `NotReadyError`."""
    for request in claim.spec.devices.requests:
        if request.exactly is not None:
            if find_class(request.exactly.device_class_name) is None:
                raise _no_class(request.name, request.exactly.device_class_name)
        elif not request.first_available:
            raise NotReadyError(f"{_place(claim, request)}: unknown request type")
        elif not gates.enabled("DRAPrioritizedList"):
            raise NotReadyError(
                f"{_place(claim, request)}: has subrequests, but the DRAPrioritizedList feature is disabled"
            )
        skips = gates.enabled(SKIP_UNKNOWN_CLASSES)
        for alternative in alternatives_to_try(request, lambda name: find_class(name) is not None, skip_unknown=skips):
            if find_class(alternative.device_class_name) is None:
                raise _no_class(f"{request.name}/{alternative.name}", alternative.device_class_name)


def _place(claim: ResourceClaim, request: DeviceRequest) -> str:
    return f"resource claim {claim.metadata.namespace}/{claim.metadata.name}, request {request.name}"


def _no_class(request: str, name: str) -> NotReadyError:
    return NotReadyError(f"request {request}: device class {name} does not exist")
