"""The endpoints of a Service: which Pods serve it, at which addresses and ports. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from ipaddress import ip_address
from itertools import chain
from typing import Final, NamedTuple

from dray.api.document import Document
from dray.api.types.core_v1 import Pod
from dray.client.objects import key_of, labels_of
from dray.controllers.pod_control.pod_status import is_finished, is_ready

HEADLESS_LABEL: Final = "service.kubernetes.io/headless"
TRIGGER_TIME: Final = "endpoints.kubernetes.io/last-change-trigger-time"


class EndpointPort(NamedTuple):
    """A port as endpoints have it; the number is that of the containers."""

    name: str
    protocol: str
    port: int
    app_protocol: str = ""

    @classmethod
    def read(cls, port: Document) -> EndpointPort:
        """Return the port of a document."""
        protocol, number = port.get("protocol") or "TCP", port.get("port") or 0
        return cls(port.get("name") or "", protocol, number, port.get("appProtocol") or "")

    def document(self) -> Document:
        """Return the port of an EndpointSlice or of Endpoints."""
        found: Document = {"name": self.name, "protocol": self.protocol, "port": self.port}
        return found | ({"appProtocol": self.app_protocol} if self.app_protocol else {})


class Group(NamedTuple):
    """What all endpoints of an EndpointSlice have in common."""

    address_type: str
    ports: tuple[EndpointPort, ...]


def selector_of(service: Document) -> Mapping[str, str]:
    """Return the selector of a Service whose endpoints are its Pods; empty if it has none."""
    spec = service.get("spec") or {}
    selector: Mapping[str, str] = spec.get("selector") or {}
    return {} if spec.get("type") == "ExternalName" else selector


def selecting_namespaces(service: Document) -> tuple[str, ...]:
    """Return the namespace of a Service that has a selector, for an index."""
    return (key_of(service).namespace,) if selector_of(service) else ()


def is_selected(selector: Mapping[str, str], pod: Pod) -> bool:
    """Return whether the Pod has all labels of the selector."""
    labels = labels_of(pod)
    return all(labels.get(key) == value for key, value in selector.items())


def is_headless(service: Document) -> bool:
    """Return whether the Service has no address of its own."""
    return (service.get("spec") or {}).get("clusterIP") == "None"


def can_serve(pod: Pod) -> bool:
    """Return whether the Pod is an endpoint: it has an address and has not ended."""
    return bool(pod.status.pod_ips or pod.status.pod_ip) and not is_finished(pod)


def addresses_of(pod: Pod, address_type: str) -> list[str]:
    """Return the Pod's addresses of a family, without those that endpoints must not have."""
    found = [item.ip for item in pod.status.pod_ips if item.ip] or [pod.status.pod_ip or ""]
    return [text for text in found if text and _is_usable(text, address_type)]


def _is_usable(text: str, address_type: str) -> bool:
    address = ip_address(text)
    refused = address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified
    return f"IPv{address.version}" == address_type and not refused


def has_unusable_address(pod: Pod) -> bool:
    """Return whether the Pod has addresses, but none that an endpoint may have."""
    return not addresses_of(pod, "IPv4") and not addresses_of(pod, "IPv6")


def ports_of(service: Document, pod: Pod) -> tuple[EndpointPort, ...]:
    """Return the ports at which the Pod serves; a named one that it lacks is left out."""
    found: list[EndpointPort] = []
    for port in (service.get("spec") or {}).get("ports") or ():
        protocol = port.get("protocol") or "TCP"
        number = _target(port.get("targetPort") or port.get("port"), protocol, pod)
        if number:
            found.append(EndpointPort(port.get("name") or "", protocol, number, port.get("appProtocol") or ""))
    return tuple(found)


def _target(target: object, protocol: str, pod: Pod) -> int:
    if isinstance(target, int):
        return target
    sidecars = (item for item in pod.spec.init_containers if item.restart_policy == "Always")
    for container in chain(pod.spec.containers, sidecars):
        for port in container.ports:
            if port.name == target and (port.protocol or "TCP") == protocol:
                return port.container_port
    return 0


def slice_endpoint(service: Document, pod: Pod, address_type: str, zone: str) -> Document | None:
    """Return the Pod as an endpoint of an EndpointSlice; None without an address of that family."""
    addresses = addresses_of(pod, address_type)
    if not addresses:
        return None
    spec = service.get("spec") or {}
    serving, terminating = is_ready(pod), pod.metadata.deletion_timestamp is not None
    endpoint: Document = {
        "addresses": addresses,
        "conditions": {
            "ready": bool(spec.get("publishNotReadyAddresses")) or (serving and not terminating),
            "serving": serving,
            "terminating": terminating,
        },
        "targetRef": _target_reference(pod),
    }
    if pod.spec.node_name:
        endpoint["nodeName"] = pod.spec.node_name
    if zone:
        endpoint["zone"] = zone
    return endpoint | _hostname(service, pod)


def slice_groups(service: Document, pods: Iterable[Pod], zone_of: Callable[[str], str]) -> dict[Group, list[Document]]:
    """Return the endpoints of the Service's slices, by address family and ports."""
    families = (service.get("spec") or {}).get("ipFamilies") or ["IPv4"]
    groups: dict[Group, list[Document]] = {}
    for pod in pods:
        if not can_serve(pod):
            continue
        ports = ports_of(service, pod)
        for family in families:
            endpoint = slice_endpoint(service, pod, family, zone_of(pod.spec.node_name or ""))
            if endpoint is not None:
                groups.setdefault(Group(family, ports), []).append(endpoint)
    return groups


def _target_reference(pod: Pod) -> Document:
    metadata = pod.metadata
    return {"kind": "Pod", "namespace": metadata.namespace, "name": metadata.name, "uid": metadata.uid}


def _hostname(service: Document, pod: Pod) -> Document:
    """Return the host name of a Pod whose subdomain is the Service: DNS then knows it by that name."""
    name = (service.get("metadata") or {}).get("name")
    return {"hostname": pod.spec.hostname} if pod.spec.hostname and pod.spec.subdomain == name else {}


def last_change(service: Document, pods: Iterable[Pod]) -> str:
    """Return when the Service or the readiness of its Pods last changed."""
    created = (service.get("metadata") or {}).get("creationTimestamp") or ""
    times: list[datetime] = []
    for pod in pods:
        times += [
            item.last_transition_time
            for item in pod.status.conditions
            if item.type == "Ready" and item.last_transition_time is not None
        ]
    newest = max(times, default=None)
    return max(created, newest.strftime("%Y-%m-%dT%H:%M:%SZ")) if newest is not None else created


# --- Endpoints. ---


def plan_subsets(service: Document, pods: Iterable[Pod]) -> list[Document]:
    """Return the subsets of the Service's Endpoints: addresses with the same ports together, sorted."""
    family = ((service.get("spec") or {}).get("ipFamilies") or ["IPv4"])[0]
    publish = bool((service.get("spec") or {}).get("publishNotReadyAddresses"))
    by_ports: dict[tuple[EndpointPort, ...], tuple[list[Document], list[Document]]] = {}
    for pod in pods:
        if not can_serve(pod) or pod.metadata.deletion_timestamp is not None:
            continue
        ports = ports_of(service, pod)
        addresses = addresses_of(pod, family)
        if not addresses or not (ports or is_headless(service)):
            continue
        address: Document = {"ip": addresses[0], "targetRef": _target_reference(pod)} | _hostname(service, pod)
        if pod.spec.node_name:
            address["nodeName"] = pod.spec.node_name
        ready, not_ready = by_ports.setdefault(tuple(sorted(ports)), ([], []))
        (ready if publish or is_ready(pod) else not_ready).append(address)
    return [_subset(ports, *by_ports[ports]) for ports in sorted(by_ports)]


def _subset(ports: Sequence[EndpointPort], ready: list[Document], not_ready: list[Document]) -> Document:
    found: Document = {}
    if ready:
        found["addresses"] = sorted(ready, key=_address_order)
    if not_ready:
        found["notReadyAddresses"] = sorted(not_ready, key=_address_order)
    if ports:
        found["ports"] = [_subset_port(port) for port in ports]
    return found


def _subset_port(port: EndpointPort) -> Document:
    """Return a port of Endpoints, in which an empty name is absent."""
    found = port.document()
    return found if port.name else {key: value for key, value in found.items() if key != "name"}


def _address_order(address: Document) -> tuple[int, str]:
    return int(ip_address(address["ip"])), address["targetRef"]["uid"] or ""


def truncated(subsets: list[Document], limit: int) -> tuple[list[Document], bool]:
    """Return the subsets with so many addresses at most, and whether some were left out; ready ones go first."""
    total = sum(len(item.get(field) or ()) for item in subsets for field in ("addresses", "notReadyAddresses"))
    if total <= limit:
        return subsets, False
    remaining = limit
    kept = [dict(item) for item in subsets]
    for field in ("addresses", "notReadyAddresses"):
        for item in kept:
            item[field] = (item.get(field) or [])[:remaining]
            remaining -= len(item[field])
    return [{key: value for key, value in item.items() if value} for item in kept if _has_addresses(item)], True


def _has_addresses(subset: Document) -> bool:
    return bool(subset.get("addresses") or subset.get("notReadyAddresses"))


def mirrored_groups(endpoints: Document, limit: int) -> Iterator[tuple[Group, list[Document]]]:
    """Yield the addresses of Endpoints as endpoints of slices, by family and ports; `limit` for each subset."""
    groups: dict[Group, dict[str, Document]] = {}
    for subset in endpoints.get("subsets") or ():
        ports = tuple(map(EndpointPort.read, subset.get("ports") or ()))
        addresses = [(item, True) for item in subset.get("addresses") or ()]
        addresses += [(item, False) for item in subset.get("notReadyAddresses") or ()]
        for item, ready in addresses[:limit]:
            group = Group(f"IPv{ip_address(item['ip']).version}", ports)
            groups.setdefault(group, {}).setdefault(item["ip"], _mirrored(item, ready=ready))
    for group, found in groups.items():
        yield group, list(found.values())


def _mirrored(address: Document, *, ready: bool) -> Document:
    endpoint: Document = {"addresses": [address["ip"]], "conditions": {"ready": ready}}
    kept = {key: address[key] for key in ("targetRef", "nodeName", "hostname") if address.get(key)}
    return endpoint | kept
