"""The resources that components read and write, each once, with the Python type of its objects.

`PODS.unstructured` is the same resource with plain documents as objects. Resources of kinds without a Python type are
documents from the start.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from dray.api.document import Document, GroupVersion
from dray.api.types import cdi_v1alpha1
from dray.api.types.apps_v1 import ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet
from dray.api.types.batch_v1 import CronJob, Job
from dray.api.types.coordination_v1 import Lease
from dray.api.types.core_v1 import ConfigMap, Node, Pod, ReplicationController, ResourceQuota, Secret
from dray.api.types.policy_v1 import PodDisruptionBudget
from dray.api.types.resource_v1 import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from dray.api.types.scheduling_v1beta1 import PodGroup, Workload
from dray.client.interface import Resource, unstructured

# v1
CONFIG_MAPS: Final[Resource[ConfigMap]] = Resource("", "v1", "configmaps", "ConfigMap", ConfigMap)
EVENTS: Final[Resource[Document]] = unstructured(GroupVersion("", "v1"), "events", "Event")
NAMESPACES: Final[Resource[Document]] = unstructured(
    GroupVersion("", "v1"), "namespaces", "Namespace", namespaced=False
)
NODES: Final[Resource[Node]] = Resource("", "v1", "nodes", "Node", Node, namespaced=False)
PODS: Final[Resource[Pod]] = Resource("", "v1", "pods", "Pod", Pod)
RESOURCE_QUOTAS: Final[Resource[ResourceQuota]] = Resource("", "v1", "resourcequotas", "ResourceQuota", ResourceQuota)
SECRETS: Final[Resource[Secret]] = Resource("", "v1", "secrets", "Secret", Secret)
PERSISTENT_VOLUMES: Final[Resource[Document]] = unstructured(
    GroupVersion("", "v1"), "persistentvolumes", "PersistentVolume", namespaced=False
)
PERSISTENT_VOLUME_CLAIMS: Final[Resource[Document]] = unstructured(
    GroupVersion("", "v1"), "persistentvolumeclaims", "PersistentVolumeClaim"
)
STORAGE_CLASSES: Final[Resource[Document]] = unstructured(
    GroupVersion("storage.k8s.io", "v1"), "storageclasses", "StorageClass", namespaced=False
)
REPLICATION_CONTROLLERS: Final[Resource[ReplicationController]] = Resource(
    "", "v1", "replicationcontrollers", "ReplicationController", ReplicationController
)
ENDPOINTS: Final[Resource[Document]] = unstructured(GroupVersion("", "v1"), "endpoints", "Endpoints")
SERVICES: Final[Resource[Document]] = unstructured(GroupVersion("", "v1"), "services", "Service")
SERVICE_ACCOUNTS: Final[Resource[Document]] = unstructured(GroupVersion("", "v1"), "serviceaccounts", "ServiceAccount")

# apps/v1
CONTROLLER_REVISIONS: Final[Resource[ControllerRevision]] = Resource(
    "apps", "v1", "controllerrevisions", "ControllerRevision", ControllerRevision
)
DAEMON_SETS: Final[Resource[DaemonSet]] = Resource("apps", "v1", "daemonsets", "DaemonSet", DaemonSet)
DEPLOYMENTS: Final[Resource[Deployment]] = Resource("apps", "v1", "deployments", "Deployment", Deployment)
REPLICA_SETS: Final[Resource[ReplicaSet]] = Resource("apps", "v1", "replicasets", "ReplicaSet", ReplicaSet)
STATEFUL_SETS: Final[Resource[StatefulSet]] = Resource("apps", "v1", "statefulsets", "StatefulSet", StatefulSet)

# batch/v1
CRON_JOBS: Final[Resource[CronJob]] = Resource("batch", "v1", "cronjobs", "CronJob", CronJob)
JOBS: Final[Resource[Job]] = Resource("batch", "v1", "jobs", "Job", Job)

# coordination.k8s.io/v1
LEASES: Final[Resource[Lease]] = Resource("coordination.k8s.io", "v1", "leases", "Lease", Lease)

# discovery.k8s.io/v1
ENDPOINT_SLICES: Final[Resource[Document]] = unstructured(
    GroupVersion("discovery.k8s.io", "v1"), "endpointslices", "EndpointSlice"
)

# networking.k8s.io/v1
SERVICE_CIDRS: Final[Resource[Document]] = unstructured(
    GroupVersion("networking.k8s.io", "v1"), "servicecidrs", "ServiceCIDR", namespaced=False
)

# policy/v1
POD_DISRUPTION_BUDGETS: Final[Resource[PodDisruptionBudget]] = Resource(
    "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", PodDisruptionBudget
)

# scheduling.k8s.io/v1beta1
POD_GROUPS: Final[Resource[PodGroup]] = Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup", PodGroup)
WORKLOADS: Final[Resource[Workload]] = Resource("scheduling.k8s.io", "v1beta1", "workloads", "Workload", Workload)

# scheduling.k8s.io/v1
PRIORITY_CLASSES: Final[Resource[Document]] = unstructured(
    GroupVersion("scheduling.k8s.io", "v1"), "priorityclasses", "PriorityClass", namespaced=False
)

# authentication.k8s.io/v1
SELF_SUBJECT_REVIEWS: Final[Resource[Document]] = unstructured(
    GroupVersion("authentication.k8s.io", "v1"), "selfsubjectreviews", "SelfSubjectReview", namespaced=False
)

TOKEN_REVIEWS: Final[Resource[Document]] = unstructured(
    GroupVersion("authentication.k8s.io", "v1"), "tokenreviews", "TokenReview", namespaced=False
)

# authorization.k8s.io/v1
SUBJECT_ACCESS_REVIEWS: Final[Resource[Document]] = unstructured(
    GroupVersion("authorization.k8s.io", "v1"), "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)

# certificates.k8s.io/v1
CERTIFICATE_SIGNING_REQUESTS: Final[Resource[Document]] = unstructured(
    GroupVersion("certificates.k8s.io", "v1"),
    "certificatesigningrequests",
    "CertificateSigningRequest",
    namespaced=False,
)

# rbac.authorization.k8s.io/v1
CLUSTER_ROLES: Final[Resource[Document]] = unstructured(
    GroupVersion("rbac.authorization.k8s.io", "v1"), "clusterroles", "ClusterRole", namespaced=False
)
CLUSTER_ROLE_BINDINGS: Final[Resource[Document]] = unstructured(
    GroupVersion("rbac.authorization.k8s.io", "v1"), "clusterrolebindings", "ClusterRoleBinding", namespaced=False
)

# resource.k8s.io
DEVICE_CLASSES: Final[Resource[DeviceClass]] = Resource(
    "resource.k8s.io", "v1", "deviceclasses", "DeviceClass", DeviceClass, namespaced=False
)
DEVICE_TAINT_RULES: Final[Resource[Document]] = unstructured(
    GroupVersion("resource.k8s.io", "v1"), "devicetaintrules", "DeviceTaintRule", namespaced=False
)
RESOURCE_CLAIMS: Final[Resource[ResourceClaim]] = Resource(
    "resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", ResourceClaim
)
RESOURCE_CLAIM_TEMPLATES: Final[Resource[ResourceClaimTemplate]] = Resource(
    "resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", ResourceClaimTemplate
)
RESOURCE_POOL_STATUS_REQUESTS: Final[Resource[Document]] = unstructured(
    GroupVersion("resource.k8s.io", "v1alpha3"),
    "resourcepoolstatusrequests",
    "ResourcePoolStatusRequest",
    namespaced=False,
)
RESOURCE_SLICES: Final[Resource[ResourceSlice]] = Resource(
    "resource.k8s.io", "v1", "resourceslices", "ResourceSlice", ResourceSlice, namespaced=False
)

# cdi.k8s.io, classic DRA
CLASSIC_CLAIMS: Final[Resource[cdi_v1alpha1.ResourceClaim]] = Resource(
    "cdi.k8s.io", "v1alpha1", "resourceclaims", "ResourceClaim", cdi_v1alpha1.ResourceClaim
)
CLASSIC_CLASSES: Final[Resource[cdi_v1alpha1.ResourceClass]] = Resource(
    "cdi.k8s.io", "v1alpha1", "resourceclasses", "ResourceClass", cdi_v1alpha1.ResourceClass, namespaced=False
)


class FieldManager(StrEnum):
    """The names under which components own the fields they write."""

    CLUSTER_ROLE_AGGREGATION = "clusterrole-aggregation-controller"
    DEVICE_TAINT_EVICTION = "device-taint-eviction-controller"
    RESOURCE_CLAIM = "ResourceClaimController"
    TESTING = "dray-test"
    DEMO = "dray-demo"
