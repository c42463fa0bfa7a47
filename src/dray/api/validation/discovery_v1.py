"""Endpoints and EndpointSlices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, duplicate, invalid, not_supported, required, too_many
from dray.api.names import dns1123_label, dns1123_subdomain, qualified_name
from dray.api.validation.core_v1_container import validate_ip, validate_port_number_or_name
from dray.api.validation.meta_v1 import validate_immutable
from dray.lib.ip_addresses import parse_address

_PROTOCOLS: Final = ("SCTP", "TCP", "UDP")
_ADDRESS_TYPES: Final = ("FQDN", "IPv4", "IPv6")
_ENDPOINTS_MAX: Final = 1000
_ADDRESSES_MAX: Final = 100
_PORTS_MAX: Final = 20000
# The API server may be reached by a loopback address alone, and says so.
_OWN_SERVICE: Final = ("default", "kubernetes")


def _allows_loopback(obj: Document) -> bool:
    metadata = obj.get("metadata") or {}
    return (metadata.get("namespace"), metadata.get("name")) == _OWN_SERVICE


def _validate_address(address: str, path: Path, *, loopback: bool) -> FieldErrors:
    errors = validate_ip(address, path)
    if errors:
        return errors
    found = parse_address(address)
    assert found is not None
    if found.is_unspecified:
        errors.append(invalid(path, address, f"may not be unspecified ({address})"))
    if found.is_loopback and not loopback:
        errors.append(invalid(path, address, "may not be in the loopback range (127.0.0.0/8, ::1/128)"))
    if found.is_link_local:
        errors.append(invalid(path, address, "may not be in the link-local range (169.254.0.0/16, fe80::/10)"))
    if found.is_multicast:
        text = "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"
        errors.append(invalid(path, address, text))
    return errors


def validate_endpoints(endpoints: Document) -> FieldErrors:
    """Validate the addresses and ports of Endpoints."""
    errors: FieldErrors = []
    for i, subset in enumerate(endpoints.get("subsets") or ()):
        path = Path("subsets").index(i)
        if not subset.get("addresses") and not subset.get("notReadyAddresses"):
            errors.append(required(path, "must specify `addresses` or `notReadyAddresses`"))
        for field in ("addresses", "notReadyAddresses"):
            for j, address in enumerate(subset.get(field) or ()):
                errors += _validate_endpoint_address(endpoints, address, path.child(field).index(j))
        ports = subset.get("ports") or ()
        for j, port in enumerate(ports):
            errors += _validate_endpoint_port(port, path.child("ports").index(j), needs_name=len(ports) > 1)
    return errors


def _validate_endpoint_address(endpoints: Document, address: Document, path: Path) -> FieldErrors:
    errors = _validate_address(address.get("ip") or "", path.child("ip"), loopback=_allows_loopback(endpoints))
    hostname = address.get("hostname")
    if hostname:
        errors += [invalid(path.child("hostname"), hostname, problem) for problem in dns1123_label(hostname)]
    return errors


def _validate_endpoint_port(port: Document, path: Path, *, needs_name: bool) -> FieldErrors:
    errors: FieldErrors = []
    name, protocol = port.get("name") or "", port.get("protocol") or ""
    if needs_name and not name:
        errors.append(required(path.child("name")))
    elif name:
        errors += [invalid(path.child("name"), name, problem) for problem in dns1123_label(name)]
    errors += validate_port_number_or_name(port.get("port") or 0, path.child("port"))
    if not protocol:
        errors.append(required(path.child("protocol")))
    elif protocol not in _PROTOCOLS:
        errors.append(not_supported(path.child("protocol"), protocol, _PROTOCOLS))
    return errors + _validate_application(port, path)


def _validate_application(port: Document, path: Path) -> FieldErrors:
    protocol = port.get("appProtocol")
    if protocol is None:
        return []
    return [invalid(path.child("appProtocol"), protocol, problem) for problem in qualified_name(protocol)]


def validate_endpoint_slice(endpoint_slice: Document) -> FieldErrors:
    """Validate the addresses and ports of an EndpointSlice."""
    kind, path = endpoint_slice.get("addressType") or "", Path("addressType")
    errors: FieldErrors = []
    if not kind:
        errors.append(required(path))
    elif kind not in _ADDRESS_TYPES:
        errors.append(not_supported(path, kind, _ADDRESS_TYPES))
    endpoints = endpoint_slice.get("endpoints") or ()
    if len(endpoints) > _ENDPOINTS_MAX:
        return [*errors, too_many(Path("endpoints"), len(endpoints), _ENDPOINTS_MAX)]
    for i, endpoint in enumerate(endpoints):
        errors += _validate_endpoint(endpoint_slice, endpoint, kind, Path("endpoints").index(i))
    return errors + _validate_slice_ports(endpoint_slice.get("ports") or (), Path("ports"))


def _validate_endpoint(endpoint_slice: Document, endpoint: Document, kind: str, path: Path) -> FieldErrors:
    errors: FieldErrors = []
    addresses, below = endpoint.get("addresses") or (), path.child("addresses")
    if not addresses:
        errors.append(required(below, "must contain at least 1 address"))
    elif len(addresses) > _ADDRESSES_MAX:
        errors.append(too_many(below, len(addresses), _ADDRESSES_MAX))
    for i, address in enumerate(addresses):
        if kind == "FQDN":
            errors += [invalid(below.index(i), address, problem) for problem in dns1123_subdomain(address)]
            continue
        found = _validate_address(address, below.index(i), loopback=_allows_loopback(endpoint_slice))
        if not found and kind != f"IPv{6 if ':' in address else 4}":
            found = [invalid(below.index(i), address, f"must be an {kind} address")]
        errors += found
    for field in ("hostname", "nodeName"):
        text = endpoint.get(field)
        if text is not None:
            rule = dns1123_label if field == "hostname" else dns1123_subdomain
            errors += [invalid(path.child(field), text, problem) for problem in rule(text)]
    return errors


def _validate_slice_ports(ports: Sequence[Document], path: Path) -> FieldErrors:
    if len(ports) > _PORTS_MAX:
        return [too_many(path, len(ports), _PORTS_MAX)]
    errors: FieldErrors = []
    seen: set[str] = set()
    for i, port in enumerate(ports):
        below, name, protocol = path.index(i), port.get("name") or "", port.get("protocol")
        if name in seen:
            errors.append(duplicate(below.child("name"), name))
        seen.add(name)
        if name:
            errors += [invalid(below.child("name"), name, problem) for problem in dns1123_label(name)]
        if protocol is None:
            errors.append(required(below.child("protocol")))
        elif protocol not in _PROTOCOLS:
            errors.append(not_supported(below.child("protocol"), protocol, _PROTOCOLS))
        errors += _validate_application(port, below)
    return errors


def validate_endpoint_slice_update(new: Document, old: Document) -> FieldErrors:
    """Validate a changed EndpointSlice; its address type is immutable."""
    errors = validate_endpoint_slice(new)
    return errors + validate_immutable(new.get("addressType"), old.get("addressType"), Path("addressType"))
