"""Defaults of the groups with a few each: apiextensions, coordination, rbac, scheduling and cdi."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from dray.api.defaults import Defaulters
from dray.api.document import Document, GroupVersion

_HTTPS_PORT: Final = 443
_RBAC_GROUP: Final = "rbac.authorization.k8s.io"


def _default_definition(obj: Document, _now: datetime) -> None:
    spec: Document = obj.setdefault("spec", {})
    names: Document = spec.setdefault("names", {})
    kind = names.get("kind") or ""
    if kind and not names.get("singular"):
        names["singular"] = kind.lower()
    if kind and not names.get("listKind"):
        names["listKind"] = f"{kind}List"
    conversion: Document = spec.setdefault("conversion", {})
    conversion.setdefault("strategy", "None")
    service = ((conversion.get("webhook") or {}).get("clientConfig") or {}).get("service")
    if service is not None:
        service.setdefault("port", _HTTPS_PORT)


def _default_api_service(obj: Document, _now: datetime) -> None:
    service = (obj.get("spec") or {}).get("service")
    if service is not None:
        service.setdefault("port", _HTTPS_PORT)


def _default_lease(obj: Document, _now: datetime) -> None:
    obj.setdefault("spec", {})


def _default_binding(obj: Document, _now: datetime) -> None:
    role = obj.get("roleRef")
    if role is not None and not role.get("apiGroup"):
        role["apiGroup"] = _RBAC_GROUP
    for subject in obj.get("subjects") or ():
        if not subject.get("apiGroup") and subject.get("kind") in ("User", "Group"):
            subject["apiGroup"] = _RBAC_GROUP


def _default_priority_class(obj: Document, _now: datetime) -> None:
    if not obj.get("preemptionPolicy"):
        obj["preemptionPolicy"] = "PreemptLowerPriority"
    obj.setdefault("value", 0)


def _default_pod_group(obj: Document, _now: datetime) -> None:
    spec: Document = obj.setdefault("spec", {})
    if spec.get("disruptionMode") is None:
        spec["disruptionMode"] = {"single": {}}


def default_cdi_claim_spec(spec: Document) -> None:
    """Default the allocation mode of a claim, or of the inline template of a Pod."""
    if not spec.get("allocationMode"):
        spec["allocationMode"] = "Delayed"


def default_cdi_claim_status(status: Document) -> None:
    """Default the phase and the user limit of a new claim."""
    if not status.get("phase"):
        status["phase"] = "Pending"
    if not status.get("userLimit"):
        status["userLimit"] = 1


def _default_cdi_claim(claim: Document, _now: datetime) -> None:
    default_cdi_claim_spec(claim.setdefault("spec", {}))
    default_cdi_claim_status(claim.setdefault("status", {}))


_RBAC: Final = GroupVersion(_RBAC_GROUP, "v1")

_DAY_SECONDS: Final = 86_400


def _default_pod_certificate_request(obj: Document, _now: datetime) -> None:
    spec = obj.setdefault("spec", {})
    if spec.get("maxExpirationSeconds") is None:
        spec["maxExpirationSeconds"] = _DAY_SECONDS


DEFAULTERS: Final[Defaulters] = {
    GroupVersion("apiextensions.k8s.io", "v1").kind("CustomResourceDefinition"): _default_definition,
    GroupVersion("apiregistration.k8s.io", "v1").kind("APIService"): _default_api_service,
    GroupVersion("certificates.k8s.io", "v1").kind("PodCertificateRequest"): _default_pod_certificate_request,
    GroupVersion("coordination.k8s.io", "v1").kind("Lease"): _default_lease,
    _RBAC.kind("RoleBinding"): _default_binding,
    _RBAC.kind("ClusterRoleBinding"): _default_binding,
    GroupVersion("scheduling.k8s.io", "v1").kind("PriorityClass"): _default_priority_class,
    GroupVersion("scheduling.k8s.io", "v1beta1").kind("PodGroup"): _default_pod_group,
    GroupVersion("cdi.k8s.io", "v1alpha1").kind("ResourceClaim"): _default_cdi_claim,
}
