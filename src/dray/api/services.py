"""The addresses and node ports of Services: what an update keeps, and what is to be allocated. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network
from typing import Final, TypeAlias

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, invalid
from dray.lib.ip_addresses import parse_address

NONE: Final = "None"
_IPV4: Final = 4
NODE_PORTS: Final = range(30000, 32768)
Network: TypeAlias = IPv4Network | IPv6Network


def needs_cluster_ip(spec: Document) -> bool:
    """Report whether the Service has an address of the cluster, allocated or not."""
    return spec.get("type") != "ExternalName" and spec.get("clusterIP") != NONE


def needs_node_ports(spec: Document) -> bool:
    """Report whether every port has a port on the nodes."""
    kind = spec.get("type")
    return kind == "NodePort" or (kind == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts") is not False)


def needs_health_check_port(spec: Document) -> bool:
    """Report whether a load balancer checks nodes by a port of their own."""
    return spec.get("type") == "LoadBalancer" and spec.get("externalTrafficPolicy") == "Local"


def keep_allocated(spec: Document, old: Document) -> None:
    """Restore allocated values that an update leaves out, so that clients need not know them."""
    if "ExternalName" not in (old.get("type"), spec.get("type")):
        if not spec.get("clusterIP") and not spec.get("clusterIPs"):
            _keep_fields(spec, old, "clusterIP", "clusterIPs")
        _keep_fields(spec, old, "ipFamilies", "ipFamilyPolicy")
    if needs_node_ports(old) and needs_node_ports(spec):
        allocated = {(port.get("port"), port.get("protocol")): port.get("nodePort") for port in old.get("ports") or ()}
        used = {port.get("nodePort") for port in spec.get("ports") or ()}
        for port in spec.get("ports") or ():
            number = allocated.get((port.get("port"), port.get("protocol")))
            if not port.get("nodePort") and number and number not in used:
                port["nodePort"] = number
    if needs_health_check_port(old) and needs_health_check_port(spec):
        _keep_fields(spec, old, "healthCheckNodePort")


def _keep_fields(spec: Document, old: Document, *fields: str) -> None:
    for field in fields:
        if not spec.get(field) and old.get(field):
            spec[field] = old[field]


def drop_unused(spec: Document, old: Document) -> None:
    """Drop allocated values of the former type that an update has not changed."""
    if spec.get("type") == "ExternalName" and old.get("type") != "ExternalName":
        for field in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"):
            if spec.get(field) == old.get(field):
                spec.pop(field, None)
    if needs_node_ports(old) and not needs_node_ports(spec):
        before = {port.get("nodePort") for port in old.get("ports") or ()}
        for port in spec.get("ports") or ():
            if port.get("nodePort") in before:
                port.pop("nodePort", None)
    if needs_health_check_port(old) and not needs_health_check_port(spec):
        spec.pop("healthCheckNodePort", None)


def set_families(spec: Document, network: Network) -> None:
    """Complete the IP families of a Service with addresses; clusters have one family."""
    if spec.get("type") == "ExternalName":
        return
    family = f"IPv{network.version}"
    if spec.get("clusterIP") == NONE and not spec.get("selector"):
        # Its endpoints are the user's, of any family.
        other = "IPv6" if network.version == _IPV4 else "IPv4"
        spec.setdefault("ipFamilyPolicy", "RequireDualStack")
        spec.setdefault("ipFamilies", [family, other])
    else:
        spec.setdefault("ipFamilyPolicy", "SingleStack")
        spec.setdefault("ipFamilies", [family])
    if spec.get("clusterIP") and not spec.get("clusterIPs"):
        spec["clusterIPs"] = [spec["clusterIP"]]
    elif spec.get("clusterIPs") and not spec.get("clusterIP"):
        spec["clusterIP"] = spec["clusterIPs"][0]


def family_errors(spec: Document, network: Network) -> FieldErrors:
    """Return the errors of families that the cluster lacks; a headless Service without selector may have any."""
    families, policy = spec.get("ipFamilies") or (), spec.get("ipFamilyPolicy")
    if spec.get("type") == "ExternalName" or (spec.get("clusterIP") == NONE and not spec.get("selector")):
        return []
    errors: FieldErrors = []
    path = Path("spec").child("ipFamilyPolicy")
    if policy == "SingleStack" and len(families) > 1:
        text = "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified"
        return [invalid(path, policy, text)]
    if policy == "RequireDualStack":
        errors.append(invalid(path, policy, "this cluster is not configured for dual-stack services"))
    for i, family in enumerate(families):
        if family != f"IPv{network.version}":
            errors.append(invalid(Path("spec").child("ipFamilies").index(i), family, "not configured on this cluster"))
    return errors


def cluster_ips(spec: Document) -> list[str]:
    """Return the allocated addresses."""
    return [address for address in spec.get("clusterIPs") or () if address and address != NONE]


def node_ports(spec: Document) -> Iterator[tuple[str, int]]:
    """Yield the allocated ports: where they are, and their numbers."""
    for i, port in enumerate(spec.get("ports") or ()):
        if port.get("nodePort"):
            yield f"spec.ports[{i}].nodePort", port["nodePort"]
    if spec.get("healthCheckNodePort"):
        yield "spec.healthCheckNodePort", spec["healthCheckNodePort"]


def is_in_range(address: str, network: Network) -> bool:
    """Report whether the network has the address, except its first and last one."""
    found = parse_address(address)
    return found is not None and found in network and found not in (network.network_address, network.broadcast_address)
