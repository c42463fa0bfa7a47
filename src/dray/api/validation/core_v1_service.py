"""Services."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, duplicate, forbidden, invalid, not_supported, required
from dray.api.names import dns1123_label, dns1123_subdomain, qualified_name
from dray.api.services import NONE, cluster_ips
from dray.api.validation.core_v1_container import validate_ip, validate_port_number_or_name
from dray.api.validation.meta_v1 import validate_labels

_SPEC: Final = Path("spec")
_TYPES: Final = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_PROTOCOLS: Final = ("SCTP", "TCP", "UDP")
_AFFINITIES: Final = ("ClientIP", "None")
_POLICIES: Final = ("Cluster", "Local")
_FAMILIES: Final = ("IPv4", "IPv6")
_FAMILY_POLICIES: Final = ("SingleStack", "PreferDualStack", "RequireDualStack")
_STICKY_SECONDS_MAX: Final = 86400


def validate_service(service: Document) -> FieldErrors:
    """Validate a Service's spec."""
    spec = service.get("spec") or {}
    kind, headless = spec.get("type") or "", spec.get("clusterIP") == NONE
    errors: FieldErrors = []
    ports = spec.get("ports") or ()
    if not ports and not headless and kind != "ExternalName":
        errors.append(required(_SPEC.child("ports")))
    errors += _validate_type(spec, kind)
    errors += _validate_ports(ports, _SPEC.child("ports"))
    errors += validate_labels(spec.get("selector") or {}, _SPEC.child("selector"))
    errors += _validate_affinity(spec)
    for i, address in enumerate(spec.get("externalIPs") or ()):
        errors += validate_ip(address, _SPEC.child("externalIPs").index(i))
    if not kind:
        errors.append(required(_SPEC.child("type")))
    elif kind not in _TYPES:
        errors.append(not_supported(_SPEC.child("type"), kind, _TYPES))
    errors += _validate_node_ports(ports, kind)
    errors += _validate_load_balancer(spec, kind)
    return errors + _validate_traffic(spec, kind) + _validate_addresses(spec, kind)


def _validate_type(spec: Document, kind: str) -> FieldErrors:
    if kind in ("LoadBalancer", "NodePort") and spec.get("clusterIP") == NONE:
        text = f"may not be set to 'None' for {kind} services"
        return [invalid(_SPEC.child("clusterIPs").index(0), NONE, text)]
    if kind != "ExternalName":
        return []
    name = (spec.get("externalName") or "").removesuffix(".")
    path = _SPEC.child("externalName")
    if not name:
        return [required(path)]
    return [invalid(path, name, problem) for problem in dns1123_subdomain(name)]


def _validate_ports(ports: Sequence[Document], path: Path) -> FieldErrors:
    errors: FieldErrors = []
    names: set[str] = set()
    numbers: set[tuple[Any, Any]] = set()
    for i, port in enumerate(ports):
        errors += _validate_port(port, path.index(i), names, needs_name=len(ports) > 1)
        key = (port.get("protocol"), port.get("port"))
        if key in numbers:
            shown = {"protocol": port.get("protocol"), "port": port.get("port")}
            errors.append(duplicate(path.index(i), shown))
        numbers.add(key)
    return errors


def _validate_port(port: Document, path: Path, names: set[str], *, needs_name: bool) -> FieldErrors:
    errors: FieldErrors = []
    name = port.get("name") or ""
    if needs_name and not name:
        errors.append(required(path.child("name")))
    elif name:
        errors += [invalid(path.child("name"), name, problem) for problem in dns1123_label(name)]
        if name in names:
            errors.append(duplicate(path.child("name"), name))
        names.add(name)
    errors += validate_port_number_or_name(port.get("port") or 0, path.child("port"))
    errors += _validate_choice(port.get("protocol") or "", _PROTOCOLS, path.child("protocol"))
    errors += validate_port_number_or_name(port.get("targetPort", 0), path.child("targetPort"))
    protocol = port.get("appProtocol")
    if protocol is not None:
        errors += [invalid(path.child("appProtocol"), protocol, problem) for problem in qualified_name(protocol)]
    return errors


def _validate_choice(value: str, supported: Sequence[str], path: Path) -> FieldErrors:
    if not value:
        return [required(path)]
    return [] if value in supported else [not_supported(path, value, supported)]


def _validate_affinity(spec: Document) -> FieldErrors:
    affinity, config = spec.get("sessionAffinity") or "", spec.get("sessionAffinityConfig")
    errors = _validate_choice(affinity, _AFFINITIES, _SPEC.child("sessionAffinity"))
    path = _SPEC.child("sessionAffinityConfig")
    if affinity == "ClientIP":
        seconds = ((config or {}).get("clientIP") or {}).get("timeoutSeconds")
        if seconds is None:
            text = f"when session affinity type is {affinity}"
            errors.append(required(path, text))
        elif not 0 < seconds <= _STICKY_SECONDS_MAX:
            text = f"must be greater than 0 and less than {_STICKY_SECONDS_MAX}"
            errors.append(invalid(path.child("clientIP", "timeoutSeconds"), seconds, text))
    elif affinity == "None" and config is not None:
        errors.append(forbidden(path, "must not be set when session affinity is None"))
    return errors


def _validate_node_ports(ports: Sequence[Document], kind: str) -> FieldErrors:
    errors: FieldErrors = []
    seen: set[tuple[Any, int]] = set()
    for i, port in enumerate(ports):
        number = port.get("nodePort") or 0
        if not number:
            continue
        path = _SPEC.child("ports").index(i).child("nodePort")
        if kind in ("ClusterIP", "ExternalName"):
            errors.append(forbidden(path, f"may not be used when `type` is '{kind}'"))
        key = (port.get("protocol"), number)
        if key in seen:
            errors.append(duplicate(path, number))
        seen.add(key)
    return errors


def _validate_load_balancer(spec: Document, kind: str) -> FieldErrors:
    if kind == "LoadBalancer":
        return []
    text = "may only be used when `type` is 'LoadBalancer'"
    return [
        forbidden(_SPEC.child(field), text)
        for field in ("loadBalancerSourceRanges", "allocateLoadBalancerNodePorts", "loadBalancerClass")
        if spec.get(field) not in (None, "", [])
    ]


def _validate_traffic(spec: Document, kind: str) -> FieldErrors:
    errors: FieldErrors = []
    external, internal = spec.get("externalTrafficPolicy") or "", spec.get("internalTrafficPolicy")
    path = _SPEC.child("externalTrafficPolicy")
    accessible = kind in ("LoadBalancer", "NodePort") or (kind == "ClusterIP" and spec.get("externalIPs"))
    if accessible:
        errors += _validate_choice(external, _POLICIES, path)
    elif external:
        errors.append(invalid(path, external, "may only be set for externally-accessible services"))
    if kind != "ExternalName" and internal is None:
        errors.append(required(_SPEC.child("internalTrafficPolicy")))
    elif internal is not None and internal not in _POLICIES:
        errors.append(not_supported(_SPEC.child("internalTrafficPolicy"), internal, _POLICIES))
    return errors


def _validate_addresses(spec: Document, kind: str) -> FieldErrors:
    path = _SPEC.child("clusterIPs")
    if kind == "ExternalName":
        text = "may not be set when `type` is 'ExternalName'"
        return [
            forbidden(_SPEC.child(field), text)
            for field in ("clusterIPs", "ipFamilies", "ipFamilyPolicy")
            if spec.get(field)
        ]
    errors: FieldErrors = []
    addresses, policy = spec.get("clusterIPs") or [], spec.get("ipFamilyPolicy")
    if spec.get("clusterIP") and addresses[:1] != [spec["clusterIP"]]:
        errors.append(invalid(path, addresses, "first value must match `clusterIP`"))
    if NONE in addresses[1:]:
        errors.append(invalid(path, addresses, "'None' must be the first and only value"))
    for i, address in enumerate(cluster_ips(spec)):
        errors += validate_ip(address, path.index(i))
    for i, family in enumerate(spec.get("ipFamilies") or ()):
        if family not in _FAMILIES:
            errors.append(not_supported(_SPEC.child("ipFamilies").index(i), family, _FAMILIES))
        elif family in spec["ipFamilies"][:i]:
            errors.append(duplicate(_SPEC.child("ipFamilies").index(i), family))
    if policy is not None and policy not in _FAMILY_POLICIES:
        errors.append(not_supported(_SPEC.child("ipFamilyPolicy"), policy, _FAMILY_POLICIES))
    return errors


def validate_service_update(new: Document, old: Document) -> FieldErrors:
    """Validate a changed Service; its primary address and load balancer class are immutable."""
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    errors: FieldErrors = []
    if "ExternalName" not in (spec.get("type"), before.get("type")):
        addresses, stored = spec.get("clusterIPs") or [], before.get("clusterIPs") or []
        if stored and addresses[:1] != stored[:1]:
            errors.append(invalid(_SPEC.child("clusterIPs").index(0), addresses, "may not change once set"))
    if spec.get("type") == before.get("type") == "LoadBalancer":
        path = _SPEC.child("loadBalancerClass")
        if spec.get("loadBalancerClass") != before.get("loadBalancerClass"):
            errors.append(invalid(path, spec.get("loadBalancerClass"), "may not change once set"))
    return errors + validate_service(new)


def service_warnings(service: Document, _old: Document | None) -> tuple[str, ...]:
    """Return warnings of fields that have no effect, or are deprecated."""
    spec = service.get("spec") or {}
    kind, addresses = spec.get("type") or "", spec.get("externalIPs")
    headless = kind == "ClusterIP" and spec.get("clusterIP") == NONE
    ignored = (
        (headless and spec.get("loadBalancerIP"), "spec.loadBalancerIP is ignored for headless services"),
        (headless and addresses, "spec.externalIPs is ignored for headless services"),
        (headless and spec.get("sessionAffinity") != NONE, "spec.SessionAffinity is ignored for headless services"),
        (
            addresses and not headless and kind != "ExternalName",
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters",
        ),
        (kind == "ExternalName" and addresses, 'spec.externalIPs is ignored when spec.type is "ExternalName"'),
        (
            kind != "ExternalName" and spec.get("externalName"),
            'spec.externalName is ignored when spec.type is not "ExternalName"',
        ),
        (
            spec.get("trafficDistribution") == "PreferClose",
            'spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"',
        ),
    )
    return tuple(text for holds, text in ignored if holds)


def validate_service_status(service: Document, _old: Document) -> FieldErrors:
    """Validate the status of a Service."""
    ingress = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
    errors: FieldErrors = []
    path = Path("status").child("loadBalancer", "ingress")
    if ingress and (service.get("spec") or {}).get("type") != "LoadBalancer":
        errors.append(forbidden(path, "may only be used when `spec.type` is 'LoadBalancer'"))
        return errors
    for i, item in enumerate(ingress):
        if item.get("ip"):
            errors += validate_ip(item["ip"], path.index(i).child("ip"))
        if item.get("hostname"):
            problems = dns1123_subdomain(item["hostname"])
            errors += [invalid(path.index(i).child("hostname"), item["hostname"], problem) for problem in problems]
    return errors
