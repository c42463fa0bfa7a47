"""Which component acts on the objects of each kind; a kind that is not listed is only stored.

Data only. Creating an object of a kind that is only stored is answered with a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dray.api.document import GroupResource

_RBAC: Final = "rbac.authorization.k8s.io"
_DRA: Final = "resource.k8s.io"
_ADMISSION: Final = "admissionregistration.k8s.io"

ACTED_ON_BY: Final[Mapping[GroupResource, str]] = {
    GroupResource("", "configmaps"): "node agent",
    GroupResource("", "endpoints"): "endpoints controllers",
    GroupResource("", "events"): "API server (expiry)",
    GroupResource("", "limitranges"): "API server (LimitRanger)",
    GroupResource("", "namespaces"): "namespace controller",
    GroupResource("", "nodes"): "scheduler, node controllers",
    GroupResource("", "persistentvolumeclaims"): "scheduler, persistent volume and protection controllers, node agent",
    GroupResource("", "persistentvolumes"): "scheduler, persistent volume and protection controllers, node agent",
    GroupResource("", "pods"): "scheduler, node agent, controllers",
    GroupResource("", "replicationcontrollers"): "ReplicationController controller, scheduler (default spreading)",
    GroupResource("", "resourcequotas"): "API server (ResourceQuota), quota controller",
    GroupResource("", "secrets"): "node agent, API server (tokens)",
    GroupResource("", "serviceaccounts"): "API server (ServiceAccount), service account controller",
    GroupResource("", "services"): "API server (addresses), endpoints controllers, scheduler (default spreading)",
    GroupResource(_ADMISSION, "mutatingwebhookconfigurations"): "API server (MutatingAdmissionWebhook)",
    GroupResource(_ADMISSION, "validatingadmissionpolicies"): "API server (ValidatingAdmissionPolicy)",
    GroupResource(_ADMISSION, "validatingadmissionpolicybindings"): "API server (ValidatingAdmissionPolicy)",
    GroupResource(_ADMISSION, "validatingwebhookconfigurations"): "API server (ValidatingAdmissionWebhook)",
    GroupResource("apiextensions.k8s.io", "customresourcedefinitions"): "API server",
    GroupResource("apiregistration.k8s.io", "apiservices"): "API server (its own group versions)",
    GroupResource("apps", "controllerrevisions"): "DaemonSet and StatefulSet controllers",
    GroupResource("apps", "daemonsets"): "DaemonSet controller",
    GroupResource("apps", "deployments"): "Deployment controller",
    GroupResource("apps", "statefulsets"): "StatefulSet controller, scheduler (default spreading)",
    GroupResource("apps", "replicasets"): "ReplicaSet controller, scheduler (default spreading)",
    GroupResource("batch", "cronjobs"): "CronJob controller",
    GroupResource("batch", "jobs"): "Job controller",
    GroupResource("cdi.k8s.io", "resourceclaims"): "classic drivers, scheduler",
    GroupResource("cdi.k8s.io", "resourceclasses"): "classic drivers, scheduler",
    GroupResource("certificates.k8s.io", "certificatesigningrequests"): "certificate controller",
    GroupResource("coordination.k8s.io", "leases"): "node controllers, leader election",
    GroupResource("discovery.k8s.io", "endpointslices"): "endpoints controllers",
    GroupResource("events.k8s.io", "events"): "API server (expiry)",
    GroupResource("metrics.k8s.io", "nodes"): "API server (what nodes measure)",
    GroupResource("metrics.k8s.io", "pods"): "API server (what nodes measure)",
    GroupResource("networking.k8s.io", "ipaddresses"): "API server (cluster IPs)",
    GroupResource("networking.k8s.io", "servicecidrs"): "API server (its own range)",
    GroupResource("node.k8s.io", "runtimeclasses"): "API server (RuntimeClass), node agent",
    GroupResource("storage.k8s.io", "storageclasses"): "scheduler, persistent volume controller",
    GroupResource(
        "policy", "poddisruptionbudgets"
    ): "disruption controller, API server (evictions), scheduler (preemption)",
    GroupResource(_RBAC, "clusterrolebindings"): "API server (RBAC)",
    GroupResource(_RBAC, "clusterroles"): "API server (RBAC), role aggregation controller",
    GroupResource(_RBAC, "rolebindings"): "API server (RBAC)",
    GroupResource(_RBAC, "roles"): "API server (RBAC)",
    GroupResource(_DRA, "deviceclasses"): "scheduler",
    GroupResource(_DRA, "devicetaintrules"): "device taint eviction controller, scheduler",
    GroupResource(_DRA, "resourceclaims"): "scheduler, claim controller, node agent",
    GroupResource(_DRA, "resourceclaimtemplates"): "claim controller",
    GroupResource(_DRA, "resourcepoolstatusrequests"): "pool status controller",
    GroupResource(_DRA, "resourceslices"): "scheduler",
    GroupResource("scheduling.k8s.io", "podgroups"): "scheduler, claim controller, PodGroup protection controller",
    GroupResource("scheduling.k8s.io", "priorityclasses"): "API server (Priority)",
    GroupResource("scheduling.k8s.io", "workloads"): "Job controller",
}


def creation_warning(api_version: str, kind: str, resource: GroupResource) -> str:
    """Return the warning of a kind that nothing acts on, or the empty text."""
    if resource in ACTED_ON_BY:
        return ""
    return f"{api_version} {kind}: Dray stores objects of this kind, but none of its components acts on them"
