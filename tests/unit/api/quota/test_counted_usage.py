"""Usage of Services and volume claims: numbers, ports and storage."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.document import GroupResource
from dray.api.quota.names import SERVICES, VOLUME_CLAIMS, counted_resource, measures
from dray.api.quota.usage import counted_usage, write_amounts

Document = dict[str, Any]
PORTS = [{"port": 80}, {"port": 443}]

# Kind and spec -> usage.
USAGES: dict[str, tuple[GroupResource, Document, Document]] = {
    "cluster service": (
        SERVICES,
        {"type": "ClusterIP", "ports": PORTS},
        {"services": "1", "services.nodeports": "0", "services.loadbalancers": "0"},
    ),
    "node ports": (
        SERVICES,
        {"type": "NodePort", "ports": PORTS},
        {"services": "1", "services.nodeports": "2", "services.loadbalancers": "0"},
    ),
    "load balancer": (
        SERVICES,
        {"type": "LoadBalancer", "ports": PORTS},
        {"services": "1", "services.nodeports": "2", "services.loadbalancers": "1"},
    ),
    "load balancer without node ports": (
        SERVICES,
        {"type": "LoadBalancer", "allocateLoadBalancerNodePorts": False, "ports": [*PORTS, {"nodePort": 30000}]},
        {"services": "1", "services.nodeports": "1", "services.loadbalancers": "1"},
    ),
    "claim": (
        VOLUME_CLAIMS,
        {"resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "fast"},
        {
            "persistentvolumeclaims": "1",
            "requests.storage": "1Gi",
            "fast.storageclass.storage.k8s.io/requests.storage": "1Gi",
            "fast.storageclass.storage.k8s.io/persistentvolumeclaims": "1",
        },
    ),
}


@pytest.mark.parametrize("name", USAGES)
def test_usage(name: str) -> None:
    resource, spec, expected = USAGES[name]
    usage = write_amounts(counted_usage(resource, {"spec": spec}))
    assert usage == expected | {f"count/{resource}": "1"}
    for item in usage:
        assert counted_resource(item) == resource
        assert measures(item, resource, extended=True)


def test_other_kinds_are_counted_by_number() -> None:
    ingresses = GroupResource("networking.k8s.io", "ingresses")
    assert write_amounts(counted_usage(ingresses, {})) == {"count/ingresses.networking.k8s.io": "1"}
    assert not measures("services.nodeports", ingresses, extended=True)


def test_the_larger_size_of_a_claim_counts() -> None:
    claim = {
        "spec": {"resources": {"requests": {"storage": "1Gi"}}},
        "status": {"allocatedResources": {"storage": "2Gi"}},
    }
    assert write_amounts(counted_usage(VOLUME_CLAIMS, claim))["requests.storage"] == "2Gi"
