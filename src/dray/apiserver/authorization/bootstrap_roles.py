"""The default roles of Kubernetes, for the resources that are served here, and for components of other projects.

Data only. A rule is written `rule(verbs, groups, resources)`, each a list in one string; the core group is `core`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dray.api.bootstrap_tokens import NODE_GROUP
from dray.api.document import Document
from dray.apiserver.registry.pods import PODS
from dray.apiserver.registry.strategy import Content

_READ: Final = "get list watch"
_WRITE: Final = "create delete deletecollection patch update"
_READ_WRITE: Final = "create delete deletecollection get list patch update watch"


def rule(verbs: str, groups: str, resources: str, *, names: str = "") -> Document:
    """Return a rule on resources; `names` restricts it to objects of those names."""
    written: Document = {
        "apiGroups": ["" if group == "core" else group for group in groups.split()],
        "resources": resources.split(),
        "verbs": verbs.split(),
    }
    if names:
        written["resourceNames"] = names.split()
    return written


def paths(verbs: str, urls: str) -> Document:
    """Return a rule on paths."""
    return {"nonResourceURLs": urls.split(), "verbs": verbs.split()}


# The subresources of Pods that lead into them.
_CONNECTIONS: Final = " ".join(
    sorted(f"pods/{row.name}" for row in PODS.subresources if row.content is Content.CONNECTION)
)
_EVENTS: Final = rule("create patch update", "core events.k8s.io", "events")
_REVIEWS: Final = (
    rule("create", "authentication.k8s.io", "tokenreviews"),
    rule("create", "authorization.k8s.io", "subjectaccessreviews"),
)

# The signers of the cluster's own certificates.
_API_CLIENT: Final = "kubernetes.io/kube-apiserver-client"
_KUBELET_CLIENT: Final = "kubernetes.io/kube-apiserver-client-kubelet"
_KUBELET_SERVING: Final = "kubernetes.io/kubelet-serving"
_LEGACY_UNKNOWN: Final = "kubernetes.io/legacy-unknown"

# By the label that selects a role for aggregation.
AGGREGATED: Final[Mapping[str, str]] = {"admin": "admin", "edit": "edit", "view": "view"}

# Each aggregated role is part of the next larger one, and has its own rules.
AGGREGATED_LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    "edit": ("admin",),
    "view": ("edit",),
    "system:aggregate-to-admin": ("admin",),
    "system:aggregate-to-edit": ("edit",),
    "system:aggregate-to-view": ("view",),
    "system:aggregated-metrics-reader": ("admin", "edit", "view"),
}

NODE_RULES: Final = (
    *_REVIEWS,
    rule("create", "authorization.k8s.io", "localsubjectaccessreviews"),
    rule(_READ, "core", "services"),
    rule("create get list watch", "core", "nodes"),
    rule("patch update", "core", "nodes/status"),
    rule("patch update", "core", "nodes"),
    _EVENTS,
    rule(_READ, "core", "pods"),
    rule("create delete", "core", "pods"),
    rule("patch update", "core", "pods/status"),
    rule("create", "core", "pods/eviction"),
    rule(_READ, "core", "configmaps secrets"),
    rule("get", "core", "persistentvolumeclaims persistentvolumes"),
    rule("create", "core", "serviceaccounts/token"),
    rule("create delete get patch update", "coordination.k8s.io", "leases"),
    rule("create get list watch", "certificates.k8s.io", "certificatesigningrequests"),
    rule("create delete get patch update", "storage.k8s.io", "csinodes"),
    rule(_READ, "storage.k8s.io", "csidrivers"),
    rule(_READ, "node.k8s.io", "runtimeclasses"),
    rule("get", "resource.k8s.io", "resourceclaims"),
    rule(_READ_WRITE, "resource.k8s.io", "resourceslices"),
    rule("get", "cdi.k8s.io", "resourceclaims"),
    rule("patch update", "cdi.k8s.io", "resourceclaims/status"),
)

CLUSTER_ROLES: Final[Mapping[str, tuple[Document, ...]]] = {
    "cluster-admin": (rule("*", "*", "*"), paths("*", "*")),
    "system:aggregate-to-admin": (
        rule("create", "authorization.k8s.io", "localsubjectaccessreviews"),
        rule(_READ_WRITE, "rbac.authorization.k8s.io", "rolebindings roles"),
    ),
    "system:aggregate-to-edit": (
        rule(_READ, "core", f"{_CONNECTIONS} secrets services/proxy"),
        rule("impersonate", "core", "serviceaccounts"),
        rule(_WRITE, "core", f"pods {_CONNECTIONS}"),
        rule("create", "core", "pods/eviction"),
        rule(
            _WRITE,
            "core",
            "configmaps events persistentvolumeclaims replicationcontrollers replicationcontrollers/scale "
            "secrets serviceaccounts services services/proxy",
        ),
        rule("create", "core", "serviceaccounts/token"),
        rule(
            _WRITE,
            "apps",
            "daemonsets deployments deployments/rollback deployments/scale replicasets replicasets/scale "
            "statefulsets statefulsets/scale",
        ),
        rule(_WRITE, "autoscaling", "horizontalpodautoscalers"),
        rule(_WRITE, "batch", "cronjobs jobs"),
        rule(_WRITE, "policy", "poddisruptionbudgets"),
        rule(_WRITE, "events.k8s.io", "events"),
        rule(_WRITE, "networking.k8s.io", "ingresses networkpolicies"),
        rule(_READ_WRITE, "coordination.k8s.io", "leases"),
        rule(_WRITE, "resource.k8s.io", "resourceclaims resourceclaimtemplates"),
        rule(_WRITE, "scheduling.k8s.io", "podgroups workloads"),
        rule(_WRITE, "cdi.k8s.io", "resourceclaims"),
    ),
    "system:aggregated-metrics-reader": (rule(_READ, "metrics.k8s.io", "nodes pods"),),
    "system:aggregate-to-view": (
        rule(
            _READ,
            "core",
            "configmaps endpoints persistentvolumeclaims persistentvolumeclaims/status pods replicationcontrollers "
            "replicationcontrollers/scale serviceaccounts services services/status",
        ),
        rule(
            _READ,
            "core",
            "bindings events limitranges namespaces/status pods/log pods/status replicationcontrollers/status "
            "resourcequotas resourcequotas/status",
        ),
        rule(_READ, "core", "namespaces"),
        rule(_READ, "discovery.k8s.io", "endpointslices"),
        rule(_READ, "events.k8s.io", "events"),
        rule(
            _READ,
            "apps",
            "controllerrevisions daemonsets daemonsets/status deployments deployments/scale deployments/status "
            "replicasets replicasets/scale replicasets/status statefulsets statefulsets/scale statefulsets/status",
        ),
        rule(_READ, "autoscaling", "horizontalpodautoscalers horizontalpodautoscalers/status"),
        rule(_READ, "batch", "cronjobs cronjobs/status jobs jobs/status"),
        rule(_READ, "policy", "poddisruptionbudgets poddisruptionbudgets/status"),
        rule(_READ, "networking.k8s.io", "ingresses ingresses/status networkpolicies"),
        rule(_READ, "resource.k8s.io", "resourceclaims resourceclaims/status resourceclaimtemplates"),
        rule(_READ, "scheduling.k8s.io", "podgroups podgroups/status workloads"),
        rule(_READ, "cdi.k8s.io", "resourceclaims resourceclaims/status"),
    ),
    "system:auth-delegator": _REVIEWS,
    "system:basic-user": (
        rule("create", "authorization.k8s.io", "selfsubjectaccessreviews selfsubjectrulesreviews"),
        rule("create", "authentication.k8s.io", "selfsubjectreviews"),
    ),
    "system:discovery": (
        paths("get", "/api /api/* /apis /apis/* /healthz /livez /openapi /openapi/* /readyz /version /version/"),
    ),
    "system:public-info-viewer": (paths("get", "/healthz /livez /readyz /version /version/"),),
    "system:monitoring": (
        paths("get", "/flagz /healthz /healthz/* /livez /livez/* /metrics /metrics/slis /readyz /readyz/* /statusz"),
        rule("get", "core", "nodes/metrics"),
    ),
    "system:service-account-issuer-discovery": (
        paths(
            "get",
            "/.well-known/openid-configuration /.well-known/openid-configuration/ /openid/v1/jwks /openid/v1/jwks/",
        ),
    ),
    "system:kube-scheduler": (
        _EVENTS,
        rule("create", "coordination.k8s.io", "leases"),
        rule("get list update watch", "coordination.k8s.io", "leases", names="kube-scheduler"),
        rule(_READ_WRITE, "coordination.k8s.io", "leasecandidates"),
        rule(_READ, "core", "nodes namespaces"),
        rule("delete get list watch", "core", "pods"),
        rule("create", "core", "bindings pods/binding"),
        rule("patch update", "core", "pods/status"),
        rule(_READ, "core", "replicationcontrollers services persistentvolumeclaims persistentvolumes"),
        rule("update patch", "core", "persistentvolumes persistentvolumeclaims"),
        rule(_READ, "apps", "replicasets statefulsets"),
        rule(_READ, "policy", "poddisruptionbudgets"),
        rule(_READ, "scheduling.k8s.io", "podgroups workloads"),
        rule("patch update", "scheduling.k8s.io", "podgroups/status"),
        *_REVIEWS,
        rule(_READ, "storage.k8s.io", "csidrivers csinodes csistoragecapacities storageclasses volumeattachments"),
        rule(_READ, "resource.k8s.io", "deviceclasses devicetaintrules resourceclaimtemplates resourceslices"),
        # The scheduler creates the claims of extended resources backed by devices.
        rule("create delete get list patch update watch", "resource.k8s.io", "resourceclaims"),
        rule("patch update", "resource.k8s.io", "resourceclaims/binding"),
        rule("get list patch update watch", "resource.k8s.io", "resourceclaims/status"),
        rule(_READ, "cdi.k8s.io", "resourceclaims resourceclasses"),
        rule("patch update", "cdi.k8s.io", "resourceclaims/status"),
        rule("update", "core", "pods/finalizers"),
    ),
    "system:kube-controller-manager": (
        _EVENTS,
        rule("create", "coordination.k8s.io", "leases"),
        rule("get update", "coordination.k8s.io", "leases", names="kube-controller-manager"),
        rule("create", "core", "secrets serviceaccounts"),
        rule("delete", "core", "secrets"),
        rule("get", "core", "configmaps namespaces secrets serviceaccounts"),
        rule("update", "core", "secrets serviceaccounts"),
        *_REVIEWS,
        rule("list watch", "*", "*"),
        rule("create", "core", "serviceaccounts/token"),
        # The garbage collector and the quota controller use discovery.
        paths("get", "/api /api/* /apis /apis/* /version"),
    ),
    "system:node": NODE_RULES,
    # For the service account of a driver that allocates claims of cdi.k8s.io: claims and leader election.
    "dray:classic-driver": (
        rule(_READ, "cdi.k8s.io", "resourceclaims resourceclasses"),
        rule("patch update", "cdi.k8s.io", "resourceclaims resourceclaims/status"),
        rule(_READ, "core", "nodes"),
        rule("create get update", "coordination.k8s.io", "leases"),
        _EVENTS,
    ),
    "system:node-proxier": (
        rule("list watch", "core", "services endpoints"),
        rule(_READ, "core", "nodes"),
        _EVENTS,
        rule("list watch", "discovery.k8s.io", "endpointslices"),
        rule(_READ, "networking.k8s.io", "servicecidrs"),
    ),
    "system:node-bootstrapper": (rule("create get list watch", "certificates.k8s.io", "certificatesigningrequests"),),
    "system:certificates.k8s.io:certificatesigningrequests:nodeclient": (
        rule("create", "certificates.k8s.io", "certificatesigningrequests/nodeclient"),
    ),
    "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient": (
        rule("create", "certificates.k8s.io", "certificatesigningrequests/selfnodeclient"),
    ),
    **{
        f"system:certificates.k8s.io:{signer.removeprefix('kubernetes.io/')}-approver": (
            rule("approve", "certificates.k8s.io", "signers", names=signer),
        )
        for signer in (_API_CLIENT, _KUBELET_CLIENT, _KUBELET_SERVING, _LEGACY_UNKNOWN)
    },
    # For the API server's requests to nodes, whose kubelets ask it whether they are allowed.
    "system:kubelet-api-admin": (
        rule(_READ, "core", "nodes"),
        rule("proxy", "core", "nodes"),
        rule(
            "*",
            "core",
            "nodes/configz nodes/healthz nodes/log nodes/metrics nodes/pods nodes/proxy nodes/stats",
        ),
    ),
    # For components of other projects.
    "system:cluster-trust-bundle-discovery": (rule(_READ, "certificates.k8s.io", "clustertrustbundles"),),
    "system:heapster": (
        rule(_READ, "core", "events namespaces nodes pods"),
        rule(_READ, "extensions", "deployments"),
    ),
    "system:kube-aggregator": (rule(_READ, "core", "endpoints services"),),
    "system:kube-dns": (rule("list watch", "core", "endpoints services"),),
    "system:node-problem-detector": (
        rule("get", "core", "nodes"),
        rule("patch", "core", "nodes/status"),
        _EVENTS,
    ),
    "system:persistent-volume-provisioner": (
        rule("create delete get list watch", "core", "persistentvolumes"),
        rule("get list update watch", "core", "persistentvolumeclaims"),
        rule(_READ, "storage.k8s.io", "storageclasses"),
        rule("watch", "core", "events"),
        _EVENTS,
    ),
    "system:volume-scheduler": (
        rule("get list patch update watch", "core", "persistentvolumes persistentvolumeclaims"),
        rule(_READ, "storage.k8s.io", "storageclasses"),
    ),
    # For the service account of a device driver: its slices, and its own part of a claim's status.
    "dray:driver": (
        rule(_READ_WRITE, "resource.k8s.io", "resourceslices"),
        rule(_READ, "resource.k8s.io", "deviceclasses resourceclaims"),
        rule("patch update", "resource.k8s.io", "resourceclaims/status"),
        rule("associated-node:patch associated-node:update", "resource.k8s.io", "resourceclaims/driver"),
        rule("get", "core", "nodes"),
        rule("get", "core", "pods"),
        _EVENTS,
    ),
}

CONTROLLER_ROLES: Final[Mapping[str, tuple[Document, ...]]] = {
    "bootstrap-signer": (
        rule(_READ, "core", "secrets"),
        rule("get list watch update", "core", "configmaps"),
        _EVENTS,
    ),
    "certificate-controller": (
        rule("delete get list watch", "certificates.k8s.io", "certificatesigningrequests"),
        rule("update", "certificates.k8s.io", "certificatesigningrequests/approval certificatesigningrequests/status"),
        rule("approve", "certificates.k8s.io", "signers", names=f"{_KUBELET_CLIENT} {_KUBELET_SERVING}"),
        rule(
            "sign",
            "certificates.k8s.io",
            "signers",
            names=f"{_API_CLIENT} {_KUBELET_CLIENT} {_KUBELET_SERVING} {_LEGACY_UNKNOWN}",
        ),
        rule("create", "authorization.k8s.io", "subjectaccessreviews"),
        rule(_READ, "core", "nodes"),
        _EVENTS,
    ),
    "clusterrole-aggregation-controller": (
        rule("escalate get list patch update watch", "rbac.authorization.k8s.io", "clusterroles"),
    ),
    "cronjob-controller": (
        rule("get list update watch", "batch", "cronjobs"),
        rule("create delete get list patch update watch", "batch", "jobs"),
        rule("patch update", "batch", "cronjobs/status"),
        rule("update", "batch", "cronjobs/finalizers"),
        rule("delete list watch", "core", "pods"),
        _EVENTS,
    ),
    "daemon-set-controller": (
        rule(_READ, "apps", "daemonsets"),
        rule("patch update", "apps", "daemonsets/status"),
        rule("update", "apps", "daemonsets/finalizers"),
        rule("list watch", "core", "nodes"),
        rule("create delete list patch watch", "core", "pods"),
        rule("create", "core", "pods/binding"),
        rule("create delete get list patch update watch", "apps", "controllerrevisions"),
        _EVENTS,
    ),
    "deployment-controller": (
        rule("get list update watch", "apps", "deployments"),
        rule("patch update", "apps", "deployments/status"),
        rule("update", "apps", "deployments/finalizers"),
        rule("create delete get list patch update watch", "apps", "replicasets"),
        rule("get list update watch", "core", "pods"),
        _EVENTS,
    ),
    "device-taint-eviction-controller": (
        rule("delete get list watch", "core", "pods"),
        rule("patch update", "core", "pods/status"),
        rule(_READ, "resource.k8s.io", "deviceclasses devicetaintrules resourceclaims resourceslices"),
        rule("patch update", "resource.k8s.io", "devicetaintrules/status"),
        _EVENTS,
    ),
    "disruption-controller": (
        rule(_READ, "apps", "deployments replicasets statefulsets"),
        rule(_READ, "core", "pods replicationcontrollers"),
        rule(_READ, "policy", "poddisruptionbudgets"),
        rule("get", "*", "*/scale"),
        rule("update", "policy", "poddisruptionbudgets/status"),
        rule("patch update", "core", "pods/status"),
        _EVENTS,
    ),
    "endpoint-controller": (
        rule(_READ, "core", "pods services"),
        rule("create delete get list update watch", "core", "endpoints"),
        rule("create", "core", "endpoints/restricted"),
        _EVENTS,
    ),
    "endpointslice-controller": (
        rule(_READ, "core", "nodes pods services"),
        rule("update", "core", "services/finalizers"),
        rule("create delete get list update watch", "discovery.k8s.io", "endpointslices"),
        rule("create", "discovery.k8s.io", "endpointslices/restricted"),
        _EVENTS,
    ),
    "endpointslicemirroring-controller": (
        rule(_READ, "core", "endpoints services"),
        rule("update", "core", "endpoints/finalizers services/finalizers"),
        rule("create delete get list update watch", "discovery.k8s.io", "endpointslices"),
        rule("create", "discovery.k8s.io", "endpointslices/restricted"),
        _EVENTS,
    ),
    "generic-garbage-collector": (rule("delete get list patch update watch", "*", "*"), _EVENTS),
    "job-controller": (
        rule("get list patch update watch", "batch", "jobs"),
        rule("patch update", "batch", "jobs/status"),
        rule("update", "batch", "jobs/finalizers"),
        rule("create delete list patch watch", "core", "pods"),
        rule("create get list patch update watch", "scheduling.k8s.io", "podgroups workloads"),
        _EVENTS,
    ),
    "namespace-controller": (
        rule("delete get list watch", "core", "namespaces"),
        rule("update", "core", "namespaces/finalize namespaces/status"),
        rule("delete deletecollection get list watch", "*", "*"),
    ),
    "node-controller": (
        rule("delete get list patch update watch", "core", "nodes"),
        rule("patch update", "core", "nodes/status"),
        rule("patch update", "core", "pods/status"),
        rule("delete get list watch", "core", "pods"),
        rule(_READ, "coordination.k8s.io", "leases"),
        _EVENTS,
    ),
    "persistent-volume-binder": (
        rule("create delete get list update watch", "core", "persistentvolumes"),
        rule("get list update watch", "core", "persistentvolumeclaims"),
        rule(_READ, "core", "nodes"),
        # A recycler of Kubernetes' own controller is a Pod.
        rule("create delete get list watch", "core", "pods"),
        rule("watch", "core", "events"),
        rule("patch update", "core", "persistentvolumes/status persistentvolumeclaims/status"),
        rule(_READ, "storage.k8s.io", "storageclasses"),
        _EVENTS,
    ),
    "pvc-protection-controller": (
        rule("get list update watch", "core", "persistentvolumeclaims"),
        rule("update", "core", "persistentvolumeclaims/status"),
        rule(_READ, "core", "pods"),
        _EVENTS,
    ),
    "pv-protection-controller": (rule("get list update watch", "core", "persistentvolumes"), _EVENTS),
    "ephemeral-volume-controller": (
        rule("create get list watch", "core", "persistentvolumeclaims"),
        rule(_READ, "core", "pods"),
        rule("update", "core", "pods/finalizers"),
        _EVENTS,
    ),
    "pod-garbage-collector": (
        rule("delete list watch", "core", "pods"),
        rule(_READ, "core", "nodes"),
        rule("patch", "core", "pods/status"),
    ),
    "podgroup-protection-controller": (
        rule(_READ, "core", "pods"),
        rule("get list update watch", "scheduling.k8s.io", "podgroups"),
        _EVENTS,
    ),
    "replicaset-controller": (
        rule("get list update watch", "apps", "replicasets"),
        rule("patch update", "apps", "replicasets/status"),
        rule("update", "apps", "replicasets/finalizers"),
        rule("create delete list patch watch", "core", "pods"),
        _EVENTS,
    ),
    "replication-controller": (
        rule("get list update watch", "core", "replicationcontrollers"),
        rule("patch update", "core", "replicationcontrollers/status"),
        rule("update", "core", "replicationcontrollers/finalizers"),
        rule("create delete list patch watch", "core", "pods"),
        _EVENTS,
    ),
    "resource-claim-controller": (
        rule(_READ, "core", "pods"),
        rule("update", "core", "pods/finalizers"),
        rule(_READ, "resource.k8s.io", "resourceclaimtemplates"),
        rule("create delete get list watch", "resource.k8s.io", "resourceclaims"),
        rule("patch update", "resource.k8s.io", "resourceclaims resourceclaims/status"),
        rule("patch update", "core", "pods/status"),
        _EVENTS,
        rule("patch update", "resource.k8s.io", "resourceclaims/binding"),
        rule(_READ, "core", "nodes"),
        rule("create delete get list watch", "cdi.k8s.io", "resourceclaims"),
        rule("patch update", "cdi.k8s.io", "resourceclaims/status"),
        rule(_READ, "scheduling.k8s.io", "podgroups"),
        rule("update", "scheduling.k8s.io", "podgroups/finalizers"),
        rule("patch update", "scheduling.k8s.io", "podgroups/status"),
    ),
    "resourcepoolstatusrequest-controller": (
        rule("delete get list watch", "resource.k8s.io", "resourcepoolstatusrequests"),
        rule("patch update", "resource.k8s.io", "resourcepoolstatusrequests/status"),
        rule(_READ, "resource.k8s.io", "devicetaintrules resourceclaims resourceslices"),
        _EVENTS,
    ),
    "resourcequota-controller": (
        rule("list watch", "*", "*"),
        rule("update", "core", "resourcequotas/status"),
        _EVENTS,
    ),
    "root-ca-cert-publisher": (rule("create update", "core", "configmaps"), _EVENTS),
    "service-account-controller": (rule("create", "core", "serviceaccounts"), _EVENTS),
    "statefulset-controller": (
        rule(_READ, "core", "pods"),
        rule(_READ, "apps", "statefulsets"),
        rule("update", "apps", "statefulsets/status"),
        rule("update", "apps", "statefulsets/finalizers"),
        rule("create delete get patch update", "core", "pods"),
        rule("update", "core", "pods/finalizers"),
        rule("create delete get list patch update watch", "apps", "controllerrevisions"),
        rule("create delete get list patch update watch", "core", "persistentvolumeclaims"),
        _EVENTS,
    ),
    "token-cleaner": (rule("delete get list watch", "core", "secrets"), _EVENTS),
    "ttl-after-finished-controller": (rule("delete get list watch", "batch", "jobs"), _EVENTS),
    # Controllers of Kubernetes' kube-controller-manager that have no counterpart here.
    "attachdetach-controller": (
        rule("list watch", "core", "persistentvolumeclaims persistentvolumes pods"),
        rule(_READ, "core", "nodes"),
        rule("patch update", "core", "nodes/status"),
        rule("create delete get list watch", "storage.k8s.io", "volumeattachments"),
        rule(_READ, "storage.k8s.io", "csidrivers csinodes"),
        _EVENTS,
    ),
    "expand-controller": (
        rule("get list patch update watch", "core", "persistentvolumes"),
        rule("patch update", "core", "persistentvolumeclaims/status"),
        rule(_READ, "core", "persistentvolumeclaims"),
        _EVENTS,
    ),
    "horizontal-pod-autoscaler": (
        rule(_READ, "autoscaling", "horizontalpodautoscalers"),
        rule("update", "autoscaling", "horizontalpodautoscalers/status"),
        rule("get update", "*", "*/scale"),
        rule("list watch", "core", "pods"),
        rule("list watch", "metrics.k8s.io", "pods"),
        rule(_READ, "custom.metrics.k8s.io", "*"),
        rule(_READ, "external.metrics.k8s.io", "*"),
        _EVENTS,
    ),
    "kube-apiserver-serving-clustertrustbundle-publisher": (
        rule("attest", "certificates.k8s.io", "signers", names="kubernetes.io/kube-apiserver-serving"),
        rule("create delete list update watch", "certificates.k8s.io", "clustertrustbundles"),
        _EVENTS,
    ),
    "legacy-service-account-token-cleaner": (
        rule("get", "core", "configmaps", names="kube-apiserver-legacy-service-account-token-tracking"),
        rule("delete patch", "core", "secrets"),
    ),
    "podcertificaterequestcleaner": (rule("delete get list watch", "certificates.k8s.io", "podcertificaterequests"),),
    "route-controller": (
        rule("list watch", "core", "nodes"),
        rule("patch", "core", "nodes/status"),
        _EVENTS,
    ),
    "selinux-warning-controller": (
        rule(_READ, "core", "persistentvolumeclaims persistentvolumes pods"),
        rule(_READ, "storage.k8s.io", "csidrivers"),
        _EVENTS,
    ),
    "service-cidrs-controller": (
        rule("get list patch update watch", "networking.k8s.io", "servicecidrs"),
        rule("patch update", "networking.k8s.io", "servicecidrs/finalizers servicecidrs/status"),
        rule(_READ, "networking.k8s.io", "ipaddresses"),
        _EVENTS,
    ),
    "service-controller": (
        rule(_READ, "core", "services"),
        rule("patch update", "core", "services/status"),
        rule("list watch", "core", "nodes"),
        _EVENTS,
    ),
    "storage-version-migrator-controller": (
        rule("list patch", "*", "*"),
        rule("get", "apiextensions.k8s.io", "customresourcedefinitions"),
        rule("patch", "apiextensions.k8s.io", "customresourcedefinitions/status"),
        rule("update", "storagemigration.k8s.io", "storageversionmigrations/status"),
    ),
    "ttl-controller": (rule("list patch update watch", "core", "nodes"), _EVENTS),
    "validatingadmissionpolicy-status-controller": (
        rule(_READ, "admissionregistration.k8s.io", "validatingadmissionpolicies"),
        rule("get patch update", "admissionregistration.k8s.io", "validatingadmissionpolicies/status"),
        _EVENTS,
    ),
    "volumeattributesclass-protection-controller": (
        rule(_READ, "core", "persistentvolumeclaims persistentvolumes"),
        rule("get list update watch", "storage.k8s.io", "volumeattributesclasses"),
        _EVENTS,
    ),
}

_LEADER_ELECTION: Final = (
    rule("create get list update watch", "coordination.k8s.io", "leases"),
    rule("create get list update watch", "coordination.k8s.io", "leasecandidates"),
)

# Roles by namespace and name.
ROLES: Final[Mapping[tuple[str, str], tuple[Document, ...]]] = {
    ("kube-public", "system:controller:bootstrap-signer"): (
        rule(_READ, "core", "configmaps"),
        rule("update", "core", "configmaps", names="cluster-info"),
        _EVENTS,
    ),
    ("kube-system", "extension-apiserver-authentication-reader"): (
        rule(_READ, "core", "configmaps", names="extension-apiserver-authentication"),
    ),
    ("kube-system", "system::leader-locking-kube-controller-manager"): _LEADER_ELECTION,
    ("kube-system", "system::leader-locking-kube-scheduler"): _LEADER_ELECTION,
    ("kube-system", "system:controller:bootstrap-signer"): (rule(_READ, "core", "secrets"),),
    ("kube-system", "system:controller:cloud-provider"): (rule("create get list watch", "core", "configmaps"),),
    ("kube-system", "system:controller:token-cleaner"): (rule("delete get list watch", "core", "secrets"), _EVENTS),
}

# Role bindings by namespace and name: the role, and its subjects; service accounts are those of kube-system.
ROLE_BINDINGS: Final[Mapping[tuple[str, str], tuple[str, tuple[tuple[str, str], ...]]]] = {
    ("kube-public", "system:controller:bootstrap-signer"): (
        "system:controller:bootstrap-signer",
        (("ServiceAccount", "bootstrap-signer"),),
    ),
    ("kube-system", "system::extension-apiserver-authentication-reader"): (
        "extension-apiserver-authentication-reader",
        (("User", "system:kube-controller-manager"), ("User", "system:kube-scheduler")),
    ),
    ("kube-system", "system::leader-locking-kube-controller-manager"): (
        "system::leader-locking-kube-controller-manager",
        (
            ("User", "system:kube-controller-manager"),
            ("ServiceAccount", "kube-controller-manager"),
            ("ServiceAccount", "leader-election-controller"),
        ),
    ),
    ("kube-system", "system::leader-locking-kube-scheduler"): (
        "system::leader-locking-kube-scheduler",
        (("User", "system:kube-scheduler"), ("ServiceAccount", "kube-scheduler")),
    ),
    ("kube-system", "system:controller:bootstrap-signer"): (
        "system:controller:bootstrap-signer",
        (("ServiceAccount", "bootstrap-signer"),),
    ),
    ("kube-system", "system:controller:cloud-provider"): (
        "system:controller:cloud-provider",
        (("ServiceAccount", "cloud-provider"),),
    ),
    ("kube-system", "system:controller:token-cleaner"): (
        "system:controller:token-cleaner",
        (("ServiceAccount", "token-cleaner"),),
    ),
}

# Cluster role bindings: the role, whose name the binding has, and its subjects; service accounts are those of
# kube-system.
BINDINGS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "cluster-admin": (("Group", "system:masters"),),
    "system:node-bootstrapper": (("Group", NODE_GROUP),),
    "system:certificates.k8s.io:certificatesigningrequests:nodeclient": (("Group", NODE_GROUP),),
    "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient": (("Group", "system:nodes"),),
    "system:basic-user": (("Group", "system:authenticated"),),
    "system:discovery": (("Group", "system:authenticated"),),
    "system:public-info-viewer": (("Group", "system:authenticated"), ("Group", "system:unauthenticated")),
    "system:monitoring": (("Group", "system:monitoring"),),
    "system:service-account-issuer-discovery": (("Group", "system:serviceaccounts"),),
    "system:node-proxier": (("User", "system:kube-proxy"),),
    "system:kube-scheduler": (("User", "system:kube-scheduler"),),
    "system:kube-controller-manager": (("User", "system:kube-controller-manager"),),
    "system:volume-scheduler": (("User", "system:kube-scheduler"),),
    "system:cluster-trust-bundle-discovery": (("Group", "system:serviceaccounts"),),
    "system:kube-dns": (("ServiceAccount", "kube-dns"),),
    # The certificate of the API server for requests to nodes.
    "system:kubelet-api-admin": (("User", "kube-apiserver-kubelet-client"),),
    # Nodes have their own authorizer.
    "system:node": (),
}
