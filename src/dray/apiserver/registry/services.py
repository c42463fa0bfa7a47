"""Services, Endpoints and EndpointSlices."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.validation.core_v1_service import (
    service_warnings,
    validate_service,
    validate_service_status,
    validate_service_update,
)
from dray.api.validation.discovery_v1 import (
    validate_endpoint_slice,
    validate_endpoint_slice_update,
    validate_endpoints,
)
from dray.apiserver.registry.columns import AGE, NAME, text_cell
from dray.apiserver.registry.generic import GenericStatusStrategy, GenericStrategy
from dray.apiserver.registry.strategy import (
    Column,
    ResourceDefinition,
    proxy_of,
)

_NONE: Final = "<none>"
# Tables show so many endpoints, and the number of the others.
_SHOWN_MAX: Final = 3


def _spec(service: Document) -> Document:
    spec: Document = service.get("spec") or {}
    return spec


def _cluster_ip(service: Document, now: datetime) -> str:
    return ",".join(_spec(service).get("clusterIPs") or ()) or _NONE


def _external_ip(service: Document, now: datetime) -> str:
    spec = _spec(service)
    if spec.get("type") == "ExternalName":
        return spec.get("externalName") or ""
    addresses = list(spec.get("externalIPs") or ())
    if spec.get("type") == "LoadBalancer":
        ingress = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
        addresses = [item.get("ip") or item.get("hostname") or "" for item in ingress] + addresses
        return ",".join(addresses) or "<pending>"
    return ",".join(addresses) or _NONE


def _ports(service: Document, now: datetime) -> str:
    def text(port: Document) -> str:
        node = f":{port['nodePort']}" if port.get("nodePort") else ""
        return f"{port.get('port', 0)}{node}/{port.get('protocol', '')}"

    return ",".join(map(text, _spec(service).get("ports") or ())) or _NONE


def _selector(service: Document, now: datetime) -> str:
    selector = _spec(service).get("selector") or {}
    return ",".join(f"{key}={selector[key]}" for key in sorted(selector)) or _NONE


SERVICES: Final = ResourceDefinition(
    group="",
    resource="services",
    singular="service",
    kind="Service",
    namespaced=True,
    versions=("v1",),
    storage_version="v1",
    strategy=GenericStrategy(
        validate_service,
        validate_service_update,
        initial_status={"loadBalancer": {}},
        generation=False,
        create_on_update=True,
        name_rule="label",
        warn=service_warnings,
    ),
    status_strategy=GenericStatusStrategy(validate_service_status),
    subresources=(proxy_of("Service"),),
    short_names=("svc",),
    categories=("all",),
    columns=(
        NAME,
        Column("Type", "string", "How the service is reached.", text_cell("spec", "type")),
        Column("Cluster-IP", "string", "Its addresses in the cluster.", _cluster_ip),
        Column("External-IP", "string", "Its addresses outside the cluster.", _external_ip),
        Column("Port(s)", "string", "Its ports, and those on nodes.", _ports),
        AGE,
        Column("Selector", "string", "The labels of its pods.", _selector, priority=1),
    ),
    selectable_fields={
        "spec.clusterIP": lambda service: _spec(service).get("clusterIP") or "",
        "spec.type": lambda service: _spec(service).get("type") or "",
    },
)


def _shown(items: list[str]) -> str:
    if not items:
        return _NONE
    more = len(items) - _SHOWN_MAX
    return ",".join(items[:_SHOWN_MAX]) + (f" + {more} more..." if more > 0 else "")


def _addresses(endpoints: Document) -> Iterator[str]:
    for subset in endpoints.get("subsets") or ():
        ports = subset.get("ports") or ()
        for item in subset.get("addresses") or ():
            address = item.get("ip") or ""
            shown = f"[{address}]" if ":" in address else address
            if not ports:
                yield address
            for port in ports:
                yield f"{shown}:{port.get('port', 0)}"


ENDPOINTS: Final = ResourceDefinition(
    group="",
    resource="endpoints",
    singular="endpoints",
    kind="Endpoints",
    namespaced=True,
    versions=("v1",),
    storage_version="v1",
    strategy=GenericStrategy(validate_endpoints, generation=False, create_on_update=True),
    short_names=("ep",),
    columns=(
        NAME,
        Column(
            "Endpoints", "string", "Addresses and ports.", lambda endpoints, now: _shown(list(_addresses(endpoints)))
        ),
        AGE,
    ),
)


def _slice_ports(endpoint_slice: Document, now: datetime) -> str:
    ports = endpoint_slice.get("ports")
    if ports is None:
        return "<unset>"
    return _shown(["*" if port.get("port") is None else str(port["port"]) for port in ports])


def _slice_endpoints(endpoint_slice: Document, now: datetime) -> str:
    endpoints = endpoint_slice.get("endpoints")
    if endpoints is None:
        return "<unset>"
    return _shown([address for endpoint in endpoints for address in endpoint.get("addresses") or ()])


ENDPOINT_SLICES: Final = ResourceDefinition(
    group="discovery.k8s.io",
    resource="endpointslices",
    singular="endpointslice",
    kind="EndpointSlice",
    namespaced=True,
    versions=("v1",),
    storage_version="v1",
    strategy=GenericStrategy(validate_endpoint_slice, validate_endpoint_slice_update),
    columns=(
        NAME,
        Column("AddressType", "string", "The kind of the addresses.", text_cell("addressType")),
        Column("Ports", "string", "The ports of all endpoints.", _slice_ports),
        Column("Endpoints", "string", "The addresses of the endpoints.", _slice_endpoints),
        AGE,
    ),
)

DEFINITIONS: Final = (SERVICES, ENDPOINTS, ENDPOINT_SLICES)
