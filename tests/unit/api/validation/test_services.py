"""Services, Endpoints and EndpointSlices: validation and columns."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dray.api.validation.core_v1_service import validate_service, validate_service_status
from dray.api.validation.discovery_v1 import (
    validate_endpoint_slice,
    validate_endpoint_slice_update,
    validate_endpoints,
)
from dray.apiserver.registry import builtin
from dray.apiserver.registry.services import ENDPOINT_SLICES, ENDPOINTS, SERVICES

Document = dict[str, Any]
NOW = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)
PORT = {"port": 80, "protocol": "TCP", "targetPort": 80}


def service(**spec: Any) -> Document:
    made: Document = {"metadata": {"name": "web"}, "spec": {"ports": [dict(PORT)], **spec}}
    default = builtin.endpoint(SERVICES, "v1").default
    assert default is not None
    default(made, NOW)
    return made


# Spec -> errors.
SPECS: dict[str, tuple[Document, list[str]]] = {
    "valid": ({}, []),
    "no ports": ({"ports": []}, ["spec.ports: Required value"]),
    "headless without ports": ({"ports": [], "clusterIP": "None", "clusterIPs": ["None"]}, []),
    "type": (
        {"type": "Wheelbarrow", "internalTrafficPolicy": "Cluster"},
        [
            'spec.type: Unsupported value: "Wheelbarrow": supported values: "ClusterIP", "ExternalName", '
            '"LoadBalancer", "NodePort"'
        ],
    ),
    "port": (
        {"ports": [{"port": 65536}]},
        [
            "spec.ports[0].port: Invalid value: 65536: must be between 1 and 65535, inclusive",
            "spec.ports[0].targetPort: Invalid value: 65536: must be between 1 and 65535, inclusive",
        ],
    ),
    "unnamed": (
        {"ports": [{"port": 1, "name": "a"}, {"port": 2}]},
        ["spec.ports[1].name: Required value"],
    ),
    "duplicate names": (
        {"ports": [{"port": 1, "name": "a"}, {"port": 2, "name": "a"}]},
        ['spec.ports[1].name: Duplicate value: "a"'],
    ),
    "protocol": (
        {"ports": [{"port": 1, "protocol": "QUIC"}]},
        ['spec.ports[0].protocol: Unsupported value: "QUIC": supported values: "SCTP", "TCP", "UDP"'],
    ),
    "affinity": (
        {"sessionAffinity": "Sticky"},
        ['spec.sessionAffinity: Unsupported value: "Sticky": supported values: "ClientIP", "None"'],
    ),
    "affinity timeout": (
        {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 86401}}},
        [
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 86401: must be greater than 0 and less "
            "than 86400"
        ],
    ),
    "node port of a cluster service": (
        {"ports": [PORT | {"nodePort": 30000}]},
        ["spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"],
    ),
    "external name": ({"type": "ExternalName", "ports": []}, ["spec.externalName: Required value"]),
    "headless load balancer": (
        {"type": "LoadBalancer", "clusterIP": "None", "clusterIPs": ["None"]},
        ["spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for LoadBalancer services"],
    ),
    "external policy": (
        {"externalTrafficPolicy": "Local"},
        ['spec.externalTrafficPolicy: Invalid value: "Local": may only be set for externally-accessible services'],
    ),
    "external address": (
        {"externalIPs": ["myhost"]},
        ['spec.externalIPs[0]: Invalid value: "myhost": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)'],
    ),
}


@pytest.mark.behaviour("SV-03")
@pytest.mark.parametrize("name", SPECS)
def test_service(name: str) -> None:
    spec, expected = SPECS[name]
    assert [str(error) for error in validate_service(service(**spec))] == expected


def test_only_load_balancers_have_ingress() -> None:
    status = {"status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}}
    assert validate_service_status(service(type="LoadBalancer") | status, {}) == []
    (error,) = validate_service_status(service() | status, {})
    assert str(error) == ("status.loadBalancer.ingress: Forbidden: may only be used when `spec.type` is 'LoadBalancer'")


@pytest.mark.behaviour("SV-01")
def test_service_columns() -> None:
    made = service(type="NodePort", clusterIPs=["10.96.0.9"], selector={"b": "2", "a": "1"})
    made["spec"]["ports"][0]["nodePort"] = 30001
    cells = [column.cell(made, NOW) for column in SERVICES.columns]
    assert cells == ["web", "NodePort", "10.96.0.9", "<none>", "80:30001/TCP", "<unknown>", "a=1,b=2"]
    balanced = service(type="LoadBalancer", externalIPs=["5.6.7.8"])
    assert SERVICES.columns[3].cell(balanced, NOW) == "5.6.7.8"
    assert SERVICES.columns[3].cell(service(type="LoadBalancer"), NOW) == "<pending>"
    assert SERVICES.columns[3].cell(service(type="ExternalName", externalName="a.org"), NOW) == "a.org"
    assert SERVICES.selectable_fields["spec.type"](made) == "NodePort"


def endpoints(address: str, name: str = "web") -> Document:
    subset = {"addresses": [{"ip": address}], "ports": [{"port": 80, "protocol": "TCP"}]}
    return {"metadata": {"name": name, "namespace": "default"}, "subsets": [subset]}


def test_endpoints() -> None:
    assert validate_endpoints(endpoints("1.2.3.4")) == []
    (error,) = validate_endpoints(endpoints("127.0.0.1"))
    assert str(error) == (
        'subsets[0].addresses[0].ip: Invalid value: "127.0.0.1": may not be in the loopback range '
        "(127.0.0.0/8, ::1/128)"
    )
    # The API server's own.
    assert validate_endpoints(endpoints("127.0.0.1", "kubernetes")) == []
    (error,) = validate_endpoints({"subsets": [{}]})
    assert str(error) == "subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`"
    assert ENDPOINTS.columns[1].cell(endpoints("1.2.3.4"), NOW) == "1.2.3.4:80"


def endpoint_slice(*addresses: str, **fields: Any) -> Document:
    return {
        "metadata": {"name": "web"},
        "addressType": "IPv4",
        "endpoints": [{"addresses": list(addresses)}],
        "ports": [{"name": "", "port": 80, "protocol": "TCP"}],
        **fields,
    }


def test_endpoint_slice() -> None:
    assert validate_endpoint_slice(endpoint_slice("1.2.3.4")) == []
    assert [str(error) for error in validate_endpoint_slice(endpoint_slice(addressType="DNS"))] == [
        'addressType: Unsupported value: "DNS": supported values: "FQDN", "IPv4", "IPv6"',
        "endpoints[0].addresses: Required value: must contain at least 1 address",
    ]
    (error,) = validate_endpoint_slice(endpoint_slice("2001:db8::1"))
    assert error.path == "endpoints[0].addresses[0]"
    (error,) = validate_endpoint_slice(endpoint_slice("1.2.3.4", endpoints=[{"addresses": ["1.2.3.4"]}] * 1001))
    assert str(error) == "endpoints: Too many: 1001: must have at most 1000 items"
    (error,) = validate_endpoint_slice_update(endpoint_slice("a.org", addressType="FQDN"), endpoint_slice("1.2.3.4"))
    assert str(error) == 'addressType: Invalid value: "FQDN": field is immutable'
    cells = [
        column.cell(endpoint_slice("1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4"), NOW)
        for column in ENDPOINT_SLICES.columns
    ]
    assert cells[1:4] == ["IPv4", "80", "1.1.1.1,2.2.2.2,3.3.3.3 + 1 more..."]
