"""The environment variables of Services."""

from __future__ import annotations

from typing import Any

import pytest

from dray.node.agent.pod.service_environment import service_variables
from tests.unit.node.agent.builders import pod


def service(name: str, namespace: str = "ns", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterIP": "10.96.0.7", "ports": [{"port": 80, "protocol": "TCP"}], **spec},
    }


KUBERNETES = service(
    "kubernetes", "default", clusterIP="10.96.0.1", ports=[{"name": "https", "port": 443, "protocol": "TCP"}]
)
OF_KUBERNETES = {
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "KUBERNETES_SERVICE_PORT": "443",
    "KUBERNETES_SERVICE_PORT_HTTPS": "443",
    "KUBERNETES_PORT": "tcp://10.96.0.1:443",
    "KUBERNETES_PORT_443_TCP": "tcp://10.96.0.1:443",
    "KUBERNETES_PORT_443_TCP_PROTO": "tcp",
    "KUBERNETES_PORT_443_TCP_PORT": "443",
    "KUBERNETES_PORT_443_TCP_ADDR": "10.96.0.1",
}


@pytest.mark.behaviour("SV-20")
def test_services_of_the_namespace_and_the_api_server() -> None:
    ports = [{"name": "dns-udp", "port": 53, "protocol": "UDP"}, {"name": "web", "port": 80, "protocol": "TCP"}]
    services = [
        KUBERNETES,
        service("my-db", ports=ports),
        service("elsewhere", "other"),
        service("headless", clusterIP="None"),
        service("external", clusterIP="", type="ExternalName"),
    ]
    assert service_variables(pod(), services) == OF_KUBERNETES | {
        "MY_DB_SERVICE_HOST": "10.96.0.7",
        "MY_DB_SERVICE_PORT": "53",
        "MY_DB_SERVICE_PORT_DNS_UDP": "53",
        "MY_DB_SERVICE_PORT_WEB": "80",
        "MY_DB_PORT": "udp://10.96.0.7:53",
        "MY_DB_PORT_53_UDP": "udp://10.96.0.7:53",
        "MY_DB_PORT_53_UDP_PROTO": "udp",
        "MY_DB_PORT_53_UDP_PORT": "53",
        "MY_DB_PORT_53_UDP_ADDR": "10.96.0.7",
        "MY_DB_PORT_80_TCP": "tcp://10.96.0.7:80",
        "MY_DB_PORT_80_TCP_PROTO": "tcp",
        "MY_DB_PORT_80_TCP_PORT": "80",
        "MY_DB_PORT_80_TCP_ADDR": "10.96.0.7",
    }


@pytest.mark.behaviour("SV-20")
def test_a_pod_may_decline_the_services_of_its_namespace() -> None:
    services = [KUBERNETES, service("my-db"), service("kubernetes-too")]
    assert service_variables(pod(enableServiceLinks=False), services) == OF_KUBERNETES


@pytest.mark.behaviour("SV-21")
def test_without_a_way_to_cluster_ips_the_server_has_its_own_address() -> None:
    found = service_variables(pod(), [KUBERNETES], ("192.0.2.2", 6443))
    assert found["KUBERNETES_SERVICE_HOST"] == "192.0.2.2"
    assert found["KUBERNETES_SERVICE_PORT"] == found["KUBERNETES_SERVICE_PORT_HTTPS"] == "6443"
    assert found["KUBERNETES_PORT_6443_TCP_ADDR"] == "192.0.2.2"
    assert "KUBERNETES_PORT_443_TCP" not in found
    # Also before the Service has been seen.
    assert service_variables(pod(), [], ("192.0.2.2", 6443)) == found
