"""What the ports of Services lead to, from Services and EndpointSlices. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from dray.api.document import Document, NamespacedName, key_of
from dray.api.services import NONE

SERVICE_LABEL: Final = "kubernetes.io/service-name"


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """An address and a port that serve."""

    address: str
    port: int


@dataclass(frozen=True, slots=True)
class ServicePort:
    """A port of a Service; `targets` are for connections to its address, `external` for those to its node port."""

    name: str
    protocol: str
    address: str
    port: int
    targets: tuple[Target, ...]
    node_port: int = 0
    external: tuple[Target, ...] = ()
    # Whether connections by the node port keep their source and stay on the node.
    is_external_local: bool = False
    # How long a client keeps its endpoint; 0 for no affinity.
    affinity_seconds: int = 0


def service_ports(
    services: Iterable[Document],
    slices: Iterable[Document],
    node_name: str,
    replaced: Mapping[NamespacedName, Target] | None = None,
) -> tuple[ServicePort, ...]:
    """Return the ports of all Services with an IPv4 address, sorted by name.

    `replaced` has targets of Services that this node reaches in its own way.
    """
    by_service: dict[NamespacedName, list[Document]] = {}
    for item in slices:
        name = (item["metadata"].get("labels") or {}).get(SERVICE_LABEL)
        if name and item.get("addressType") == "IPv4":
            by_service.setdefault(NamespacedName(item["metadata"].get("namespace") or "", name), []).append(item)
    found: list[ServicePort] = []
    for service in services:
        key, spec = key_of(service), service.get("spec") or {}
        address = spec.get("clusterIP") or NONE
        if spec.get("type") == "ExternalName" or address == NONE or ":" in address:
            continue
        own = (replaced or {}).get(key)
        found += _ports(key, spec, by_service.get(key, ()), node_name, own)
    return tuple(sorted(found, key=lambda item: item.name))


def _ports(
    key: NamespacedName, spec: Document, slices: Iterable[Document], node_name: str, own: Target | None
) -> Iterator[ServicePort]:
    slices = list(slices)
    is_sticky = spec.get("sessionAffinity") == "ClientIP"
    client = (spec.get("sessionAffinityConfig") or {}).get("clientIP") or {}
    for port in spec.get("ports") or ():
        if (port.get("protocol") or "TCP") == "SCTP":
            continue
        every = [(own, True)] if own is not None else _targets(slices, port.get("name") or "", node_name)
        local = [target for target, is_local in every if is_local]
        all_targets = [target for target, _ in every]
        internal = local if spec.get("internalTrafficPolicy") == "Local" else all_targets
        is_local = spec.get("externalTrafficPolicy") == "Local"
        yield ServicePort(
            name=f"{key}:{port.get('name') or ''}",
            protocol=(port.get("protocol") or "TCP").lower(),
            address=spec["clusterIP"],
            port=port["port"],
            targets=_unique(internal),
            node_port=port.get("nodePort") or 0,
            external=_unique(local if is_local else all_targets),
            is_external_local=is_local,
            affinity_seconds=(client.get("timeoutSeconds") or 10800) if is_sticky else 0,
        )


def _unique(targets: Iterable[Target]) -> tuple[Target, ...]:
    return tuple(sorted(set(targets)))


def _targets(slices: Iterable[Document], port_name: str, node_name: str) -> list[tuple[Target, bool]]:
    """Return the ready endpoints of a port and whether each is on this node; those that still serve if none is."""
    ready: list[tuple[Target, bool]] = []
    serving: list[tuple[Target, bool]] = []
    for item in slices:
        numbers = [port.get("port") for port in item.get("ports") or () if (port.get("name") or "") == port_name]
        for endpoint in item.get("endpoints") or ():
            conditions = endpoint.get("conditions") or {}
            is_local = endpoint.get("nodeName") in (None, node_name)
            found = [
                (Target(address, number), is_local)
                for address in (endpoint.get("addresses") or ())[:1]
                for number in numbers
                if number
            ]
            if conditions.get("ready") is not False:
                ready += found
            elif conditions.get("serving") and conditions.get("terminating"):
                serving += found
    return ready or serving
