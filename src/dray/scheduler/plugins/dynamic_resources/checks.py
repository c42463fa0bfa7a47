"""Whether a Pod's claims are ready to be worked on, in Kubernetes' words; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dray.api.document import NamespacedName
from dray.api.features import FeatureGates
from dray.api.pod_claims import is_for_pod, pod_claims
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim

FindClaim = Callable[[NamespacedName], ResourceClaim | None]
# Whether cdi.k8s.io has a claim of the name, which is then not for this plugin.
IsClassic = Callable[[NamespacedName], bool]


class NotReadyError(Exception):
    """The Pod cannot be scheduled until something about its claims changes; the text is for its user."""


def no_classic(_key: NamespacedName) -> bool:
    """No name is classic."""
    return False


def claims_of(pod: Pod, find: FindClaim, is_classic: IsClassic = no_classic) -> list[ResourceClaim]:
    """All claims of the Pod that resource.k8s.io has; raises `NotReadyError`."""
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
            raise NotReadyError(
                f"ResourceClaim {namespace}/{entry.claim_name} was not created for pod "
                f"{namespace}/{pod.metadata.name} (pod is not owner)"
            )
        found.append(claim)
    return found


def ambiguous(name: str) -> str:
    """Two claims of one name: nobody can know which is meant."""
    return f'resourceclaim "{name}" exists in resource.k8s.io and in cdi.k8s.io, one of them must go'


def check_requests(claim: ResourceClaim, has_class: Callable[[str], bool], gates: FeatureGates) -> None:
    """Every class must exist, also those of alternatives that will not be tried; raises `NotReadyError`."""
    for name, device_class in _classes(claim, gates):
        if not has_class(device_class):
            raise NotReadyError(f"request {name}: device class {device_class} does not exist")


def _classes(claim: ResourceClaim, gates: FeatureGates) -> Iterator[tuple[str, str]]:
    label = f"{claim.metadata.namespace}/{claim.metadata.name}"
    for request in claim.spec.devices.requests:
        if request.exactly is not None:
            yield request.name, request.exactly.device_class_name
        elif not request.first_available:
            raise NotReadyError(f"resource claim {label}, request {request.name}: unknown request type")
        elif not gates.enabled("DRAPrioritizedList"):
            raise NotReadyError(
                f"resource claim {label}, request {request.name}: "
                "has subrequests, but the DRAPrioritizedList feature is disabled"
            )
        for alternative in request.first_available:
            yield f"{request.name}/{alternative.name}", alternative.device_class_name
