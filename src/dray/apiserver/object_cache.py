"""The cached objects that requests depend on: namespaces, roles, quotas, nodes and the like. Pure.

The reflector calls `apply` for every event of the store. Everything here is an index, so that no request looks at
more objects than it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeVar

from dray.api import bootstrap_tokens
from dray.api.codec import from_document
from dray.api.document import Document, GroupResource, NamespacedName, key_of
from dray.api.quota.names import ClassNames
from dray.api.types.resource_v1 import DeviceClass
from dray.apiserver.authorization.node_index import NodeIndex
from dray.apiserver.authorization.rbac import RBACIndex
from dray.apiserver.device_ledger import DeviceLedger, label_of, uses_of

DefinitionListener = Callable[[str, Document | None], None]
# Observes the newest state of an object of a resource, which it has since a revision; None if it was deleted.
AdmissionListener = Callable[[GroupResource, str, Document | None, int], None]


class ServiceListener(Protocol):
    """Observes Services."""

    def __call__(self, service: Document, /, *, deleted: bool) -> None:
        """Observe the newest state of a Service."""


def _ignore_service(_service: Document, *, deleted: bool) -> None:
    """Observe nothing."""


_Key = TypeVar("_Key")

NAMESPACES: Final = GroupResource("", "namespaces")
PODS: Final = GroupResource("", "pods")
NODES: Final = GroupResource("", "nodes")
SLICES: Final = GroupResource("resource.k8s.io", "resourceslices")
CLAIMS: Final = GroupResource("resource.k8s.io", "resourceclaims")
SECRETS: Final = GroupResource("", "secrets")
VOLUMES: Final = GroupResource("", "persistentvolumes")
SERVICE_ACCOUNTS: Final = GroupResource("", "serviceaccounts")
PRIORITY_CLASSES: Final = GroupResource("scheduling.k8s.io", "priorityclasses")
QUOTAS: Final = GroupResource("", "resourcequotas")
SERVICES: Final = GroupResource("", "services")
LIMIT_RANGES: Final = GroupResource("", "limitranges")
STORAGE_CLASSES: Final = GroupResource("storage.k8s.io", "storageclasses")
RUNTIME_CLASSES: Final = GroupResource("node.k8s.io", "runtimeclasses")
DEVICE_CLASSES: Final = GroupResource("resource.k8s.io", "deviceclasses")
DEFINITIONS: Final = GroupResource("apiextensions.k8s.io", "customresourcedefinitions")
RBAC_GROUP: Final = "rbac.authorization.k8s.io"
ADMISSION_GROUP: Final = "admissionregistration.k8s.io"
ADMISSION_RESOURCES: Final = tuple(
    GroupResource(ADMISSION_GROUP, resource)
    for resource in (
        "mutatingwebhookconfigurations",
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
        "validatingwebhookconfigurations",
    )
)
_RBAC_RESOURCES: Final[Mapping[str, str]] = {
    "roles": "Role",
    "rolebindings": "RoleBinding",
    "clusterroles": "ClusterRole",
    "clusterrolebindings": "ClusterRoleBinding",
}

# Resources that the reflector keeps current.
CACHED_RESOURCES: Final = (
    NAMESPACES,
    PODS,
    NODES,
    SLICES,
    VOLUMES,
    CLAIMS,
    SECRETS,
    SERVICE_ACCOUNTS,
    PRIORITY_CLASSES,
    QUOTAS,
    LIMIT_RANGES,
    RUNTIME_CLASSES,
    STORAGE_CLASSES,
    SERVICES,
    DEVICE_CLASSES,
    DEFINITIONS,
    *ADMISSION_RESOURCES,
    *(GroupResource(RBAC_GROUP, resource) for resource in _RBAC_RESOURCES),
)


_NODE_RELATED: Final = frozenset({NODES, SLICES, VOLUMES})
_QUOTA_RELATED: Final = frozenset({QUOTAS, DEVICE_CLASSES, LIMIT_RANGES})
# Cluster-scoped objects that are cached as they are, and the attribute of the cache.
_BY_NAME: Final = {
    NAMESPACES: "namespaces",
    PRIORITY_CLASSES: "priority_classes",
    RUNTIME_CLASSES: "runtime_classes",
    STORAGE_CLASSES: "storage_classes",
}
# The labels that Pods inherit from their node.
TOPOLOGY_LABELS: Final = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")


class ObjectCache:
    """The newest known state of the objects that requests depend on; changed only by `apply`.

    `on_definition` is called for every custom resource definition that is added, changed or (with None) deleted,
    `on_service` for every Service, `on_admission` for every policy, binding and webhook configuration.
    """

    def __init__(
        self,
        on_definition: DefinitionListener = lambda _name, _definition: None,
        on_service: ServiceListener = _ignore_service,
        on_admission: AdmissionListener = lambda _resource, _name, _document, _revision: None,
    ) -> None:
        self._on_admission = on_admission
        self._on_definition = on_definition
        self._on_service = on_service
        self.namespaces: dict[str, Document] = {}
        self.service_accounts: dict[NamespacedName, Document] = {}
        self.priority_classes: dict[str, Document] = {}
        self.runtime_classes: dict[str, Document] = {}
        self.storage_classes: dict[str, Document] = {}
        # By node; a node without topology labels has no entry.
        self.node_topology: dict[str, dict[str, str]] = {}
        # Tokens may be bound to secrets; only their uids are cached.
        self.secret_uids: dict[NamespacedName, str] = {}
        # By their id.
        self.bootstrap_tokens: dict[str, bootstrap_tokens.StoredToken] = {}
        # By namespace and name; a namespace without quotas has no entry.
        self.quotas: dict[str, dict[str, Document]] = {}
        self.limit_ranges: dict[str, dict[str, Document]] = {}
        # Extended resources and the device classes that serve them.
        self.class_names = ClassNames()
        self._device_classes: dict[str, DeviceClass] = {}
        self.rbac = RBACIndex()
        self.nodes = NodeIndex()
        # Which claim holds which device.
        self.devices = DeviceLedger()

    def apply(self, resource: GroupResource, document: Document, *, deleted: bool, revision: int = 0) -> None:
        """Apply the newest state of one object, which it has since the revision."""
        if resource == CLAIMS:
            self._apply_claim(document, deleted=deleted, revision=revision)
            return
        if resource == PODS:
            self.nodes.remove_pod(key_of(document)) if deleted else self.nodes.apply_pod(document)
            return
        key = key_of(document)
        if resource in _NODE_RELATED:
            self._apply_node_related(resource, key, document, deleted=deleted)
        elif resource in _QUOTA_RELATED:
            self._apply_quota_related(resource, key, document, deleted=deleted)
        elif resource.group == RBAC_GROUP:
            self._apply_rbac(_RBAC_RESOURCES[resource.resource], key, document, deleted=deleted)
        elif resource == DEFINITIONS or resource.group == ADMISSION_GROUP:
            self._notify(resource, key.name, None if deleted else document, revision)
        elif resource == SERVICE_ACCOUNTS:
            _set(self.service_accounts, key, document, deleted=deleted)
        elif resource == SERVICES:
            self._on_service(document, deleted=deleted)
        elif resource in _BY_NAME:
            index: dict[str, Document] = getattr(self, _BY_NAME[resource])
            _set(index, key.name, document, deleted=deleted)
        else:
            self._apply_secret(key, document, deleted=deleted)

    def _apply_claim(self, document: Document, *, deleted: bool, revision: int) -> None:
        claim = label_of(document)
        if deleted:
            self.devices.observe(claim, (), revision, deleted=True)
        elif not self.devices.is_observed(claim, revision):
            # Otherwise this server has made the write, and recorded it when it was done.
            self.devices.observe(claim, uses_of(document), revision)

    def _apply_secret(self, key: NamespacedName, document: Document, *, deleted: bool) -> None:
        if deleted:
            self.secret_uids.pop(key, None)
        else:
            self.secret_uids[key] = document["metadata"]["uid"]
        if key.namespace == bootstrap_tokens.NAMESPACE and key.name.startswith(bootstrap_tokens.NAME_PREFIX):
            token = None if deleted else bootstrap_tokens.read_secret(document)
            identifier = key.name.removeprefix(bootstrap_tokens.NAME_PREFIX)
            if token is None:
                self.bootstrap_tokens.pop(identifier, None)
            else:
                self.bootstrap_tokens[identifier] = token

    def _notify(self, resource: GroupResource, name: str, document: Document | None, revision: int) -> None:
        if resource == DEFINITIONS:
            self._on_definition(name, document)
        else:
            self._on_admission(resource, name, document, revision)

    def progressed(self, resource: GroupResource, revision: int) -> None:
        """Record that all objects of a resource have been applied up to the revision."""
        if resource == CLAIMS:
            self.devices.progressed(revision)

    def _apply_node_related(
        self, resource: GroupResource, key: NamespacedName, document: Document, *, deleted: bool
    ) -> None:
        index = self.nodes
        if resource == NODES:
            index.remove_node(key.name) if deleted else index.apply_node(document)
            labels = {} if deleted else document["metadata"].get("labels") or {}
            topology = {name: labels[name] for name in TOPOLOGY_LABELS if name in labels}
            if topology:
                self.node_topology[key.name] = topology
            else:
                self.node_topology.pop(key.name, None)
        elif resource == VOLUMES:
            index.remove_volume(key.name) if deleted else index.apply_volume(document)
        elif deleted:
            index.remove_slice(key.name)
            self.devices.remove_slice(key.name)
        else:
            index.apply_slice(document)
            self.devices.apply_slice(document)

    def _apply_quota_related(
        self, resource: GroupResource, key: NamespacedName, document: Document, *, deleted: bool
    ) -> None:
        if resource in (QUOTAS, LIMIT_RANGES):
            index = self.quotas if resource == QUOTAS else self.limit_ranges
            objects = index.setdefault(key.namespace, {})
            _set(objects, key.name, document, deleted=deleted)
            if not objects:
                del index[key.namespace]
            return
        if deleted:
            self._device_classes.pop(key.name, None)
        else:
            self._device_classes[key.name] = from_document(DeviceClass, document)
        self.class_names = ClassNames.of(self._device_classes.values())

    def _apply_rbac(self, kind: str, key: NamespacedName, document: Document, *, deleted: bool) -> None:
        if deleted:
            self.rbac.remove(kind, key)
        else:
            self.rbac.apply(document)


def _set(index: dict[_Key, Document], key: _Key, document: Document, *, deleted: bool) -> None:
    if deleted:
        index.pop(key, None)
    else:
        index[key] = document


class TokenLookup:
    """Finds the objects that service account tokens are bound to, as far as a check of the token needs them."""

    def __init__(self, cache: ObjectCache) -> None:
        self._cache = cache

    def __call__(self, resource: str, key: NamespacedName) -> Document | None:
        """Return the object, or its metadata with the uid."""
        if resource == "serviceaccounts":
            return self._cache.service_accounts.get(key)
        uid = self._uid(resource, key)
        return None if uid is None else {"metadata": {"namespace": key.namespace, "name": key.name, "uid": uid}}

    def _uid(self, resource: str, key: NamespacedName) -> str | None:
        if resource == "pods":
            pod = self._cache.nodes.pod(key)
            return None if pod is None else pod.uid
        if resource == "nodes":
            return self._cache.nodes.node_uid(key.name)
        return self._cache.secret_uids.get(key)
