"""Conversion of resource.k8s.io between its served versions and the hub.

The hub is v1, and an older version for kinds that Kubernetes stores so. v1beta2 has v1's shape. v1beta1 differs in two
ways: a request's fields are beside its name instead of in `exactly`, and a device's content is wrapped in `basic`.
Conversion is lossless and does not change its argument: what differs is copied, the rest is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from dray.api.document import Document
from dray.api.schema import load
from dray.api.schema.model import Field, Scalar

GROUP: Final = "resource.k8s.io"
HUB: Final = "v1"

# Kinds whose hub version differs from the group's.
_HUBS: Final = {"DeviceTaintRule": "v1beta2", "ResourcePoolStatusRequest": "v1alpha3"}

# The minor releases in which versions are deprecated and removed; DeviceTaintRule is newer.
_DEPRECATED: Final = {"v1beta1": (35, 38), "v1beta2": (36, 39)}
_DEPRECATED_BY_KIND: Final = {"DeviceTaintRule": {"v1alpha3": (36, 39)}}

# In the order in which the API server writes them.
_REQUEST_FIELDS: Final = {
    field.name: field
    for field in sorted(
        load.struct("io.k8s.api.resource.v1.ExactDeviceRequest").fields.values(), key=lambda field: field.number
    )
}
_Change = Callable[[Document], Document]


def hub_version(kind: str) -> str:
    """Return the version in which documents of the kind are stored."""
    return _HUBS.get(kind, HUB)


def deprecated_versions(kind: str) -> Mapping[str, tuple[int, int]]:
    """Return the minor releases in which versions of the kind are deprecated and removed."""
    return _DEPRECATED_BY_KIND.get(kind, _DEPRECATED)


def to_hub(version: str, kind: str, document: Document) -> Document:
    """Convert a document to the hub version."""
    return _convert(document, hub_version(kind), _UP.get(kind) if version == "v1beta1" else None)


def from_hub(version: str, kind: str, document: Document) -> Document:
    """Convert a document of the hub version to a served version."""
    return _convert(document, version, _DOWN.get(kind) if version == "v1beta1" else None)


def _convert(document: Document, version: str, change: _Change | None) -> Document:
    api_version = f"{GROUP}/{version}"
    if change is None and document.get("apiVersion") == api_version:
        return document
    converted = {**document, "apiVersion": api_version}
    if change is not None and converted.get("spec"):
        converted["spec"] = change(converted["spec"])
    return converted


def _with_requests(spec: Document, change: _Change) -> Document:
    devices = spec.get("devices")
    if not devices or not devices.get("requests"):
        return spec
    return {**spec, "devices": {**devices, "requests": [change(request) for request in devices["requests"]]}}


def _nest(request: Document) -> Document:
    """Move the flat fields into `exactly`, even beside alternatives, so that validation rejects an invalid mix."""
    # The zero of a plain field means unset; a pointer or list counts whenever it is present.
    exactly = {name: request[name] for name, field in _REQUEST_FIELDS.items() if _is_set(request.get(name), field)}
    nested = {name: value for name, value in request.items() if name not in _REQUEST_FIELDS}
    if exactly:
        nested["exactly"] = exactly
    return nested


def _is_set(value: object, field: Field) -> bool:
    return bool(value) if isinstance(field.type, Scalar) and not field.pointer else value is not None


def _flatten(request: Document) -> Document:
    flat = {name: value for name, value in request.items() if name != "exactly"}
    # Kubernetes writes the class even beside alternatives, where it is empty.
    return {**flat, "deviceClassName": "", **(request.get("exactly") or {})}


def _unwrap_device(device: Document) -> Document:
    return {**{name: value for name, value in device.items() if name != "basic"}, **(device.get("basic") or {})}


def _wrap_device(device: Document) -> Document:
    return {"name": device.get("name", ""), "basic": {key: value for key, value in device.items() if key != "name"}}


def _slice_up(spec: Document) -> Document:
    # In v1beta1 an empty value of these two means unset.
    unset = {name for name in ("nodeName", "allNodes") if name in spec and not spec[name]}
    spec = {name: value for name, value in spec.items() if name not in unset}
    if spec.get("devices"):
        spec["devices"] = [_unwrap_device(device) for device in spec["devices"]]
    return spec


def _slice_down(spec: Document) -> Document:
    if not spec.get("devices"):
        return spec
    return {**spec, "devices": [_wrap_device(device) for device in spec["devices"]]}


def _in_template(change: _Change) -> _Change:
    def convert(spec: Document) -> Document:
        return {**spec, "spec": change(spec["spec"])} if spec.get("spec") else spec

    return convert


def _claim_up(spec: Document) -> Document:
    return _with_requests(spec, _nest)


def _claim_down(spec: Document) -> Document:
    return _with_requests(spec, _flatten)


_UP: Final[dict[str, _Change]] = {
    "ResourceClaim": _claim_up,
    "ResourceClaimTemplate": _in_template(_claim_up),
    "ResourceSlice": _slice_up,
}
_DOWN: Final[dict[str, _Change]] = {
    "ResourceClaim": _claim_down,
    "ResourceClaimTemplate": _in_template(_claim_down),
    "ResourceSlice": _slice_down,
}
