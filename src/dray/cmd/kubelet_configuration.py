"""The settings of the agent as a KubeletConfiguration, which `/configz` serves."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from dray.api.document import Document
from dray.api.timestamps import format_duration
from dray.cmd.settings import NodeSettings
from dray.node.agent.kubelet_authorization import ALLOWED_SECONDS, DENIED_SECONDS, TOKEN_SECONDS
from dray.node.runtimes.cri.images import USED_PERCENT_HIGH, USED_PERCENT_LOW

CLUSTER_DOMAIN: Final = "cluster.local"


def kubelet_configuration(settings: NodeSettings, port: int) -> Document:
    """Return the fields of kubelet.config.k8s.io/v1beta1 that the agent has, with their values."""
    return {
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "address": settings.host,
        "port": port,
        "healthzPort": settings.healthz_port,
        "healthzBindAddress": settings.healthz_bind_address,
        "rotateCertificates": settings.rotate_certificates,
        "serverTLSBootstrap": settings.rotate_server_certificates and not settings.tls_cert_file,
        "authentication": {
            "x509": {"clientCAFile": settings.client_ca_file} if settings.client_ca_file else {},
            "webhook": {"enabled": True, "cacheTTL": _duration(TOKEN_SECONDS)},
            "anonymous": {"enabled": False},
        },
        "authorization": {
            "mode": "Webhook",
            "webhook": {
                "cacheAuthorizedTTL": _duration(ALLOWED_SECONDS),
                "cacheUnauthorizedTTL": _duration(DENIED_SECONDS),
            },
        },
        "clusterDomain": CLUSTER_DOMAIN,
        "clusterDNS": list(settings.cluster_dns),
        "nodeLeaseDurationSeconds": settings.node_lease_duration_seconds,
        "nodeStatusReportFrequency": _duration(settings.node_status_report_frequency),
        "maxPods": settings.max_pods,
        "imageGCHighThresholdPercent": USED_PERCENT_HIGH,
        "imageGCLowThresholdPercent": USED_PERCENT_LOW,
        "serializeImagePulls": settings.max_parallel_image_pulls == 1,
        "maxParallelImagePulls": settings.max_parallel_image_pulls,
        "cpuManagerPolicy": settings.cpu_manager_policy,
        "memoryManagerPolicy": settings.memory_manager_policy,
        "topologyManagerPolicy": settings.topology_manager_policy,
        "topologyManagerScope": settings.topology_manager_scope,
        "featureGates": dict(sorted(settings.feature_gates.overrides.items())),
        **_reserved(settings),
        **_runtime_endpoint(settings),
    }


def _reserved(settings: NodeSettings) -> Document:
    """Return what is kept for the system: CPUs, and memory by NUMA node."""
    reserved: Document = {"reservedSystemCPUs": settings.reserved_cpus} if settings.reserved_cpus else {}
    memory = []
    for part in filter(None, settings.reserved_memory.split(";")):
        numa, _, limits = part.partition(":")
        pairs = (item.partition("=") for item in limits.split(","))
        memory.append({"numaNode": int(numa), "limits": {name: value for name, _, value in pairs}})
    return reserved | ({"reservedMemory": memory} if memory else {})


def _runtime_endpoint(settings: NodeSettings) -> Document:
    return {"containerRuntimeEndpoint": settings.container_runtime_endpoint} if settings.runtime == "cri" else {}


def _duration(seconds: float) -> str:
    return format_duration(timedelta(seconds=seconds))
