"""Defaults of resource.k8s.io by version: v1beta1 has a request's fields beside its name, the others in `exactly`."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from dray.api.defaults import Defaulters
from dray.api.document import Document, GroupVersionKind
from dray.api.timestamps import format_time

GROUP: Final = "resource.k8s.io"
# How many pools a ResourcePoolStatusRequest is answered for.
POOL_LIMIT_DEFAULT: Final = 100


def _request(item: Document) -> None:
    mode = item.get("allocationMode")
    if not mode:
        mode = item["allocationMode"] = "ExactCount"
    if mode == "ExactCount" and not item.get("count"):
        item["count"] = 1
    _tolerations(item)


def _tolerations(item: Document) -> None:
    for toleration in item.get("tolerations") or ():
        if not toleration.get("operator"):
            toleration["operator"] = "Equal"


def _claim_spec(spec: Document) -> None:
    devices = spec.setdefault("devices", {})
    for request in devices.get("requests") or ():
        if request.get("exactly") is not None:
            _request(request["exactly"])
        for alternative in request.get("firstAvailable") or ():
            _request(alternative)


def _flat_claim_spec(spec: Document) -> None:
    devices = spec.setdefault("devices", {})
    for request in devices.get("requests") or ():
        # A request with alternatives has no class of its own, and gets no mode and count.
        if request.get("deviceClassName"):
            _request(request)
        else:
            _tolerations(request)
        for alternative in request.get("firstAvailable") or ():
            _request(alternative)


def _claim_status(claim: Document) -> None:
    allocation = (claim.get("status") or {}).get("allocation")
    if allocation is None:
        return
    for result in allocation.setdefault("devices", {}).get("results") or ():
        _tolerations(result)


def _claim(claim: Document, now: datetime) -> None:
    _claim_spec(claim.setdefault("spec", {}))
    _claim_status(claim)


def _flat_claim(claim: Document, now: datetime) -> None:
    _flat_claim_spec(claim.setdefault("spec", {}))
    _claim_status(claim)


def _template(template: Document, now: datetime) -> None:
    spec = template.setdefault("spec", {})
    spec.setdefault("metadata", {})
    _claim_spec(spec.setdefault("spec", {}))


def _flat_template(template: Document, now: datetime) -> None:
    spec = template.setdefault("spec", {})
    spec.setdefault("metadata", {})
    _flat_claim_spec(spec.setdefault("spec", {}))


def _taint(taint: Document, now: datetime) -> None:
    if not taint.get("timeAdded"):
        # Whole seconds: a finer time would not survive encoding and decoding.
        taint["timeAdded"] = format_time(now)


def _slice(resource_slice: Document, now: datetime) -> None:
    spec = resource_slice.setdefault("spec", {})
    spec.setdefault("pool", {}).setdefault("generation", 0)
    for device in spec.get("devices") or ():
        for taint in device.get("taints") or ():
            _taint(taint, now)


def _basic_slice(resource_slice: Document, now: datetime) -> None:
    spec = resource_slice.setdefault("spec", {})
    spec.setdefault("pool", {}).setdefault("generation", 0)
    for device in spec.get("devices") or ():
        for taint in (device.get("basic") or {}).get("taints") or ():
            _taint(taint, now)


def _taint_rule(rule: Document, now: datetime) -> None:
    _taint(rule.setdefault("spec", {}).setdefault("taint", {}), now)


def _pool_status_request(request: Document, now: datetime) -> None:
    spec = request.setdefault("spec", {})
    if spec.get("limit") is None:
        spec["limit"] = POOL_LIMIT_DEFAULT


def _class(device_class: Document, now: datetime) -> None:
    device_class.setdefault("spec", {})


def _kind(version: str, kind: str) -> GroupVersionKind:
    return GroupVersionKind(GROUP, version, kind)


DEFAULTERS: Final[Defaulters] = {
    _kind("v1", "DeviceClass"): _class,
    _kind("v1beta2", "DeviceClass"): _class,
    _kind("v1beta1", "DeviceClass"): _class,
    _kind("v1", "ResourceClaim"): _claim,
    _kind("v1beta2", "ResourceClaim"): _claim,
    _kind("v1beta1", "ResourceClaim"): _flat_claim,
    _kind("v1", "ResourceClaimTemplate"): _template,
    _kind("v1beta2", "ResourceClaimTemplate"): _template,
    _kind("v1beta1", "ResourceClaimTemplate"): _flat_template,
    _kind("v1", "ResourceSlice"): _slice,
    _kind("v1beta2", "ResourceSlice"): _slice,
    _kind("v1beta1", "ResourceSlice"): _basic_slice,
    _kind("v1", "DeviceTaintRule"): _taint_rule,
    _kind("v1beta2", "DeviceTaintRule"): _taint_rule,
    _kind("v1alpha3", "DeviceTaintRule"): _taint_rule,
    _kind("v1alpha3", "ResourcePoolStatusRequest"): _pool_status_request,
}
