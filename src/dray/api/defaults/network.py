"""Defaults of Services, Endpoints, EndpointSlices and NetworkPolicies."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from dray.api.defaults import Defaulters
from dray.api.document import Document, GroupVersion

_STICKY_SECONDS: Final = 10800


def _default_service(obj: Document, _now: datetime) -> None:
    spec = obj.setdefault("spec", {})
    _default_affinity(spec)
    kind = spec["type"] = spec.get("type") or "ClusterIP"
    for port in spec.get("ports") or ():
        if not port.get("protocol"):
            port["protocol"] = "TCP"
        if not port.get("targetPort"):
            port["targetPort"] = port.get("port", 0)
    if is_externally_accessible(spec) and not spec.get("externalTrafficPolicy"):
        spec["externalTrafficPolicy"] = "Cluster"
    if kind != "ExternalName" and spec.get("internalTrafficPolicy") is None:
        spec["internalTrafficPolicy"] = "Cluster"
    if kind == "LoadBalancer":
        _default_load_balancer(obj, spec)


def _default_affinity(spec: Document) -> None:
    if not spec.get("sessionAffinity"):
        spec["sessionAffinity"] = "None"
    if spec["sessionAffinity"] == "None":
        spec.pop("sessionAffinityConfig", None)
    elif spec["sessionAffinity"] == "ClientIP":
        config = spec["sessionAffinityConfig"] = spec.get("sessionAffinityConfig") or {}
        client = config["clientIP"] = config.get("clientIP") or {}
        if client.get("timeoutSeconds") is None:
            client["timeoutSeconds"] = _STICKY_SECONDS


def _default_load_balancer(obj: Document, spec: Document) -> None:
    if spec.get("allocateLoadBalancerNodePorts") is None:
        spec["allocateLoadBalancerNodePorts"] = True
    for ingress in ((obj.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ():
        if ingress.get("ip") and ingress.get("ipMode") is None:
            ingress["ipMode"] = "VIP"


def is_externally_accessible(spec: Document) -> bool:
    """Report whether traffic from outside the cluster can reach the Service."""
    kind = spec.get("type")
    return kind in ("LoadBalancer", "NodePort") or (kind == "ClusterIP" and bool(spec.get("externalIPs")))


def _default_endpoints(obj: Document, _now: datetime) -> None:
    for subset in obj.get("subsets") or ():
        for port in subset.get("ports") or ():
            if not port.get("protocol"):
                port["protocol"] = "TCP"


def _default_endpoint_slice(obj: Document, _now: datetime) -> None:
    for port in obj.get("ports") or ():
        if port.get("name") is None:
            port["name"] = ""
        if not port.get("protocol"):
            port["protocol"] = "TCP"


def _default_network_policy(obj: Document, _now: datetime) -> None:
    spec = obj.setdefault("spec", {})
    for rule in (*(spec.get("ingress") or ()), *(spec.get("egress") or ())):
        for port in rule.get("ports") or ():
            if port.get("protocol") is None:
                port["protocol"] = "TCP"
    if not spec.get("policyTypes"):
        # A policy with egress rules isolates both directions.
        spec["policyTypes"] = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]


def _default_ingress_class(obj: Document, _now: datetime) -> None:
    parameters = (obj.get("spec") or {}).get("parameters")
    if parameters is not None and parameters.get("scope") is None:
        parameters["scope"] = "Cluster"


DEFAULTERS: Final[Defaulters] = {
    GroupVersion("", "v1").kind("Service"): _default_service,
    GroupVersion("", "v1").kind("Endpoints"): _default_endpoints,
    GroupVersion("discovery.k8s.io", "v1").kind("EndpointSlice"): _default_endpoint_slice,
    GroupVersion("networking.k8s.io", "v1").kind("IngressClass"): _default_ingress_class,
    GroupVersion("networking.k8s.io", "v1").kind("NetworkPolicy"): _default_network_policy,
}
