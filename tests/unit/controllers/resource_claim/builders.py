"""Tiny Pods, claims and templates for tests of the claim controller."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from dray.api.pod_claims import FINALIZER, POD_CLAIM_NAME_ANNOTATION
from dray.api.types.core_v1 import Pod, PodResourceClaim, PodResourceClaimStatus, PodSpec, PodStatus
from dray.api.types.meta_v1 import ObjectMeta, OwnerReference
from dray.api.types.resource_v1 import (
    AllocationResult,
    DeviceClaim,
    DeviceRequest,
    DeviceSubRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimSpec,
    ResourceClaimStatus,
    ResourceClaimTemplate,
    ResourceClaimTemplateSpec,
)

NAMESPACE = "team"
THEN = datetime(2026, 1, 1, tzinfo=UTC)


def pod(
    name: str = "pod",
    *,
    uid: str = "pod-uid",
    templates: dict[str, str] | None = None,
    claims: dict[str, str] | None = None,
    named: dict[str, str | None] | None = None,
    phase: str = "",
    node: str = "",
    deleted: bool = False,
) -> Pod:
    entries = [
        PodResourceClaim(name=entry, resource_claim_template_name=target) for entry, target in (templates or {}).items()
    ]
    entries += [PodResourceClaim(name=entry, resource_claim_name=target) for entry, target in (claims or {}).items()]
    statuses = (
        PodResourceClaimStatus(name=entry, resource_claim_name=target) for entry, target in (named or {}).items()
    )
    return Pod(
        metadata=ObjectMeta(
            name=name, namespace=NAMESPACE, uid=uid, resource_version="7", deletion_timestamp=THEN if deleted else None
        ),
        spec=PodSpec(resource_claims=tuple(entries), node_name=node or None),
        status=PodStatus(phase=phase or None, resource_claim_statuses=tuple(statuses)),
    )


def exact(name: str = "gpu", *, admin: bool = False) -> DeviceRequest:
    return DeviceRequest(
        name=name, exactly=ExactDeviceRequest(device_class_name="gpu.example.com", admin_access=admin or None)
    )


def alternatives(name: str = "gpu", count: int = 2) -> DeviceRequest:
    subs = (DeviceSubRequest(name=f"sub-{i}", device_class_name="gpu.example.com") for i in range(count))
    return DeviceRequest(name=name, first_available=tuple(subs))


def spec(*requests: DeviceRequest) -> ResourceClaimSpec:
    return ResourceClaimSpec(devices=DeviceClaim(requests=requests or (exact(),)))


def claim(
    name: str = "claim",
    *requests: DeviceRequest,
    owner: str = "",
    owner_name: str = "pod",
    entry: str = "",
    users: tuple[str | ResourceClaimConsumerReference, ...] = (),
    allocated: bool = False,
    protected: bool = False,
    deleted: bool = False,
    annotations: dict[str, str] | None = None,
) -> ResourceClaim:
    """`users` are Pod uids, of Pods named `pod`, or whole references."""
    references = tuple(user if isinstance(user, ResourceClaimConsumerReference) else pod_user(user) for user in users)
    owners = (OwnerReference(api_version="v1", kind="Pod", name=owner_name, uid=owner, controller=True),)
    return ResourceClaim(
        metadata=ObjectMeta(
            name=name,
            namespace=NAMESPACE,
            uid=f"{name}-uid",
            annotations=({POD_CLAIM_NAME_ANNOTATION: entry} if entry else {}) | (annotations or {}),
            owner_references=owners if owner else (),
            finalizers=(FINALIZER,) if protected else (),
            deletion_timestamp=THEN if deleted else None,
        ),
        spec=spec(*requests),
        status=ResourceClaimStatus(allocation=AllocationResult() if allocated else None, reserved_for=references),
    )


def pod_user(uid: str, name: str = "pod") -> ResourceClaimConsumerReference:
    return ResourceClaimConsumerReference(resource="pods", name=name, uid=uid)


def template(name: str = "template", *requests: DeviceRequest, **metadata: Any) -> ResourceClaimTemplate:
    return ResourceClaimTemplate(
        metadata=ObjectMeta(name=name, namespace=NAMESPACE),
        spec=ResourceClaimTemplateSpec(metadata=ObjectMeta(**metadata), spec=spec(*requests)),
    )
