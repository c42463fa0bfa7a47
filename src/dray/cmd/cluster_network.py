"""The API objects that Pod networks need: what nodes may read, and the Service of the cluster's DNS."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Final

from dray.api.document import Document
from dray.api.errors import AlreadyExistsError
from dray.client.interface import Client
from dray.client.resources import CLUSTER_ROLE_BINDINGS, SERVICES
from dray.node.network.service_network import KUBE_DNS

# kubeadm's and kind's: the tenth address of the range.
_DNS_POSITION: Final = 10
_BINDING: Final[Document] = {
    "metadata": {"name": "dray:node-network"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node-proxier"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"}],
}


async def create_network_objects(client: Client, service_range: str) -> None:
    """Create what is missing; nodes then read all Nodes, Services and EndpointSlices, as kube-proxy does."""
    for create in (
        client.create(CLUSTER_ROLE_BINDINGS, _BINDING),
        client.create(SERVICES, _dns_service(service_range), KUBE_DNS.namespace),
    ):
        try:
            await create
        except AlreadyExistsError:
            continue


def _dns_service(service_range: str) -> Document:
    ports = [
        {"name": "dns", "port": 53, "targetPort": 53, "protocol": "UDP"},
        {"name": "dns-tcp", "port": 53, "targetPort": 53, "protocol": "TCP"},
    ]
    return {
        "metadata": {
            "name": KUBE_DNS.name,
            "namespace": KUBE_DNS.namespace,
            "labels": {"k8s-app": "kube-dns"},
        },
        "spec": {"clusterIP": str(ip_network(service_range)[_DNS_POSITION]), "ports": ports},
    }
